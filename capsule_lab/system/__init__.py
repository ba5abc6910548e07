"""Files, signals, environment and SLURM: what commands need of the operating system."""
