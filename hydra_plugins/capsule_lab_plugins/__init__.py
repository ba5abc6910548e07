"""What capsule_lab adds to Hydra: a sweeper for tables, launchers for GPUs and SLURM. Hydra looks for plugins here."""
