from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

from capsule_lab.functional import SQUASHES, exponential_squash, squash
from capsule_lab.layers import DepthwisePrimaryCapsules, PrimaryCapsules
from tests.reference.loops import length_loops
from tests.reference.wrong import pixelwise_grouping

TYPES, DIM, HEIGHT, WIDTH = 3, 8, 4, 5


def index_features() -> Tensor:
    """Two images whose numbers encode where they are: 1000 per channel, 10 per row, 1 per column."""
    channel = 1000 * torch.arange(1, TYPES * DIM + 1).view(-1, 1, 1)
    position = 10 * torch.arange(HEIGHT).view(-1, 1) + torch.arange(WIDTH)
    features = (channel + position).double()
    return torch.stack([features, -features]) / 1e5


def check_grouping(capsules_of: Callable[[Tensor], Tensor], squash: Callable[[Tensor], Tensor] = squash) -> None:
    """The components of a capsule are ``DIM`` channels in a row at one position; capsules go by (type, y, x)."""
    features = index_features()
    expected = [
        [[image[kind * DIM + c, y, x].item() for c in range(DIM)]]
        for image in features
        for kind in range(TYPES)
        for y in range(HEIGHT)
        for x in range(WIDTH)
    ]
    grouped = torch.tensor(expected, dtype=torch.float64).view(len(features), -1, DIM)
    torch.testing.assert_close(capsules_of(features), squash(grouped), rtol=1e-12, atol=0)


def identity_layer(**options: Any) -> PrimaryCapsules:
    """A layer whose convolution is the identity."""
    layer = PrimaryCapsules(TYPES * DIM, types=TYPES, dim=DIM, kernel_size=1, stride=1, **options).double()
    nn.init.dirac_(layer.conv.weight)
    return layer


def test_components_come_from_channels_at_one_position() -> None:
    layer = identity_layer(bias=False, uniform_coupling=False)
    check_grouping(lambda features: layer(features).poses)


def test_relu_before_the_squash_leaves_no_negative_component() -> None:
    features = index_features()
    plain, rectified = (identity_layer(relu=relu, bias=False)(features).poses for relu in (False, True))
    assert (plain < 0).any()
    assert (rectified >= 0).all()
    positive = (plain >= 0).all(2)
    torch.testing.assert_close(rectified[positive], plain[positive])


def test_components_of_depthwise_capsules_come_from_channels_at_one_position() -> None:
    layer = DepthwisePrimaryCapsules(TYPES * DIM, dim=DIM, kernel_size=1).double()
    nn.init.ones_(layer.conv.weight)
    check_grouping(lambda features: layer(features).poses, exponential_squash)


def test_depthwise_capsules_see_one_channel_each() -> None:
    layer = DepthwisePrimaryCapsules(TYPES * DIM, dim=DIM, kernel_size=(HEIGHT, WIDTH)).double()
    features = index_features().requires_grad_()
    capsules = layer(features)
    assert capsules.poses.shape == (2, TYPES, DIM)
    torch.testing.assert_close(capsules.activations, length_loops(capsules.poses), rtol=1e-12, atol=0)
    (gradient,) = torch.autograd.grad(layer.conv(features)[:, 5].sum(), features)
    assert gradient.flatten(2).any(2).nonzero()[:, 1].tolist() == [5, 5]


def test_channels_that_are_no_whole_number_of_capsules_are_refused() -> None:
    with pytest.raises(ValueError, match="there are 10 channels for capsules of 4 components; expected a multiple"):
        DepthwisePrimaryCapsules(10, dim=4)


@pytest.mark.parametrize("name", SQUASHES)
def test_squash_by_name(name: Any) -> None:
    layer = identity_layer(bias=False, uniform_coupling=False, squash=name)
    check_grouping(lambda features: layer(features).poses, SQUASHES[name].poses)
    capsules = layer(10 * index_features())
    torch.testing.assert_close(capsules.activations, length_loops(capsules.poses), rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(
        capsules.logits.sigmoid() if SQUASHES[name].bounded else capsules.logits, capsules.activations
    )


@pytest.mark.usefixtures("unchecked_types")
def test_unknown_squash_is_named() -> None:
    with pytest.raises(
        ValueError, match="squash is 'tanh'; expected 'squash', 'exponential', 'half', 'relu' or 'none'"
    ):
        PrimaryCapsules(2, squash="tanh")


def test_pixelwise_grouping_is_caught() -> None:
    with pytest.raises(AssertionError):
        check_grouping(lambda features: squash(pixelwise_grouping(features, DIM)))


def test_activations_are_lengths() -> None:
    capsules = identity_layer()(index_features())
    torch.testing.assert_close(capsules.activations, length_loops(capsules.poses), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({}, 1 / 32),
        ({"leaky": True}, 1 / 33),
        ({"types": 64, "leaky": True}, 1 / 65),
        ({"uniform_coupling": False}, 1.0),
    ],
)
def test_convolution_is_divided_by_the_types(options: dict[str, Any], share: float) -> None:
    layer = PrimaryCapsules(2, kernel_size=1, stride=1, bias=False, **options).double()
    features = torch.randn(1, 2, 1, 1, dtype=torch.float64)
    expected = squash(share * layer.conv(features).view(1, -1, 8))
    torch.testing.assert_close(layer(features).poses, expected, rtol=0, atol=1e-12)


