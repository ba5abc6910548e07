"""The checks of an attack on the network of a run."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from capsule_lab import runs
from capsule_lab.studies.attacks import bim, fgsm, pgd
from capsule_lab.studies.attacks.checks import checks
from capsule_lab.studies.attacks.session import Attacked, open_attacked
from tests.helpers.commands import Trained


@pytest.fixture(scope="module")
def attacked(trained: Trained) -> Attacked:
    run = runs.open(trained.directory)
    return open_attacked(run, run.data_with({"eval_images": 24}), "test", "input", torch.device("cpu"))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsule_lab.studies.attacks.checks.STEPS", (1, 3))
    monkeypatch.setattr("capsule_lab.studies.attacks.checks.QUERIES", 10)


def test_every_check_is_made(attacked: Attacked) -> None:
    found = {
        each.name: each for each in checks(attacked, bim, "cross_entropy", [0.1, 0.3], images=8, baseline=attacked)
    }
    assert list(found) == [
        *("zero gradients", "gradient size", "random noise", "multi-step", "loss", "other loss", "more steps"),
        *("large budget", "white box", "gradient-free", "finite differences"),
    ]
    assert found["finite differences"].passed
    assert found["white box"].passed, "its own gradients are its baseline's"
    assert "0.3" in found["multi-step"].found
    assert "epsilon 1.2" in found["large budget"].found


def test_without_a_baseline_nothing_is_said_of_transfer(attacked: Attacked) -> None:
    found = {each.name: each for each in checks(attacked, fgsm, "cross_entropy", [0.0], images=4)}
    assert "white box" not in found
    assert found["gradient size"].passed is None


def test_attacks_that_are_bounded_in_length_are_compared_with_such(attacked: Attacked) -> None:
    """Signs of 1.5 in every pixel would be another attack: noise of that length is hardly seen."""
    attack = partial(pgd, steps=3, norm="l2")
    found = {each.name: each for each in checks(attacked, attack, "cross_entropy", [1.5], images=8)}
    assert "gradient-free" not in found, "Square is not"
    clean = attacked.logits(attacked.batches[0].images[:8]).argmax(1) == attacked.batches[0].labels[:8]
    noise = float(found["random noise"].found.partition("random signs ")[2].partition(" %")[0])
    assert abs(noise - 100 * clean.float().mean().item()) <= 25


def test_the_loss_of_training_is_not_what_a_transfer_is_made_with(attacked: Attacked) -> None:
    found = {each.name: each for each in checks(attacked, fgsm, "training", [0.2], images=4, baseline=attacked)}
    assert "white box" in found
