"""EfficientCapsNet: initial values and normalisation of the official code; sizes are in test_contract."""

import pytest
import torch

from capsule_lab.networks import EfficientCapsNet


def test_initial_values_of_the_official_code() -> None:
    torch.manual_seed(0)
    network = EfficientCapsNet((1, 28, 28), 10)
    conv = network.features[3]
    assert conv.weight.std().item() == pytest.approx((2 / (32 * 9)) ** 0.5, rel=0.02)
    assert not conv.bias.any()
    assert not network.primary.conv.bias.any()
    largest = network.primary.conv.weight.abs().max()
    assert largest.item() == pytest.approx((6 / (81 + 81 * 128)) ** 0.5, rel=0.01)
    assert network.digits.weight.std().item() == pytest.approx(0.0395, rel=0.02)
    names = [type(layer).__name__ for layer in network.features]
    assert names == 4 * ["Conv2d", "ReLU", "BatchNorm2d"]
    norm = EfficientCapsNet((1, 28, 28), 10, normalisation="instance").features[2]
    for parameter in (norm.weight, norm.bias):  # start small and of either sign
        assert 0.03 < parameter.abs().max() <= 0.05
        assert parameter.min() < 0 < parameter.max()


def test_a_kernel_that_grows_with_the_image_is_named(caplog: pytest.LogCaptureFixture) -> None:
    EfficientCapsNet((1, 40, 40), 2, decoder=None)
    assert caplog.messages == []
    EfficientCapsNet((3, 64, 64), 2, decoder=None)
    (message,) = caplog.messages
    assert message.startswith("each primary capsule sees feature maps of 27x27 through one kernel")
    EfficientCapsNet((3, 64, 64), 2, decoder=None, strides=[2, 1, 2, 2])
    assert len(caplog.messages) == 1
