"""EfficientCapsNet: initial values and normalisation of the official code; sizes are in test_contract."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from capsule_lab.layers import DepthwisePrimaryCapsules
from capsule_lab.networks import EfficientCapsNet

SMALL: dict[str, Any] = {
    "channels": (4, 6), "kernel_sizes": (3, 2), "strides": (1, 2), "class_dim": 5,
    "primary": partial(DepthwisePrimaryCapsules, dim=3),
}  # fmt: skip


def build(**options: Any) -> EfficientCapsNet:
    torch.manual_seed(0)
    return EfficientCapsNet((1, 9, 9), 4, **{**SMALL, **options})


def test_initial_values_of_the_official_code() -> None:
    network = EfficientCapsNet((1, 28, 28), 10)
    conv = network.features[3]
    assert conv.weight.std().item() == pytest.approx((2 / (32 * 9)) ** 0.5, rel=0.02)
    assert not any(layer.bias.any() for layer in (conv, network.primary.conv))
    assert network.primary.conv.weight.abs().max().item() == pytest.approx((6 / (81 + 81 * 128)) ** 0.5, rel=0.01)
    assert network.digits.weight.std().item() == pytest.approx(0.0395, rel=0.02)


def test_normalisation_comes_after_the_activation_and_instances_start_small_and_of_either_sign() -> None:
    kinds = [type(layer).__name__ for layer in build().features]
    assert kinds == 2 * ["Conv2d", "ReLU", "BatchNorm2d"]
    network = build(normalisation="instance", channels=(50, 6))
    for parameter in (network.features[2].weight, network.features[2].bias):
        assert 0.03 < parameter.abs().max() <= 0.05
        assert parameter.min() < 0 < parameter.max()
