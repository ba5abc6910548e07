"""Pairs of digits: which, where, how laid over each other, and that they are the same wherever they are made."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.data import MultiMNISTDataModule
from capsule_lab.data.loader import EpochBatches, Images, ResumableLoader
from capsule_lab.data.multimnist import Pairs, overlay
from capsule_lab.types import Batch

LABELS = (0, 0, 0, 1, 1, 2, 2, 2, 2)


def numbered(labels: tuple[int, ...] = LABELS) -> Images:
    """Images of one pixel: their own number."""
    pixels = torch.arange(len(labels), dtype=torch.uint8).reshape(-1, 1, 1, 1)
    return Images(pixels, torch.tensor(labels))


def data(stage: str = "fit", **options: Any) -> MultiMNISTDataModule:
    module = MultiMNISTDataModule(source="standin", **options)
    module.setup(stage)
    return module


def pairs_of(module: MultiMNISTDataModule, name: str, index: Tensor, epoch: int = 0) -> Batch:
    return module.transform_batch(module.dataset(name)[index, epoch], name)


def fingerprint(batches: list[Batch]) -> str:
    """Of what a network would see, and of what it should find."""
    digest = hashlib.sha256()
    for part in ("images", "parts", "labels", "key"):
        digest.update(torch.cat([getattr(batch, part) for batch in batches]).numpy().tobytes())
    return digest.hexdigest()


# --- which pairs -----------------------------------------------------------------------------------------------------


def test_labels_differ_and_are_those_of_the_images() -> None:
    images = numbered()
    batch = Pairs(images, 0, size=5000, fixed=True)[torch.arange(5000), 0]
    assert (batch.labels[:, 0] != batch.labels[:, 1]).all()
    assert images.labels[batch.images.flatten(1).long()].equal(batch.labels)


def test_partners_of_one_class() -> None:
    """Every image that may be a partner is as likely as another; none is its own."""
    for same_class in ["also", "only"]:
        for first in range(len(LABELS)):
            images = numbered()
            pairs = Pairs(images, 0, size=5000, fixed=True, same_class=same_class)
            index = first + len(LABELS) * torch.arange(500)
            second = pairs[index, 0].images[:, 1, 0, 0]
            allowed = [
                n for n in range(len(LABELS)) if n != first and (same_class == "also" or LABELS[n] == LABELS[first])
            ]
            counts = torch.bincount(second.long(), minlength=len(LABELS))
            assert counts.nonzero().flatten().tolist() == allowed
            assert counts[allowed].min() > 0.6 * 500 / len(allowed)


def test_every_image_is_first_equally_often() -> None:
    first = Pairs(numbered(), 0, size=100, fixed=True)[torch.arange(100), 0].images[:, 0, 0, 0]
    assert first.tolist() == [n % len(LABELS) for n in range(100)]


def test_every_image_of_another_class_is_as_likely() -> None:
    for first in range(len(LABELS)):
        draws = 4000
        index = torch.arange(draws) * len(LABELS) + first
        partners = Pairs(numbered(), 3, size=draws * len(LABELS), fixed=True)[index, 0].images[:, 1, 0, 0].long()
        others = [n for n, label in enumerate(LABELS) if label != LABELS[first]]
        counts = torch.bincount(partners, minlength=len(LABELS))
        expected = draws / len(others)
        assert set(partners.tolist()) == set(others)
        assert (counts[others] - expected).abs().max() < 5 * expected**0.5  # 5 standard deviations


def test_an_epoch_has_pairs_of_its_own_unless_they_are_fixed() -> None:
    for fixed, same in [(True, True), (False, False)]:
        pairs = Pairs(numbered(), 0, size=50, fixed=fixed)
        one, other = (pairs[torch.arange(50), epoch] for epoch in (0, 1))
        assert one.images.equal(other.images) is one.key.equal(other.key) is same


def test_pairs_are_those_of_the_seed() -> None:
    for seed in [0, 1]:
        one, other = (Pairs(numbered(), s, size=50, fixed=True)[torch.arange(50), 0] for s in (0, seed))
        assert one.images.equal(other.images) is (seed == 0)


def test_pairs_are_of_one_split() -> None:
    for name, stage in [("train", "fit"), ("val", "fit"), ("test", "test")]:
        module = data(stage, val_pairs=9, test_pairs=9)
        module.sets[name] = numbered()  # images of 1 pixel that only this split has
        batch = module.dataset(name)[torch.arange(len(LABELS)), 0]
        assert batch.images.max() < len(LABELS)
        assert batch.images.shape == (len(LABELS), 2, 1, 1)


def test_ten_million_test_pairs_are_never_made_at_once() -> None:
    module = data("test")
    count = len(module.sets["test"].labels)
    module.pairs["test"] = 1000 * count
    pairs = module.dataset("test")
    last = pairs[torch.tensor([len(pairs) - 1]), 0]
    assert len(pairs) == 1000 * count
    assert last.images[0, 0].equal(module.sets["test"].images[-1, 0])


# --- how they are composed -------------------------------------------------------------------------------------------


def reference_shift(digit: Tensor, down: int, right: int) -> Tensor:
    """Onto 36x36, by slices of a larger canvas."""
    canvas = torch.zeros(48, 48)
    canvas[10 + down : 38 + down, 10 + right : 38 + right] = digit / 255
    return canvas[6:42, 6:42]


def test_each_digit_is_moved_by_itself_on_36x36() -> None:
    for shift in [4, 6]:
        module = data(shift=shift)
        index = torch.arange(40)
        stored, made = module.dataset("train")[index, 0], pairs_of(module, "train", index)
        found = []
        for digit, part in zip(stored.images.flatten(0, 1), made.parts.flatten(0, 2), strict=True):
            places = [(y, x) for y in range(-shift, shift + 1) for x in range(-shift, shift + 1)]
            (place,) = [place for place in places if reference_shift(digit, *place).equal(part)]
            found.append(place)
        moves = torch.tensor(found).reshape(-1, 2, 2)
        assert moves.amax() == shift
        assert moves.amin() == -shift
        assert not moves[:, 0].equal(moves[:, 1])


def test_overlay() -> None:
    for blend, expected in [("sum", [1.0, 0.5, 0.75]), ("max", [0.8, 0.5, 0.5])]:
        parts = torch.tensor([[0.8, 0.5, 0.25], [0.6, 0.0, 0.5]]).reshape(1, 2, 1, 1, 3)
        torch.testing.assert_close(overlay(parts, blend).flatten(), torch.tensor(expected))


def test_image_is_the_overlay_of_its_parts() -> None:
    for blend in ["sum", "max"]:
        for name in ["train", "val"]:
            batch = pairs_of(data(blend=blend), name, torch.arange(20))
            assert batch.parts is not None
            assert batch.parts.shape == (20, 2, 1, 36, 36)
            assert batch.images.equal(overlay(batch.parts, blend))
            assert 0 <= batch.images.min() < batch.images.max() <= 1


@pytest.mark.whole
def test_overlap_of_boxes_of_20_pixels() -> None:
    """Percent, on average; CapsNet's authors say 80, which is one digit moving."""
    for shift, moving, overlap in [(4, 2, 72.6), (4, 1, 79.0), (6, 2, 61.6), (3, 2, 78.4)]:
        box = torch.zeros(28, 28, dtype=torch.uint8)
        box[4:24, 4:24] = 255
        module = MultiMNISTDataModule(source="standin", shift=shift)
        batch = Pairs(Images(box.expand(10, 1, 28, 28), torch.arange(10)), 0, size=20_000, fixed=True)
        parts = module.transform_batch(batch[torch.arange(20_000), 0], "train").parts
        assert parts is not None
        other = parts[:, 1] if moving == 2 else reference_shift(box, 0, 0)
        assert 100 * (parts[:, 0] * other).sum((1, 2, 3)).mean() / 400 == pytest.approx(overlap, abs=0.5)


