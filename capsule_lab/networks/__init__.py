"""Networks as plain ``nn.Module``s, readable from top to bottom."""

from capsule_lab.networks.base import AbstractNetwork
from capsule_lab.networks.capsnet import CapsNet
from capsule_lab.networks.cnn import BaselineCNN

__all__ = ["AbstractNetwork", "BaselineCNN", "CapsNet"]
