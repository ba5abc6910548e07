"""Capsule layers as plain ``nn.Module``s, for any PyTorch project."""

from capsule_lab.layers.decoder import Decoder
from capsule_lab.layers.dense import DenseCapsules
from capsule_lab.layers.primary import PrimaryCapsules

__all__ = ["Decoder", "DenseCapsules", "PrimaryCapsules"]