def test_every_option_of_the_composition_does_something() -> None:
    for options in [
        {"shift": 6},
        {"blend": "max"},
        {"placing": "affine"},
        {"pad": 0},
        {"seed": 1},
        {"same_class": "only"},
    ]:
        one, other = (pairs_of(data(**each), "train", torch.arange(8)).images for each in ({}, options))
        assert one.shape != other.shape or not one.equal(other)


def test_tutorials_pairs_are_28_pixels_wide_and_smaller_digits() -> None:
    module = data(pad=0, placing="affine", blend="max")
    batch = pairs_of(module, "train", torch.arange(200))
    stored = module.dataset("train")[torch.arange(200), 0].images / 255
    assert module.spec.image_shape == (1, 28, 28) == tuple(batch.images.shape[1:])
    assert batch.parts is not None
    shrunk = batch.parts.sum((2, 3, 4)) / stored.sum((2, 3))
    assert 0.2 < shrunk.median() < 0.5  # areas of 0.5^2 to 0.7^2, a few digits being cut off


# --- the same everywhere ---------------------------------------------------------------------------------------------


def made(module: MultiMNISTDataModule, *, batch_size: int = 64, workers: int = 0, processes: int = 1) -> list[Batch]:
    """Two epochs of training, put back in order."""
    pairs, batches = module.dataset("train"), []
    for rank in range(processes):
        sampler = EpochBatches(
            len(pairs), batch_size // processes, seed=7, shuffle=True, rank=rank, world_size=processes
        )
        for epoch in range(2):
            sampler.set_epoch(epoch)
            loader = torch.utils.data.DataLoader(pairs, sampler=sampler, batch_size=None, num_workers=workers)
            batches += [module.transform_batch(Batch(*batch), "train") for batch in loader]
    key = torch.cat([batch.key for batch in batches])
    order = key.argsort()
    assert len(key.unique()) == len(key)
    columns = (None if column[0] is None else torch.cat(column)[order] for column in zip(*batches, strict=True))
    return [Batch(*columns)]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_same_pairs_whatever_makes_them() -> None:
    for how in [{"batch_size": 32}, {"workers": 1}, {"workers": 4}, {"processes": 2}, {"workers": 4, "processes": 2}]:
        module = data(train_images=128)
        assert fingerprint(made(module)) == fingerprint(made(module, **how))


