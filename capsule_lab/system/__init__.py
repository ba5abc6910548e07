"""Access to the operating system: files, signals, environment, terminal and SLURM."""
