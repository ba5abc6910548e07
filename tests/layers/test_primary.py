from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_lab.functional import SQUASHES, exponential_squash, squash
from capsule_lab.layers import DepthwisePrimaryCapsules, LinearPrimaryCapsules, PrimaryCapsules
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
    layer = DepthwisePrimaryCapsules(TYPES * DIM, (HEIGHT, WIDTH), dim=DIM, kernel_size=1).double()
    nn.init.ones_(layer.conv.weight)
    check_grouping(lambda features: layer(features).poses, exponential_squash)


def test_depthwise_capsules_see_one_channel_each() -> None:
    layer = DepthwisePrimaryCapsules(TYPES * DIM, (HEIGHT, WIDTH), dim=DIM).double()
    features = index_features().requires_grad_()
    capsules = layer(features)
    assert capsules.poses.shape == (2, TYPES, DIM)
    torch.testing.assert_close(capsules.activations, length_loops(capsules.poses), rtol=1e-12, atol=0)
    (gradient,) = torch.autograd.grad(layer.conv(features)[:, 5].sum(), features)
    assert gradient.flatten(2).any(2).nonzero()[:, 1].tolist() == [5, 5]


@pytest.mark.parametrize("name", SQUASHES)
def test_squash_by_name(name: Any) -> None:
    layer = identity_layer(bias=False, uniform_coupling=False, squash=name)
    check_grouping(lambda features: layer(features).poses, SQUASHES[name].poses)
    capsules = layer(10 * index_features())
    torch.testing.assert_close(capsules.activations, length_loops(capsules.poses), rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(
        capsules.logits.sigmoid() if SQUASHES[name].bounded else capsules.logits, capsules.activations
    )


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


# --- poses linear in the features ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("types", "dim"), [(32, 16), (5, 9)])
def test_linear_capsules_come_from_their_own_channels_at_one_position(types: int, dim: int) -> None:
    """Channels encode their number in thousands, features their position."""
    primary = LinearPrimaryCapsules(1, types=types, dim=dim, bias=True, offset=0.0).double()
    channels = 1000.0 * torch.arange(types * (dim + 1))
    for layer, own in ((primary.pose, channels[: types * dim]), (primary.activation, channels[types * dim :])):
        nn.init.ones_(layer.weight)
        layer.bias.data.copy_(own)
    capsules = primary(torch.arange(6, dtype=torch.float64).view(1, 1, 2, 3))
    places = torch.arange(6)[:, None]
    expected = 1000 * torch.arange(types * dim).view(1, types, dim) + places[..., None]
    assert torch.equal(capsules.poses.unflatten(1, (6, types))[0], expected.double())
    expected = 1000 * torch.arange(types * dim, types * (dim + 1)) + places
    assert torch.equal(capsules.logits.unflatten(1, (6, types))[0], expected.double())


def test_offset_is_subtracted_from_the_logit() -> None:
    plain, shifted = (LinearPrimaryCapsules(2, types=3, offset=value).double() for value in (0.0, -2.5))
    shifted.load_state_dict(plain.state_dict())
    features = torch.rand(2, 2, 3, 3, dtype=torch.float64)
    difference = shifted(features).activations.logit() - plain(features).activations.logit()
    torch.testing.assert_close(difference, torch.full_like(difference, 2.5), rtol=0, atol=1e-9)
