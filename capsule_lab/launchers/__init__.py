"""Where the jobs of a sweep run: side by side on this machine's GPUs, or on a SLURM cluster."""
