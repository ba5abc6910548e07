"""Checks of attacks, for sound and unsound networks and attacks, and for the network of a run."""

import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab import runs
from capsule_lab.errors import RunError
from capsule_studies.attacks import checks
from capsule_studies.attacks.gradient import bim, fgsm, gradient_of, pgd
from capsule_studies.attacks.session import AttackedRun
from capsule_studies.images import StudyImages
from tests.helpers.commands import Trained


@pytest.fixture(scope="module")
def attacked(trained: Trained) -> AttackedRun:
    run = runs.open(trained.directory)
    data = run.data_with({"eval_images": 24})
    images = StudyImages(data, "test", torch.device("cpu"))
    return AttackedRun(run, images, "input")


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsule_studies.attacks.checks.STEPS", (1, 3))
    monkeypatch.setattr("capsule_studies.attacks.checks.QUERIES", 10)


def made(*arguments: Any, **options: Any) -> dict[str, checks.Check]:
    return {each.name: each for each in checks.checks(*arguments, **options)}


@pytest.mark.whole
def test_every_check_is_made(attacked: AttackedRun) -> None:
    results = made(attacked, bim, "cross_entropy", [0.1, 0.3], images=4, baseline=attacked)
    assert list(results) == [
        "zero gradients",
        "gradient size",
        "random noise",
        "multi-step",
        "loss",
        "other loss",
        "more steps",
        "large budget",
        "white box",
        "gradient-free",
        "finite differences",
    ]
    assert results["finite differences"].passed
    assert results["white box"].passed, "its own gradients are its baseline's"
    assert "0.3" in results["multi-step"].found
    assert "epsilon 1.2" in results["large budget"].found


@pytest.mark.whole
def test_the_white_box_of_the_training_loss_is_of_logits(attacked: AttackedRun) -> None:
    results = made(attacked, fgsm, "training", [0.2], images=2, baseline=attacked)
    assert "white box" in results
    assert results["loss"].passed is None, "the attack itself uses the training loss"


@pytest.mark.whole
def test_attacks_that_are_bounded_in_length_are_compared_with_such(attacked: AttackedRun) -> None:
    """An epsilon of 1.5 is the length of the whole change, so that random noise changes few predictions."""
    found = made(attacked, partial(pgd, steps=3, norm="l2"), "cross_entropy", [1.5], images=8)
    assert "gradient-free" not in found, "Square is not"
    assert "white box" not in found, "there is no baseline"
    assert found["gradient size"].passed is None
    few = attacked.batches[0].first(8)
    is_right = attacked.logits(few.images).argmax(1) == few.labels
    clean = 100 * is_right.float().mean().item()
    under_noise = re.search(r"random signs (\S+) %", found["random noise"].found)
    assert float(under_noise[1]) == pytest.approx(clean, abs=25)


GRADIENTS = checks.Gradients(
    zero_pixels=10.0, zero_images=0.0, median=1e-2, lowest=1e-3, highest=0.1
)


def test_gradients_are_counted_and_measured() -> None:
    found = torch.zeros(4, 1, 2, 2)
    found[0] = torch.tensor([[1.0, -1.0], [0.0, 2.0]])
    found[1] = 0.5
    found[2, 0, 0, 0] = -4
    measured = checks.Gradients.of(found)
    assert measured.zero_pixels == 50.0  # 1 + 0 + 3 + 4 of 16
    assert measured.zero_images == 25.0
    assert measured.median == pytest.approx(0.75, abs=0.01)
    assert measured.lowest == pytest.approx(0.015, abs=0.01)
    assert measured.highest == pytest.approx(1.0, abs=0.01)


def smooth(images: Tensor) -> Tensor:
    return images.sin().prod(3).sum((1, 2))


def test_finite_differences_see_a_gradient_that_is_cut_and_know_a_kink() -> None:
    """Examples: routing with detached couplings; a rectified linear unit that becomes active within a step."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(3, 1, 4, 4, dtype=torch.float64, generator=generator)

    def cut(moved: Tensor) -> Tensor:
        products = moved.detach().sin() * moved
        return products.sum((1, 2, 3))

    def kinked(moved: Tensor) -> Tensor:
        beyond = (moved - images - 3e-7).relu()
        return smooth(moved) + 1000 * beyond.sum((1, 2, 3))

    def unknown(moved: Tensor) -> Tensor:
        return (
            smooth(moved) + (0 * moved).sum((1, 2, 3)).square().sqrt()
        )  # finite, with a gradient of NaN

    error = checks.gradient_error
    with pytest.raises(RunError, match="the gradient of the loss is not finite"):
        error(unknown, images)
    assert error(smooth, images) < 1e-5
    assert error(cut, images) > 1e-2
    assert error(kinked, images, steps=(1e-6,)) > 1e-5
    assert error(kinked, images) < 1e-5


def test_zero_gradients_of_a_loss_that_is_clamped() -> None:
    """A confident network under the clamped cross-entropy of its activations has no gradient on any image."""
    images = 20 + torch.rand(5, 1, 4, 4)

    def clamped(images: Tensor) -> Tensor:
        return images.mean((1, 2, 3)).sigmoid().clamp(max=1 - 1e-6)

    def linear(images: Tensor) -> Tensor:
        return images.mean((1, 2, 3))

    for objective, passed in [(clamped, False), (linear, True)]:
        gradients = gradient_of(objective, images)
        found = checks.Gradients.of(gradients)
        for baseline in (None, GRADIENTS):
            check = checks.zero_gradients(found, baseline)
            assert check.passed is passed


@pytest.mark.parametrize(
    ("median", "passed"),
    [
        (1e-2, True),
        (1e-4, True),
        (1e-6, False),
        (0.0, False),
    ],
)
def test_gradient_size_is_that_of_the_baseline_but_for_orders(median: float, passed: bool) -> None:
    measured = GRADIENTS._replace(median=median)
    check = checks.gradient_size(measured, GRADIENTS)
    assert check.passed is passed


@pytest.mark.parametrize(("several_steps", "passed"), [(5.2, False), (3.4, True)])
def test_published_curves_fail(several_steps: float, passed: bool) -> None:
    """Hinton 2018, figure 3, at epsilon 0.5: BIM on the CNN leaves more than FGSM, and the capsules stay above 50 %."""
    check = checks.stronger("multi-step", several_steps, 3.3, "BIM against FGSM", 1000)
    assert check.passed is passed


def test_converged() -> None:
    found = checks.converged({1: 60.0, 5: 30.0, 10: 20.5, 50: 18.0}, 1000)
    assert found.name == "more steps"
    assert found.passed
    assert found.found == "60.0 % after 1, 30.0 % after 5, 20.5 % after 10, 18.0 % after 50"


@pytest.mark.parametrize(
    "accuracies",
    [
        pytest.param({1: 60.0, 5: 30.0, 10: 40.0, 50: 39.0}, id="more steps are weaker"),
        pytest.param({1: 60.0, 5: 30.0, 10: 20.0, 50: 10.0}, id="the last steps still gain"),
    ],
)
def test_not_converged(accuracies: dict[int, float]) -> None:
    check = checks.converged(accuracies, 1000)
    assert not check.passed
