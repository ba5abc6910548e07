"""Attacks and shifts of images for trained networks, and the checks that say whether an attack can be believed."""
