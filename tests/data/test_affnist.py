"""affNIST: which files decide what is tested on, and what provenance says of it."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from capsule_lab.config.compose import compose
from capsule_lab.data import AffNISTDataModule
from capsule_lab.data.formats import affnist as affnist_format
from capsule_lab.data.mnist import MNISTFiles
from capsule_lab.data.standins.digits import STANDIN_NAME, standin_digits
from capsule_lab.errors import DataError, RunError
from capsule_lab.evaluate import evaluate_checkpoint
from capsule_lab.runs.checkpoints import check_same_source
from capsule_lab.train import train
from tests.helpers.affnist_files import (
    IMAGES,
    LABELS,
    TRANSFORMS,
    count_as_affnist,
    fields,
    mat,
    write_affnist,
)
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, TINY_DATA
from tests.helpers.data_modules import trainer, without_network
from tests.helpers.mnist_files import ARRAYS


@pytest.fixture(autouse=True)
def no_network(monkeypatch) -> None:
    without_network(monkeypatch)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    return write_affnist(tmp_path_factory.mktemp("affNIST"))


@pytest.fixture(autouse=True)
def counts_as_real(written, monkeypatch) -> None:
    count_as_affnist(written, monkeypatch)


@pytest.fixture
def both(real: Path, written: Path) -> Path:
    """A data directory with small files that count as real MNIST and real affNIST."""
    (real / "affNIST").mkdir()
    shutil.copy(written / "test.mat.zip", real / "affNIST")
    return real


def of(*stages: str, rank: int = 0, world_size: int = 1, source="standin", **options) -> AffNISTDataModule:
    data = AffNISTDataModule(source=source, **options)
    data.trainer = trainer(training=False, rank=rank, world_size=world_size)
    for stage in stages:
        data.setup(stage)
    return data


def seen(loader, data: AffNISTDataModule, name: str = "test", epoch: int = 0) -> list[tuple[list[float], int]]:
    """Every image of a loader as the network gets it, with its label, in a fixed order."""
    loader.batches.set_epoch(epoch)
    batches = [data.transform_batch(batch, name) for batch in loader]
    return sorted(
        (image.tolist(), int(k)) for b in batches for image, k in zip(b.images.flatten(1), b.labels, strict=True)
    )


# --- the DataModule on stand-ins


def test_test_images_are_32_versions_of_each_test_digit():
    data = of("test", eval_batch_size=400)
    loader = data.test_dataloader()
    assert len(loader.dataset) == 32 * 359
    batch = data.transform_batch(next(iter(loader)), "test")
    assert batch.images.shape == (400, 1, 40, 40)
    assert batch.images.dtype == torch.float32
    assert 0.9 < batch.images.max() <= 1
    assert batch.factors.shape == (400, len(data.spec.factors))
    assert data.provenance["test_images"] == "11488 versions of 359 of 359"


@pytest.mark.parametrize(
    ("eval_images", "expected"), [(100, "100 versions of 100 of 359"), (500, "500 versions of 359 of 359")]
)
def test_fewer_test_images_are_of_as_many_digits_as_can_be(eval_images, expected):
    data = of("fit", "test", eval_images=eval_images)
    data.setup("test")
    assert data.provenance["test_images"] == expected
    assert len(data.test_dataloader().dataset) == eval_images
    assert len(data.val_dataloader().dataset) == min(eval_images, 240)


def test_training_and_validation_images_are_never_turned():
    data = of("fit", affine_validation=True)
    for name in ("train", "val"):
        batch = data.dataset(name)[(torch.arange(50), 0)]
        images = data.transform_batch(batch, name).images
        torch.testing.assert_close(images.sum((1, 2, 3)), batch.images.float().sum((1, 2, 3)) / 255)
        assert batch.factors is None


@pytest.mark.parametrize(("change", "same"), [({}, True), ({"seed": 1}, True), ({"eval_batch_size": 9}, True)], ids=str)
def test_synthetic_test_set_is_one_for_all_runs(change, same):
    first, second = (of("test", eval_images=60, **options) for options in ({}, change))
    # which 60 digits are looked at is drawn by the run's seed
    second.sets["test"] = first.sets["test"]
    assert (seen(first.test_dataloader(), first) == seen(second.test_dataloader(), second)) is same


@pytest.mark.parametrize("world_size", [2, 3])
def test_several_processes_test_together_on_what_one_does(world_size):
    one = of("test", eval_images=61)
    every = [
        of("test", eval_images=61, rank=rank, world_size=world_size, eval_batch_size=8) for rank in range(world_size)
    ]
    parts = [image for data in every for image in seen(data.test_dataloader(), data)]
    assert sorted(parts) == seen(one.test_dataloader(), one)


def test_affine_validation_is_off_by_default():
    data = of("fit")
    assert data.further_validations == ()
    assert not isinstance(data.val_dataloader(), list)
    assert "affine_validation" not in data.provenance


def test_affine_validation_is_of_the_validation_digits():
    data = of("fit", affine_validation=True, eval_batch_size=240)
    assert data.further_validations == ("affine",)
    plain, affine_set = data.val_dataloader()
    assert [len(loader.dataset) for loader in (plain, affine_set)] == [240, 240]
    (first,), (second,) = plain, affine_set
    assert first.labels.equal(second.labels)
    assert second.images.shape == (240, 1, 40, 40)
    assert second.factors.shape == (240, 6)
    assert "test" not in data.sets
    assert data.provenance["affine_validation"]["name"] == "synthetic affNIST made from the validation digits"


@pytest.mark.parametrize(
    ("change", "same"), [({}, True), ({"seed": 1}, False), ({"eval_batch_size": 7}, True)], ids=str
)
def test_affine_validation_is_fixed_by_the_seed(change, same):
    runs = [of("fit", affine_validation=True, **options) for options in ({}, change)]
    runs[1].sets["val"] = runs[0].sets["val"]  # their order is drawn by the seed as well
    looks = [seen(data.val_dataloader()[1], data, "affine", epoch) for data, epoch in zip(runs, (0, 4), strict=True)]
    assert (looks[0] == looks[1]) is same


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad": 4, "shift": 4}, r"data\.pad is 4; expected 6, as affNIST's images are of 40x40 pixels"),
        ({"shift": 7}, r"data\.shift is 7 with data\.pad 6, .*"),
        (
            {"affine_validation": True, "validation": "none"},
            r"data\.affine_validation is true with data\.validation=none, .* expected data\.validation=first or .*",
        ),
    ],
    ids=str,
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        AffNISTDataModule(source="standin", **options)


# --- real files, and what provenance says


@pytest.mark.parametrize("source", ["auto", "real"])
def test_real_files_are_tested_on_exactly(both, source):
    data = of("test", source=source, directory=str(both), eval_batch_size=320)
    (stored,) = data.test_dataloader()
    batch = data.transform_batch(stored, "test")
    np.testing.assert_array_equal(stored.images[:, 0].numpy(), IMAGES)
    torch.testing.assert_close(batch.images, stored.images / 255)
    np.testing.assert_array_equal(batch.labels.numpy(), LABELS)
    np.testing.assert_array_equal(batch.factors.numpy(), TRANSFORMS.astype(np.float32))
    assert data.provenance["source"] == "real"
    assert data.provenance["test_images"] == "320 of 320"


def test_provenance_of_real_files(both):
    data = of(source="real", directory=str(both))
    data.prepare_data()
    assert data.provenance == {
        "source": "real",
        "name": "real MNIST, placed on 40x40; tested on real affNIST",
        "md5": MNISTFiles.checksums,
        "affnist": {
            "name": "real affNIST",
            "sha256": {"test.mat.zip": affnist_format.SHA256["test.mat.zip"]},
        },
    }


def test_real_digits_without_affnist_are_a_stand_in_with_one_warning(real, caplog):
    with caplog.at_level(logging.DEBUG, "capsule_lab"):
        data = of("fit", "test", source="auto", directory=str(real))
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    message = warnings[0].getMessage()
    assert message.startswith(f"STAND-IN DATA, not the real set: affNIST is not in {real / 'affNIST'} and the download")
    assert "no network in tests" in message
    assert "trains on real MNIST and tests on synthetic affNIST made from its test digits" in message
    assert data.provenance["source"] == "standin"
    assert data.provenance["name"] == (
        "real MNIST, placed on 40x40; tested on synthetic affNIST made from real MNIST's test digits"
    )
    assert data.provenance["md5"] == MNISTFiles.checksums
    assert data.provenance["affnist"] == {
        "name": "synthetic affNIST made from real MNIST's test digits",
        "generator": "capsule_lab.data.standins.affnist",
        "version": 1,
        "seed": 0,
    }
    np.testing.assert_array_equal(data.sets["test"].images[:, 0].numpy(), ARRAYS["t10k-images-idx3-ubyte"])
    np.testing.assert_array_equal(
        data.sets["train"].images[:, 0].numpy(),
        ARRAYS["train-images-idx3-ubyte"][len(ARRAYS["train-images-idx3-ubyte"]) // 6 :],
    )
    assert sorted(path.name for path in real.iterdir()) == ["MNIST"]


@pytest.mark.parametrize("source", ["auto", "standin"])
def test_without_real_files_all_images_are_of_stand_in_digits(tmp_path, both, source, caplog):
    directory = tmp_path / "nothing" if source == "auto" else both
    data = of("fit", "test", source=source, directory=str(directory))
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert data.provenance["source"] == "standin"
    assert data.provenance["name"] == (
        f"{STANDIN_NAME}, placed on 40x40; tested on synthetic affNIST made from the stand-in's test digits"
    )
    assert data.sets["test"].images.equal(standin_digits(train=False).images)


def test_affnist_without_mnist_is_not_real(tmp_path, both):
    shutil.rmtree(both / "MNIST")
    data = of(source="auto", directory=str(both))
    data.prepare_data()
    assert data.provenance["source"] == "standin"
    assert data.provenance["affnist"]["name"] == "synthetic affNIST made from the stand-in's test digits"


@pytest.mark.parametrize(
    ("there", "missing"), [("MNIST", "affNIST"), ("affNIST", "MNIST")], ids=["without affNIST", "without MNIST"]
)
def test_real_needs_both_and_names_the_missing_files(both, there, missing):
    shutil.rmtree(both / missing)
    with pytest.raises(
        DataError, match=rf"^{missing} is not in {both}/{missing}.* put .* there, or .*CAPSULE_LAB_DATA=…$"
    ):
        of("test", source="real", directory=str(both))


def test_only_a_name_with_real_affnist_lacks_the_word_synthetic(both, real):
    names = [of(source="real", directory=str(both)), of(source="standin", directory=str(both))]
    for data in names:
        data.prepare_data()
    assert ["synthetic" in data.provenance["name"] for data in names] == [False, True]


@pytest.mark.parametrize("source", ["auto", "real"])
@pytest.mark.parametrize("name", ["test.mat", "test.mat.zip"])
def test_damaged_files_are_named_before_training_not_replaced(real, source, name):
    (real / "affNIST").mkdir()
    (real / "affNIST" / name).write_bytes(b"<!DOCTYPE html>")
    with pytest.raises(DataError, match=rf"^{real / 'affNIST' / name} "):
        of("fit", source=source, directory=str(real))


def test_provenance_of_unpacked_files_has_their_hash(real):
    (real / "affNIST").mkdir()
    (real / "affNIST" / "test.mat").write_bytes(mat({"affNISTdata": fields()}))
    data = of("test", source="real", directory=str(real))
    assert list(data.provenance["affnist"]["sha256"]) == ["test.mat"]


@pytest.mark.parametrize("stage", ["fit", "validate"])
def test_training_reads_no_test_digits(real, stage):
    data = of(source="auto", directory=str(real), affine_validation=True)
    data.prepare_data()
    (real / "MNIST" / "raw" / "t10k-images-idx3-ubyte").write_bytes(b"poison")
    data.setup(stage)
    assert all(len(batch.labels) for loader in data.val_dataloader() for batch in loader)


@pytest.mark.parametrize("source", ["real", "standin"])
def test_provenance_is_plain(both, source):
    data = of("fit", "test", source=source, directory=str(both), affine_validation=True)
    assert json.loads(json.dumps(data.provenance)) == data.provenance


def test_stand_ins_of_two_kinds_are_distinguished(real, tmp_path):
    """Both are a "standin", one trained on real digits."""
    trained, here = (of(source=source, directory=str(real)) for source in ("auto", "standin"))
    for data in (trained, here):
        data.prepare_data()
    check_same_source(tmp_path, trained.provenance, trained.provenance)
    with pytest.raises(RunError, match=r"was trained on real MNIST, .*, and now there is only stand-in for MNIST"):
        check_same_source(tmp_path, trained.provenance, here.provenance)


# --- through the commands

TINY = [*TINY_CAPSNET, *TINY_DATA, *NO_PICTURES, "data.eval_batch_size=40", "trainer.max_epochs=1"]


def test_network_trained_on_expanded_mnist_is_tested_on_affnist(tmp_path):
    expanded = train(compose("train", [*TINY, "data=mnist_expanded", "data.eval_images=40"]), tmp_path / "run")
    assert expanded["provenance"]["test_images"] == "40 of 359"
    overrides = [f"ckpt={tmp_path / 'run'}", "trainer.accelerator=cpu", "data=affnist", "data.source=standin"]
    result, path = evaluate_checkpoint(compose("evaluate", [*overrides, "data.eval_images=60"]))
    assert 0 <= result["test"]["error"] <= 100
    assert result["provenance"]["affnist"]["name"] == "synthetic affNIST made from the stand-in's test digits"
    assert result["provenance"]["test_images"] == "60 versions of 60 of 359"
    assert path.name == "best-test-affnist-standin.json"


def test_training_with_affine_validation_logs_both_errors(tmp_path):
    overrides = [*TINY, "data=affnist", "data.eval_images=40", "data.affine_validation=true"]
    result = train(compose("train", overrides), tmp_path / "run")
    header = (tmp_path / "run" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"val/error", "affine/error"} <= set(header)
    assert result["provenance"]["source"] == "standin"
    assert 0 <= result["test"]["error"] <= 100
