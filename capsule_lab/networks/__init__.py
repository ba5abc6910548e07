"""Architectures as plain ``nn.Module``s, readable top to bottom."""

from capsule_lab.networks.base import (
    AbstractCapsuleNetwork,
    AbstractNetwork,
    AbstractPairNetwork,
    AbstractReconstructingNetwork,
    Reconstructs,
    reconstructs,
)
from capsule_lab.networks.capsnet import CapsNet
from capsule_lab.networks.cnn import AveragedCNN, BaselineCNN, SmallCNN
from capsule_lab.networks.efficient_capsnet import EfficientCapsNet
from capsule_lab.networks.em_caps import EMCaps
from capsule_lab.networks.heinsen import HeinsenNet
from capsule_lab.networks.inverted_attention_caps import InvertedAttentionCaps
from capsule_lab.networks.pair_autoencoder import PairAutoencoder
from capsule_lab.networks.self_routing import AveragePoolingNet, SelfRoutingNet
from capsule_lab.networks.transforming_autoencoder import TransformingAutoencoder
from capsule_lab.networks.vb_caps import VBCaps

__all__ = [
    "AbstractCapsuleNetwork",
    "AbstractNetwork",
    "AbstractPairNetwork",
    "AbstractReconstructingNetwork",
    "AveragePoolingNet",
    "AveragedCNN",
    "BaselineCNN",
    "CapsNet",
    "EMCaps",
    "EfficientCapsNet",
    "HeinsenNet",
    "InvertedAttentionCaps",
    "PairAutoencoder",
    "Reconstructs",
    "SelfRoutingNet",
    "SmallCNN",
    "TransformingAutoencoder",
    "VBCaps",
    "reconstructs",
]
