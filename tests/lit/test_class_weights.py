"""Class weights in the loss of training steps, and the results by class."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn

from capsule_lab.commands.train import train
from capsule_lab.lit import ClassifierModule
from capsule_lab.lit.classification import weights_of_classes
from capsule_lab.losses import cross_entropy_loss, margin_loss
from capsule_lab.types import Batch, CapsuleOutput, DataSpec
from tests.helpers import modules
from tests.helpers.commands import NO_PICTURES, TINY_CNN, Tiny
from tests.helpers.training import checkpoint, interrupted_and_resumed, results, weights

COUNTS = torch.tensor([30, 6, 3])


class Data(modules.L.LightningDataModule):
    """Two batches of three classes, whose frequencies it states."""

    mixup = sampling = None
    spec = DataSpec((1, 4, 4), 3, ("a", "b", "c"))

    def class_counts(self) -> Tensor:
        return COUNTS

    def train_dataloader(self) -> Any:
        return modules.loader(modules.batch(6), modules.batch(6))

    val_dataloader = test_dataloader = train_dataloader


def fitted(given: Any, loss: Any = cross_entropy_loss) -> tuple[ClassifierModule, Any]:
    module = modules.classifier(loss, class_weights=given)
    trainer = modules.trainer()
    trainer.fit(module, datamodule=Data())
    return module, trainer


def test_balanced_class_weights_are_those_of_scikit_learn() -> None:
    labels = np.repeat([0, 1, 2], [70, 25, 5])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    counts = torch.tensor([70, 25, 5])
    found = weights_of_classes(counts)
    assert found.numpy() == pytest.approx(expected, rel=1e-6)
    given = weights_of_classes(counts, [1 / 70, 1 / 25, 1 / 5])
    assert given.numpy() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("given", [None, [1, 1, 1], [1, 2, 3], [0.1, 20, 300]])
def test_mean_weight_of_all_images_is_one(given: list[float] | None) -> None:
    counts = torch.tensor([70, 30, 0])
    weights = weights_of_classes(counts, given)
    total = (weights * counts).sum()
    assert total.item() == pytest.approx(100)
    assert weights.isfinite().all()
    if given:
        ratios = weights / weights[0]
        expected = np.array(given) / given[0]
        assert ratios.numpy() == pytest.approx(expected)


def state_after(given: Any) -> dict[str, Tensor]:
    module, _ = fitted(given)
    return module.network.state_dict()


@pytest.mark.parametrize("equal", [[1, 1, 1], [0.5, 0.5, 0.5]])
def test_equal_weights_are_none_to_the_bit(equal: list[float]) -> None:
    expected = state_after(None)
    found = state_after(equal)
    weighted = state_after("balanced")
    for name, value in expected.items():
        assert found[name].equal(value)
    assert not all(value.equal(weighted[name]) for name, value in expected.items())


def classification_loss(module: ClassifierModule, batch: Batch, output: Any) -> Tensor:
    (loss,) = module.classification_term(batch, output, {}).values()
    return loss


@pytest.mark.parametrize(
    ("given", "ratios"),
    [
        ("balanced", None),
        ([1, 9, 2], [1, 9, 2]),
    ],
)
def test_only_the_loss_of_training_is_weighted(given: Any, ratios: Any) -> None:
    module = modules.classifier(cross_entropy_loss, class_weights=given)
    batch = modules.batch()
    module.weight_of_class = weights_of_classes(COUNTS, ratios)
    output = module.network(batch.images)
    plain = cross_entropy_loss(output.scores, batch.labels)
    of_images = module.weight_of_class[batch.labels]
    weighted = cross_entropy_loss(output.scores, batch.labels, weights=of_images)
    in_training = classification_loss(module.train(), batch, output)
    in_validation = classification_loss(module.eval(), batch, output)
    assert in_training.equal(weighted)
    assert in_validation.equal(plain)
    assert not weighted.allclose(plain)


def test_mixture_has_the_mean_of_the_weights_of_its_classes() -> None:
    module = modules.classifier(cross_entropy_loss, class_weights=[1, 2, 4])
    module.train()
    module.weight_of_class = torch.tensor([1.0, 2.0, 4.0])
    of_images = [
        [0.5, 0.5, 0.0],
        [0.0, 0.25, 0.75],
    ]
    shares = torch.tensor(of_images)
    batch = Batch(modules.batch(2).images, shares, torch.arange(2))
    output = module.network(batch.images)
    found = classification_loss(module, batch, output)
    means = torch.tensor([1.5, 3.5])
    expected = cross_entropy_loss(output.scores, shares, weights=means)
    assert found.equal(expected)


def own_loss(scores: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores, labels)


REFUSED = {
    "other text": ("weighted", "is weighted; expected balanced, or 3 finite numbers above 0"),
    "too few": ([1, 9], r"is \[1, 9\]; expected balanced, or 3"),
    "none": ([], "expected balanced, or 3"),
    "zero": ([1, 0, 1], "above 0"),
    "negative": ([1, -2, 1], "above 0"),
    "infinite": ([1, float("inf"), 1], "finite"),
    "NaN": ([1, float("nan"), 1], "finite"),
    "text": ([1, "2", 1], "numbers"),
    "bool": ([1, True, 1], "numbers"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_weights_that_cannot_be_used_are_refused(kind: str) -> None:
    given, message = REFUSED[kind]
    with pytest.raises(ValueError, match=message):
        modules.classifier(cross_entropy_loss, class_weights=given)


def test_a_loss_without_weights_is_refused() -> None:
    message = "own_loss has no argument weights"
    with pytest.raises(ValueError, match=message):
        modules.classifier(own_loss, class_weights="balanced")


def test_several_labels_of_an_image_have_no_class_weights() -> None:
    message = "one class for each image"
    with pytest.raises(ValueError, match=message):
        modules.classifier(margin_loss, class_weights="balanced", labels_per_image=2)


def test_results_by_class_have_names_and_the_error_of_a_constant_answer() -> None:
    module, trainer = fitted(None)
    trainer.test(module, datamodule=Data(), verbose=False)
    found = module.class_results("test", COUNTS.tolist())
    assert found["images"] == {"a": 4, "b": 4, "c": 4}
    assert found["constant_error"] == pytest.approx(100 * 2 / 3)
    recalls = found["recall"]
    assert recalls.keys() == {"a", "b", "c"}
    logged = module.test_results()
    mean = sum(recalls.values()) / 3
    assert logged["balanced_error"] == pytest.approx(100 - mean, abs=1e-4)
    assert logged["error"] == pytest.approx(logged["balanced_error"], abs=1e-4)
    assert 0 <= logged["auroc"] <= 1
    without_counts = module.class_results("test", None)
    assert "constant_error" not in without_counts


def test_auroc_compares_the_scores_of_an_image_with_each_other() -> None:
    """All answers are right; one image has higher scores than another for all classes."""
    module = modules.classifier(cross_entropy_loss)
    of_images = [
        [0.2, 0.1],
        [0.9, 0.8],
        [0.3, 0.4],
        [0.8, 0.9],
    ]
    two_classes = torch.tensor(of_images)
    scores = nn.functional.pad(two_classes, (0, 1), value=-9.0)
    batch = Batch(
        images=torch.zeros(4, 1, 4, 4),
        labels=torch.tensor([0, 0, 1, 1]),
        key=torch.arange(4),
    )
    module.measure("val", batch, CapsuleOutput(scores))
    metric = module.metrics["val/auroc"]
    assert metric.compute() == {"auroc": 1.0}


BALANCED = [
    "trainer.max_epochs=2",
    "trainer.precision=32-true",
    *NO_PICTURES,
]


CORRECTIONS = [
    "data.sampling=balanced",
    "module.class_weights=balanced",
]


@pytest.mark.whole  # three fits
@pytest.mark.parametrize("option", CORRECTIONS)
def test_run_with_corrected_frequencies_resumes_exactly(
    tiny: Tiny, tmp_path: Path, option: str
) -> None:
    at_once, resumed = tmp_path / "whole", tmp_path / "run"
    config = tiny(option, *BALANCED, model=TINY_CNN)
    whole = train(config, at_once)
    parts = interrupted_and_resumed(config, resumed, 3)
    assert results(parts) == results(whole)
    found = weights(resumed)
    for name, expected in weights(at_once).items():
        assert found[name].equal(expected), name
    uncorrected = tiny(*BALANCED, model=TINY_CNN)
    plain = train(uncorrected, tmp_path / "plain")
    assert results(plain) != results(whole)
    record = checkpoint(resumed)["capsule_lab"]
    split = whole["provenance"]["split"]
    assert sum(record["class_counts"]) == split["train_images"]
