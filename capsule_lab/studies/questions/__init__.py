"""Questions about a network, ``python -m capsule_lab analyse what=…``, one file each; see ``subject.question``."""
