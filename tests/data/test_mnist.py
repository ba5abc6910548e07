"""MNIST and its stand-in, and the behaviour that all data sets share: splits, augmentation, state."""

import gzip
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import MNIST

from capsule_lab.data import MNISTDataModule, mnist
from capsule_lab.errors import DataError
from tests.helpers.data_modules import forbid_downloads, trainer
from tests.helpers.mnist_files import ARRAYS, TRAIN


def standin(
    *, training: bool = True, rank: int = 0, world_size: int = 1, **options
) -> MNISTDataModule:
    data = MNISTDataModule(**{"source": "standin", **options})
    data.trainer = trainer(training=training, rank=rank, world_size=world_size)
    data.setup("fit")
    return data


def test_only_verified_files_are_read(real):
    """torchvision before 0.9 left its own copy beside the real files."""
    processed = real / "MNIST" / "processed"
    processed.mkdir()
    pixels = torch.zeros(TRAIN, 28, 28, dtype=torch.uint8)
    labels = torch.zeros(TRAIN, dtype=torch.int64)
    for name in ("training.pt", "test.pt"):
        torch.save((pixels, labels), processed / name)
    data = MNISTDataModule(directory=str(real), source="real", validation="none")
    data.setup("fit")
    images = data.sets["train"].images[:, 0]
    np.testing.assert_array_equal(images, ARRAYS["train-images-idx3-ubyte"])


def test_servers_and_checksums_are_those_of_torchvision():
    assert set(MNIST.mirrors) == set(mnist.SERVERS)
    checksums = {name.removesuffix(".gz"): md5 for name, md5 in MNIST.resources}
    assert checksums == mnist.ARCHIVES


SPLITS = [  # options, and numbers of training and of validation images
    ({}, 1198, 240),
    ({"validation": "stratified"}, 1198, 240),
    ({"validation": "stratified", "seed": 1}, 1198, 240),
    ({"validation": "none"}, 1438, 0),
    ({"train_images": 64}, 64, 240),
    ({"validation_share": 0.1}, 1294, 144),
]


@pytest.mark.parametrize(("options", "train", "val"), SPLITS)
def test_provenance_states_the_split(options, train, val):
    data = standin(**options)
    split = dict(data.provenance["split"])
    split_hash = split.pop("hash")
    assert len(split_hash) == 32
    validation = options.get("validation", "first")
    assert split == {"validation": validation, "train_images": train, "val_images": val}
    assert len(data.sets["train"].labels) == train
    assert len(data.sets["val"].labels) == val
    has_no_loader = data.val_dataloader() == []
    assert has_no_loader is (validation == "none")


def test_provenance_distinguishes_splits():
    hashes = {standin(**options).provenance["split"]["hash"] for options, _, _ in SPLITS}
    assert len(hashes) == len(SPLITS)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["train", "val", "test"])
def test_network_gets_floats_in_the_unit_interval(training, name):
    data = standin(training=training)
    data.setup("test")
    loader = getattr(data, f"{name}_dataloader")()
    stored = next(iter(loader))
    batch = data.on_after_batch_transfer(stored, 0)
    assert data.spec.image_shape == (1, 28, 28)
    assert stored.images.dtype == torch.uint8
    assert batch.images.dtype == torch.float32
    assert batch.images.shape[1:] == (1, 28, 28)
    assert batch.images.min() == 0
    assert 0.9 < batch.images.max() <= 1
    assert batch.labels.equal(stored.labels)
    assert batch.key.equal(stored.key)


def shifts_of(images, stored, largest: int) -> torch.Tensor:
    """Whether an image was shifted so, ``[shift image]``: the margin of 4 pixels makes a roll a shift."""
    steps = range(-largest, largest + 1)
    shifts = product(steps, steps)
    expected = torch.stack([(stored / 255).roll(shift, (2, 3)) for shift in shifts])
    return (expected == images).all(dim=(2, 3, 4))


