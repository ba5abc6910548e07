"""SVHN: files as MATLAB wrote them, what the network sees, the experiment; the rest is in ``test_coloured_files``."""

from __future__ import annotations

import inspect
import io
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import scipy.io
import torch
from torchvision import datasets

from capsule_lab.config import compose
from capsule_lab.data import SVHNDataModule, svhn
from capsule_lab.data.loader import Images
from capsule_lab.data.standins.coloured_digits import coloured_digits
from capsule_lab.data.transforms import sample_key
from capsule_lab.train import train
from tests.data.test_cifar10 import network_of
from tests.data.test_mnist import trainer
from tests.helpers.commands import NO_PICTURES

RANDOM = np.random.default_rng(0)


def drawn(number: int) -> dict[str, np.ndarray]:
    """What a file holds: labels 1 to 10, which is how the digit 0 is labelled."""
    pixels = RANDOM.integers(0, 256, (32, 32, 3, number), dtype=np.uint8)
    return {"X": pixels, "y": RANDOM.permutation(np.arange(number, dtype=np.uint8) % 10 + 1)[:, None]}


ARRAYS = {"train_32x32.mat": drawn(60), "test_32x32.mat": drawn(20)}


def matlab(arrays: dict[str, Any]) -> bytes:
    """MATLAB's format 5, as the real files."""
    written = io.BytesIO()
    scipy.io.savemat(written, arrays, do_compression=True)
    return written.getvalue()


def stored(arrays: dict[str, np.ndarray]) -> Images:
    """What the module makes of them: image by image, and the digit that it shows."""
    pixels, labels = arrays["X"], arrays["y"][:, 0].tolist()
    images = np.stack([pixels[:, :, :, n].transpose(2, 0, 1) for n in range(len(labels))])
    return Images(torch.from_numpy(images), torch.tensor([0 if label == 10 else label for label in labels]))


CONTENTS = {name: matlab(arrays) for name, arrays in ARRAYS.items()}
TRAINING, TEST = (stored(arrays) for arrays in ARRAYS.values())


def brings(content: dict[str, bytes]):
    """A download of these files, that breaks off where there are no more."""

    def download(url, root, filename, md5):
        assert url == f"http://ufldl.stanford.edu/housenumbers/{filename}"
        assert md5 in [known for _, name, known in datasets.SVHN.split_list.values() if name == filename]
        Path(root).mkdir(exist_ok=True)
        print("100 %")  # noqa: T201 - as torchvision does
        if filename not in content:
            (Path(root) / filename).write_bytes(b"half a f")
            raise URLError("timed out")
        (Path(root) / filename).write_bytes(content[filename])

    return download


# --- the files --------------------------------------------------------------------------------------------------------


def test_checksums_are_those_that_torchvision_has():
    assert dict(datasets.SVHN.split_list[part][1:] for part in ("train", "test")) == svhn.CHECKSUMS


WHOLE = ARRAYS["test_32x32.mat"]
BROKEN = {
    "truncated": (matlab(WHOLE)[:-500], r"cannot be read \(.+\); expected a file of SVHN: remove it"),
    "corrupt": (matlab(WHOLE)[:5000] + bytes(20) + matlab(WHOLE)[5020:], r"cannot be read \(.+\)"),
    "empty": (b"", r"cannot be read \(.+\)"),
    "another file": (b"<html>a login page</html>" * 20, r"cannot be read \(.+\)"),
    "of MATLAB 7.3": (b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(100), r"cannot be read \(.+\)"),
    "no labels": (matlab({"X": WHOLE["X"]}), r"cannot be read \(it has no X or no y\)"),
    "no images": (matlab({"y": WHOLE["y"]}), r"cannot be read \(it has no X or no y\)"),
    "label 0": (matlab(WHOLE | {"y": WHOLE["y"] - 1}), "has label 0; expected 1 to 10: remove it"),
    "label 11": (matlab(WHOLE | {"y": WHOLE["y"] + 1}), "has label 11; expected 1 to 10"),
    "too few labels": (matlab(WHOLE | {"y": WHOLE["y"][:19]}), r"labels of shape \(19, 1\); expected uint8"),
    "labels in a row": (matlab(WHOLE | {"y": WHOLE["y"].T}), r"labels of shape \(1, 20\); expected uint8"),
    "one after the other": (matlab(WHOLE | {"X": np.moveaxis(WHOLE["X"], 3, 0)}), r"uint8 of shape \(20, 32, 32, 3\)"),
    "small": (matlab(WHOLE | {"X": WHOLE["X"][:24, :24]}), r"uint8 of shape \(24, 24, 3, 20\)"),
    "scaled": (matlab(WHOLE | {"X": WHOLE["X"] / 255}), r"float64 of shape \(32, 32, 3, 20\)"),
}


