"""Expanded MNIST: where digits are put, when they are put elsewhere, and what that depends on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from capsule_lab.data import ExpandedMNISTDataModule
from capsule_lab.data.loader import Images
from capsule_lab.data.mnist import MNISTFiles
from capsule_lab.data.standins.digits import STANDIN_NAME
from tests.helpers.data_modules import trainer


def standin(*stages: str, rank: int = 0, world_size: int = 1, **options) -> ExpandedMNISTDataModule:
    data = ExpandedMNISTDataModule(source="standin", **options)
    data.trainer = trainer(rank=rank, world_size=world_size)
    for stage in stages or ("fit", "test"):
        data.setup(stage)
    return data


def seen(data: ExpandedMNISTDataModule, name: str = "train", epoch: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels of an epoch as the network gets them, in the order of their keys."""
    loader = getattr(data, f"{name}_dataloader")()
    loader.batches.set_epoch(epoch)
    batches = [data.on_after_batch_transfer(batch, 0) for batch in loader]
    images, labels, key = (torch.cat([getattr(b, field) for b in batches]) for field in ("images", "labels", "key"))
    order = key.argsort()
    return images[order], labels[order]


def places(pad: int = 6, shift: int = 6, count: int = 4000) -> torch.Tensor:
    """Where the first pixel of a white 28x28 frame is, ``(image, 2)``, drawn as training does."""
    data = ExpandedMNISTDataModule(source="standin", pad=pad, shift=shift)
    white = Images(
        torch.full((1, 1, 28, 28), 255, dtype=torch.uint8).expand(count, -1, -1, -1), torch.zeros(count).long()
    )
    data.sets["train"] = white
    images = data.transform_batch(data.dataset("train")[(torch.arange(count), 0)], "train").images
    assert (images.sum((1, 2, 3)) == 28 * 28).all(), "a part of the frame is outside"
    return torch.stack([images.amax((1, 3)).argmax(1), images.amax((1, 2)).argmax(1)], 1)


def test_frame_is_always_inside_and_goes_everywhere_it_may():
    for pad, shift in [(6, 6), (6, 2), (4, 4), (0, 0), (6, 0)]:
        found = places(pad, shift)
        expected = {
            (row, column)
            for row in range(pad - shift, pad + shift + 1)
            for column in range(pad - shift, pad + shift + 1)
        }
        assert {tuple(place) for place in found.tolist()} == expected


def test_places_are_uniform_and_rows_independent_of_columns():
    found = places(count=16900)
    counts = torch.bincount(found[:, 0] * 13 + found[:, 1], minlength=169)
    chi_squared = float(((counts - 100) ** 2 / 100).sum())
    assert chi_squared < 240  # 168 degrees of freedom: exceeded once in 4000 draws


def test_network_sees_larger_images_of_the_same_digits():
    data = standin()
    images, labels = seen(data, "test")
    assert data.spec.image_shape == (1, 40, 40)
    assert images.shape == (359, 1, 40, 40)
    assert images.dtype == torch.float32
    assert images.amin() == 0
    assert images.amax() == 1
    key = data.dataset("test")[(torch.arange(359), 0)].key
    stored = data.sets["test"].images[key.argsort()]
    torch.testing.assert_close(images.sum((1, 2, 3)), stored.float().sum((1, 2, 3)) / 255)
    assert labels.equal(data.sets["test"].labels[key.argsort()])


def test_training_images_move_from_epoch_to_epoch():
    for augment, same in [(True, False), (False, True)]:
        data = standin("fit", augment=augment, batch_size=1198)
        data.trainer.training = True
        first, second = (seen(data, epoch=epoch)[0].flatten(1) for epoch in (0, 1))
        if same:
            assert first.equal(second)
        else:
            assert not first.sort(0).values.equal(second.sort(0).values)


def test_other_images_stay_where_they_are():
    for name in ["val", "test"]:
        data = standin()
        first, second = (seen(data, name, epoch)[0] for epoch in (0, 7))
        assert first.equal(second)


def test_places_are_a_function_of_the_seed_and_the_index():
    for name in ["val", "test"]:
        for change, same in [({}, True), ({"seed": 1}, False), ({"eval_batch_size": 7}, True)]:
            first, second = (seen(standin(**options), name)[0] for options in ({}, change))
            assert first.equal(second) is same


def test_several_processes_see_together_what_one_sees():
    one = seen(standin("fit", batch_size=32))[0]
    parts = [seen(standin("fit", batch_size=16, rank=rank, world_size=2))[0] for rank in range(2)]
    together = torch.cat(parts)
    assert together.shape == one.shape
    assert torch.equal(*(torch.stack(sorted(images.flatten(1), key=torch.Tensor.tolist)) for images in (one, together)))


def test_places_do_not_depend_on_the_split():
    data = standin("fit")
    batch = data.dataset("val")[(torch.arange(5), 3)]
    with_augmentation, without = (data.transform_batch(batch, name).images for name in ("train", "val"))
    assert with_augmentation.equal(without)


def test_provenance_of_the_standin():
    assert standin("fit").provenance["name"] == f"{STANDIN_NAME}, placed on 40x40"


def test_provenance_of_the_real_files(real: Path):
    data = ExpandedMNISTDataModule(directory=str(real), source="real")
    data.prepare_data()
    assert data.provenance == {"source": "real", "name": "real MNIST, placed on 40x40", "md5": MNISTFiles.checksums}


def test_wrong_options():
    for options, message in [
        ({"pad": -1, "shift": 0}, "data.pad is -1; expected 0 or more pixels"),
        ({"shift": -1}, "data.shift is -1; expected 0 (no shift) or more pixels"),
        ({"shift": 7}, "data.shift is 7 with data.pad 6, which would push digits over the edge"),
        ({"pad": 4}, "data.shift is 6 with data.pad 4, which would push digits over the edge"),
    ]:
        with pytest.raises(ValueError, match=rf"^{re.escape(message)}[^\n]*$"):
            ExpandedMNISTDataModule(source="standin", **options)
