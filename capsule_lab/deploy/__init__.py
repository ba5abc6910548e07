"""Uses of a trained network: predictions for pictures, and export for other programs."""
