"""What every run may use to look into a network: traces of its routing, figures and curves."""