def test_hash_of_pairs_is_what_it_was() -> None:
    """So that results of another machine or version can be compared pair by pair."""
    batch = pairs_of(data("test"), "test", torch.arange(64))
    stored = hashlib.sha256((255 * batch.images).round().to(torch.uint8).numpy().tobytes()).hexdigest()
    assert stored[:16] == "651786a46484438b"


def test_validation_and_test_pairs_are_the_same_in_every_epoch() -> None:
    module = data()
    loader = module.val_dataloader()
    assert isinstance(loader, ResumableLoader)
    one = list(loader)
    loader.batches.set_epoch(3)  # as Lightning does
    assert fingerprint([module.transform_batch(b, "val") for b in one]) == fingerprint(
        [module.transform_batch(b, "val") for b in loader]
    )


def test_without_augmentation_training_pairs_are_the_same_in_every_epoch() -> None:
    pairs = data(augment=False).dataset("train")
    assert pairs[torch.arange(9), 0].images.equal(pairs[torch.arange(9), 5].images)


def test_twenty_thousand_pairs_a_second() -> None:
    """Of one core, and of its own time: what else the machine does is not counted. Usually four times as many."""
    module, seconds = data(), []
    index = torch.arange(1000) % len(module.dataset("train"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for epoch in range(5):
            began = time.thread_time()
            pairs_of(module, "train", index, epoch)
            seconds.append(time.thread_time() - began)
    finally:
        torch.set_num_threads(before)
    assert len(index) / min(seconds) >= 20_000


# --- facts and errors ------------------------------------------------------------------------------------------------


def test_number_of_pairs() -> None:
    for options, name, size in [
        ({}, "train", 1438 - 240),
        ({"train_images": 100}, "train", 100),
        ({"val_pairs": 300}, "val", 300),
        ({"val_pairs": 300, "eval_images": 20}, "val", 20),
    ]:
        assert len(data(**options).dataset(name)) == size


def test_provenance_counts_test_pairs() -> None:
    for options, expected in [({"test_pairs": 500}, "500 pairs of 359"), ({"eval_images": 30}, "30 pairs of 359")]:
        provenance = data("test", **options).provenance
        assert provenance["test_images"] == expected
        assert provenance["source"] == "standin"
        assert provenance["name"].startswith("pairs of digits of stand-in")


def test_facts() -> None:
    spec = data().spec
    assert (spec.image_shape, spec.num_classes, spec.labels_per_image) == ((1, 36, 36), 10, 2)


@pytest.mark.usefixtures("unchecked_types")
def test_options_that_are_refused() -> None:
    for options, message in [
        ({"pad": -1}, "data.pad is -1; expected 0 or more pixels"),
        ({"shift": -1}, r"data.shift is -1; expected 0 \(no shift\) or more pixels"),
        ({"blend": "add"}, "data.blend is 'add'; expected 'sum' or 'max'"),
        ({"placing": "move"}, "data.placing is 'move'; expected 'shift' or 'affine'"),
        ({"same_class": "always"}, "data.same_class is 'always'; expected 'never', 'also' or 'only'"),
        ({"test_pairs": 0}, "data has 10000 validation and 0 test pairs; expected 1 or more"),
    ]:
        with pytest.raises(ValueError, match=message):
            MultiMNISTDataModule(source="standin", **options)


def test_more_pairs_than_there_are() -> None:
    with pytest.raises(ValueError, match=r"data\.test_pairs is 359001; expected 359000, 1000 for each image, or fewer"):
        data("test", test_pairs=359_001)


def test_images_that_cannot_be_paired_are_refused() -> None:
    for labels, size, message in [
        ((1, 1), 2, "all 2 images are of class 1; expected several"),
        (LABELS, 0, "the number of pairs is 0; expected 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            Pairs(numbered(labels), 0, size=size, fixed=True)


def test_only_image_of_its_class_has_no_partner_of_it() -> None:
    with pytest.raises(ValueError, match="one image is of class 2; expected several of each class"):
        Pairs(numbered((0, 0, 2)), 0, size=2, fixed=True, same_class="only")


def test_one_image_has_no_partner() -> None:
    with pytest.raises(ValueError, match="there is one image; expected several"):
        Pairs(numbered((0,)), 0, size=2, fixed=True, same_class="also")
