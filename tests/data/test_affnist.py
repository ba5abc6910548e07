"""affNIST: synthetic versions of digits, which files decide what is tested on, and what provenance says of it."""

from __future__ import annotations

import functools
import json
import logging
import math
import shutil
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import scipy.ndimage
import torch
from torchvision.datasets import mnist as torchvision_mnist
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as torchvision_transforms

from capsule_lab.config import compose
from capsule_lab.data import AffNISTDataModule, mnist
from capsule_lab.data.formats import affnist as affnist_format
from capsule_lab.data.standins import affnist as affnist_standin
from capsule_lab.data.standins.affnist import FACTORS, RANGES, SyntheticAffNIST, place, transformed
from capsule_lab.data.standins.digits import STANDIN_NAME, standin_digits
from capsule_lab.data.transforms import affine, sample_key
from capsule_lab.errors import DataError, RunError
from capsule_lab.evaluate import evaluate
from capsule_lab.runs.checkpoints import check_same_source
from capsule_lab.train import train
from tests.data.formats.test_affnist_files import IMAGES, LABELS, TRANSFORMS, counts_as_real, fields, mat, written
from tests.data.test_mnist import ARRAYS, trainer
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, TINY_DATA

__all__ = ["counts_as_real", "written"]  # fixtures

DRAWN_ONCE = functools.cache(standin_digits)


@pytest.fixture(autouse=True)
def standin_is_drawn_once(monkeypatch) -> None:
    monkeypatch.setattr(mnist, "standin_digits", DRAWN_ONCE)


@pytest.fixture(autouse=True)
def no_network(monkeypatch) -> None:
    def refuse(*_, **__):
        raise URLError("no network in tests")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setattr(torchvision_mnist, "download_and_extract_archive", refuse)


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


def seen(loader, data: AffNISTDataModule, epoch: int = 0) -> list[tuple[list[float], int]]:
    """Every image of a loader as the network gets it, with its label, in a fixed order."""
    loader.batches.set_epoch(epoch)
    batches = [data.on_after_batch_transfer(batch, 0) for batch in loader]
    return sorted(
        (image.tolist(), int(k)) for b in batches for image, k in zip(b.images.flatten(1), b.labels, strict=True)
    )


