"""Composing, checking and building configurations."""
