"""EfficientCapsNet: initial values and normalisation of the official code; sizes are in test_contract."""

import functools
import math

import pytest
import torch

from capsule_lab.networks import EfficientCapsNet


def test_initial_values_of_the_official_code() -> None:
    torch.manual_seed(0)
    network = EfficientCapsNet((1, 28, 28), 10, decoder=None)
    conv = network.features[3]
    he = math.sqrt(2 / (32 * 9))
    assert conv.weight.std().item() == pytest.approx(he, rel=0.02)
    assert not conv.bias.any()
    depthwise = network.primary.conv
    glorot = math.sqrt(6 / (81 + 81 * 128))
    largest = depthwise.weight.abs().max().item()
    assert largest == pytest.approx(glorot, rel=0.01)
    assert not depthwise.bias.any()
    of_digits = network.digits.weight.std().item()
    assert of_digits == pytest.approx(0.0395, rel=0.02)
    names = [type(layer).__name__ for layer in network.features]
    assert names == 4 * ["Conv2d", "ReLU", "BatchNorm2d"]


def test_initial_values_of_the_normalisation_of_an_instance() -> None:
    torch.manual_seed(0)
    network = EfficientCapsNet((1, 28, 28), 10, normalisation="instance", decoder=None)
    norm = network.features[2]
    for parameter in (norm.weight, norm.bias):  # start small and of either sign
        assert 0.03 < parameter.abs().max() <= 0.05
        assert parameter.min() < 0 < parameter.max()


def test_a_kernel_that_grows_with_the_image_is_named(caplog: pytest.LogCaptureFixture) -> None:
    build = functools.partial(EfficientCapsNet, num_classes=2, decoder=None)
    build((1, 40, 40))
    assert caplog.messages == []
    build((3, 64, 64))
    (message,) = caplog.messages
    expected = "each primary capsule sees feature maps of 27x27 through one kernel"
    assert message.startswith(expected)
    build((3, 64, 64), strides=[2, 1, 2, 2])
    assert len(caplog.messages) == 1