# --- what the network sees --------------------------------------------------------------------------------------------


def standin(*, training: bool = True, **options: Any) -> SVHNDataModule:
    data = SVHNDataModule(source="standin", **options)
    data.trainer = trainer(training=training)
    data.setup("fit")
    return data


@pytest.mark.parametrize(
    ("training", "options", "moved"),
    [
        (True, {}, False),
        (True, {"shift": 2}, True),
        (False, {"shift": 2}, False),
        (True, {"shift": 2, "augment": False}, False),
    ],
    ids=str,
)
def test_pixels_are_in_the_unit_interval_and_stay_where_they_are_unless_asked(training, options, moved):
    data = standin(training=training, **options)
    batch = next(iter(data.train_dataloader()))
    images = data.on_after_batch_transfer(batch, 0).images
    assert images.dtype == torch.float32
    assert 0 <= images.min() < 0.1 < 0.9 < images.max() <= 1
    assert images.shape[1:] == data.spec.image_shape == (3, 32, 32)
    assert images.equal(batch.images / 255) is not moved


@pytest.mark.parametrize("largest", [1, 3])
def test_every_training_image_is_moved_by_at_most_shift(largest):
    point = torch.zeros(500, 3, 32, 32, dtype=torch.uint8)
    point[:, :, 16, 16] = 255
    data = SVHNDataModule(source="standin", shift=largest)
    moved = data.transform(point, sample_key(0, 0, torch.arange(500)), augment=True)
    places = {(down, right) for _, _, down, right in moved.nonzero().tolist()}
    around = range(16 - largest, 16 + largest + 1)
    assert places == {(down, right) for down in around for right in around}
    assert moved.sum() == 500 * 3


def test_what_is_drawn_depends_on_the_key_alone():
    images, key = coloured_digits(train=True).images[:50], sample_key(0, 0, torch.arange(50))
    data = SVHNDataModule(source="standin", shift=3)
    together = data.transform(images, key, augment=True)
    assert together.equal(data.transform(images, key, augment=True))
    assert data.transform(images[5:9], key[5:9], augment=True).equal(together[5:9])
    assert not data.transform(images, key + 1, augment=True).equal(together)


CHANGED = {"shift": 2, "validation_share": 0.5}


@pytest.mark.parametrize("option", [name for name in inspect.signature(SVHNDataModule).parameters if name != "options"])
def test_every_option_does_something(option):
    plain, changed = standin(), standin(**{option: CHANGED[option]})
    images, key = coloured_digits(train=True).images[:50], sample_key(0, 0, torch.arange(50))
    seen, other = (data.transform(images, key, augment=True) for data in (plain, changed))
    assert not seen.equal(other) or len(plain.sets["train"].labels) != len(changed.sets["train"].labels)


@pytest.mark.usefixtures("unchecked_types")
def test_a_negative_shift_is_refused():
    with pytest.raises(ValueError, match=r"data\.shift is -1; expected 0 \(no shift\) or more pixels"):
        SVHNDataModule(shift=-1)


# --- the experiment ---------------------------------------------------------------------------------------------------


def test_network_of_the_experiment_is_as_large_as_published():
    network = network_of("sabour2017/svhn")
    assert sum(parameter.numel() for parameter in network.parameters()) == 1_004_976
    assert network.decoder is None
    assert not network.digits.routing.leaky


@pytest.mark.parametrize(
    ("decoder", "terms"), [("null", {"margin"}), ("[8]", {"margin", "reconstruction"})], ids=["without", "with"]
)
def test_experiment_trains_with_and_without_a_decoder(tmp_path, decoder, terms):
    small = ["model.channels=4", "model.primary_types=2", f"model.decoder={decoder}", "trainer.accelerator=cpu"]
    config = compose("train", ["experiment=sabour2017/svhn", "debug=smoke", *small, *NO_PICTURES])
    result = train(config, tmp_path / "run")
    assert result["test"].keys() == {"error", "loss", *terms}
    assert result["test"]["loss"] == pytest.approx(sum(result["test"][term] for term in terms))
    assert result["provenance"]["source"] == "standin"
