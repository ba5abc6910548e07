from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.functional import dense_votes
from capsule_lab.losses import logits_cross_entropy_loss
from capsule_lab.networks import VBCaps
from capsule_lab.routing import EMRouting, VariationalBayesRouting
from capsule_lab.types import RoutingTrace, Votes

SMALL: dict[str, Any] = {"channels": 6, "primary_types": 2, "conv_types": (3, 2), "conv_strides": (2, 1)}
IMAGE = (2, 24, 22)  # grids of 10x9, 4x4, 2x2


def build(image_shape: tuple[int, int, int] = IMAGE, num_classes: int = 4, **options: Any) -> VBCaps:
    torch.manual_seed(0)
    return VBCaps(image_shape, num_classes, **{**SMALL, **options})


def images(batch: int = 3, *image_shape: int) -> Tensor:
    return torch.rand(batch, *(image_shape or IMAGE), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("channels", "num_classes", "options", "parameters"),
    [
        pytest.param(2, 5, {}, 68_714, id="smallNORB"),
        pytest.param(1, 10, {}, 68_404, id="MNIST"),
        pytest.param(2, 5, {"primary_types": 16, "conv_types": (32, 32)}, 244_682, id="smallNORB large"),
        pytest.param(
            2, 5, {"routing": partial(VariationalBayesRouting, affine=False)}, 68_714 - 74, id="without dead betas"
        ),
    ],
)
def test_published_parameter_counts(channels: int, num_classes: int, options: dict[str, Any], parameters: int) -> None:
    with torch.device("meta"):
        network = VBCaps((channels, 32, 32), num_classes, **options)
    assert sum(p.numel() for p in network.parameters()) == parameters


@pytest.mark.parametrize("batch", [1, 3])
def test_every_parameter_gets_a_gradient(batch: int) -> None:
    network = build()
    labels = torch.arange(batch) % 4
    for _ in range(2):  # a batch of one is normalised by running statistics, which the first one leaves
        output = network(images(batch))
    logits_cross_entropy_loss(output.logits, labels).backward()
    assert [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_initial_weights_of_the_official_code() -> None:
    network = VBCaps((2, 32, 32), 5)
    for weight, fan_in, fan_out in [
        (network.conv_capsules[0].weight, 8 * 9 * 16, 16 * 9 * 16),
        (network.conv_capsules[1].weight, 16 * 9 * 16, 16 * 9 * 16),
        (network.classes.weight, 16 * 16, 5 * 16),
        (network.primary.pose.weight, 64, 8 * 16),
        (network.primary.activation.weight, 64, 8),
    ]:
        bound = (6 / (fan_in + fan_out)) ** 0.5
        assert 0.98 * bound < weight.abs().max() <= bound


def test_components_of_a_type_are_normalised_together() -> None:
    network = VBCaps((1, 24, 24), 4, **SMALL)
    poses = network.primary(torch.rand(8, 6, 10, 10)).poses.view(8, 100, 2, 16)
    of_type = poses.transpose(0, 2).flatten(1)
    torch.testing.assert_close(of_type.mean(1), torch.zeros(2), rtol=0, atol=1e-5)
    torch.testing.assert_close(of_type.var(1, unbiased=False), torch.ones(2), rtol=1e-3, atol=0)
    assert poses.flatten(0, 1).mean(0).abs().max() > 0.05  # those of a component are not


def test_coordinates_of_the_official_code() -> None:
    network = VBCaps((2, 32, 32), 5)
    seen: list[Votes] = []
    torch.nn.init.zeros_(network.classes.weight)
    network.classes.routing.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    network(images(1, 2, 32, 32))
    votes = dense_votes(*seen[0][:2])[0].unflatten(0, (4, 4, 16))[:, :, 0, 0]  # [row column d]
    steps = torch.tensor([0.025, 0.05, 0.075, 0.1])
    torch.testing.assert_close(votes[..., 3], steps[:, None].expand(4, 4))
    torch.testing.assert_close(votes[..., 7], steps.expand(4, 4))
    assert not votes[..., [d for d in range(16) if d not in (3, 7)]].any()


CHANGED = {
    "image_shape": (1, 24, 22),
    "num_classes": 5,
    "routing": EMRouting,
    "channels": 7,
    "primary_types": 3,
    "conv_types": (3, 3),
    "conv_strides": (1, 1),
    "kernel_size": 2,
}


@pytest.mark.parametrize("argument", list(inspect.signature(VBCaps).parameters))
def test_every_argument_does_something(argument: str) -> None:
    network, other = build(), build(**{argument: CHANGED[argument]})
    shapes, other_shapes = ({n: p.shape for n, p in each.named_parameters()} for each in (network, other))
    assert shapes != other_shapes or not torch.allclose(network(images()).scores, other(images()).scores, atol=1e-3)


def test_shapes_and_scores() -> None:
    traces: list[RoutingTrace] = []
    network = build()
    output = network(images(), on_iteration=traces.append)
    assert output.capsules.poses.shape == (3, 4, 16)
    assert torch.equal(output.scores, output.capsules.activations)
    torch.testing.assert_close(output.logits.sigmoid(), output.scores)
    assert [trace.couplings.shape for trace in traces] == 3 * [(3, 8, 4)]
    assert list(network.capsule_layers()) == ["primary", "conv_capsules_1", "conv_capsules_2", "classes"]


def test_batch_of_one_equals_its_row_at_test() -> None:
    network = build()
    network(images(8))
    network.eval()
    torch.testing.assert_close(network(images()[1:2]).scores, network(images()).scores[1:2])


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"conv_strides": (1,)}, "there are 2 conv_types and 1 conv_strides; expected as many"),
        ({"channels": 0}, "VBCaps has channels 0; expected 1 or more"),
        ({"image_shape": (1, 4, 9)}, "images are 4x9; VBCaps needs at least 5x5"),
    ],
    ids=str,
)
def test_arguments_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**options)
