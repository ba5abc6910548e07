import math
import warnings
from typing import Any

import pytest
import torch
from sklearn.metrics import (
    balanced_accuracy_score,
    hamming_loss,
    recall_score,
    roc_auc_score,
    zero_one_loss,
)

from capsule_lab import metrics

SCORES = torch.tensor(
    [
        [0.9, 0.1, 0.0],
        [0.2, 0.7, 0.1],
        [0.3, 0.3, 0.4],
        [0.6, 0.3, 0.1],
    ]
)


def update_in_parts(
    metric: Any, scores: torch.Tensor, labels: torch.Tensor, images: int = 3
) -> None:
    """In batches of at most ``images``."""
    batches = zip(scores.split(images), labels.split(images), strict=True)
    for batch in batches:
        metric.update(*batch)


@pytest.mark.parametrize(
    ("labels", "percent"),
    [
        ([0, 1, 2, 0], 0.0),
        ([0, 1, 2, 1], 25.0),
        ([1, 0, 0, 2], 100.0),
        ([0, 0, 0, 0], 50.0),
    ],
)
def test_error_rate_is_the_share_of_wrong_images_in_percent(
    labels: list[int], percent: float
) -> None:
    metric = metrics.ErrorRate(num_classes=3)
    update_in_parts(metric, SCORES, torch.tensor(labels))
    error = metric.compute()
    assert error.item() == pytest.approx(percent)
    assert metric.higher_is_better is False


ENTROPY_OF_TWO = -(0.7 * math.log(0.7) + 0.3 * math.log(0.3))


@pytest.mark.parametrize(
    ("shares", "entropy"),
    [
        ([0.25, 0.25, 0.25, 0.25], 1.0),
        ([1.0, 0.0, 0.0, 0.0], 0.0),
        ([0.1, 0.1, 0.1, 0.1], 1.0),  # leaky: a child keeps the rest for itself
        ([0.7, 0.3, 0.0, 0.0], ENTROPY_OF_TWO / math.log(4)),
    ],
)
def test_coupling_entropy_is_averaged_over_children_of_all_batches(
    shares: list[float], entropy: float
) -> None:
    metric = metrics.CouplingEntropy()
    one_child = torch.tensor(shares).expand(1, 1, 4)
    metric.update(one_child)
    of_one = metric.compute()
    assert of_one.item() == pytest.approx(entropy, abs=1e-6)
    three_without_entropy = torch.tensor([1.0, 0.0]).expand(1, 3, 2)
    metric.update(three_without_entropy)
    of_four = metric.compute()
    assert of_four.item() == pytest.approx(entropy / 4, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_coupling_entropy_of_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    metric = metrics.CouplingEntropy()
    metric.update(torch.full((128, 600, 10), 0.1, dtype=dtype))
    assert metric.compute().item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("threshold", "percent"),
    [
        (0.001, 25.0),
        (0.01, 50.0),
        (0.3, 75.0),
    ],
)
def test_capsule_is_dead_if_no_image_of_any_batch_activates_it(
    threshold: float, percent: float
) -> None:
    metric = metrics.DeadCapsuleRate(threshold)
    metric.update(torch.tensor([[0.5, 0.0, 0.0, 0.0], [0.0, 0.0, 0.005, 0.0]]))
    metric.update(torch.tensor([[0.0, 0.0, 0.0, 0.2]]))
    assert metric.compute().item() == percent


PAIR_SCORES = torch.tensor(
    [
        [0.9, 0.8, 0.1, 0.0],
        [0.1, 0.7, 0.6, 0.2],
        [0.5, 0.1, 0.4, 0.3],
        [0.2, 0.3, 0.4, 0.6],
    ]
)


@pytest.mark.parametrize(
    ("labels", "pairs", "single"),
    [
        ([[0, 1], [2, 1], [2, 0], [3, 2]], 0.0, 0.0),
        ([[0, 2], [2, 1], [2, 0], [3, 2]], 25.0, 12.5),
        ([[0, 2], [0, 1], [3, 0], [3, 1]], 100.0, 50.0),
        ([[2, 3], [0, 3], [1, 3], [0, 1]], 100.0, 100.0),
        ([[0, 0], [2, 1], [2, 0], [3, 2]], 0.0, 0.0),  # two of one class are one label
        ([[1, 1], [2, 1], [2, 0], [3, 2]], 25.0, 25.0),
    ],
)
def test_pair_is_right_if_both_labels_are(
    labels: list[list[int]], pairs: float, single: float
) -> None:
    errors = []
    for metric in (metrics.ExactMatchError(), metrics.LabelError()):
        update_in_parts(metric, PAIR_SCORES, torch.tensor(labels))
        error = metric.compute()
        errors.append(error.item())
    assert errors == pytest.approx([pairs, single])


def test_present_classes_are_those_above_nine_tenths() -> None:
    scores = torch.tensor(
        [
            [0.95, 0.92, 0.1],
            [0.95, 0.89, 0.1],  # one missed
            [0.95, 0.92, 0.91],  # one too many
            [1 + 1e-6, 0.5, 0.5],
        ]
    )
    labels = torch.tensor([[0, 1], [0, 1], [0, 1], [0, 0]])
    error = metrics.PresentError(3)
    update_in_parts(error, scores, labels, 2)
    percent = error.compute()
    assert percent.item() == pytest.approx(50.0)
    f1 = metrics.PresentF1(3)
    update_in_parts(f1, scores, labels, 2)
    share = f1.compute()
    assert share.item() == pytest.approx(2 * 6 / (2 * 6 + 1 + 1))