def versions(count: int = 1000, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The first versions of the stand-in digits, and their factors."""
    batch = SyntheticAffNIST(DRAWN_ONCE(train=False), seed)[(torch.arange(count), 0)]
    return batch.images, batch.factors


# --- the transform


@pytest.mark.parametrize("size", [(28, 28), (33, 20), (54, 54)], ids=str)
@pytest.mark.parametrize(
    ("angle", "shear", "scale", "right", "down"),
    [
        (0, 0, 1, 0, 0), (20, 0, 1, 0, 0), (-35, 0, 1, 0, 0), (0, 11.3, 1, 0, 0), (0, 0, 0.8, 0, 0), (0, 0, 1.2, 0, 0),
        (0, 0, 1, 3, -5), (10, -11.3, 0.9, 0, 0), (-20, 11.3, 1.2, 2, 1), (90, 0, 1, 0, 0), (170, 30, 0.5, -4, 4),
    ],
)  # fmt: skip
def test_affine_is_that_of_torchvision(size, angle, shear, scale, right, down):
    """torchvision turns clockwise, in degrees, and shears by an angle."""
    images = torch.rand(2, 1, *size, generator=torch.Generator().manual_seed(0))
    expected = torchvision_transforms.affine(
        images, angle, [right, down], scale, [shear, 0.0], interpolation=InterpolationMode.BILINEAR
    )
    each = torch.ones(2)
    found = affine(
        images, rotation=-math.radians(angle) * each, shear=math.tan(math.radians(shear)) * each,
        scale_x=scale * each, scale_y=scale * each, right=right * each, down=down * each,
    )  # fmt: skip
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize(("scale_x", "scale_y"), [(0.8, 1.2), (1.2, 0.8), (1.0, 1.1)])
@pytest.mark.parametrize(("rotation", "shear"), [(0.0, 0.0), (0.3, 0.2), (-0.2, 0.1)])
def test_affine_with_two_scales_is_that_of_scipy(rotation, shear, scale_x, scale_y):
    image = np.pad(np.random.default_rng(0).random((20, 24)), 10)  # black at the edge, which the two treat apart
    cos, sin = math.cos(rotation), math.sin(rotation)
    # of a point x to the right and y above the middle: stretched, then sheared, then turned counter-clockwise
    forward = np.array([[cos, -sin], [sin, cos]]) @ np.array([[1, shear], [0, 1]]) @ np.diag([scale_x, scale_y])
    flip = np.array([[0, -1], [1, 0]])  # (right, up) to (down, right)
    backward = flip @ np.linalg.inv(forward) @ flip.T
    middle = (np.array(image.shape) - 1) / 2
    expected = scipy.ndimage.affine_transform(image, backward, middle - backward @ middle, order=1)
    drawn = {"rotation": rotation, "shear": shear, "scale_x": scale_x, "scale_y": scale_y, "right": 0.0, "down": 0.0}
    tensors = {name: torch.tensor([value]) for name, value in drawn.items()}
    found = affine(torch.from_numpy(image).float()[None, None], **tensors)
    np.testing.assert_allclose(found[0, 0].numpy(), expected, atol=1e-4)


# --- synthetic versions


def test_versions_have_affnists_form():
    images, factors = versions()
    assert images.shape == (1000, 1, 40, 40)
    assert images.dtype == torch.uint8
    assert factors.shape == (1000, len(FACTORS))
    assert (images.amax((1, 2, 3)) > 128).all()


@pytest.mark.parametrize("name", RANGES)
def test_factors_fill_their_ranges_evenly(name):
    low, high = RANGES[name]
    values = (versions(4000)[1][:, FACTORS.index(name)] - low) / (high - low)
    assert values.min() >= 0
    assert values.max() <= 1
    counts = torch.histc(values, 10, 0, 1)
    assert ((counts - 400) ** 2 / 400).sum() < 30  # 9 degrees of freedom: exceeded once in 2000 draws


def test_ranges_are_those_documented():
    assert RANGES == {"rotation": (-20, 20), "shear": (-0.2, 0.2), "scale_x": (0.8, 1.2), "scale_y": (0.8, 1.2)}


def test_factors_are_independent():
    correlations = torch.corrcoef(versions(4000)[1][:, :4].T) - torch.eye(4)
    assert correlations.abs().max() < 0.06  # 4 standard deviations


@pytest.mark.parametrize("index", range(0, 60, 7))
def test_factors_make_the_image(index):
    """What scipy makes of the digit with the factors given is the image."""
    images, factors = versions(60)
    rotation, shear, scale_x, scale_y, right, down = factors[index].tolist()
    rotation = math.radians(rotation)
    digit = np.pad(DRAWN_ONCE(train=False).images[index, 0].numpy().astype(float), 6)
    cos, sin = math.cos(rotation), math.sin(rotation)
    forward = np.array([[cos, -sin], [sin, cos]]) @ np.array([[1, shear], [0, 1]]) @ np.diag([scale_x, scale_y])
    flip = np.array([[0, -1], [1, 0]])
    backward = flip @ np.linalg.inv(forward) @ flip.T
    middle = np.array([19.5, 19.5])
    offset = middle - backward @ (middle + np.array([down, right]))
    expected = scipy.ndimage.affine_transform(digit, backward, offset, order=1)
    np.testing.assert_allclose(images[index, 0].numpy(), expected, atol=0.6)


def test_nothing_of_a_digit_is_lost():
    images, factors = versions()
    digits = DRAWN_ONCE(train=False).images[torch.arange(1000) % 359].float().sum((1, 2, 3))
    area = factors[:, 2] * factors[:, 3]
    assert (images.float().sum((1, 2, 3)) / (digits * area) - 1).abs().max() < 0.05


@pytest.mark.parametrize("axis", [0, 1], ids=["down", "right"])
def test_places_are_uniform_over_all_that_lose_nothing(axis):
    """A spot of 3x5 pixels can be put in 38x36 places."""
    count, spot = 20000, (3, 5)
    image = torch.zeros(54, 54, dtype=torch.uint8)
    image[20:23, 30:35] = 1
    key = sample_key(0, 0, torch.arange(count))
    placed, *moved = place(image.expand(count, 1, 54, 54), key)
    assert (placed.sum((1, 2, 3)) == 15).all()
    first = placed[:, 0].amax(2 - axis).int().argmax(1)
    assert first.equal(moved[axis] + (20, 30)[axis] - 7)
    choices = 40 - spot[axis] + 1
    counts = torch.bincount(first, minlength=choices)
    assert len(counts) == choices
    expected = count / choices
    assert ((counts - expected) ** 2 / expected).sum() < 75  # 37 degrees of freedom: exceeded once in 4000 draws


def test_rows_and_columns_are_drawn_independently():
    """A square spot has as many choices down as across, so that one draw for both would give the same."""
    image = torch.zeros(54, 54, dtype=torch.uint8)
    image[20:24, 20:24] = 1
    _, down, right = place(image.expand(4000, 1, 54, 54), sample_key(0, 0, torch.arange(4000)))
    assert torch.corrcoef(torch.stack([down, right]).float())[0, 1].abs() < 0.06  # 4 standard deviations


@pytest.mark.parametrize("side", [40, 41, 46])
def test_what_fills_the_canvas_is_put_in_the_middle(side):
    image = torch.zeros(3, 1, 54, 54, dtype=torch.uint8)
    begin = (54 - side) // 2
    image[:, :, begin : begin + side, begin : begin + side] = 9
    placed, down, right = place(image, sample_key(0, 0, torch.arange(3)))
    assert (placed == 9).all()
    assert down.equal(right)
    assert down.abs().max() <= 1


def test_black_image_stays_black():
    placed, _, _ = place(torch.zeros(50, 1, 54, 54, dtype=torch.uint8), sample_key(0, 0, torch.arange(50)))
    assert placed.shape == (50, 1, 40, 40)
    assert not placed.any()


def test_whole_frame_fits_the_room_at_every_corner_of_the_ranges():
    corners = torch.cartesian_prod(*[torch.tensor(between) for between in RANGES.values()])
    canvas = torch.nn.functional.pad(torch.ones(len(corners), 1, 28, 28), (13,) * 4)
    rotation, shear, scale_x, scale_y = corners.T
    still = torch.zeros(len(corners))
    drawn = {"rotation": rotation * math.pi / 180, "shear": shear, "scale_x": scale_x, "scale_y": scale_y}
    wide = affine(canvas, **drawn, right=still, down=still)
    edge = torch.ones(54, 54, dtype=torch.bool)
    edge[1:-1, 1:-1] = False
    assert not wide[:, 0, edge].any()
    assert affnist_standin._ROOM == 54


@pytest.mark.parametrize("size", [1, 3, 64])
def test_versions_do_not_depend_on_the_batch(size):
    dataset = SyntheticAffNIST(DRAWN_ONCE(train=False), 0)
    whole, index = dataset[(torch.arange(96), 0)], torch.arange(96)
    parts = [dataset[(part, 0)] for part in index.split(size)]
    assert torch.cat([part.images for part in parts]).equal(whole.images)
    assert torch.cat([part.factors for part in parts]).equal(whole.factors)


@pytest.mark.parametrize(
    ("change", "same"), [({}, True), ({"seed": 1}, False), ({"epoch": 5}, True), ({"shift": 359}, False)], ids=str
)
def test_versions_are_a_function_of_seed_and_index(change, same):
    def made(*, seed: int = 0, epoch: int = 0, shift: int = 0) -> torch.Tensor:
        return SyntheticAffNIST(DRAWN_ONCE(train=False), seed)[(torch.arange(20) + shift, epoch)].images

    assert made().equal(made(**change)) is same


def test_every_digit_comes_round_before_one_comes_again():
    data = DRAWN_ONCE(train=False)
    dataset = SyntheticAffNIST(data, 0, versions=3)
    batch = dataset[(torch.arange(len(dataset)), 0)]
    assert len(dataset) == 3 * 359
    assert batch.labels.equal(data.labels.repeat(3))


@pytest.mark.parametrize(("size", "length"), [(None, 11488), (100, 100), (20000, 11488)])
def test_size(size, length):
    assert len(SyntheticAffNIST(DRAWN_ONCE(train=False), 0, size=size)) == length


@pytest.mark.parametrize("size", [1, 500, 501, 718])
def test_stored_versions_are_those_of_the_batches(size):
    dataset = SyntheticAffNIST(DRAWN_ONCE(train=False), 0, versions=2, size=size)
    batch, stored = dataset[(torch.arange(size), 0)], dataset.stored()
    assert stored.images.equal(batch.images)
    assert stored.labels.equal(batch.labels)
    assert stored.factors.equal(batch.factors)


def test_too_few_versions():
    with pytest.raises(ValueError, match=r"^the number of versions is 0; expected 1 or more of each image$"):
        SyntheticAffNIST(DRAWN_ONCE(train=False), 0, versions=0)


def test_the_key_alone_decides_how_a_digit_is_transformed():
    digit = DRAWN_ONCE(train=False).images[:1]
    one, _ = transformed(digit, torch.tensor([7]))
    several, _ = transformed(digit.expand(3, -1, -1, -1), torch.tensor([1, 7, 7]))
    assert several[1].equal(one[0])
    assert several[2].equal(one[0])
    assert not several[0].equal(one[0])


# --- the DataModule on stand-ins


def test_test_images_are_32_versions_of_each_test_digit():
    data = of("test", eval_batch_size=400)
    loader = data.test_dataloader()
    assert len(loader.dataset) == 32 * 359
    batch = data.on_after_batch_transfer(next(iter(loader)), 0)
    assert batch.images.shape == (400, 1, 40, 40)
    assert batch.images.dtype == torch.float32
    assert 0.9 < batch.images.max() <= 1
    assert batch.factors.shape == (400, len(data.spec.factors))
    assert data.provenance["test_images"] == "11488 versions of 359 of 359"


@pytest.mark.parametrize(
    ("eval_images", "said"), [(100, "100 versions of 100 of 359"), (500, "500 versions of 359 of 359")]
)
def test_fewer_test_images_are_of_as_many_digits_as_can_be(eval_images, said):
    data = of("fit", "test", eval_images=eval_images)
    data.setup("test")
    assert data.provenance["test_images"] == said
    assert len(data.test_dataloader().dataset) == eval_images
    assert len(data.val_dataloader().dataset) == min(eval_images, 240)


def test_training_and_validation_images_are_never_turned():
    data = of("fit", affine_validation=True)
    for name in ("train", "validation"):
        batch = data.dataset(name)[(torch.arange(50), 0)]
        images = data.prepare(batch, augment=True).images
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
    runs[1].sets["validation"] = runs[0].sets["validation"]  # their order is drawn by the seed as well
    looks = [seen(data.val_dataloader()[1], data, epoch) for data, epoch in zip(runs, (0, 4), strict=True)]
    assert (looks[0] == looks[1]) is same


@pytest.mark.parametrize(
    ("options", "sentence"),
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
def test_wrong_options(options, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        AffNISTDataModule(source="standin", **options)


# --- real files, and what is said of data


@pytest.mark.parametrize("source", ["auto", "real"])
def test_real_files_are_tested_on_exactly(both, source):
    data = of("test", source=source, directory=str(both), eval_batch_size=320)
    (stored,) = data.test_dataloader()
    batch = data.on_after_batch_transfer(stored, 0)
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
        "md5": mnist.CHECKSUMS,
        "affnist": {
            "name": "real affNIST",
            "sha256": {"test.mat.zip": affnist_format.SHA256["test.mat.zip"]},
        },
    }


def test_real_digits_without_affnist_are_a_stand_in_and_say_so_once(real, caplog):
    with caplog.at_level(logging.DEBUG, "capsule_lab"):
        data = of("fit", "test", source="auto", directory=str(real))
    loud = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(loud) == 1
    said = loud[0].getMessage()
    assert said.startswith(f"STAND-IN DATA, not the real set: affNIST is not in {real / 'affNIST'} and the download")
    assert "no network in tests" in said
    assert "trains on real MNIST and tests on synthetic affNIST made from its test digits" in said
    assert data.provenance["source"] == "standin"
    assert data.provenance["name"] == (
        "real MNIST, placed on 40x40; tested on synthetic affNIST made from real MNIST's test digits"
    )
    assert data.provenance["md5"] == mnist.CHECKSUMS
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
def test_without_any_real_file_all_is_made_from_stand_in_digits(tmp_path, both, source, caplog):
    directory = tmp_path / "nothing" if source == "auto" else both
    data = of("fit", "test", source=source, directory=str(directory))
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert data.provenance["source"] == "standin"
    assert data.provenance["name"] == (
        f"{STANDIN_NAME}, placed on 40x40; tested on synthetic affNIST made from the stand-in's test digits"
    )
    assert data.sets["test"].images.equal(DRAWN_ONCE(train=False).images)


def test_affnist_without_mnist_is_not_real(tmp_path, both):
    shutil.rmtree(both / "MNIST")
    data = of(source="auto", directory=str(both))
    data.prepare_data()
    assert data.provenance["source"] == "standin"
    assert data.provenance["affnist"]["name"] == "synthetic affNIST made from the stand-in's test digits"


@pytest.mark.parametrize(
    ("there", "missing"), [("MNIST", "affNIST"), ("affNIST", "MNIST")], ids=["without affNIST", "without MNIST"]
)
def test_real_needs_both_and_says_what_to_put_where(both, there, missing):
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


def test_unpacked_files_are_said_with_their_own_hash(real):
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


def test_stand_ins_of_two_kinds_are_told_apart(real, tmp_path):
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
    words = [f"ckpt={tmp_path / 'run'}", "trainer.accelerator=cpu", "data=affnist", "data.source=standin"]
    result, path = evaluate(compose("evaluate", [*words, "data.eval_images=60"]))
    assert 0 <= result["test"]["error"] <= 100
    assert result["provenance"]["affnist"]["name"] == "synthetic affNIST made from the stand-in's test digits"
    assert result["provenance"]["test_images"] == "60 versions of 60 of 359"
    assert path.name == "best-test-affnist-standin.json"


def test_training_with_affine_validation_logs_both_errors(tmp_path):
    words = [*TINY, "data=affnist", "data.eval_images=40", "data.affine_validation=true"]
    result = train(compose("train", words), tmp_path / "run")
    header = (tmp_path / "run" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"val/error", "affine/error"} <= set(header)
    assert result["provenance"]["source"] == "standin"
    assert 0 <= result["test"]["error"] <= 100
