"""Attacks and shifts of images for trained networks, and the checks that say whether an attack can be believed."""

from capsule_lab.attacks.affine import rotation, scaling, shear, translation
from capsule_lab.attacks.corruptions import corruption
from capsule_lab.attacks.gradient import UNIT, Box, bim, fgsm, pgd, random_signs
from capsule_lab.attacks.losses import cross_entropy, dlr, margin
from capsule_lab.attacks.square import square

__all__ = [
    "UNIT", "Box", "bim", "corruption", "cross_entropy", "dlr", "fgsm", "margin", "pgd", "random_signs", "rotation",
    "scaling", "shear", "square", "translation",
]  # fmt: skip