def unbalanced(images: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of four classes, of which the last has no images, and labels; all numbers differ."""
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(images, generator=generator)
    labels = (3 * uniform**3).long()
    scores = torch.rand(images, 4, generator=generator)
    scores[torch.arange(images), labels] += 0.3
    return scores, labels


def test_balanced_error_and_recalls_equal_those_of_scikit_learn() -> None:
    scores, labels = unbalanced()
    metric = metrics.BalancedError(num_classes=4)
    update_in_parts(metric, scores, labels, 25)
    predictions = scores.argmax(1)
    assert 3 in predictions, "a wrong answer that is no image's class"
    expected = balanced_error_of(labels, predictions)
    error = metric.compute()
    assert error.item() == pytest.approx(expected, abs=1e-4)
    recalls = recall_score(
        labels,
        predictions,
        labels=range(4),
        average=None,
        zero_division=0,
    )
    assert metric.recalls.numpy() == pytest.approx(100 * recalls, abs=1e-4)
    counts = labels.bincount(minlength=4)
    assert metric.images.tolist() == counts.tolist()
    micro = metrics.ErrorRate(num_classes=4)
    micro.update(scores, labels)
    micro_error = micro.compute()
    difference = micro_error.item() - expected
    assert abs(difference) > 1


def balanced_error_of(labels: torch.Tensor, predictions: torch.Tensor) -> float:
    with warnings.catch_warnings(action="ignore"):  # of predictions that are in no label
        accuracy = balanced_accuracy_score(labels, predictions)
    return float(100 * (1 - accuracy))


@pytest.mark.parametrize("scale", [1.0, 1e3], ids=["activations", "logits"])
def test_auroc_equals_that_of_scikit_learn(scale: float) -> None:
    scores, labels = unbalanced()
    scores = scale * (scores - scores.mean())
    metric = metrics.AUROC()
    update_in_parts(metric, scores, labels, 25)
    areas = []
    for label in range(3):
        area = roc_auc_score(labels == label, scores[:, label])
        areas.append(area)
    expected = sum(areas) / len(areas)
    area = metric.compute()["auroc"]
    assert area.item() == pytest.approx(expected, abs=1e-6)


def test_auroc_counts_equal_scores_half_and_is_undefined_for_one_class() -> None:
    metric = metrics.AUROC()
    scores = torch.ones(4, 3)
    two_classes = torch.tensor([0, 0, 0, 1])
    metric.update(scores, two_classes)
    area = metric.compute()["auroc"]
    assert area.item() == 0.5
    metric.reset()
    one_class = torch.tensor([2, 2, 2, 2])
    metric.update(scores, one_class)
    assert metric.compute() == {}


def test_constant_error_is_that_of_the_other_classes() -> None:
    counts = torch.tensor([95, 5])
    assert metrics.constant_error(counts, 0) == 5
    assert metrics.constant_error(counts, 1) == 95


def rows_of_labels() -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and labels of 50 images and 5 classes; no image has class 3, and all have class 4."""
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(50, 5, generator=generator)
    labels = uniform < 0.3
    labels[:, 3] = False
    labels[:, 4] = True
    noise = torch.rand(50, 5, generator=generator)
    return 0.3 * labels + 0.7 * noise, labels


def measured_in_two_batches(metric: metrics.Metric) -> object:
    scores, labels = rows_of_labels()
    metric.update(scores[:20], labels[:20])
    metric.update(scores[20:], labels[20:])
    return metric.compute()


def test_errors_of_any_number_of_labels_are_those_of_scikit_learn() -> None:
    scores, labels = rows_of_labels()
    has_another_label = labels[:, :4].any(1)
    assert not has_another_label.all()
    found = scores > 0.5
    of_sets = zero_one_loss(labels, found)
    of_answers = hamming_loss(labels, found)
    assert 0 < of_answers < of_sets < 1
    set_error = measured_in_two_batches(metrics.AnySetError())
    assert set_error == pytest.approx(100 * of_sets)
    answer_error = measured_in_two_batches(metrics.AnswerError())
    assert answer_error == pytest.approx(100 * of_answers)
    ranked = roc_auc_score(labels[:, :3], scores[:, :3])
    area = measured_in_two_batches(metrics.AUROC())
    assert area == {"auroc": pytest.approx(ranked)}


def test_balanced_error_of_any_number_of_labels_is_that_of_scikit_learn() -> None:
    scores, labels = rows_of_labels()
    found = scores > 0.5
    errors = [balanced_error_of(labels[:, label], found[:, label]) for label in range(3)]
    metric = metrics.BalancedAnswerError(num_classes=5)
    expected = sum(errors) / 3
    error = measured_in_two_batches(metric)
    assert error == {"balanced_error": pytest.approx(expected)}
    recalls = recall_score(labels[:, :3], found[:, :3], average=None)
    recalls_of_three = metric.recalls[:3]
    assert recalls_of_three.tolist() == pytest.approx(100 * recalls)
    images = labels.sum(0)
    assert metric.images.tolist() == images.tolist()


def test_labels_that_do_not_differ_between_images_are_not_measured() -> None:
    scores = torch.rand(2, 2)
    labels = torch.tensor([[True, False], [True, False]])
    for metric in (metrics.AUROC(), metrics.BalancedAnswerError(num_classes=2)):
        metric.update(scores, labels)
        assert metric.compute() == {}


def test_the_constant_answer_is_the_most_frequent_set_of_labels() -> None:
    labels = torch.tensor([[1, 0], [1, 1], [0, 0], [1, 1], [0, 1]]).bool()
    answer, error = metrics.constant_labels(labels)
    assert answer.tolist() == [True, True]
    assert error == 60
