"""Architectures as plain modules of ``torch.nn``.

The package exports every network in a file of this folder. For editors, ``tests/test_type_checking_lists.py`` names
the line that a new file adds here.
"""
# ruff: noqa: F401

from typing import TYPE_CHECKING

from capsule_lab.networks.base import (
    AbstractNetwork,
    AbstractPairNetwork,
    Reconstructs,
    reconstructs,
)
from capsule_lab.system.discovery import classes_in

if TYPE_CHECKING:  # for editors and type checkers, which do not run ``classes_in``
    from capsule_lab.networks.base import AbstractCapsuleNetwork, AbstractReconstructingNetwork
    from capsule_lab.networks.capsnet import CapsNet
    from capsule_lab.networks.cnn import AbstractCNN, BaselineCNN, MatchedCNN, SmallCNN
    from capsule_lab.networks.efficient_capsnet import EfficientCapsNet
    from capsule_lab.networks.em_caps import EMCaps
    from capsule_lab.networks.heinsen import HeinsenNet
    from capsule_lab.networks.inverted_attention_caps import InvertedAttentionCaps
    from capsule_lab.networks.self_routing import AveragePoolingNet, SelfRoutingNet
    from capsule_lab.networks.transforming_autoencoder import (
        PairAutoencoder,
        TransformingAutoencoder,
    )
    from capsule_lab.networks.vb_caps import VBCaps
else:
    _found = classes_in(__name__, AbstractNetwork, AbstractPairNetwork)
    globals().update(_found)
    __all__ = ["Reconstructs", "reconstructs", *_found]
