from collections.abc import Callable
from itertools import product
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from capsule_lab.functional import SQUASHES, exponential_squash, squash
from capsule_lab.layers import DepthwisePrimaryCapsules, LinearPrimaryCapsules, PrimaryCapsules
from capsule_lab.layers.primary import StridedConv2d
from tests.helpers.closeness import assert_close
from tests.reference.loops import length_loops
from tests.reference.wrong import pixelwise_grouping

TYPES, DIM, HEIGHT, WIDTH = 3, 8, 4, 5


def index_features() -> Tensor:
    """Two images whose numbers encode where they are: 1000 per channel, 10 per row, 1 per column."""
    channel = 1000 * torch.arange(1, TYPES * DIM + 1).view(-1, 1, 1)
    position = 10 * torch.arange(HEIGHT).view(-1, 1) + torch.arange(WIDTH)
    features = (channel + position).double()
    return torch.stack([features, -features]) / 1e5


def check_grouping(
    capsules_of: Callable[[Tensor], Tensor], squash: Callable[[Tensor], Tensor] = squash
) -> None:
    """The components of a capsule are ``DIM`` channels in a row at one position; capsules go by (type, y, x)."""
    features = index_features()
    expected = []
    for image, kind, y, x in product(features, range(TYPES), range(HEIGHT), range(WIDTH)):
        first = kind * DIM
        expected.append(image[first : first + DIM, y, x])
    grouped = torch.stack(expected).view(len(features), -1, DIM)
    torch.testing.assert_close(capsules_of(features), squash(grouped), rtol=1e-12, atol=0)


def identity_layer(**options: Any) -> PrimaryCapsules:
    """A layer whose convolution is the identity."""
    layer = PrimaryCapsules(
        TYPES * DIM, types=TYPES, dim=DIM, kernel_size=1, stride=1, **options
    ).double()
    nn.init.dirac_(layer.conv.weight)
    return layer


def test_components_come_from_channels_at_one_position() -> None:
    layer = identity_layer(bias=False, uniform_coupling=False)
    rectified = identity_layer(bias=False, uniform_coupling=False, relu=True)
    check_grouping(lambda features: layer(features).poses)
    check_grouping(
        lambda features: rectified(features).poses, lambda grouped: squash(grouped.relu())
    )


def test_components_of_depthwise_capsules_come_from_channels_at_one_position() -> None:
    layer = DepthwisePrimaryCapsules(TYPES * DIM, (HEIGHT, WIDTH), dim=DIM, kernel_size=1).double()
    nn.init.ones_(layer.conv.weight)
    check_grouping(lambda features: layer(features).poses, exponential_squash)


def test_kernel_of_the_size_of_the_feature_maps_equals_a_convolution() -> None:
    layer = DepthwisePrimaryCapsules(TYPES * DIM, (HEIGHT, WIDTH), dim=DIM).double()
    nn.init.normal_(layer.conv.bias)
    features = torch.randn(3, TYPES * DIM, HEIGHT, WIDTH, dtype=torch.float64, requires_grad=True)
    poses = layer(features).poses
    expected = exponential_squash(layer.conv(features).view(3, TYPES, DIM))
    torch.testing.assert_close(poses, expected)
    inputs = [features, layer.conv.weight, layer.conv.bias]
    found = torch.autograd.grad(poses.sin().sum(), inputs)
    torch.testing.assert_close(found, torch.autograd.grad(expected.sin().sum(), inputs))


@pytest.mark.parametrize("name", SQUASHES)
def test_squash_by_name(name: Any) -> None:
    layer = identity_layer(bias=False, uniform_coupling=False, squash=name)
    check_grouping(lambda features: layer(features).poses, SQUASHES[name].poses)
    capsules = layer(10 * index_features())
    lengths = length_loops(capsules.poses)
    tolerance = 1e-12 if name == "squash" else 1e-4
    torch.testing.assert_close(capsules.activations, lengths, rtol=1e-6, atol=tolerance)
    activations = capsules.logits.sigmoid() if SQUASHES[name].bounded else capsules.logits
    torch.testing.assert_close(activations, capsules.activations)


