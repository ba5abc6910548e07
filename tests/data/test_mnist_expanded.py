"""Expanded MNIST: the places of digits on the larger canvas."""

from pathlib import Path

import pytest
import torch

from capsule_lab.data import ExpandedMNISTDataModule
from capsule_lab.data.loader import Images
from capsule_lab.data.mnist import MNISTFiles
from capsule_lab.data.standins.digits import STANDIN_NAME


def standin(**options) -> ExpandedMNISTDataModule:
    data = ExpandedMNISTDataModule(source="standin", **options)
    for stage in ("fit", "test"):
        data.setup(stage)
    return data


def seen(data: ExpandedMNISTDataModule, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels that the network gets."""
    index = torch.arange(len(data.sets[name].labels))
    stored = data.dataset(name)[index, 0]
    batch = data.transform_batch(stored, name)
    return batch.images, batch.labels


def places(pad: int = 6, shift: int = 6, count: int = 4000) -> torch.Tensor:
    """Row and column of the first pixel of a white 28x28 frame, ``(image, 2)``, placed as in training."""
    data = ExpandedMNISTDataModule(source="standin", pad=pad, shift=shift)
    white = torch.full((1, 1, 28, 28), 255, dtype=torch.uint8)
    labels = torch.zeros(count, dtype=torch.int64)
    data.sets["train"] = Images(white.expand(count, -1, -1, -1), labels)
    images, _ = seen(data, "train")
    ink = images.sum((1, 2, 3))
    assert (ink == 28 * 28).all(), "a part of the frame is outside"
    row = images.amax((1, 3)).argmax(1)
    column = images.amax((1, 2)).argmax(1)
    return torch.stack([row, column], 1)


@pytest.mark.parametrize(("pad", "shift"), [(6, 6), (6, 2), (4, 4), (0, 0), (6, 0)])
def test_digit_is_placed_at_every_allowed_place(pad, shift):
    allowed = torch.arange(pad - shift, pad + shift + 1)
    expected = torch.cartesian_prod(allowed, allowed)
    found = places(pad, shift).unique(dim=0)
    assert found.equal(expected)


def test_places_are_uniform_and_rows_independent_of_columns():
    row, column = places(count=16900).T
    counts = torch.bincount(13 * row + column, minlength=169)
    deviation = (counts - 100) ** 2 / 100
    assert deviation.sum() < 240  # 168 degrees of freedom: exceeded once in 4000 draws


def test_network_gets_larger_images_of_the_same_digits():
    data = standin()
    images, labels = seen(data, "test")
    stored = data.sets["test"]
    assert data.spec.image_shape == (1, 40, 40)
    assert images.shape == (359, 1, 40, 40)
    assert labels.equal(stored.labels)
    ink = images.sum((1, 2, 3))
    stored_ink = stored.images.float().sum((1, 2, 3)) / 255
    torch.testing.assert_close(ink, stored_ink)


@pytest.mark.parametrize("name", ["val", "test"])
def test_places_depend_on_the_seed(name):
    one, _ = seen(standin(seed=0), name)
    other, _ = seen(standin(seed=1), name)
    assert not one.equal(other)


def test_provenance_names_digits_and_canvas(real: Path):
    assert standin().provenance["name"] == f"{STANDIN_NAME}, placed on 40x40"
    data = ExpandedMNISTDataModule(directory=str(real), source="real")
    data.prepare_data()
    assert data.provenance == {
        "source": "real",
        "name": "real MNIST, placed on 40x40",
        "md5": MNISTFiles.checksums,
    }
