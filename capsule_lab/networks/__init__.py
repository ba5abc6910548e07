"""Architectures as plain ``nn.Module``s, readable top to bottom."""

from capsule_lab.networks.base import AbstractCapsuleNetwork, AbstractNetwork, Reconstructs, reconstructs
from capsule_lab.networks.capsnet import CapsNet
from capsule_lab.networks.cnn import BaselineCNN, SmallCNN
from capsule_lab.networks.em_caps import EMCaps
from capsule_lab.networks.inverted_attention_caps import InvertedAttentionCaps

__all__ = [
    "AbstractCapsuleNetwork",
    "AbstractNetwork",
    "BaselineCNN",
    "CapsNet",
    "EMCaps",
    "InvertedAttentionCaps",
    "Reconstructs",
    "SmallCNN",
    "reconstructs",
]
