"""Attacks along the gradient against another implementation; needs ``pip install foolbox``."""

from typing import Any

import pytest
import torch
from torch import nn

from capsule_studies.attacks.evaluation import NetworkObjective
from capsule_studies.attacks.gradient import bim, fgsm

pytestmark = pytest.mark.slow
LABELS = torch.arange(16) % 10
IMAGES = torch.rand(16, 1, 27, 27, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def foolbox() -> Any:
    return pytest.importorskip("foolbox")


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1152, 10),
    ]
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize(
    ("attack", "steps", "step", "epsilon", "target", "norm"),
    [
        (bim, 1, 0.03, 0.1, None, "linf"), (bim, 7, 0.03, 0.1, None, "linf"), (bim, 1, 0.6, 2.0, None, "l2"),
        (bim, 7, 0.6, 2.0, None, "l2"), (bim, 9, 0.02, 0.1, 3, "linf"), (fgsm, 1, 0.1, 0.1, None, "linf"),
    ],
)  # fmt: skip
def test_the_same_images_from_the_same_start(
    foolbox: Any,
    network: nn.Module,
    attack: Any,
    steps: int,
    step: float,
    epsilon: float,
    target: Any,
    norm: str,
) -> None:
    attacks = {
        "linf": foolbox.attacks.LinfProjectedGradientDescentAttack,
        "l2": foolbox.attacks.L2PGD,
    }
    judge = attacks[norm](abs_stepsize=step, steps=steps, random_start=False)
    goal = foolbox.criteria.Misclassification(LABELS)
    if target is not None:
        goal = foolbox.criteria.TargetedMisclassification(torch.full((16,), target))
    expected = judge.run(
        foolbox.PyTorchModel(network, bounds=(0, 1)), IMAGES, goal, epsilon=epsilon
    )
    options = (
        {"norm": norm} if attack is fgsm else {"norm": norm, "steps": steps, "step_size": step}
    )
    found = attack(
        NetworkObjective("cross_entropy", LABELS, target, network), IMAGES, epsilon, **options
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
