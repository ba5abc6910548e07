"""Attacks on the network of a run, in pixels as it sees them or grey levels before preprocessing, and on data."""

import copy
import re
from dataclasses import replace
from functools import partial

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
    return session.AttackedRun(
        run, StudyImages(run.data_with({"eval_images": 24}), "test", CPU), space, **options
    )


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
    assert all(torch.equal(value, before[name]) for name, value in run.network.state_dict().items())
    assert all(each.grad is None and not each.requires_grad for each in run.network.parameters())


def test_grey_levels_give_the_same_images_to_the_network(
    run: runs.Run, attacked: session.AttackedRun
) -> None:
    one = attacked.measure(fgsm, "margin", [0.1])
    other = opened(run, "grey_levels").measure(fgsm, "margin", [25.5])  # 0.1 of 255
    assert torch.allclose(one.clean.logits, other.clean.logits, atol=1e-5)
    assert torch.allclose(
        one.attacked[0.1, None].logits, other.attacked[25.5, None].logits, atol=1e-4
    )


def test_equal_couplings_are_of_what_the_attack_sees_only(
    run: runs.Run, attacked: session.AttackedRun
) -> None:
    equal = opened(run, couplings="equal")
    images = attacked.batches[0].images
    assert torch.equal(equal.logits(images), attacked.logits(images))
    assert not torch.allclose(equal.crafted_with(images), attacked.logits(images))


def test_runs_on_other_images_are_told_apart(run: runs.Run) -> None:
    for changed, message in (
        ({"spec": replace(run.spec, num_classes=5)}, "'num_classes': 5"),
        ({"provenance": {**run.provenance, "source": "real"}}, "'source': 'real'"),
    ):
        with pytest.raises(RunError, match=re.escape(message) + ".*expected runs on the same data"):
            session.check_same_data(run, replace(run, **changed))


def test_a_split_without_images_is_refused(run: runs.Run) -> None:
    data = run.data_with(
        {"val_images": 0} if "val_images" in run.config.data else {"validation": "none"}
    )
    with pytest.raises(RunError, match="this data has no images in split=val"):
        StudyImages(data, "val", CPU)


def test_a_twentieth_of_the_validation_images_is_above_the_threshold(run: runs.Run) -> None:
    data = run.data_with({"eval_images": 100})
    attacked = session.AttackedRun(run, StudyImages(data, "val", CPU), "input")
    attacked.keeps_errors = True
    errors = torch.cat([attacked.logits_and_errors(batch.images)[1] for batch in attacked.batches])
    assert 0.03 <= (errors > session.detection_threshold(run, data)).float().mean() <= 0.05


STORED = torch.randint(
    0, 256, (3, 2, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
)
BATCH = Batch(STORED, torch.tensor([0, 1, 2]), torch.tensor([5, 6, 7]))
PREPROCESSING = {
    "unit": to_unit_interval,
    "standardised": lambda images: standardise(crop_at(images.float(), (1, 1), 6)),
    "rounded": lambda images: images / 255 if images.dtype == torch.uint8 else images / 9,
    "crops": lambda images: to_unit_interval(images)[:, None],
}


def images(preprocessing: str, labels: Tensor = BATCH.labels) -> StudyImages:
    class Data:
        """A data module, as far as attacks need one."""

        test_names, val_names = ("test",), ()

        def setup(self, stage: str) -> None:
            assert stage == "test"

        def test_dataloader(self) -> list[list[Batch]]:
            return [[BATCH._replace(labels=labels)]]

        def unpaired_batch(self, batch: Batch, name: str) -> Batch:
            assert name == "test"
            return batch._replace(images=PREPROCESSING[preprocessing](batch.images))

    return StudyImages(Data(), "test", CPU)


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
    assert torch.equal(
        batch.images, STORED.float() if box == GREY_LEVELS else PREPROCESSING[preprocessing](STORED)
    )
    assert torch.equal(batch.key, BATCH.key)


def test_images_that_are_moved_have_no_grey_levels() -> None:
    assert session.grey_levels_per_unit(STORED, to_unit_interval(STORED).flip(-1)).isnan().all()
    assert session.grey_levels_per_unit(STORED, torch.zeros(3, 2, 12, 12)).isnan().all()


class Network(nn.Module):
    def forward(self, images: Tensor) -> CapsuleOutput:
        return CapsuleOutput(images.flatten(1))


def test_data_and_networks_that_cannot_be_attacked() -> None:
    for preprocessing, labels, message in [
        (
            "unit",
            torch.zeros(3, 2, dtype=torch.int64),
            "images of Data have several labels; expected data with one",
        ),
        (
            "crops",
            BATCH.labels,
            "each image is evaluated in several crops; expected data.test_crops=1",
        ),
        ("rounded", BATCH.labels, "floating-point grey levels differently; expected space=input"),
    ]:
        with pytest.raises(RunError, match=re.escape(message)):
            session.prepare(images(preprocessing, labels), "grey_levels")
    with pytest.raises(
        ConfigError, match="Network gives no logits with this routing; an attack needs them"
    ):
        session.logits_of(Network(), lambda pixels: pixels)(torch.zeros(1, 2, 6, 6))
