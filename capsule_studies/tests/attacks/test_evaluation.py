"""What attacks raise, and what is kept of images that were attacked, on a network whose answers are known."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.tables.statistics import interval_over_images
from capsule_studies.attacks.evaluation import (
    Attacked,
    NetworkObjective,
    Prepared,
    cross_entropy,
    margin,
)
from capsule_studies.attacks.gradient import UNIT, bim, fgsm, pgd
from capsule_studies.attacks.square import square
from capsule_studies.attacks.summary import by_epsilon, of_budgets, of_clean

LOGITS = torch.tensor([[15.0, -15.0, -3.0, 1.0], [0.5, 2.0, 1.0, -1.0]], dtype=torch.float64)
ZERO = torch.tensor([0, 0])


def test_cross_entropy_and_margin() -> None:
    assert cross_entropy(LOGITS, ZERO).tolist() == pytest.approx([8.4676e-7, 1.99518], rel=1e-3)
    assert torch.equal(cross_entropy(LOGITS, ZERO, targeted=True), -cross_entropy(LOGITS, ZERO))
    assert margin(LOGITS, ZERO).tolist() == [-14.0, 1.5]
    assert margin(LOGITS, ZERO + 1, targeted=True).tolist() == [-30.0, 1.0]


WEIGHT = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-4.0, -4.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 0, 1, 2])
IMAGES = torch.tensor([[0.7, 0.3], [0.55, 0.45], [0.2, 0.6], [0.9, 0.1]], dtype=torch.float64).view(
    4, 1, 1, 2
)


def logits(images: Tensor) -> Tensor:
    """The brighter pixel is the class; class 2 is never found."""
    return images.flatten(1) @ WEIGHT.T


def batch(which: slice = slice(None)) -> Prepared:
    levels = torch.full((4,), 255.0, dtype=torch.float64)
    return Prepared(IMAGES[which], LABELS[which], torch.arange(4)[which], UNIT, levels[which])


def measure(
    batches: list[Prepared], *arguments: Any, targets: Any = (None,), **network: Any
) -> Any:
    return Attacked(batches, **{"logits": logits, **network}).measure(*arguments, targets)


def test_every_image_counts_and_those_that_were_wrong_before_are_told_apart() -> None:
    steps: list[int] = []
    batches = [batch(slice(3)), batch(slice(3, 4))]
    found = measure(batches, fgsm, "margin", [0.0, 0.1, 0.25], on_step=steps.append)
    assert steps == [3, 3, 3, 1, 1, 1]
    assert found.labels.tolist() == [0, 0, 1, 2]
    clean = of_clean(found)
    assert (clean["error"], "detected" in clean) == (25.0, False)
    probabilities = logits(IMAGES).softmax(1)
    assert clean["brier"] == pytest.approx(
        (probabilities - torch.eye(3)[LABELS]).square().sum(1).mean().item()
    )
    record = by_epsilon(of_budgets(found))
    # margins 0.4, 0.1 and 0.4 fall by two epsilons
    assert [each["accuracy"] for each in record.values()] == [75.0, 50.0, 0.0]
    assert [each["error"] for each in record.values()] == [25.0, 50.0, 100.0]
    assert [each["success_of_right"] for each in record.values()] == pytest.approx(
        [0, 100 / 3, 100]
    )
    assert record[0.1]["mean_change"] == pytest.approx(0.1)
    assert record[0.1]["mean_grey_levels"] == pytest.approx(25.5)
    assert (record[0.1]["lowest"], record[0.1]["highest"]) == interval_over_images(2, 4)


def test_the_first_images_are_kept_as_they_were_attacked() -> None:
    found = measure([batch(), batch()], fgsm, "margin", [0.1])
    assert torch.equal(found.clean.pictures, IMAGES)
    change = found.attacked[0.1, None].pictures - IMAGES
    torch.testing.assert_close(change.abs().mean((1, 2, 3)), found.attacked[0.1, None].change[:4])
    assert [len(part.labels) for part in Attacked([batch(), batch()], logits).first(7).batches] == [
        4,
        3,
    ]


def test_of_targets_the_mean_and_each() -> None:
    record = of_budgets(measure([batch()], fgsm, "margin", [0.25], targets=[0, 1, 2]))
    # towards 0: all but image 2, whose margin of 0.4 turns, too; towards 1 likewise, but for the fourth with 0.8
    assert [record[f"0.25/success_of_class_{target}"] for target in range(3)] == [100, 75, 0]
    assert record["0.25/success"] == pytest.approx(175 / 3)
    # right before, and of another class: image 2 towards 0; images 0 and 1 towards 1; all three towards 2
    assert record["0.25/success_of_right"] == pytest.approx(100 * 3 / 6)


def test_a_transfer_is_made_against_another_network() -> None:
    found = measure(
        [batch()], fgsm, "margin", [0.25], crafted_with=lambda images: logits(images.flip(-1))
    )
    assert found.accuracy(0.25) == 75.0, "made against the reverse, they help"


def test_attacks_that_leave_images_out_ask_for_the_labels_of_the_others() -> None:
    """Images are fooled one after another: those with smaller margins first."""
    for attack in [partial(pgd, steps=3, restarts=4), partial(square, queries=60)]:
        answers = measure([batch()], attack, "margin", [0.21]).attacked[0.21, None]
        alone = [measure([batch(slice(n, n + 1))], attack, "margin", [0.21]) for n in range(4)]
        assert torch.equal(
            answers.logits, torch.cat([each.attacked[0.21, None].logits for each in alone])
        )
        assert (answers.found != LABELS).all()
    other = measure([batch()], attack, "cross_entropy", [0.21]).attacked[0.21, None]
    assert torch.equal(other.logits, answers.logits), (
        "Square raises the margin whatever the objective"
    )


def test_restarts_end_for_images_that_are_fooled() -> None:
    sizes: list[int] = []

    def counted(images: Tensor) -> Tensor:
        sizes.append(len(images))
        return logits(images)

    measure([batch()], partial(pgd, steps=1, restarts=3), "margin", [0.06], logits=counted)
    # as they are; a step of all and what came out; two restarts of images 0 and 2, which nothing fools; what is kept
    assert sizes == [4, 4, 4, 2, 2, 2, 2, 4]


def test_training_loss_is_a_loss_of_its_own() -> None:
    loss = lambda images, labels: logits(images).gather(1, labels[:, None]).mean()  # noqa: E731
    found = measure([batch()], bim, "training", [0.25], training_loss=loss)
    assert found.accuracy(0.25) == 75.0, "it raises what the label has"
    away = NetworkObjective("training", LABELS, 0, logits, loss)
    assert away(IMAGES)[0] == -IMAGES[:, 0, 0, 0].mean()
