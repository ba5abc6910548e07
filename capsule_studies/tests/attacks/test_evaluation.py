"""Objectives of attacks and the record of attacked images, for a network with known outputs."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.statistics import interval_over_images
from capsule_studies.attacks import evaluation
from capsule_studies.attacks.evaluation import (
    Attacked,
    NetworkObjective,
    Prepared,
    cross_entropy,
    margin,
)
from capsule_studies.attacks.gradient import UNIT, bim, fgsm, pgd
from capsule_studies.attacks.record import by_epsilon, of_budgets, of_clean
from capsule_studies.attacks.square import square

LOGITS = torch.tensor([[15.0, -15.0, -3.0, 1.0], [0.5, 2.0, 1.0, -1.0]], dtype=torch.float64)
ZERO = torch.tensor([0, 0])


def test_cross_entropy_and_margin() -> None:
    loss = cross_entropy(LOGITS, ZERO)
    assert loss.tolist() == pytest.approx([8.4676e-7, 1.99518], rel=1e-3)
    towards_0 = cross_entropy(LOGITS, ZERO, targeted=True)
    assert torch.equal(towards_0, -loss)
    of_0 = margin(LOGITS, ZERO)
    assert of_0.tolist() == [-14.0, 1.5]
    towards_1 = margin(LOGITS, ZERO + 1, targeted=True)
    assert towards_1.tolist() == [-30.0, 1.0]


WEIGHT = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-4.0, -4.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 0, 1, 2])
PIXELS = [[0.7, 0.3], [0.55, 0.45], [0.2, 0.6], [0.9, 0.1]]
IMAGES = torch.tensor(PIXELS, dtype=torch.float64).view(4, 1, 1, 2)


def logits(images: Tensor) -> Tensor:
    """The brighter pixel is the class; class 2 is never found."""
    return images.flatten(1) @ WEIGHT.T


def batch(which: slice = slice(None)) -> Prepared:
    key = torch.arange(4)[which]
    levels = torch.full((4,), 255.0, dtype=torch.float64)
    return Prepared(IMAGES[which], LABELS[which], key, UNIT, levels[which])


def measure(
    batches: list[Prepared], *arguments: Any, targets: Any = (None,), **network: Any
) -> Any:
    attacked = Attacked(batches, **{"logits": logits, **network})
    return attacked.measure(*arguments, targets)


def test_every_image_counts_and_those_that_were_wrong_before_are_told_apart() -> None:
    steps: list[int] = []
    batches = [batch(slice(3)), batch(slice(3, 4))]
    found = measure(batches, fgsm, "margin", [0.0, 0.1, 0.25], on_step=steps.append)
    assert steps == [3, 3, 3, 1, 1, 1]
    assert found.labels.tolist() == [0, 0, 1, 2]
    clean = of_clean(found)
    assert clean["error"] == 25.0
    assert "detected" not in clean
    difference = logits(IMAGES).softmax(1) - torch.eye(3)[LABELS]
    distances = difference.square().sum(1)
    assert clean["brier"] == pytest.approx(distances.mean().item())
    # margins 0.4, 0.1 and 0.4 fall by two epsilons
    none, small, large = by_epsilon(of_budgets(found)).values()
    assert none["accuracy"] == 75
    assert small["accuracy"] == 50
    assert large["accuracy"] == 0
    assert none["error"] == 25
    assert small["error"] == 50
    assert large["error"] == 100
    assert none["success_of_right"] == 0
    assert small["success_of_right"] == pytest.approx(100 / 3)
    assert large["success_of_right"] == 100
    assert small["mean_change"] == pytest.approx(0.1)
    assert small["mean_grey_levels"] == pytest.approx(25.5)
    assert (small["lowest"], small["highest"]) == interval_over_images(2, 4)


def test_the_first_images_are_kept_as_they_were_attacked() -> None:
    found = measure([batch(), batch()], fgsm, "margin", [0.1])
    assert torch.equal(found.clean.pictures, IMAGES.repeat(2, 1, 1, 1))
    answers = found.attacked[0.1, None]
    change = (answers.pictures - found.clean.pictures).abs().mean((1, 2, 3))
    torch.testing.assert_close(change, answers.change)


def test_the_images_that_are_kept_are_of_every_class_and_of_several_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluation, "_PICTURES", 4)
    found = measure([batch(), batch()], fgsm, "margin", [0.1])
    assert found.shown.tolist() == [0, 1, 2, 3]
    found = measure([batch(slice(2)), batch(), batch(slice(2, 4))], fgsm, "margin", [0.1])
    assert found.labels.tolist() == [0, 0, 0, 0, 1, 2, 1, 2]
    assert found.shown.tolist() == [0, 1, 4, 5]
    assert torch.equal(found.clean.pictures, IMAGES)
    monkeypatch.setattr(evaluation, "_PICTURES", 3)
    found = measure([batch(slice(2)), batch()], fgsm, "margin", [0.1])
    assert found.shown.tolist() == [0, 4, 5]
    assert torch.equal(found.clean.pictures, IMAGES[[0, 2, 3]])


def test_the_first_images_are_of_several_batches() -> None:
    attacked = Attacked([batch(), batch()], logits)
    sizes = [len(part.labels) for part in attacked.first(7).batches]
    assert sizes == [4, 3]


def test_of_targets_the_mean_and_each() -> None:
    measured = measure([batch()], fgsm, "margin", [0.25], targets=[0, 1, 2])
    record = of_budgets(measured)
    # towards 0: all but image 2, whose margin of 0.4 turns, too; towards 1 likewise, but for the fourth with 0.8
    assert record["0.25/success_of_class_0"] == 100
    assert record["0.25/success_of_class_1"] == 75
    assert record["0.25/success_of_class_2"] == 0
    assert record["0.25/success"] == pytest.approx(175 / 3)
    # right before, and of another class: image 2 towards 0; images 0 and 1 towards 1; all three towards 2
    assert record["0.25/success_of_right"] == pytest.approx(100 * 3 / 6)


def test_a_transfer_is_made_against_another_network() -> None:
    def of_mirrored(images: Tensor) -> Tensor:
        return logits(images.flip(-1))

    found = measure([batch()], fgsm, "margin", [0.25], crafted_with=of_mirrored)
    assert found.accuracy(0.25) == 75.0, "made against the reverse, they help"


PGD = partial(pgd, steps=3, restarts=4)
SQUARE = partial(square, queries=60)


def answers(attack: Any, loss: str, which: slice = slice(None)) -> Any:
    """The outputs of the network for some of the images, at an epsilon of 0.21."""
    measured = measure([batch(which)], attack, loss, [0.21])
    return measured.attacked[0.21, None]


@pytest.mark.parametrize("attack", [PGD, SQUARE], ids=["pgd", "square"])
def test_attacks_that_leave_images_out_ask_for_the_labels_of_the_others(attack: Any) -> None:
    """Images are fooled one after another: those with smaller margins first."""
    together = answers(attack, "margin")
    assert (together.found != LABELS).all()
    for number in range(4):
        alone = answers(attack, "margin", slice(number, number + 1))
        assert torch.equal(alone.logits[0], together.logits[number])


def test_square_raises_the_margin_whatever_the_objective() -> None:
    margins = answers(SQUARE, "margin")
    other = answers(SQUARE, "cross_entropy")
    assert torch.equal(other.logits, margins.logits)


def test_restarts_end_for_images_that_are_fooled() -> None:
    sizes: list[int] = []

    def counted(images: Tensor) -> Tensor:
        sizes.append(len(images))
        return logits(images)

    attack = partial(pgd, steps=1, restarts=3)
    measure([batch()], attack, "margin", [0.06], logits=counted)
    # as they are; a step of all and what came out; two restarts of images 0 and 2, which nothing fools; what is kept
    assert sizes == [4, 4, 4, 2, 2, 2, 2, 4]


def test_training_loss_is_a_loss_of_its_own() -> None:
    def loss(images: Tensor, labels: Tensor) -> Tensor:
        of_label = logits(images).gather(1, labels[:, None])
        return of_label.mean()

    found = measure([batch()], bim, "training", [0.25], training_loss=loss)
    assert found.accuracy(0.25) == 75.0, "it raises what the label has"
    away = NetworkObjective("training", LABELS, 0, logits, loss)
    first_pixels = IMAGES[:, 0, 0, 0]
    assert away(IMAGES)[0] == -first_pixels.mean()
