"""Attacks along the gradient against another implementation; needs ``pip install foolbox``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from capsule_lab.studies.attacks.evaluation import NetworkObjective
from capsule_lab.studies.attacks.gradient import bim, fgsm, pgd

pytestmark = pytest.mark.slow
EPSILON = 0.1


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(1152, 10)]
    return nn.Sequential(*layers).eval()


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(16, 1, 27, 27, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("steps", [1, 7])
def test_the_same_images_from_the_same_start(network: nn.Module, images: Tensor, norm: str, steps: int) -> None:
    foolbox = pytest.importorskip("foolbox")
    labels = torch.arange(16) % 10
    epsilon = EPSILON if norm == "linf" else 2.0
    attacks = {"linf": foolbox.attacks.LinfProjectedGradientDescentAttack, "l2": foolbox.attacks.L2PGD}
    judge = attacks[norm](abs_stepsize=0.3 * epsilon, steps=steps, random_start=False)
    model = foolbox.PyTorchModel(network, bounds=(0, 1))
    expected = judge.run(model, images, foolbox.criteria.Misclassification(labels), epsilon=epsilon)
    objective = NetworkObjective("cross_entropy", labels, None, network)
    found = bim(objective, images, epsilon, steps=steps, step_size=0.3 * epsilon, norm=norm)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def test_targeted(network: nn.Module, images: Tensor) -> None:
    foolbox = pytest.importorskip("foolbox")
    judge = foolbox.attacks.LinfProjectedGradientDescentAttack(abs_stepsize=0.02, steps=9, random_start=False)
    model = foolbox.PyTorchModel(network, bounds=(0, 1))
    expected = judge.run(
        model, images, foolbox.criteria.TargetedMisclassification(torch.full((16,), 3)), epsilon=EPSILON
    )
    objective = NetworkObjective("cross_entropy", torch.arange(16) % 10, 3, network)
    found = bim(objective, images, EPSILON, steps=9, step_size=0.02)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def test_one_step_is_theirs(network: nn.Module, images: Tensor) -> None:
    foolbox = pytest.importorskip("foolbox")
    labels = torch.arange(16) % 10
    model = foolbox.PyTorchModel(network, bounds=(0, 1))
    judge = foolbox.attacks.LinfFastGradientAttack(random_start=False)
    expected = judge.run(model, images, foolbox.criteria.Misclassification(labels), epsilon=EPSILON)
    found = fgsm(NetworkObjective("cross_entropy", labels, None, network), images, EPSILON)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def test_as_many_images_are_fooled_from_random_starts(network: nn.Module, images: Tensor) -> None:
    foolbox = pytest.importorskip("foolbox")
    labels = network(images).argmax(1)
    model = foolbox.PyTorchModel(network, bounds=(0, 1))
    judge = foolbox.attacks.LinfPGD(abs_stepsize=0.005, steps=20, random_start=True)
    theirs = judge.run(model, images, foolbox.criteria.Misclassification(labels), epsilon=0.03)
    objective = NetworkObjective("cross_entropy", labels, None, network)
    ours = pgd(objective, images, 0.03, key=torch.arange(16), steps=20, step_size=0.005)
    fooled = [int((network(each).argmax(1) != labels).sum()) for each in (theirs, ours)]
    assert abs(fooled[0] - fooled[1]) <= 2, fooled
