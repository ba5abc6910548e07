"""The network of inverted dot-product attention: sizes, order of capsules, gradients."""

from __future__ import annotations

import inspect
import math
from functools import partial
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from capsule_lab.config.compose import compose
from capsule_lab.losses import cross_entropy_loss
from capsule_lab.networks import InvertedAttentionCaps
from capsule_lab.networks.inverted_attention_caps import NormalisedPrimaryCapsules
from capsule_lab.routing import DynamicRouting, EMRouting, InvertedAttention
from capsule_lab.types import RoutingTrace

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


@pytest.mark.parametrize(
    ("num_classes", "overrides", "parameters"),
    [
        pytest.param(10, [], 1_828_817, id="CIFAR10"),
        pytest.param(100, ["model.pose_size=6", "model.dense_types=[20]"], 2_799_629, id="CIFAR100"),
    ],
)
def test_parameter_counts_of_the_official_code(num_classes: int, overrides: list[str], parameters: int) -> None:
    options = compose("train", ["model=inverted_attention_caps", *overrides]).model
    with torch.device("meta"):
        network = instantiate(options, _partial_=True, _convert_="all")((3, 32, 32), num_classes)
    assert count(network) == parameters


def test_parameter_counts_of_the_parts() -> None:
    with torch.device("meta"):
        network = InvertedAttentionCaps((3, 32, 32), 10)
    parts = [network.features, network.primary, *network.conv_capsules, network.classes]
    assert [count(part) for part in parts] == [1_340_224, 65_536 + 32, 147_488, 147_488, 128_032 + 17]
    assert [layer.windows.grid for layer in network.conv_capsules] == [(7, 7), (5, 5)]


def test_every_parameter_gets_a_gradient() -> None:
    network, labels = build(), torch.arange(4)
    output = network(pictures())
    cross_entropy_loss(output.logits, labels).backward()
    assert [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()] == []


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


def test_image_alone_equals_image_in_a_batch() -> None:
    network = build().eval()
    torch.testing.assert_close(network(pictures()[2:3]).scores, network(pictures()).scores[2:3])


def test_layers_and_trace() -> None:
    network, traces = build(), []
    network(pictures(), on_iteration=traces.append)
    assert [*network.capsule_layers()] == [
        "primary", "conv_capsules_1", "conv_capsules_2", "dense_capsules_1", "classes",
    ]  # fmt: skip
    assert [trace.couplings.shape for trace in traces] == [(4, 3, 5)] * 2
    assert isinstance(traces[0], RoutingTrace)


@pytest.mark.parametrize("routing", [DynamicRouting, EMRouting, partial(InvertedAttention, iterations=3)])
def test_other_routings(routing: Any) -> None:
    output = build(routing=routing, class_routing=None)(pictures())
    assert output.logits.shape == (4, 5)
    assert output.logits.isfinite().all()


CHANGED = {
    "image_shape": (1, 21, 25),
    "num_classes": 4,
    "routing": partial(InvertedAttention, iterations=3),
    "class_routing": None,
    "channels": (4, 5),
    "blocks": (2, 2),
    "primary_types": 2,
    "conv_types": (4, 3),
    "conv_strides": (2, 2),
    "dense_types": (),
    "kernel_size": 2,
    "pose_size": 3,
}


@pytest.mark.parametrize("argument", list(inspect.signature(InvertedAttentionCaps).parameters))
def test_every_argument_does_something(argument: str) -> None:
    network, other = build().eval(), build(**{argument: CHANGED[argument]}).eval()
    shapes, other_shapes = ([p.shape for p in each.parameters()] for each in (network, other))
    assert shapes != other_shapes or not torch.allclose(network(pictures()).scores, other(pictures()).scores)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocks": (1,)}, "there are 2 channels and 1 blocks; expected as many"),
        ({"conv_strides": (1,)}, "there are 2 conv_types and 1 conv_strides; expected as many"),
        ({"channels": (), "blocks": ()}, "has stages 0; expected 1 or more"),
        ({"primary_types": 0}, "has primary_types 0; expected 1 or more"),
        ({"dense_types": 20}, "has dense_types 20; expected a list of whole numbers"),
        ({"image_shape": (1, 4, 4)}, "the grid of children is 2x2, smaller than the 3x3 window"),
    ],
    ids=str,
)
def test_wrong_argument_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**options)
