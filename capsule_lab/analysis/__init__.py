"""Questions to a trained network: one file each."""
