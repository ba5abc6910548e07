"""Tools for inspecting networks: traces of their routing, figures and curves."""
