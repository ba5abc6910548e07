import math

import pytest
import torch
from torch import Tensor

from capsule_lab.networks import SelfRoutingNet
from capsule_studies.measures.features import (
    group_law,
    label_poses,
    last_features,
    linear_map,
    pose_features,
)
from capsule_studies.tests.subjects import small_network, subject


def test_pose_of_the_label() -> None:
    asked = subject(small_network())
    poses = asked.outputs().capsules.poses.double()
    found = label_poses(asked, asked.batches)
    for image, label in enumerate(asked.labels.tolist()):
        torch.testing.assert_close(found[image], poses[image, label])
    features = pose_features(asked)
    assert torch.equal(features(asked.batches), found)


def test_last_features_are_what_the_last_layer_gets() -> None:
    asked = subject(small_network("cnn"))
    *_, last = asked.network.modules()
    assert isinstance(last, torch.nn.Linear)
    features = last_features(asked, asked.batches)
    torch.testing.assert_close(last(features), asked.outputs().scores)


def test_last_features_without_poses_of_classes_are_the_poses_below_them() -> None:
    """The capsules between the trunk and the classes count, and not the last convolution before them."""
    torch.manual_seed(0)
    sizes = {"trunk": "convnet", "planes": 4, "types": 2, "dim": 4, "conv_strides": (1,)}
    asked = subject(SelfRoutingNet((1, 24, 24), 4, **sizes))
    below = asked.traces["classes"].children.poses
    features = last_features(asked, asked.batches)
    torch.testing.assert_close(features, below.flatten(1))


def test_features_of_a_cnn_are_principal_components() -> None:
    asked = subject(small_network("cnn"))
    features = pose_features(asked)
    found = features(asked.batches)
    assert found.shape == (24, 16)
    increases = found.var(0).diff()
    assert (increases <= 1e-9).all(), "the largest first"


def poses(images: int = 200, dim: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(images, dim, generator=generator, dtype=torch.float64)


def turned(angle: float) -> Tensor:
    cos, sin = math.cos(angle), math.sin(angle)
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[:2, :2] = torch.tensor([[cos, sin], [-sin, cos]])
    return matrix


def test_finds_the_map() -> None:
    before = poses()
    after = before @ turned(0.5)
    found = linear_map(before, after + 3, 1e-9)
    torch.testing.assert_close(found.matrix, turned(0.5), rtol=0, atol=1e-6)
    assert found.error < 1e-12
    assert found.identity_error > 1
    by_large_penalty = linear_map(before, after, 1e9)
    torch.testing.assert_close(by_large_penalty.matrix, turned(0), rtol=0, atol=1e-6)


def test_judged_on_images_that_it_was_not_fitted_to() -> None:
    """With few images, the error on the images of the fit would be 0."""
    few = linear_map(poses(10), poses(20)[10:], 1e-9)
    assert few.error > 1
    many = poses(4000)
    unrelated = linear_map(many, many.roll(1, 0), 1e-3)
    assert unrelated.error == pytest.approx(1, abs=0.05)


def test_turning_twice_is_turning_by_twice_as_much() -> None:
    before = poses()
    one = linear_map(before, before @ turned(0.2), 1e-9).matrix
    two = linear_map(before, before @ turned(0.4), 1e-9).matrix
    assert group_law(one, one, two) < 1e-6
    assert group_law(one, one, one) > 0.9