def test_pixelwise_grouping_is_caught() -> None:
    with pytest.raises(AssertionError):
        check_grouping(lambda features: squash(pixelwise_grouping(features, DIM)))


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({}, 1 / 32),
        ({"leaky": True}, 1 / 33),
        ({"types": 64, "leaky": True}, 1 / 65),
        ({"uniform_coupling": False}, 1),
    ],
)
def test_convolution_is_divided_by_the_types(options: dict[str, Any], share: float) -> None:
    layer = PrimaryCapsules(2, kernel_size=1, stride=1, bias=False, **options).double()
    features = torch.randn(1, 2, 1, 1, dtype=torch.float64)
    expected = squash(share * layer.conv(features).view(1, -1, 8))
    assert_close(layer(features).poses, expected)


@pytest.mark.parametrize(("types", "dim"), [(32, 16), (5, 9)])
def test_linear_capsules_come_from_their_own_channels_at_one_position(types: int, dim: int) -> None:
    """Channels encode their number in thousands, features their position."""
    primary = LinearPrimaryCapsules(1, types=types, dim=dim, bias=True, offset=2.0).double()
    of_poses = 1000.0 * torch.arange(types * dim)
    of_activations = 1000.0 * torch.arange(types * dim, types * (dim + 1))
    nn.init.ones_(primary.pose.weight)
    nn.init.ones_(primary.activation.weight)
    primary.pose.bias.data.copy_(of_poses)
    primary.activation.bias.data.copy_(of_activations)
    capsules = primary(torch.arange(6, dtype=torch.float64).view(1, 1, 2, 3))
    places = torch.arange(6.0)[:, None]
    expected = of_poses.view(1, types, dim) + places[..., None]
    assert torch.equal(capsules.poses.unflatten(1, (6, types))[0], expected.double())
    expected = of_activations + places - 2  # the offset
    assert torch.equal(capsules.logits.unflatten(1, (6, types))[0], expected.double())


SIZES = [(9, 3, 2), (10, 3, 2), (11, 4, 3), (8, 3, 1), (20, 9, 2)]
"""Sizes of the input, the kernel and the stride; in some, the last row and column are in no window."""


@pytest.mark.parametrize(("size", "kernel_size", "stride"), SIZES)
def test_gradients_are_those_of_torch(size: int, kernel_size: int, stride: int) -> None:
    ours = StridedConv2d(3, 4, kernel_size, stride).double()
    torchs = nn.Conv2d(3, 4, kernel_size, stride, bias=False).double()
    torchs.load_state_dict(ours.state_dict())
    features = torch.randn(2, 3, size, size + 1, dtype=torch.float64, requires_grad=True)
    output = ours(features)
    grad = torch.randn_like(output)
    assert_close(output, torchs(features), atol=0)
    found = torch.autograd.grad(output, (features, ours.weight), grad)
    expected = torch.autograd.grad(torchs(features), (features, torchs.weight), grad)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    # as in a first layer
    (alone,) = torch.autograd.grad(ours(features.detach()), ours.weight, grad)
    torch.testing.assert_close(alone, expected[1])
    ours.requires_grad_(False)
    (alone,) = torch.autograd.grad(ours(features), features, grad)
    torch.testing.assert_close(alone, expected[0])


def test_second_derivatives() -> None:
    conv = StridedConv2d(2, 3, 3, 2).double()
    features = torch.randn(2, 2, 6, 6, dtype=torch.float64, requires_grad=True)

    def function(features: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(conv, {"weight": weight}, (features,))

    torch.autograd.gradcheck(function, (features, conv.weight))
    torch.autograd.gradgradcheck(function, (features, conv.weight))


def test_the_weights_gradient_is_a_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Mock(wraps=conv2d)
    monkeypatch.setattr("capsule_lab.layers.primary.conv2d", recorded)
    StridedConv2d(3, 4, 3, 2)(torch.randn(2, 3, 9, 9)).sum().backward()
    assert [call.kwargs.get("dilation") for call in recorded.call_args_list] == [None, (2, 2)]


def test_autocast_computes_in_bfloat16_and_gives_float32_gradients() -> None:
    conv = StridedConv2d(3, 4, 3, 2)
    features = torch.randn(2, 3, 9, 9)
    with torch.autocast("cpu", torch.bfloat16):
        output = conv(features)
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    expected = torch.autograd.grad(conv2d(features, conv.weight, stride=2).sum(), conv.weight)[0]
    assert conv.weight.grad.dtype == torch.float32
    torch.testing.assert_close(conv.weight.grad, expected, rtol=0.02, atol=0.05)
