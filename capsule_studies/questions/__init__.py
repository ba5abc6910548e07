"""Questions about a network, ``capsule-lab analyse what=…``, one file each; see ``subject.question``."""
