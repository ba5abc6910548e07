"""Capsule layers that work in any PyTorch project."""

from capsule_lab.layers.classes import ClassCapsules, CoordinateClassCapsules
from capsule_lab.layers.conv import ConvCapsules, ConvStack
from capsule_lab.layers.decoder import Decoder
from capsule_lab.layers.dense import DenseCapsules, UntransformedCapsules
from capsule_lab.layers.normalisers import build_normaliser
from capsule_lab.layers.primary import (
    ComposedPrimaryCapsules,
    DepthwisePrimaryCapsules,
    LinearPrimaryCapsules,
    PrimaryCapsules,
)
from capsule_lab.layers.stem import Stem
from capsule_lab.layers.trunk import Trunk
from capsule_lab.layers.windows import Windows

__all__ = [
    "ClassCapsules",
    "ComposedPrimaryCapsules",
    "ConvCapsules",
    "ConvStack",
    "CoordinateClassCapsules",
    "Decoder",
    "DenseCapsules",
    "DepthwisePrimaryCapsules",
    "LinearPrimaryCapsules",
    "PrimaryCapsules",
    "Stem",
    "Trunk",
    "UntransformedCapsules",
    "Windows",
    "build_normaliser",
]
