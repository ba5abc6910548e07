"""What is kept of images that were attacked, on a network whose answers are known."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.studies.attacks.evaluation import Attacked, Measured, NetworkObjective, Prepared
from capsule_lab.studies.attacks.gradient import UNIT, bim, fgsm, pgd
from capsule_lab.studies.attacks.square import square
from capsule_lab.studies.attacks.summary import by_epsilon, interval, of_budgets, of_clean
from capsule_lab.studies.study import digest

WEIGHT = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-4.0, -4.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 0, 1, 2])
IMAGES = torch.tensor([[0.7, 0.3], [0.55, 0.45], [0.2, 0.6], [0.9, 0.1]], dtype=torch.float64).view(4, 1, 1, 2)


def logits(images: Tensor) -> Tensor:
    """The brighter pixel is the class; class 2 is never found."""
    return images.flatten(1) @ WEIGHT.T


def batch(which: slice = slice(None)) -> Prepared:
    levels = torch.full((4,), 255.0, dtype=torch.float64)
    return Prepared(IMAGES[which], LABELS[which], torch.arange(4)[which], UNIT, levels[which])


def measure(batches: list[Prepared], *arguments: Any, targets: Any = (None,), **network: Any) -> Measured:
    return Attacked(batches, **{"logits": logits, **network}).measure(*arguments, targets)


def test_every_image_counts_and_those_that_were_wrong_before_are_told_apart() -> None:
    found = measure([batch(slice(3)), batch(slice(3, 4))], fgsm, "margin", [0.0, 0.1, 0.25])
    clean = of_clean(found)
    assert (clean["error"], "detected" in clean) == (25.0, False)
    probabilities = logits(IMAGES).softmax(1)
    assert clean["brier"] == pytest.approx((probabilities - torch.eye(3)[LABELS]).square().sum(1).mean().item())
    assert found.labels.tolist() == [0, 0, 1, 2]
    record = by_epsilon(of_budgets(found))
    # margins 0.4, 0.1 and 0.4 fall by two epsilons
    assert [record[epsilon]["accuracy"] for epsilon in (0.0, 0.1, 0.25)] == [75.0, 50.0, 0.0]
    assert [record[epsilon]["error"] for epsilon in (0.0, 0.1, 0.25)] == [25.0, 50.0, 100.0]
    assert [record[epsilon]["success_of_right"] for epsilon in (0.0, 0.1, 0.25)] == pytest.approx([0, 100 / 3, 100])
    assert record[0.1]["mean_change"] == pytest.approx(0.1)
    assert record[0.1]["mean_grey_levels"] == pytest.approx(25.5)
    assert (record[0.1]["lowest"], record[0.1]["highest"]) == interval(2, 4)


def test_of_targets_the_mean_and_each() -> None:
    found = measure([batch()], fgsm, "margin", [0.25], targets=[0, 1, 2])
    record = of_budgets(found)
    # towards 0: all but image 2, whose margin of 0.4 turns, too; towards 1 likewise, but for the fourth with 0.8
    assert [record[f"0.25/success_of_class_{target}"] for target in range(3)] == [100, 75, 0]
    assert record["0.25/success"] == pytest.approx(175 / 3)
    # right before, and of another class: image 2 towards 0; images 0 and 1 towards 1; all three towards 2
    assert record["0.25/success_of_right"] == pytest.approx(100 * 3 / 6)


def test_a_transfer_is_made_against_another_network() -> None:
    flipped = lambda images: logits(images.flip(-1))  # noqa: E731
    found = measure([batch()], fgsm, "margin", [0.25], crafted_with=flipped)
    assert found.accuracy(0.25) == 75.0, "made against the reverse, they help"


def test_objectives_of_some_images_have_their_labels() -> None:
    objective = NetworkObjective("margin", LABELS, None, logits)
    some = torch.tensor([2, 0])
    assert torch.equal(objective.at(some)(IMAGES[some]), objective(IMAGES)[some])


def test_attacks_that_leave_images_out_ask_for_the_labels_of_the_others() -> None:
    """Images are fooled one after another: those with smaller margins first."""
    for attack in [partial(pgd, steps=3, restarts=4), partial(square, queries=60)]:
        found = measure([batch()], attack, "margin", [0.21])
        alone = [measure([batch(slice(n, n + 1))], attack, "margin", [0.21]) for n in range(4)]
        answers = found.attacked[0.21, None]
        assert torch.equal(answers.logits, torch.cat([each.attacked[0.21, None].logits for each in alone]))
        assert (answers.found != LABELS).all()


def test_square_raises_the_margin_whatever_the_objective() -> None:
    found = [measure([batch()], partial(square, queries=60), loss, [0.21]) for loss in ("margin", "dlr")]
    assert torch.equal(*(each.attacked[0.21, None].logits for each in found))


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
    found = measure([batch()], fgsm, "training", [0.25], training_loss=loss)
    assert found.accuracy(0.25) == 75.0, "it raises what the label has"
    attacked = Attacked([batch()], logits, training_loss=loss)
    away = NetworkObjective("training", LABELS, 0, logits, loss)
    assert (attacked.gradients("training") * attacked.gradients("margin") <= 0).all()
    assert away(IMAGES)[0] == -IMAGES[:, 0, 0, 0].mean()
    with pytest.raises(ValueError, match=re.escape("loss is 'training', and there is no training loss; expected one")):
        measure([batch()], fgsm, "training", [0.25])


def test_the_first_images_are_attacked_as_all_are() -> None:
    parts = Attacked([batch(), batch()], logits).first(7).batches
    assert [len(part.labels) for part in parts] == [4, 3]
    found = Attacked([batch()], logits).examples(fgsm, "margin", [0.1, 0.25], 3)
    measured = measure([batch(slice(3))], fgsm, "margin", [0.1, 0.25])
    for epsilon in (0.1, 0.25):
        assert torch.equal(found.found[epsilon], measured.attacked[epsilon, None].found)
        assert (found.attacked[epsilon] - found.images).abs().max() <= epsilon + 1e-6


def test_steps_are_reported_as_images() -> None:
    seen: list[int] = []
    measure([batch(), batch()], bim, "margin", [0.1, 0.2], on_step=seen.append)
    assert seen == [4] * 4


def test_names_and_intervals() -> None:
    low, high = interval(50, 1000)
    assert (low, high) == pytest.approx((3.8137, 6.5316), abs=1e-3)  # Wilson 1927, by hand
    assert [*by_epsilon(of_budgets(measure([batch()], fgsm, "margin", [0.1, 8.0])))] == [0.1, 8.0]
    assert digest([batch()]) != digest([batch(slice(3))])
