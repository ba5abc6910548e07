"""affNIST: the test images of real and synthetic sets, and their provenance."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch.testing import assert_close

from capsule_lab.commands import compose
from capsule_lab.commands.evaluate import EvaluateOptions, evaluate_checkpoint
from capsule_lab.commands.train import train
from capsule_lab.data import AffNISTDataModule
from capsule_lab.data.formats import affnist as affnist_format
from capsule_lab.data.mnist import MNISTFiles
from capsule_lab.data.standins.digits import STANDIN_NAME, standin_digits
from capsule_lab.errors import DataError, RunError
from capsule_lab.runs.checkpoints import check_same_source
from tests.helpers.affnist_files import IMAGES, LABELS, TRANSFORMS, count_as_real, write_affnist
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, TINY_DATA
from tests.helpers.data_modules import without_network
from tests.helpers.mnist_files import ARRAYS


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    return write_affnist(tmp_path_factory.mktemp("affNIST"))


@pytest.fixture(autouse=True)
def no_network_and_small_real_files(written, monkeypatch) -> None:
    without_network(monkeypatch)
    count_as_real(written, monkeypatch)


@pytest.fixture
def both(real: Path, written: Path) -> Path:
    """A data directory with small files that count as real MNIST and real affNIST."""
    (real / "affNIST").mkdir()
    shutil.copy(written / "test.mat.zip", real / "affNIST")
    return real


def of(*stages: str, source="standin", **options) -> AffNISTDataModule:
    data = AffNISTDataModule(source=source, **options)
    for stage in stages:
        data.setup(stage)
    return data


@pytest.mark.parametrize(
    ("eval_images", "size", "digits"),
    [
        (None, 11_488, 359),
        (100, 100, 100),
        (500, 500, 359),
    ],
)
def test_test_set_has_32_versions_of_each_digit_or_eval_images(eval_images, size, digits):
    data = of("test", eval_images=eval_images, eval_batch_size=100)
    loader = data.test_dataloader()
    stored = next(iter(loader))
    batch = data.transform_batch(stored, "test")
    assert len(loader.dataset) == size
    assert data.provenance["test_images"] == f"{size} versions of {digits} of 359"
    assert batch.images.shape == (100, 1, 40, 40)
    assert batch.images.dtype == torch.float32
    assert 0.9 < batch.images.max() <= 1
    assert batch.factors.shape == (100, len(data.spec.factors))


def test_training_and_validation_images_are_not_transformed():
    data = of("fit", affine_validation=True)
    for name in ("train", "val"):
        batch = data.dataset(name)[torch.arange(50), 0]
        images = data.transform_batch(batch, name).images
        ink = batch.images.float().sum((1, 2, 3)) / 255
        assert_close(images.sum((1, 2, 3)), ink)
        assert batch.factors is None


@pytest.mark.parametrize(
    ("stage", "digits", "made", "is_same"),
    [
        ("test", "test", "test", True),
        ("fit", "val", "affine", False),
    ],
)
def test_synthetic_test_set_does_not_depend_on_the_seed(stage, digits, made, is_same):
    options = {"affine_validation": True, "eval_images": 60}
    one = of(stage, seed=0, **options)
    other = of(stage, seed=1, **options)
    other.sets[digits] = one.sets[digits]  # the seed also draws which 60 digits are transformed
    index = torch.arange(60)
    images = one.dataset(made)[index, 0].images
    other_images = other.dataset(made)[index, 0].images
    assert images.equal(other_images) is is_same


def test_affine_validation_uses_the_validation_digits():
    data = of("fit", affine_validation=True, eval_batch_size=240)
    assert data.further_validations == ("affine",)
    (plain,), (affine,) = data.val_dataloader()
    assert plain.labels.equal(affine.labels)
    assert plain.images.shape == (240, 1, 28, 28)
    assert affine.images.shape == (240, 1, 40, 40)
    assert affine.factors.shape == (240, 6)
    assert "test" not in data.sets
    facts = data.provenance["affine_validation"]
    assert facts["name"] == "synthetic affNIST made from the validation digits"


def test_affine_within_has_the_positions_of_the_training():
    """Rotations, shears and scales are those of ``affine_validation``; only positions differ."""
    data = of("fit", affine_validation=True, affine_within=True, shift=4)
    assert data.further_validations == ("affine", "affine_within")
    anywhere = data.dataset("affine")[torch.arange(200), 0]
    within = data.dataset("affine_within")[torch.arange(200), 0]
    assert within.labels.equal(anywhere.labels)
    assert within.factors[:, :4].equal(anywhere.factors[:, :4])
    position = within.factors[:, 4:]
    assert position.min() == -4
    assert position.max() == 4
    assert anywhere.factors[:, 4:].abs().max() > 6
    ink = [batch.images.float().sum((1, 2, 3)) for batch in (anywhere, within)]
    assert ink[0].equal(ink[1])  # no digit loses a part
    facts = data.provenance["affine_within_validation"]
    assert facts["name"].endswith("from the validation digits, moved by at most 4 pixels")


def test_affine_within_moves_pixels_by_its_factors():
    data = of("fit", affine_validation=True, affine_within=True)
    anywhere = data.dataset("affine")[torch.arange(20), 0]
    within = data.dataset("affine_within")[torch.arange(20), 0]
    right, down = (within.factors - anywhere.factors)[:, 4:].long().T
    for index in range(20):
        moved = anywhere.images[index, 0].roll((int(down[index]), int(right[index])), (0, 1))
        assert moved.equal(within.images[index, 0])


def test_without_affine_validation_there_is_one_validation_set():
    data = of("fit")
    assert not isinstance(data.val_dataloader(), list)
    assert "affine_validation" not in data.provenance


@pytest.mark.parametrize("source", ["auto", "real"])
def test_real_test_images_are_read_exactly(both, source):
    data = of("test", source=source, directory=str(both), eval_batch_size=320)
    (stored,) = data.test_dataloader()
    batch = data.transform_batch(stored, "test")
    assert_array_equal(stored.images[:, 0], IMAGES)
    assert_close(batch.images, stored.images / 255)
    assert_array_equal(batch.labels, LABELS)
    assert_array_equal(batch.factors, TRANSFORMS.astype(np.float32))
    assert data.provenance == {
        "source": "real",
        "name": "real MNIST, placed on 40x40; tested on real affNIST",
        "md5": MNISTFiles.checksums,
        "affnist": {"name": "real affNIST", "sha256": {"test.mat.zip": affnist_format.SHA256}},
        "test_images": "320 of 320",
    }


def test_real_digits_without_affnist_count_as_stand_in(real, caplog):
    with caplog.at_level(logging.WARNING, "capsule_lab"):
        data = of("fit", "test", source="auto", directory=str(real))
    (message,) = caplog.messages
    reason = f"affNIST is not in {real / 'affNIST'} and the download"
    instead = "train on real MNIST and test on synthetic affNIST made from its test digits"
    assert message.startswith(f"stand-in data for AffNIST, not the real set: {reason}")
    assert "no network in tests" in message
    assert instead in message
    assert sorted(path.name for path in real.iterdir()) == ["MNIST"]

    provenance = data.provenance
    name = "synthetic affNIST made from real MNIST's test digits"
    assert provenance["source"] == "standin"
    assert provenance["name"] == f"real MNIST, placed on 40x40; tested on {name}"
    assert provenance["md5"] == MNISTFiles.checksums
    assert provenance["affnist"] == {
        "name": name,
        "generator": "capsule_lab.data.standins.affnist",
        "version": 1,
        "seed": 0,
    }

    training = ARRAYS["train-images-idx3-ubyte"]
    for_validation = len(training) // 6
    assert_array_equal(data.sets["train"].images[:, 0], training[for_validation:])
    assert_array_equal(data.sets["test"].images[:, 0], ARRAYS["t10k-images-idx3-ubyte"])


@pytest.mark.parametrize(("source", "mnist"), [("auto", False), ("standin", True)])
def test_all_images_are_stand_ins_without_real_digits(both, source, mnist, caplog):
    if not mnist:
        shutil.rmtree(both / "MNIST")
    data = of("fit", "test", source=source, directory=str(both), affine_validation=True)
    levels = [record.levelno for record in caplog.records]
    assert levels.count(logging.WARNING) == 1
    provenance = data.provenance
    name = "synthetic affNIST made from the stand-in's test digits"
    assert provenance["source"] == "standin"
    assert provenance["name"] == f"{STANDIN_NAME}, placed on 40x40; tested on {name}"
    assert json.loads(json.dumps(provenance)) == provenance
    digits = standin_digits(train=False)
    assert data.sets["test"].images.equal(digits.images)


def test_real_digits_with_a_stand_in_for_affnist_only(both):
    data = of("fit", "test", source="standin", digits="real", directory=str(both))
    name = "synthetic affNIST made from real MNIST's test digits"
    assert data.provenance["name"] == f"real MNIST, placed on 40x40; tested on {name}"
    assert_array_equal(data.sets["test"].images[:, 0], ARRAYS["t10k-images-idx3-ubyte"])


@pytest.mark.parametrize("source", ["auto", "standin"])
def test_real_digits_are_never_replaced(tmp_path, source):
    with pytest.raises(DataError, match=r"^MNIST is not in .*CAPSULE_LAB_DATA=…$"):
        of("fit", source=source, digits="real", directory=str(tmp_path))


@pytest.mark.parametrize("missing", ["affNIST", "MNIST"])
def test_source_real_names_the_missing_files(both, missing):
    shutil.rmtree(both / missing)
    message = rf"^{missing} is not in {both}/{missing}.* put .* there, or .*CAPSULE_LAB_DATA=…$"
    with pytest.raises(DataError, match=message):
        of("test", source="real", directory=str(both))


@pytest.mark.parametrize("source", ["auto", "real"])
@pytest.mark.parametrize("name", ["test.mat", "test.mat.zip"])
def test_damaged_file_is_named_before_training_and_kept(real, source, name):
    file = real / "affNIST" / name
    file.parent.mkdir()
    file.write_bytes(b"<!DOCTYPE html>")
    with pytest.raises(DataError, match=rf"^{file} "):
        of("fit", source=source, directory=str(real))


@pytest.mark.parametrize("stage", ["fit", "validate"])
def test_training_reads_no_test_digits(real, stage):
    data = of(source="auto", directory=str(real), affine_validation=True)
    data.prepare_data()
    (real / "MNIST" / "raw" / "t10k-images-idx3-ubyte").write_bytes(b"poison")
    data.setup(stage)
    for loader in data.val_dataloader():
        assert len([*loader]) > 0


def test_synthetic_tests_of_real_and_stand_in_digits_are_distinguished(real, tmp_path):
    """Both have the source "standin", but one was trained on real digits."""
    trained = of(source="auto", directory=str(real))
    here = of(source="standin", directory=str(real))
    trained.prepare_data()
    here.prepare_data()
    check_same_source(tmp_path, trained.provenance, trained.provenance, "wait")
    message = r"was trained on real MNIST, .*, but the data here is stand-in for MNIST.*, or wait"
    with pytest.raises(RunError, match=message):
        check_same_source(tmp_path, trained.provenance, here.provenance, "wait")


TINY = [*TINY_CAPSNET, *TINY_DATA, *NO_PICTURES, "data.eval_batch_size=40", "trainer.max_epochs=1"]


@pytest.mark.whole  # a whole fit
def test_network_trained_on_expanded_mnist_is_tested_on_affnist(tmp_path):
    config = compose("train", [*TINY, "data=mnist_expanded", "data.eval_images=40"])
    expanded = train(config, tmp_path / "run")
    assert expanded["provenance"]["test_images"] == "40 of 359"
    overrides = [
        f"ckpt={tmp_path / 'run'}",
        "trainer.accelerator=cpu",
        "data=affnist",
        "data.source=standin",
        "data.eval_images=60",
    ]
    options = EvaluateOptions.read(compose("evaluate", overrides))
    result, path, _ = evaluate_checkpoint(options)
    assert 0 <= result["test"]["error"] <= 100
    provenance = result["provenance"]
    name = "synthetic affNIST made from the stand-in's test digits"
    assert provenance["affnist"]["name"] == name
    assert provenance["test_images"] == "60 versions of 60 of 359"
    assert path.name == "best-test-affnist-standin-eval_images=60.json"
