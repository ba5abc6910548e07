"""MNIST and its stand-in, and the behaviour that all data sets share: splits, augmentation, state."""

import gzip
import re
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
    (real / "MNIST" / "processed").mkdir()
    other = (torch.zeros(TRAIN, 28, 28, dtype=torch.uint8), torch.zeros(TRAIN, dtype=torch.int64))
    for name in ("training.pt", "test.pt"):
        torch.save(other, real / "MNIST" / "processed" / name)
    data = MNISTDataModule(directory=str(real), source="real", validation="none")
    data.setup("fit")
    np.testing.assert_array_equal(
        data.sets["train"].images[:, 0].numpy(), ARRAYS["train-images-idx3-ubyte"]
    )


def test_servers_and_checksums_are_those_of_torchvision():
    assert set(MNIST.mirrors) == set(mnist.SERVERS)
    assert {name.removesuffix(".gz"): md5 for name, md5 in MNIST.resources} == mnist.ARCHIVES


def test_provenance_distinguishes_splits():
    hashes = set()
    for options, sizes in [
        ({}, (1198, 240)),
        ({"validation": "stratified"}, (1198, 240)),
        ({"validation": "stratified", "seed": 1}, (1198, 240)),
        ({"validation": "none"}, (1438, 0)),
        ({"train_images": 64}, (64, 240)),
        ({"validation_share": 0.1}, (1294, 144)),
    ]:
        data = standin(**options)
        split = dict(data.provenance["split"])
        hashes.add(split.pop("hash"))
        validation = options.get("validation", "first")
        assert split == {"validation": validation, "train_images": sizes[0], "val_images": sizes[1]}
        assert (len(data.sets["train"].labels), len(data.sets["val"].labels)) == sizes
        assert (data.val_dataloader() == []) is (validation == "none")
    assert len(hashes) == 6


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["train", "val", "test"])
def test_network_gets_floats_in_the_unit_interval(training, name):
    data = standin(training=training)
    data.setup("test")
    stored = next(iter(getattr(data, f"{name}_dataloader")()))
    batch = data.on_after_batch_transfer(stored, 0)
    assert (stored.images.dtype, batch.images.dtype) == (torch.uint8, torch.float32)
    assert batch.images.shape[1:] == data.spec.image_shape == (1, 28, 28)
    assert batch.images.min() == 0
    assert 0.9 < batch.images.max() <= 1
    assert batch.labels.equal(stored.labels)
    assert batch.key.equal(stored.key)


@pytest.mark.parametrize(
    ("training", "options"),
    [
        (None, {}),
        (False, {}),
        (True, {"augment": False}),
        (True, {"shift": 0}),
        (True, {}),
        (True, {"shift": 1}),
    ],
)
def test_only_training_images_are_shifted(training, options):
    data = standin(training=bool(training), batch_size=32, **options)
    if training is None:
        data.trainer = None
    stored = next(iter(data.train_dataloader()))
    images = data.on_after_batch_transfer(stored, 0).images
    largest = options.get("shift", 2) if training and options.get("augment", True) else 0
    moves = torch.cartesian_prod(*[torch.arange(-largest, largest + 1)] * 2).tolist()
    moved = torch.stack(
        [(stored.images / 255).roll((down, right), (2, 3)) for down, right in moves]
    )
    used = (moved == images).all(
        dim=(2, 3, 4)
    )  # [move image]: the margin of 4 makes a roll a shift
    assert used.any(dim=0).all()
    assert used.any(dim=1).sum() > len(moves) / 2


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
    expected = loaded(real, monkeypatch)
    pack(real / "MNIST" / "raw", *packed)
    data = loaded(real, monkeypatch)
    assert data.provenance == expected.provenance
    for name, images in expected.sets.items():
        assert data.sets[name].images.equal(images.images)
        assert data.sets[name].labels.equal(images.labels)
    assert sorted(path.name for path in (real / "MNIST" / "raw").glob("*.gz")) == sorted(
        f"{name}.gz" for name in packed
    )


def test_an_unpacked_file_is_used_before_a_packed_one(real, monkeypatch):
    expected = loaded(real, monkeypatch)
    for name in ARRAYS:
        (real / "MNIST" / "raw" / f"{name}.gz").write_bytes(b"another file")
    assert loaded(real, monkeypatch).sets["test"].images.equal(expected.sets["test"].images)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-20], r"cannot be read \(Compressed file ended before"),
        (lambda content: content[:-8] + bytes(8), r"cannot be read \(CRC check failed"),
        (lambda content: content[:10] + b"\xff" * 9 + content[19:], r"cannot be read \(Error -3"),
        (lambda content: b"<html>", r"cannot be read \(Not a gzipped file"),
        (
            lambda content: gzip.compress(bytes(2**26)),
            r"cannot be read \(it has more than 47040016 bytes\)",
        ),
        (lambda content: gzip.compress(b"another file"), r"\(32 bytes, md5 "),
    ],
    ids=["truncated", "checksum", "corrupt", "another format", "bomb", "another file"],
)
def test_damaged_packed_file_gives_one_sentence(real, monkeypatch, damage, message):
    path = real / "MNIST" / "raw" / "train-images-idx3-ubyte"
    pack(path.parent, path.name)
    path = path.with_name(f"{path.name}.gz")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        DataError, match=rf"^{re.escape(str(path))} {message}[^\n]*remove it and its folder"
    ) as caught:
        loaded(real, monkeypatch)
    assert "\n" not in str(caught.value)
