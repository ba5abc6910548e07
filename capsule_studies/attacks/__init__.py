"""Attacks on and shifts of the images of trained networks, and checks of whether an attack is reliable."""
