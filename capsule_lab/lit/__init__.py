"""LightningModules: one training loop, and a short subclass per task."""

from capsule_lab.lit.base import AbstractModule
from capsule_lab.lit.capsnet import CapsNetModule
from capsule_lab.lit.classification import AbstractClassifierModule, ClassifierModule
from capsule_lab.lit.pairs import PairsModule

__all__ = [
    "AbstractClassifierModule",
    "AbstractModule",
    "CapsNetModule",
    "ClassifierModule",
    "PairsModule",
]
