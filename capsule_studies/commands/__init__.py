"""The commands of this package; see ``capsule_lab.commands``."""
