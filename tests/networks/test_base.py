"""What a network refuses, at construction and in ``forward``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from capsule_lab import BaselineCNN, CapsNet, DynamicRouting, EMCaps, SmallCNN

pytestmark = pytest.mark.usefixtures("unchecked_types")

CAPSNET: dict[str, Any] = {"channels": 4, "primary_types": 2, "class_dim": 4, "decoder": [8]}
SHAPE = (1, 28, 28)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: CapsNet(28, 10), ValueError, "image_shape is 28; expected (channel, height, width), as in"),  # type: ignore[arg-type]
        (lambda: CapsNet(SHAPE, "10"), ValueError, "CapsNet has num_classes '10'; expected a whole number"),  # type: ignore[arg-type]
        (
            lambda: CapsNet(SHAPE, 10, **{**CAPSNET, "decoder": 512}),
            ValueError,
            "CapsNet has decoder 512; expected a list of whole numbers",
        ),
        (
            lambda: CapsNet(SHAPE, 10, **{**CAPSNET, "decoder": [0]}),
            ValueError,
            "CapsNet has decoder 0; expected 1 or more",
        ),
        (
            lambda: CapsNet(SHAPE, 10, **CAPSNET, routing=DynamicRouting(10, 4)),
            TypeError,
            "routing is a DynamicRouting that is built already; expected what builds one for each layer",
        ),
        (lambda: EMCaps((2, 32, 32), 5, conv_types=8), ValueError, "EMCaps has conv_types 8; expected a list of"),  # type: ignore[arg-type]
        (lambda: BaselineCNN(SHAPE, 10, channels=8), ValueError, "BaselineCNN has channels 8; expected a list of"),  # type: ignore[arg-type]
        (lambda: BaselineCNN(SHAPE, 10, hidden=[-1]), ValueError, "BaselineCNN has hidden -1; expected 1 or more"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_that_are_refused(build: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        build()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "network",
    [
        lambda: CapsNet(SHAPE, 10, **CAPSNET),
        lambda: EMCaps(SHAPE, 10, channels=2, primary_types=2, conv_types=[2, 2]),
        lambda: BaselineCNN(SHAPE, 10, channels=[2], hidden=[2]),
        lambda: SmallCNN(SHAPE, 10, channels=[2], kernel_sizes=[3]),
    ],
    ids=["CapsNet", "EMCaps", "BaselineCNN", "SmallCNN"],
)
def test_images_that_are_refused(network: Callable[[], Any]) -> None:
    built = network()
    name = type(built).__name__
    for shape in [(1, 28, 28), (2, 1, 32, 32), (2, 3, 28, 28)]:
        with pytest.raises(ValueError, match=name) as caught:
            built(torch.zeros(shape))
        assert str(caught.value) == f"{name} got images of shape {shape}; expected (batch, 1, 28, 28)"
    with pytest.raises(TypeError, match=rf"^{name} got images of torch.uint8; expected floating-point numbers in"):
        built(torch.zeros(2, *SHAPE, dtype=torch.uint8))
