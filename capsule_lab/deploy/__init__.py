"""Trained networks outside of training: predictions for pictures, and files for other programs."""
