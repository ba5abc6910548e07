"""Attacks on a linear model, against numbers worked out in float64, and what public attack code gets wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_lab.studies.attacks.evaluation import NetworkObjective
from capsule_lab.studies.attacks.gradient import Box, bim, fgsm, gradient_of, noise, pgd
from capsule_lab.studies.attacks.losses import cross_entropy, margin

WEIGHT = 5 * torch.tensor([[0.5, -0.3, 0.2, 0.1], [-0.2, 0.4, 0.1, -0.3], [0.1, 0.2, -0.4, 0.3]], dtype=torch.float64)
IMAGE = torch.tensor([[0.2, 0.8, 0.05, 0.97]], dtype=torch.float64)
NO_BOX = Box()
KEY = torch.tensor([7])


def logits(images: Tensor) -> Tensor:
    return images @ WEIGHT.T.to(images)


def raised(label: int, loss: Callable[..., Tensor] = cross_entropy, **options: Any) -> Callable[[Tensor], Tensor]:
    return lambda images: loss(logits(images), torch.full((len(images),), label), **options)


def check(found: Tensor, expected: list[float], tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found[0], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)


def test_the_models_logits_losses_and_gradients() -> None:
    check(logits(IMAGE), [-0.165, -0.03, 2.255])
    assert raised(0)(IMAGE).item() == pytest.approx(2.594537740985727, abs=1e-14)
    check(gradient_of(raised(0), IMAGE), [-1.97885090, 2.39877348, -2.56227270, 0.66889625], 5e-9)
    assert raised(2, margin)(IMAGE).item() == pytest.approx(-2.285, abs=1e-14)
    check(gradient_of(raised(2, margin), IMAGE), [-1.5, 1, 2.5, -3])


def test_fgsm() -> None:
    for epsilon, expected, loss in (
        (0.02, [0.18, 0.82, 0.03, 0.99], 2.7477447068955083),
        (0.1, [0.1, 0.9, 0, 1], 3.1921574612213144),
    ):
        attacked = fgsm(raised(0), IMAGE, epsilon)
        check(attacked, expected)
        assert raised(0)(attacked).item() == pytest.approx(loss, abs=1e-14)
    attacked = fgsm(raised(2), IMAGE, 0.1, box=NO_BOX)
    check(attacked, [0.3, 0.7, 0.15, 0.87])
    check(logits(attacked), [0.285, -0.13, 1.855])
    assert raised(2)(attacked).item() == pytest.approx(0.29671054025785165, abs=1e-14)
    assert raised(2)(IMAGE).item() == pytest.approx(0.17453774098572694, abs=1e-14)


def test_bim() -> None:
    attacked = bim(raised(0), IMAGE, 0.1, steps=4, step_size=0.04)
    check(attacked, [0.1, 0.9, 0, 1])
    assert raised(0)(attacked).item() == pytest.approx(3.1921574612213144, abs=1e-14)


def test_targeted() -> None:
    objective = raised(2, targeted=True)
    attacked = fgsm(objective, IMAGE, 0.1)
    check(attacked, [0.1, 0.9, 0, 1])
    assert -objective(attacked).item() == pytest.approx(0.142157461221314, abs=1e-14)
    attacked = bim(objective, IMAGE, 0.1, steps=4, step_size=0.04)
    check(attacked, [0.28, 0.9, 0, 1])
    check(logits(attacked), [-0.15, 0.02, 2.54])
    assert -objective(attacked).item() == pytest.approx(0.13831789687034984, abs=1e-14)


def test_pgd_in_l2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsule_lab.studies.attacks.gradient.random_start", lambda images, *_: images)
    attacked = pgd(raised(2), IMAGE, 0.2, key=KEY, steps=5, step_size=0.1, norm="l2")
    check(attacked, [0.207319107952, 0.764005646407, 0.206711206044, 0.851288437511], 1e-12)
    assert (attacked - IMAGE).norm().item() == pytest.approx(0.2, abs=1e-12)
    assert raised(2)(attacked).item() == pytest.approx(0.3242846963940549, abs=1e-13)


def test_bim_of_a_linear_loss_is_as_many_equal_steps() -> None:
    """Where gradients of earlier steps are added up, or kept in the image, they are not equal."""
    attacked = bim(raised(2, margin), IMAGE, 0.1, steps=5, step_size=0.01, box=NO_BOX)
    check(attacked, [0.15, 0.85, 0.10, 0.92])


# --- a network that is no line ---------------------------------------------------------------------------------------


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.5), nn.Linear(4 * 36, 3)]
    return nn.Sequential(*layers).eval()


@pytest.fixture
def images() -> Tensor:
    return torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))


LABELS = torch.arange(6) % 3
KEYS = torch.arange(100, 106)


def of(network: nn.Module, labels: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda images: cross_entropy(network(images), labels)


def test_one_step_of_bim_is_fgsm_and_more_steps_are_stronger(network: nn.Module, images: Tensor) -> None:
    objective = of(network, LABELS)
    once = fgsm(objective, images, 0.1)
    assert torch.equal(bim(objective, images, 0.1, steps=1, step_size=0.1), once)
    assert objective(bim(objective, images, 0.1, steps=10)).mean() > objective(once).mean() > objective(images).mean()


def test_restarts_keep_the_best_and_depend_on_the_key_only(network: nn.Module, images: Tensor) -> None:
    objective = of(network, LABELS)
    attack = partial(pgd, objective, images, 0.1, steps=2, step_size=0.01)
    one, many = attack(key=KEYS, restarts=1), attack(key=KEYS, restarts=5)
    assert (objective(many) >= objective(one)).all()
    assert (objective(many) > objective(one)).any()
    assert torch.equal(attack(key=KEYS, restarts=5), many)
    assert not torch.equal(attack(key=KEYS + 1, restarts=5), many)
    named = NetworkObjective("cross_entropy", LABELS, None, network)
    by_margin = pgd(named, images, 0.1, KEYS, steps=2, step_size=0.01, restarts=5)
    assert ((named.success(by_margin) > 0) >= (named.success(many) > 0)).all(), "any success counts"


def test_noise(images: Tensor) -> None:
    noisy = noise(None, images, 0.1, key=KEYS, box=NO_BOX)
    change = noisy - images
    torch.testing.assert_close(change.abs(), torch.full_like(images, 0.1))
    assert 0.4 < (change > 0).float().mean() < 0.6
    assert torch.equal(noise(None, images[2:3], 0.1, key=KEYS[2:3], box=NO_BOX), noisy[2:3])
    assert len({tuple(row.tolist()) for row in (change > 0).flatten(1)}) == len(images)
