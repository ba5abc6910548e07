"""Capsule networks: reproduce, ablate, extend.

The public names, each importable from here as from its module. Modules are imported when a name is first used:
``from capsule_lab import EMRouting`` imports torch, but neither Lightning nor Hydra.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from capsule_lab.system import signals

if signals.is_command():
    signals.exit_at_once()  # before the imports of the command, which take seconds
    if "CAPSULE_LAB_PARENT" in os.environ:  # of a sweep
        signals.end_with_parent(parent=int(os.environ.pop("CAPSULE_LAB_PARENT")))

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022  # by module
    # plain PyTorch
    "AbstractRouting", "AttentionOverChildren", "DynamicRouting", "EMRouting", "HeinsenRouting", "InvertedAttention",
    "NormalisedEMRouting", "RandomCouplings", "ScaledDistanceAgreement", "SelfAttentionRouting", "SelfRouting",
    "UniformRouting", "VariationalBayesRouting",
    "attention_over_children", "dynamic_routing", "em_evidence", "em_routing", "heinsen_routing", "inverted_attention",
    "scaled_distance_agreement", "self_attention_routing", "self_routing", "uniform_routing",
    "variational_bayes_routing",
    "ClassCapsules", "ComposedPrimaryCapsules", "ConvCapsules", "Decoder", "DenseCapsules", "DepthwisePrimaryCapsules",
    "LinearPrimaryCapsules", "PrimaryCapsules", "Stem", "UntransformedCapsules",
    "AveragePoolingNet", "AveragedCNN", "BaselineCNN", "CapsNet", "EMCaps", "EfficientCapsNet", "HeinsenNet",
    "InvertedAttentionCaps", "PairAutoencoder", "SelfRoutingNet", "SmallCNN", "TransformingAutoencoder", "VBCaps",
    "dense_votes", "length", "squash",
    "cross_entropy_loss", "l2_loss", "logits_cross_entropy_loss", "margin_loss", "reconstruction_loss",
    "sigmoid_cross_entropy_loss", "spread_loss",
    "Constant", "Drops", "Exponential", "Linear", "OneCycle", "Schedule", "SigmoidRamp", "Staircase",
    "Batch", "CapsuleOutput", "Capsules", "DataSpec", "Votes",
    # with Lightning
    "AffNISTDataModule", "CIFAR10DataModule", "ExpandedMNISTDataModule", "MNISTDataModule", "MNISTPairsDataModule",
    "MultiMNISTDataModule", "SVHNDataModule", "SmallNORBDataModule", "SmallNORBPairsDataModule",
    # with Hydra, used as runs.open
    "runs",
]  # fmt: skip

_MODULES = ("types", "functional", "losses", "schedules", "routing", "layers", "networks", "data")  # the heaviest last


def __getattr__(name: str) -> Any:
    if name == "runs":
        return importlib.import_module("capsule_lab.runs")
    if name in __all__:
        for module in _MODULES:
            value = vars(importlib.import_module(f"capsule_lab.{module}")).get(name)
            if value is not None:
                return value
    raise AttributeError(f"module 'capsule_lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if TYPE_CHECKING:
    from capsule_lab import runs
    from capsule_lab.data import (
        AffNISTDataModule,
        CIFAR10DataModule,
        ExpandedMNISTDataModule,
        MNISTDataModule,
        MNISTPairsDataModule,
        MultiMNISTDataModule,
        SmallNORBDataModule,
        SmallNORBPairsDataModule,
        SVHNDataModule,
    )
    from capsule_lab.functional import dense_votes, length, squash
    from capsule_lab.layers import (
        ClassCapsules,
        ComposedPrimaryCapsules,
        ConvCapsules,
        Decoder,
        DenseCapsules,
        DepthwisePrimaryCapsules,
        LinearPrimaryCapsules,
        PrimaryCapsules,
        Stem,
        UntransformedCapsules,
    )
    from capsule_lab.losses import (
        cross_entropy_loss,
        l2_loss,
        logits_cross_entropy_loss,
        margin_loss,
        reconstruction_loss,
        sigmoid_cross_entropy_loss,
        spread_loss,
    )
    from capsule_lab.networks import (
        AveragedCNN,
        AveragePoolingNet,
        BaselineCNN,
        CapsNet,
        EfficientCapsNet,
        EMCaps,
        HeinsenNet,
        InvertedAttentionCaps,
        PairAutoencoder,
        SelfRoutingNet,
        SmallCNN,
        TransformingAutoencoder,
        VBCaps,
    )
    from capsule_lab.routing import (
        AbstractRouting,
        AttentionOverChildren,
        DynamicRouting,
        EMRouting,
        HeinsenRouting,
        InvertedAttention,
        NormalisedEMRouting,
        RandomCouplings,
        ScaledDistanceAgreement,
        SelfAttentionRouting,
        SelfRouting,
        UniformRouting,
        VariationalBayesRouting,
        attention_over_children,
        dynamic_routing,
        em_evidence,
        em_routing,
        heinsen_routing,
        inverted_attention,
        scaled_distance_agreement,
        self_attention_routing,
        self_routing,
        uniform_routing,
        variational_bayes_routing,
    )
    from capsule_lab.schedules import Constant, Drops, Exponential, Linear, OneCycle, Schedule, SigmoidRamp, Staircase
    from capsule_lab.types import Batch, CapsuleOutput, Capsules, DataSpec, Votes
