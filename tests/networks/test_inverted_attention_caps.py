"""The network of inverted dot-product attention: order of capsules, initial weights."""

import math
from itertools import product

import pytest
import torch
from torch import nn

from capsule_lab.networks import InvertedAttentionCaps
from capsule_lab.networks.inverted_attention_caps import NormalisedPrimaryCapsules


def test_initial_transformations_keep_the_size_of_the_poses() -> None:
    """Variance J / (sqrt(d) n_in K^2), of the official code: an equal share of all votes is as large as a pose."""
    network = InvertedAttentionCaps((3, 32, 32), 10)
    layers = [*network.conv_capsules, network.classes]
    stds = [layer.weight.std().item() for layer in layers]
    convolutional = math.sqrt(32 / (4 * 32 * 9))
    of_classes = math.sqrt(10 / (4 * 800))
    assert stds == pytest.approx([convolutional, convolutional, of_classes], rel=0.02)


def test_components_of_a_primary_pose_are_of_one_position_and_type() -> None:
    primary = NormalisedPrimaryCapsules(6, 2, 3)
    nn.init.dirac_(primary.pose.weight)
    primary.norm = nn.Identity()
    features = torch.arange(6 * 4 * 5.0).view(1, 6, 4, 5)
    found = primary(features)
    by_type = features[0].view(2, 3, 4, 5)
    expected = []
    for y, x, kind in product(range(4), range(5), range(2)):
        expected.append(by_type[kind, :, y, x])
    assert torch.equal(found.poses[0], torch.stack(expected))
    assert torch.equal(found.activations, torch.ones(1, 40))
