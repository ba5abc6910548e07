"""LightningModules: one loop, one short wrapper per architecture."""

from capsule_lab.lit.base import AbstractCapsuleModule
from capsule_lab.lit.capsnet import CapsNetModule
from capsule_lab.lit.cnn import CNNModule

__all__ = ["AbstractCapsuleModule", "CNNModule", "CapsNetModule"]
