"""Access to the operating system: files, signals, environment, terminal and SLURM; and to torch's internals."""
