"""Attacks on the network of a run, in its input or in grey levels before preprocessing, and the data of attacks."""

import copy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_lab import runs
from capsule_lab.data.transforms import crop_at, standardise, to_unit_interval
from capsule_lab.errors import ConfigError, RunError
from capsule_lab.types import Batch, CapsuleOutput
from capsule_studies.attacks import session
from capsule_studies.attacks.gradient import GREY_LEVELS, UNIT, Box, bim, fgsm
from capsule_studies.images import StudyImages
from tests.helpers.commands import Trained

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(trained: Trained) -> runs.Run:
    return runs.open(trained.directory)


def opened(run: runs.Run, space: str = "input", **options: object) -> session.AttackedRun:
    data = run.data_with({"eval_images": 24})
    images = StudyImages(data, "test", CPU)
    return session.AttackedRun(run, images, space, **options)


@pytest.fixture(scope="module")
def attacked(run: runs.Run) -> session.AttackedRun:
    return opened(run)


def test_accuracy_falls_and_the_network_stays_as_it_is(
    attacked: session.AttackedRun, run: runs.Run
) -> None:
    before = copy.deepcopy(run.network.state_dict())
    found = attacked.measure(partial(bim, steps=10), "margin", [0.0, 0.3])
    assert len(found.labels) == 24
    assert found.accuracy(0.0) == 100 * found.was_right.double().mean()
    assert found.accuracy(0.3) < found.accuracy(0.0)
    assert not run.network.training
    for name, value in run.network.state_dict().items():
        assert torch.equal(value, before[name])
    for parameter in run.network.parameters():
        assert parameter.grad is None
        assert not parameter.requires_grad


def test_grey_levels_give_the_same_images_to_the_network(
    run: runs.Run, attacked: session.AttackedRun
) -> None:
    one = attacked.measure(fgsm, "margin", [0.1])
    other = opened(run, "grey_levels").measure(fgsm, "margin", [25.5])  # 0.1 of 255
    assert torch.allclose(one.clean.logits, other.clean.logits, atol=1e-5)
    answers = one.attacked[0.1, None]
    other_answers = other.attacked[25.5, None]
    assert torch.allclose(answers.logits, other_answers.logits, atol=1e-4)


def test_equal_couplings_are_of_what_the_attack_sees_only(
    run: runs.Run, attacked: session.AttackedRun
) -> None:
    equal = opened(run, couplings="equal")
    images = attacked.batches[0].images
    logits = attacked.logits(images)
    assert torch.equal(equal.logits(images), logits)
    assert not torch.allclose(equal.crafted_with(images), logits)


def test_runs_on_other_images_are_told_apart(run: runs.Run) -> None:
    five_classes = replace(run.spec, num_classes=5)
    with_five_classes = replace(run, spec=five_classes)
    with pytest.raises(RunError, match=r"'num_classes': 5.*expected runs on the same data"):
        session.check_same_data(run, with_five_classes)
    provenance = {**run.provenance, "source": "real"}
    on_real_data = replace(run, provenance=provenance)
    with pytest.raises(RunError, match=r"'source': 'real'.*expected runs on the same data"):
        session.check_same_data(run, on_real_data)
    other_names = replace(run.spec, classes=tuple("abcdefghij"))
    with pytest.raises(RunError, match=r"'classes': \('a', .*expected runs on the same data"):
        session.check_same_data(run, replace(run, spec=other_names))


@pytest.mark.usefixtures("unchecked_types")
def test_runs_with_other_preprocessing_are_told_apart() -> None:
    attacked = images("unit")
    session.check_same_input(attacked, trained_on("unit"), {})
    other = trained_on("standardised")
    session.check_same_input(attacked, other, {"_target_": "other.Data"})
    with pytest.raises(RunError, match=r"was trained on Data with other preprocessing"):
        session.check_same_input(attacked, other, {})


def trained_on(preprocessing: str) -> Any:
    return SimpleNamespace(checkpoint="a.ckpt", build_data=lambda _: Data(preprocessing))


def test_a_split_without_images_is_refused(run: runs.Run) -> None:
    has_count = "val_images" in run.config.data
    no_validation = {"val_images": 0} if has_count else {"validation": "none"}
    data = run.data_with(no_validation)
    with pytest.raises(RunError, match="this data has no images in split=val"):
        StudyImages(data, "val", CPU)


