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
CHANNELS = TYPES * DIM


def index_features() -> Tensor:
    """Two images whose numbers encode where they are: 1000 per channel, 10 per row, 1 per column."""
    channel = 1000 * torch.arange(1, CHANNELS + 1).view(-1, 1, 1)
    row = 10 * torch.arange(HEIGHT).view(-1, 1)
    column = torch.arange(WIDTH)
    features = (channel + row + column).double()
    return torch.stack([features, -features]) / 1e5


def check_grouping(
    capsules_of: Callable[[Tensor], Tensor], squash: Callable[[Tensor], Tensor] = squash
) -> None:
    """The components of a capsule are ``DIM`` channels in a row at one position; capsules go by (type, y, x)."""
    features = index_features()
    capsules = []
    places = product(features, range(TYPES), range(HEIGHT), range(WIDTH))
    for image, kind, y, x in places:
        first = kind * DIM
        capsules.append(image[first : first + DIM, y, x])
    grouped = torch.stack(capsules).view(len(features), -1, DIM)
    found = capsules_of(features)
    torch.testing.assert_close(found, squash(grouped), rtol=1e-12, atol=0)


def poses_of(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda features: layer(features).poses


def identity_layer(**options: Any) -> PrimaryCapsules:
    """A layer whose convolution is the identity."""
    sizes = {"types": TYPES, "dim": DIM, "kernel_size": 1, "stride": 1}
    layer = PrimaryCapsules(CHANNELS, bias=False, uniform_coupling=False, **sizes, **options)
    layer.double()
    nn.init.dirac_(layer.conv.weight)
    return layer


def test_components_come_from_channels_at_one_position() -> None:
    check_grouping(poses_of(identity_layer()))


def test_components_are_rectified_before_the_squash() -> None:
    rectified = identity_layer(relu=True)
    check_grouping(poses_of(rectified), lambda grouped: squash(grouped.relu()))


def test_components_of_depthwise_capsules_come_from_channels_at_one_position() -> None:
    layer = DepthwisePrimaryCapsules(CHANNELS, (HEIGHT, WIDTH), dim=DIM, kernel_size=1)
    layer.double()
    nn.init.ones_(layer.conv.weight)
    check_grouping(poses_of(layer), exponential_squash)


def test_kernel_of_the_size_of_the_feature_maps_equals_a_convolution() -> None:
    layer = DepthwisePrimaryCapsules(CHANNELS, (HEIGHT, WIDTH), dim=DIM).double()
    nn.init.normal_(layer.conv.bias)
    features = torch.randn(3, CHANNELS, HEIGHT, WIDTH).double().requires_grad_()
    poses = layer(features).poses
    convolved = layer.conv(features).view(3, TYPES, DIM)
    expected = exponential_squash(convolved)
    torch.testing.assert_close(poses, expected)
    inputs = [features, layer.conv.weight, layer.conv.bias]
    found = torch.autograd.grad(poses.sin().sum(), inputs)
    of_convolution = torch.autograd.grad(expected.sin().sum(), inputs)
    torch.testing.assert_close(found, of_convolution)


@pytest.mark.parametrize("name", SQUASHES)
def test_squash_by_name(name: Any) -> None:
    layer = identity_layer(squash=name)
    check_grouping(poses_of(layer), SQUASHES[name].poses)
    capsules = layer(10 * index_features())
    lengths = length_loops(capsules.poses)
    tolerance = 1e-12 if name == "squash" else 1e-4
    torch.testing.assert_close(capsules.activations, lengths, rtol=1e-6, atol=tolerance)
    bounded = SQUASHES[name].bounded
    of_logits = capsules.logits.sigmoid() if bounded else capsules.logits
    torch.testing.assert_close(of_logits, capsules.activations)


def test_pixelwise_grouping_is_caught() -> None:
    def poses(features: Tensor) -> Tensor:
        return squash(pixelwise_grouping(features, DIM))

    with pytest.raises(AssertionError):
        check_grouping(poses)


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
    layer = PrimaryCapsules(2, kernel_size=1, stride=1, bias=False, **options)
    layer.double()
    features = torch.randn(1, 2, 1, 1).double()
    convolved = layer.conv(features).view(1, -1, 8)
    expected = squash(share * convolved)
    assert_close(layer(features).poses, expected)


@pytest.mark.parametrize(("types", "dim"), [(32, 16), (5, 9)])
def test_linear_capsules_come_from_their_own_channels_at_one_position(types: int, dim: int) -> None:
    """Channels encode their number in thousands, features their position."""
    primary = LinearPrimaryCapsules(1, types=types, dim=dim, bias=True, offset=2.0)
    primary.double()
    channels = 1000.0 * torch.arange(types * (dim + 1)).double()
    of_poses, of_activations = channels.split([types * dim, types])
    nn.init.ones_(primary.pose.weight)
    nn.init.ones_(primary.activation.weight)
    primary.pose.bias.data.copy_(of_poses)
    primary.activation.bias.data.copy_(of_activations)
    places = torch.arange(6.0).double()
    capsules = primary(places.view(1, 1, 2, 3))
    poses = capsules.poses.view(6, types, dim)
    expected = of_poses.view(types, dim) + places.view(6, 1, 1)
    assert torch.equal(poses, expected)
    logits = capsules.logits.view(6, types)
    expected = of_activations + places.view(6, 1) - 2  # the offset
    assert torch.equal(logits, expected)


SIZES = [(9, 3, 2), (10, 3, 2), (11, 4, 3), (8, 3, 1), (20, 9, 2)]
"""Sizes of the input, the kernel and the stride; in some, the last row and column are in no window."""


@pytest.mark.parametrize(("size", "kernel_size", "stride"), SIZES)
def test_gradients_are_those_of_torch(size: int, kernel_size: int, stride: int) -> None:
    ours = StridedConv2d(3, 4, kernel_size, stride).double()
    torchs = nn.Conv2d(3, 4, kernel_size, stride, bias=False).double()
    torchs.load_state_dict(ours.state_dict())
    features = torch.randn(2, 3, size, size + 1).double().requires_grad_()
    output = ours(features)
    expected_output = torchs(features)
    assert_close(output, expected_output, atol=0)
    grad = torch.randn_like(output)
    found = torch.autograd.grad(output, (features, ours.weight), grad)
    expected = torch.autograd.grad(expected_output, (features, torchs.weight), grad)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    # as in a first layer
    of_pixels = ours(features.detach())
    (alone,) = torch.autograd.grad(of_pixels, ours.weight, grad)
    torch.testing.assert_close(alone, expected[1])
    ours.requires_grad_(False)
    (alone,) = torch.autograd.grad(ours(features), features, grad)
    torch.testing.assert_close(alone, expected[0])


def test_second_derivatives() -> None:
    conv = StridedConv2d(2, 3, 3, 2).double()
    features = torch.randn(2, 2, 6, 6).double().requires_grad_()

    def function(features: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(conv, {"weight": weight}, (features,))

    torch.autograd.gradcheck(function, (features, conv.weight))
    torch.autograd.gradgradcheck(function, (features, conv.weight))


def test_the_weights_gradient_is_a_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Mock(wraps=conv2d)
    monkeypatch.setattr("capsule_lab.layers.primary.conv2d", recorded)
    conv = StridedConv2d(3, 4, 3, 2)
    conv(torch.randn(2, 3, 9, 9)).sum().backward()
    dilations = [call.kwargs.get("dilation") for call in recorded.call_args_list]
    assert dilations == [None, (2, 2)]


def test_autocast_computes_in_bfloat16_and_gives_float32_gradients() -> None:
    conv = StridedConv2d(3, 4, 3, 2)
    features = torch.randn(2, 3, 9, 9)
    with torch.autocast("cpu", torch.bfloat16):
        output = conv(features)
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    total = conv2d(features, conv.weight, stride=2).sum()
    (expected,) = torch.autograd.grad(total, conv.weight)
    assert conv.weight.grad.dtype == torch.float32
    torch.testing.assert_close(conv.weight.grad, expected, rtol=0.02, atol=0.05)
