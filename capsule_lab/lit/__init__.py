"""LightningModules: one loop, one short wrapper per architecture."""

from capsule_lab.lit.base import AbstractCapsuleModule
from capsule_lab.lit.capsnet import CapsNetModule
from capsule_lab.lit.classifier import ClassifierModule

__all__ = ["AbstractCapsuleModule", "CapsNetModule", "ClassifierModule"]