def test_a_twentieth_of_the_validation_images_is_above_the_threshold(run: runs.Run) -> None:
    data = run.data_with({"eval_images": 100})
    images = StudyImages(data, "val", CPU)
    attacked = session.AttackedRun(run, images, "input")
    attacked.keeps_errors = True
    errors = []
    for batch in attacked.batches:
        _, of_batch = attacked.logits_and_errors(batch.images)
        errors.append(of_batch)
    threshold = session.detection_threshold(run, data)
    is_above = torch.cat(errors) > threshold
    assert 0.03 <= is_above.float().mean() <= 0.05


STORED = torch.randint(256, (3, 2, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
BATCH = Batch(STORED, torch.tensor([0, 1, 2]), torch.tensor([5, 6, 7]))


def standardised(images: Tensor) -> Tensor:
    cropped = crop_at(images.float(), (1, 1), 6)
    return standardise(cropped)


def rounded(images: Tensor) -> Tensor:
    """Treat whole and floating-point grey levels differently."""
    largest = 255 if images.dtype == torch.uint8 else 9
    return images / largest


def several_crops(images: Tensor) -> Tensor:
    return to_unit_interval(images)[:, None]


PREPROCESSING = {
    "unit": to_unit_interval,
    "standardised": standardised,
    "rounded": rounded,
    "crops": several_crops,
}


class Data:
    """The part of a data module that attacks need."""

    test_names, val_names = ("test",), ()

    def __init__(self, preprocessing: str, labels: Tensor = BATCH.labels) -> None:
        self.preprocessing = preprocessing
        self.labels = labels

    def setup(self, stage: str) -> None:
        assert stage == "test"

    def test_dataloader(self) -> list[list[Batch]]:
        return [[BATCH._replace(labels=self.labels)]]

    def unpaired_batch(self, batch: Batch, name: str) -> Batch:
        assert name == "test"
        preprocess = PREPROCESSING[self.preprocessing]
        return batch._replace(images=preprocess(batch.images))


def images(preprocessing: str, labels: Tensor = BATCH.labels) -> StudyImages:
    return StudyImages(Data(preprocessing, labels), "test", CPU)


DEVIATIONS = STORED[:, :, 1:7, 1:7].double().flatten(1).std(1, unbiased=False).tolist()


@pytest.mark.parametrize(
    ("preprocessing", "space", "box", "grey_levels"),
    [
        ("unit", "input", UNIT, [255.0] * 3),
        ("standardised", "input", Box(), DEVIATIONS),
        ("standardised", "grey_levels", GREY_LEVELS, [1.0] * 3),
    ],
)
def test_batches_have_the_box_of_their_space(
    preprocessing: str, space: str, box: Box, grey_levels: list
) -> None:
    (batch,) = session.prepare(images(preprocessing), space)
    assert batch.box == box
    assert batch.grey_levels.tolist() == pytest.approx(grey_levels, rel=1e-4)
    expected = STORED.float()
    if space == "input":
        expected = PREPROCESSING[preprocessing](STORED)
    assert torch.equal(batch.images, expected)
    assert torch.equal(batch.key, BATCH.key)


def test_images_that_are_moved_have_no_grey_levels() -> None:
    flipped = to_unit_interval(STORED).flip(-1)
    composed = torch.zeros(3, 2, 12, 12)
    assert session.grey_levels_per_unit(STORED, flipped).isnan().all()
    assert session.grey_levels_per_unit(STORED, composed).isnan().all()


class Network(nn.Module):
    def forward(self, images: Tensor) -> CapsuleOutput:
        return CapsuleOutput(images.flatten(1))


SEVERAL_LABELS = torch.zeros(3, 2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("preprocessing", "labels", "message"),
    [
        ("unit", SEVERAL_LABELS, "images of Data have several labels; expected data with one"),
        ("crops", BATCH.labels, "evaluated in several crops; expected data.test_crops=1"),
        ("rounded", BATCH.labels, "grey levels differently; expected space=input"),
    ],
)
def test_data_that_cannot_be_attacked(preprocessing: str, labels: Tensor, message: str) -> None:
    with pytest.raises(RunError, match=message):
        session.prepare(images(preprocessing, labels), "grey_levels")


def test_networks_without_logits_cannot_be_attacked() -> None:
    logits = session.logits_of(Network(), lambda pixels: pixels)
    message = "Network gives no logits with this routing; an attack needs them"
    with pytest.raises(ConfigError, match=message):
        logits(torch.zeros(1, 2, 6, 6))
