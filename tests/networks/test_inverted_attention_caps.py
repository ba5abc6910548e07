"""The network of inverted dot-product attention: sizes, order of capsules, gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_lab.networks import InvertedAttentionCaps
from capsule_lab.networks.inverted_attention_caps import NormalisedPrimaryCapsules

SMALL = {"channels": (4, 6), "blocks": (1, 2), "primary_types": 3, "conv_types": (4, 2), "dense_types": (3,)}
IMAGE = (2, 21, 25)  # 11x13 positions, then 5x6, then 3x4


def build(image_shape: tuple[int, int, int] = IMAGE, num_classes: int = 5, **options: Any) -> InvertedAttentionCaps:
    torch.manual_seed(0)
    return InvertedAttentionCaps(image_shape, num_classes, **{**SMALL, **options})


def pictures(batch: int = 4, image_shape: tuple[int, int, int] = IMAGE) -> Tensor:
    return torch.randn(batch, *image_shape, generator=torch.Generator().manual_seed(1))


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


# ------------------------------------------------------------------------------------------------------ parameters


def test_parameter_counts_of_the_parts() -> None:
    with torch.device("meta"):
        network = InvertedAttentionCaps((3, 32, 32), 10)
    parts = [network.features, network.primary, *network.conv_capsules, network.classes]
    assert [count(part) for part in parts] == [1_340_224, 65_536 + 32, 147_488, 147_488, 128_032 + 17]
    assert [layer.windows.grid for layer in network.conv_capsules] == [(7, 7), (5, 5)]


def test_initial_transformations_keep_the_size_of_the_poses() -> None:
    """Variance J / (sqrt(d) n_in K^2), of the official code: an equal share of all votes is as large as a pose."""
    network = InvertedAttentionCaps((3, 32, 32), 10)
    stds = [layer.weight.std().item() for layer in (*network.conv_capsules, network.classes)]
    assert stds == pytest.approx([math.sqrt(32 / (4 * 32 * 9))] * 2 + [math.sqrt(10 / (4 * 800))], rel=0.02)


# ---------------------------------------------------------------------------------------------------------- layers


def test_scores_are_the_logistic_of_a_linear_function_of_the_class_poses() -> None:
    network = build().eval()
    output = network(pictures())
    assert output.scores.shape == (4, 5)
    linear = network.classes.routing.head(output.capsules.poses).squeeze(2)
    torch.testing.assert_close(output.logits, linear)
    torch.testing.assert_close(output.scores, linear.sigmoid())


def test_components_of_a_primary_pose_are_of_one_position_and_type() -> None:
    primary = NormalisedPrimaryCapsules(6, 2, 3)
    primary.pose.weight.data = torch.eye(6).view(6, 6, 1, 1)
    primary.norm = nn.Identity()
    features = torch.arange(6 * 4 * 5.0).view(1, 6, 4, 5)
    found = primary(features)
    expected = [features[0, 3 * kind : 3 * kind + 3, y, x] for y in range(4) for x in range(5) for kind in range(2)]
    assert torch.equal(found.poses[0], torch.stack(expected))
    assert torch.equal(found.activations, torch.ones(1, 40))