def test_bias_belongs_to_type_and_component_and_is_not_divided() -> None:
    layer = identity_layer()
    nn.init.zeros_(layer.conv.weight)
    with torch.no_grad():
        layer.bias.copy_(torch.arange(TYPES * DIM).view_as(layer.bias))
    expected = squash(torch.arange(TYPES * DIM).double().view(TYPES, 1, DIM).expand(-1, HEIGHT * WIDTH, -1))
    poses = layer(index_features()).poses[0].view(TYPES, HEIGHT * WIDTH, DIM)
    torch.testing.assert_close(poses, expected, rtol=0, atol=1e-12)


def test_initial_values_of_the_official_code() -> None:
    layer = PrimaryCapsules(16)
    assert torch.equal(layer.bias, torch.full((32, 8, 1, 1), 0.1))
    assert layer.conv.weight.abs().max() <= 0.2
    assert layer.conv.weight.std().item() == pytest.approx(0.088, rel=0.02)  # cut at 2 std of 0.1
    assert layer.conv.bias is None


@pytest.mark.parametrize(
    ("padding", "size", "grid"),
    [
        ("valid", (20, 20), 36),
        ("valid", (9, 10), 1),
        ("same", (24, 24), 144),
        ("same", (5, 8), 12),
        ("same", (2, 2), 1),
    ],
)
def test_grid(padding: Any, size: tuple[int, int], grid: int) -> None:
    layer = PrimaryCapsules(1, types=2, dim=3, padding=padding)
    assert layer(torch.zeros(1, 1, *size)).poses.shape == (1, 2 * grid, 3)


def test_same_padding_is_zeros_around_the_image() -> None:
    torch.manual_seed(0)
    same, valid = (PrimaryCapsules(1, types=2, dim=3, kernel_size=3, padding=padding) for padding in ("same", "valid"))
    valid.load_state_dict(same.state_dict())
    features = torch.randn(2, 1, 6, 6)
    padded = nn.functional.pad(features, (0, 1, 0, 1))
    torch.testing.assert_close(same(features).poses, valid(padded).poses)


CHANGED = {
    "relu": True,
    "in_channels": 3,
    "types": 3,
    "dim": 4,
    "kernel_size": 5,
    "stride": 1,
    "padding": "same",
    "bias": False,
    "uniform_coupling": False,
    "leaky": True,
    "squash": "none",
    "weight_std": 0.2,
}


def fingerprint(**options: Any) -> tuple[list[torch.Size], Tensor]:
    """Shapes of the parameters and the poses of the same features."""
    torch.manual_seed(0)
    layer = PrimaryCapsules(**{"in_channels": 2, "types": 2, "dim": 3, "kernel_size": 3, **options})
    features = torch.randn(1, options.get("in_channels", 2), 7, 7, generator=torch.Generator().manual_seed(1))
    return [value.shape for value in layer.state_dict().values()], layer(features).poses.flatten()


@pytest.mark.parametrize("argument", list(inspect.signature(PrimaryCapsules).parameters))
def test_every_argument_does_something(argument: str) -> None:
    shapes, poses = fingerprint()
    other_shapes, other_poses = fingerprint(**{argument: CHANGED[argument]})
    assert shapes != other_shapes or poses.shape != other_poses.shape or not torch.allclose(poses, other_poses)


@pytest.mark.parametrize("options", [{}, {"padding": "same"}, {"leaky": True}])
def test_every_parameter_gets_a_gradient(options: dict[str, Any]) -> None:
    layer = PrimaryCapsules(2, types=2, dim=3, kernel_size=3, **options)
    layer(torch.randn(2, 2, 6, 6)).poses.square().sum().backward()
    assert all((parameter.grad != 0).all() for parameter in layer.parameters())


def test_capsules_are_float32_under_autocast() -> None:
    layer = PrimaryCapsules(2, types=2, dim=3, kernel_size=3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        capsules = layer(torch.randn(1, 2, 6, 6))
    assert capsules.poses.dtype == capsules.activations.dtype == torch.float32


def test_unknown_padding_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # in training nothing else checks
    with pytest.raises(ValueError, match="padding is 'full'; expected 'valid' or 'same'"):
        PrimaryCapsules(2, padding="full")
