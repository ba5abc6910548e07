from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.studies.attacks.gradient import Box
from capsule_lab.studies.attacks.gradient import noise as random_signs
from capsule_lab.studies.attacks.losses import margin
from capsule_lab.studies.attacks.square import square

KEYS = torch.arange(40, 46)
LABELS = torch.zeros(6, dtype=torch.int64)


@pytest.fixture
def images() -> Tensor:
    return torch.rand(6, 2, 9, 7, generator=torch.Generator().manual_seed(1))


def objective(images: Tensor) -> Tensor:
    """Of a network of two linear classes, which is right by 1."""
    direction = torch.rand(2 * 9 * 7, generator=torch.Generator().manual_seed(2)) - 0.5
    scores = images.flatten(1) @ direction
    return margin(torch.stack([1 - scores + START[: len(images)], torch.zeros_like(scores)], 1), LABELS[: len(images)])


START = torch.zeros(6)


@pytest.fixture(autouse=True)
def start(images: Tensor) -> None:
    START.zero_()
    START.add_(-1 - objective(images))  # each image has a margin of -1


def attack(
    images: Tensor, epsilon: float = 0.1, function: Callable[[Tensor], Tensor] = objective, **options: Any
) -> Tensor:
    return square(function, images, epsilon, **{"key": KEYS, "queries": 200, "box": Box(), **options})


def test_comes_near_the_best_there_is_and_far_beyond_noise(images: Tensor) -> None:
    """Of a linear margin, the best is the sign of its gradient."""
    image = images[:1].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(image).sum(), image)
    epsilon = 0.5 / gradient.abs().sum().item()  # half of the margin, so that no image is done early
    before = objective(images)[0]
    gained = objective(attack(images[:1], epsilon, key=KEYS[:1], queries=2000))[0] - before
    noise = objective(random_signs(None, images, epsilon, key=KEYS, box=Box())) - objective(images)
    assert 0.4 < gained <= 0.5 + 1e-5
    assert noise.abs().max() < 0.3


def test_the_objective_never_falls_and_images_that_are_fooled_are_left(images: Tensor) -> None:
    asked = []

    def counted(images: Tensor) -> Tensor:
        asked.append(len(images))
        return objective_of_any(images)

    def objective_of_any(images: Tensor) -> Tensor:
        return images.mean((1, 2, 3)) - 0.55

    values = [objective_of_any(attack(images, 0.1, objective_of_any, queries=count)) for count in (1, 20, 100)]
    # the same key gives other squares where there are fewer queries; the first query is the same
    assert (values[0] <= values[1].maximum(values[2])).all()
    attack(images, 0.2, counted, queries=50)
    assert asked == sorted(asked, reverse=True)
    assert asked[0] == 6
    assert sum(asked) < 6 * 50
