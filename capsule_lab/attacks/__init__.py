"""Attacks on trained networks, and the checks that say whether one can be believed."""

from capsule_lab.attacks.gradient import UNIT, Box, bim, fgsm, pgd, random_signs
from capsule_lab.attacks.losses import cross_entropy, dlr, margin
from capsule_lab.attacks.square import square

__all__ = ["UNIT", "Box", "bim", "cross_entropy", "dlr", "fgsm", "margin", "pgd", "random_signs", "square"]
