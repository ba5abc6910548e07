"""Architectures as plain ``nn.Module``s, readable top to bottom."""

from capsule_lab.networks.base import AbstractCapsuleNetwork, AbstractNetwork, Reconstructs, reconstructs
from capsule_lab.networks.capsnet import CapsNet
from capsule_lab.networks.cnn import BaselineCNN, SmallCNN
from capsule_lab.networks.em_caps import EMCaps
from capsule_lab.networks.heinsen import HeinsenNet
from capsule_lab.networks.self_routing import AveragePoolingNet, SelfRoutingNet

__all__ = [
    "AbstractCapsuleNetwork",
    "AbstractNetwork",
    "AveragePoolingNet",
    "BaselineCNN",
    "CapsNet",
    "EMCaps",
    "HeinsenNet",
    "Reconstructs",
    "SelfRoutingNet",
    "SmallCNN",
    "reconstructs",
]
