"""What to do with a trained network: predict pictures, and export it for other programs."""
