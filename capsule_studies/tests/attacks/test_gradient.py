"""Attacks on a linear model, compared with numbers computed in float64, and mistakes of public attack code."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_studies.attacks.evaluation import NetworkObjective, cross_entropy, margin
from capsule_studies.attacks.gradient import Box, bim, fgsm, gradient_of, noise, pgd

WEIGHT = torch.tensor(
    [
        [2.5, -1.5, 1.0, 0.5],
        [-1.0, 2.0, 0.5, -1.5],
        [0.5, 1.0, -2.0, 1.5],
    ],
    dtype=torch.float64,
)
IMAGE = torch.tensor([[0.2, 0.8, 0.05, 0.97]], dtype=torch.float64)
NO_BOX = Box()


def logits(images: Tensor) -> Tensor:
    return images @ WEIGHT.T.to(images)


def raised(
    label: int, loss: Callable[..., Tensor] = cross_entropy, **options: Any
) -> Callable[[Tensor], Tensor]:
    def objective(images: Tensor) -> Tensor:
        labels = torch.full((len(images),), label)
        return loss(logits(images), labels, **options)

    return objective


def check(found: Tensor, expected: list[float], tolerance: float = 1e-12) -> None:
    assert found[0].tolist() == pytest.approx(expected, rel=0, abs=tolerance)


def test_the_models_logits_losses_and_gradients() -> None:
    check(logits(IMAGE), [-0.165, -0.03, 2.255])
    cross_entropy_of_0 = raised(0)
    assert cross_entropy_of_0(IMAGE).item() == pytest.approx(2.594537740985727, abs=1e-14)
    gradient = gradient_of(cross_entropy_of_0, IMAGE)
    check(gradient, [-1.97885090, 2.39877348, -2.56227270, 0.66889625], 5e-9)
    margin_of_2 = raised(2, margin)
    assert margin_of_2(IMAGE).item() == pytest.approx(-2.285, abs=1e-14)
    check(gradient_of(margin_of_2, IMAGE), [-1.5, 1, 2.5, -3])


STEPS = {"steps": 4, "step_size": 0.04}
LENGTH = {"steps": 5, "step_size": 0.1, "norm": "l2"}
IN_LENGTH = [0.207319107952, 0.764005646407, 0.206711206044, 0.851288437511]
EQUAL_STEPS = {"steps": 5, "step_size": 0.01, "box": NO_BOX}


@pytest.mark.parametrize(
    ("attack", "objective", "epsilon", "options", "expected", "loss"),
    [
        (fgsm, raised(0), 0.02, {}, [0.18, 0.82, 0.03, 0.99], 2.7477447068955083),
        (fgsm, raised(0), 0.1, {}, [0.1, 0.9, 0, 1], 3.1921574612213144),
        (fgsm, raised(2), 0.1, {"box": NO_BOX}, [0.3, 0.7, 0.15, 0.87], 0.29671054025785165),
        (bim, raised(0), 0.1, STEPS, [0.1, 0.9, 0, 1], 3.1921574612213144),
        (fgsm, raised(2, targeted=True), 0.1, {}, [0.1, 0.9, 0, 1], -0.142157461221314),
        (bim, raised(2, targeted=True), 0.1, STEPS, [0.28, 0.9, 0, 1], -0.13831789687034984),
        (bim, raised(2), 0.2, LENGTH, IN_LENGTH, 0.3242846963940549),
        # equal steps of a linear loss: not where gradients of earlier ones are added up, or kept in the image
        (bim, raised(2, margin), 0.1, EQUAL_STEPS, [0.15, 0.85, 0.1, 0.92], -1.885),
    ],
)
def test_golden_images(
    attack: Callable[..., Tensor],
    objective: Callable[[Tensor], Tensor],
    epsilon: float,
    options: dict[str, Any],
    expected: list[float],
    loss: float,
) -> None:
    attacked = attack(objective, IMAGE, epsilon, **options)
    check(attacked, expected)
    assert objective(attacked).item() == pytest.approx(loss, abs=1e-13)


def test_restarts_keep_the_best() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3)]
    network = nn.Sequential(*layers).eval()
    images = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    keys = torch.arange(100, 106)
    objective = NetworkObjective("cross_entropy", torch.arange(6) % 3, None, network)
    attack = partial(pgd, objective, images, 0.1, steps=2, step_size=0.01)
    one = objective.success(attack(key=keys, restarts=1))
    several = objective.success(attack(key=keys, restarts=5))
    assert (several >= one).all()
    assert (several > one).any()


@pytest.mark.parametrize(
    ("epsilon", "steps", "step_size"),
    [
        (0.1, 50, 0.005),
        (0.1, 10, 0.025),
        (0.2, 10, 0.05),
    ],
)
def test_default_step_of_pgd_is_that_of_its_docstring(
    epsilon: float, steps: int, step_size: float
) -> None:
    """2.5 epsilon / steps: it reaches any point of the ball from any other."""
    seen: list[Tensor] = []

    class SumOfPixels:
        """A loss whose gradient is 1 everywhere."""

        def at(self, index: Tensor) -> Any:
            return self

        def __call__(self, images: Tensor) -> Tensor:
            seen.append(images.detach())
            return images.sum(1)

        success = __call__

    images = torch.zeros(1, 1000, dtype=torch.float64)
    pgd(SumOfPixels(), images, epsilon, torch.arange(1), NO_BOX, steps=steps, restarts=1)
    start, after_one_step, *_ = seen
    change = after_one_step - start
    assert change.max().item() == pytest.approx(step_size, rel=1e-12)
    is_inside = start < epsilon - step_size
    assert is_inside.float().mean() > 0.5
    torch.testing.assert_close(change[is_inside], torch.full_like(change[is_inside], step_size))


def test_noise_is_random_signs() -> None:
    images = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    change = noise(None, images, 0.1, key=torch.arange(6), box=NO_BOX) - images
    torch.testing.assert_close(change.abs(), torch.full_like(images, 0.1))
    is_brighter = change > 0
    assert 0.4 < is_brighter.float().mean() < 0.6
    assert len(is_brighter.unique(dim=0)) == len(images)
