"""Networks and images for tests of questions and attacks, without a run."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from capsule_lab.networks import AbstractNetwork, SmallCNN
from capsule_lab.types import Batch
from capsule_studies.subject import Change, Subject
from tests.helpers.networks import small_capsnet, small_em_caps

CLASSES = 4


def digits(images: int = 24, side: int = 24) -> Tensor:
    """Images with a bright square in one of four corners, by class, slightly shifted."""
    pictures = torch.zeros(images, 1, side, side)
    labels = torch.arange(images) % CLASSES
    noise = torch.rand(pictures.shape, generator=torch.Generator().manual_seed(0))
    third = side // 3
    for image, label in enumerate(labels.tolist()):
        lower, right = divmod(label, 2)
        jitter = image // CLASSES % 3  # so that images of a class differ in where it is
        top = third * (1 + lower) - 4
        left = third * (1 + right) - 4 + jitter
        pictures[image, 0, top : top + 6, left : left + 6] = 200
    return pictures + 20 * noise


def column_of_square(images: Tensor) -> Tensor:
    """The mean column of the square in each preprocessed image."""
    square = (images > 0.3).to(images.dtype)
    sizes = square.sum((1, 2))  # [image column]
    columns = torch.arange(images.shape[3], dtype=images.dtype)
    return (sizes * columns).sum(1) / sizes.sum(1)


def moved(images: Tensor, pixels: float) -> Tensor:
    """Move images to the right, around the edge."""
    return images.roll(round(pixels), 3)


def quarter_turn(images: Tensor, degrees: float) -> Tensor:
    """Turn by 90 degrees counter-clockwise, or clockwise for a negative angle."""
    return images.rot90(1 if degrees > 0 else 3, (2, 3))


def subject(network: Any, changes: Mapping[str, Change] | None = None, images: int = 24) -> Subject:
    """Digits of four classes, in two batches."""
    stored = digits(images)
    numbers = torch.arange(images)
    half = -(-images // 2)

    def batches(pictures: Tensor) -> list[Batch]:
        made = []
        for part in (slice(0, half), slice(half, None)):
            key = numbers[part]
            made.append(Batch(pictures[part] / 255, key % CLASSES, key))
        return made

    def changed(change: Change, strength: float) -> list[Batch]:
        return batches(change(stored, strength))

    return Subject(
        network=network.eval(),
        batches=batches(stored),
        changed=changed,
        changes=changes or {"translation": moved},
        training=lambda _: batches(stored),
        factors=(),
        classes=[f"class {label}" for label in range(CLASSES)],
        num_classes=CLASSES,
    )


def small_network(kind: str = "em_caps", **options: Any) -> AbstractNetwork:
    """Return a network whose random weights are large enough for different couplings."""
    torch.manual_seed(0)
    shape = (1, 24, 24)
    if kind == "cnn":
        return SmallCNN(shape, CLASSES)
    if kind == "capsnet":
        return small_capsnet(shape, CLASSES, decoder=None, **options)
    sizes: dict[str, Any] = {"conv_weight_std": 0.5, "class_weight_std": 0.5, "class_routing": None}
    return small_em_caps(shape, CLASSES, **{**sizes, **options})