@pytest.mark.parametrize(
    ("training", "options", "largest"),
    [
        (False, {}, 0),
        (True, {"augment": False}, 0),
        (True, {"shift": 0}, 0),
        (True, {"shift": 1}, 1),
        (True, {}, 2),
    ],
)
def test_only_training_images_are_shifted(training, options, largest):
    data = standin(training=training, batch_size=32, **options)
    stored = next(iter(data.train_dataloader()))
    images = data.on_after_batch_transfer(stored, 0).images
    used = shifts_of(images, stored.images, largest)
    assert used.any(dim=0).all(), "every image is shifted by whole pixels"
    assert used.any(dim=1).sum() > len(used) / 2, "most shifts occur"


def test_images_are_not_shifted_without_a_trainer():
    data = standin(batch_size=32)
    data.trainer = None
    stored = next(iter(data.train_dataloader()))
    assert data.on_after_batch_transfer(stored, 0).images.equal(stored.images / 255)


def test_state_before_training_is_empty():
    data = standin(batch_size=100)
    assert data.state_dict() == {}
    data.load_state_dict({})
    assert len(list(data.train_dataloader())) == 11  # of 1198 images


def pack(folder: Path, *names: str) -> None:
    """Replace these files by packed ones."""
    for name in names:
        path = folder / name
        (folder / f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def loaded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> MNISTDataModule:
    forbid_downloads(monkeypatch)
    data = MNISTDataModule(directory=str(directory), source="real")
    assert data.real_source.is_here()
    data.setup("fit")
    data.setup("test")
    return data


@pytest.mark.parametrize("packed", [tuple(ARRAYS), ("t10k-labels-idx1-ubyte",)], ids=["all", "one"])
def test_packed_files_are_read_as_unpacked_ones(real, monkeypatch, packed):
    raw = real / "MNIST" / "raw"
    expected = loaded(real, monkeypatch)
    pack(raw, *packed)
    data = loaded(real, monkeypatch)
    assert data.provenance == expected.provenance
    for name, images in expected.sets.items():
        found = data.sets[name]
        assert found.images.equal(images.images)
        assert found.labels.equal(images.labels)
    archives = {path.stem for path in raw.glob("*.gz")}
    assert archives == {*packed}


def test_an_unpacked_file_is_used_before_a_packed_one(real, monkeypatch):
    expected = loaded(real, monkeypatch).sets["test"].images
    for name in ARRAYS:
        (real / "MNIST" / "raw" / f"{name}.gz").write_bytes(b"another file")
    found = loaded(real, monkeypatch).sets["test"].images
    assert found.equal(expected)


def truncated(content: bytes) -> bytes:
    return content[:-20]


def with_another_checksum(content: bytes) -> bytes:
    return content[:-8] + bytes(8)


def corrupt(content: bytes) -> bytes:
    return content[:10] + b"\xff" * 9 + content[19:]


def web_page(_: bytes) -> bytes:
    return b"<html>"


def bomb(_: bytes) -> bytes:
    return gzip.compress(bytes(2**26))


def another_file(_: bytes) -> bytes:
    return gzip.compress(b"another file")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncated, r"cannot be read \(Compressed file ended before"),
        (with_another_checksum, r"cannot be read \(CRC check failed"),
        (corrupt, r"cannot be read \(Error -3"),
        (web_page, r"cannot be read \(Not a gzipped file"),
        (bomb, r"cannot be read \(it has more than 47040016 bytes\)"),
        (another_file, r"\(32 bytes, md5 "),
    ],
)
def test_damaged_packed_file_gives_one_sentence(real, monkeypatch, damage, message):
    folder, name = real / "MNIST" / "raw", "train-images-idx3-ubyte"
    pack(folder, name)
    path = folder / f"{name}.gz"
    path.write_bytes(damage(path.read_bytes()))
    expected = rf"^{re.escape(str(path))} {message}[^\n]*remove it and its folder"
    with pytest.raises(DataError, match=expected) as caught:
        loaded(real, monkeypatch)
    assert "\n" not in str(caught.value)
