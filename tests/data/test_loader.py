"""Batches: every image once per epoch, a reproducible order, resuming, and several processes."""

import re
from itertools import chain, islice

import pytest
import torch

from capsule_lab.data.loader import EpochBatches, Images, InMemory, ResumableLoader, check_images
from capsule_lab.data.transforms import sample_key
from capsule_lab.errors import DataError


def indices(batches: EpochBatches) -> list[list[int]]:
    """The images of each batch of the epoch."""
    return [index.tolist() for index, _ in batches]


def order(batches: EpochBatches) -> list[int]:
    """The images of the epoch, one after another."""
    return [*chain.from_iterable(indices(batches))]


def loader(size: int = 50, batch_size: int = 8, *, seed: int = 0, **options) -> ResumableLoader:
    index = torch.arange(size)
    pixels = index.to(torch.uint8).view(size, 1, 1, 1).repeat(1, 1, 2, 2)
    images = Images(pixels, index % 10)
    batches = EpochBatches(size, batch_size, seed=seed, **options)
    return ResumableLoader(InMemory(images, seed), batches, pin_memory=False)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("size", "drop_last", "sizes"),
    [
        (12, False, [4, 4, 4]),
        (12, True, [4, 4, 4]),
        (13, False, [4, 4, 4, 1]),
        (13, True, [4, 4, 4]),
        (15, False, [4, 4, 4, 3]),
        (15, True, [4, 4, 4]),
        (4, False, [4]),
        (4, True, [4]),
        (3, False, [3]),
        (3, True, [3]),
        (1, False, [1]),
        (1, True, [1]),
    ],
)
def test_epoch_has_every_image_once_except_a_dropped_last_batch(size, drop_last, sizes, shuffle):
    batches = EpochBatches(size, 4, shuffle=shuffle, drop_last=drop_last)
    assert [len(batch) for batch in indices(batches)] == sizes
    assert len(batches) == len(sizes)
    seen = order(batches)
    assert len(set(seen)) == sum(sizes)
    if not shuffle:
        assert seen == list(range(sum(sizes)))


def shuffled(seed: int, epoch: int, batch_size: int = 10, before: tuple[int, ...] = ()):
    """The order of an epoch, after the epochs ``before`` of the same sampler."""
    batches = EpochBatches(100, batch_size, seed=seed, shuffle=True)
    for number in before:
        batches.set_epoch(number)
        order(batches)
    batches.set_epoch(epoch)
    return order(batches)


def test_order_depends_only_on_seed_and_epoch():
    torch.manual_seed(0)
    orders = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1)):
        orders.append(tuple(shuffled(seed, epoch)))
    assert len(set(orders)) == 4
    expected = [*orders[1]]
    torch.manual_seed(1)
    assert shuffled(0, 1, batch_size=32) == expected
    assert shuffled(0, 1, batch_size=7, before=(0, 5)) == expected


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [32, 31, 30, 26, 8, 7, 2])
def test_two_processes_together_have_the_batches_of_one(size, drop_last, shuffle):
    options = {"shuffle": shuffle, "drop_last": drop_last}
    alone = EpochBatches(size, 8, **options)
    first = EpochBatches(size, 4, **options, rank=0, world_size=2)
    second = EpochBatches(size, 4, **options, rank=1, world_size=2)
    assert len(first) == len(alone)
    assert len(second) == len(alone)
    batches = zip(indices(alone), indices(first), indices(second), strict=True)
    for whole, one, other in batches:
        assert sorted(one + other) == sorted(whole)


@pytest.mark.parametrize(
    ("size", "world_size"), [(25, 2), (9, 2), (17, 4), (18, 4), (19, 4), (23, 4), (5, 4)]
)
def test_last_batch_too_small_for_all_processes_joins_the_one_before(size, world_size):
    seen = []
    numbers = set()
    for rank in range(world_size):
        batches = EpochBatches(size, 8 // world_size, rank=rank, world_size=world_size)
        assert [] not in indices(batches)
        seen += order(batches)
        numbers.add(len(batches))
    assert len(numbers) == 1, "all processes have as many batches"
    assert sorted(seen) == list(range(size))


def keys(loader: ResumableLoader, epoch: int) -> list[list[int]]:
    loader.batches.set_epoch(epoch)
    return [batch.key.tolist() for batch in loader]


def stop_after(handed_out: int, epoch: int, **options) -> tuple[list[list[int]], dict[str, int]]:
    """Keys of the batches handed out so far, and the state of the loader in a checkpoint."""
    stopped = loader(**options)
    stopped.batches.set_epoch(epoch)
    batches = islice(stopped, handed_out)
    before = [batch.key.tolist() for batch in batches]
    return before, stopped.state_dict()


@pytest.mark.parametrize("handed_out", range(6))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"drop_last": True},
        {"batch_size": 4, "rank": 0, "world_size": 2},
        {"batch_size": 4, "rank": 1, "world_size": 2},
    ],
    ids=str,
)
def test_resumed_epoch_has_exactly_the_remaining_batches(options, handed_out):
    before, state = stop_after(handed_out, 3, shuffle=True, **options)
    assert state == {"epoch": 3, "batch": handed_out}
    resumed = loader(shuffle=True, **options)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    uninterrupted = loader(shuffle=True, **options)
    assert before + keys(resumed, 3) == keys(uninterrupted, 3)
    assert keys(resumed, 4) == keys(uninterrupted, 4)


def test_loader_can_be_resumed_twice_in_one_epoch():
    _, state = stop_after(2, 0)
    resumed = loader()
    resumed.load_state_dict(state)
    three = list(islice(resumed, 3))
    assert len(three) == 3
    again = loader()
    again.load_state_dict(resumed.state_dict())
    expected = keys(loader(), 0)[5:]
    assert keys(again, 0) == expected


@pytest.mark.parametrize(("handed_out", "after"), [(2, 1), (7, 1), (2, 2), (7, 0)])
def test_state_of_another_or_a_complete_epoch_is_forgotten(handed_out, after):
    """Stopped after two of seven batches, as with trainer.limit_train_batches, or after all of them."""
    _, state = stop_after(handed_out, 0, shuffle=True)
    resumed = loader(shuffle=True)
    resumed.load_state_dict(state)
    whole = loader(shuffle=True)
    assert keys(resumed, after) == keys(whole, after)
    assert keys(resumed, 0) == keys(whole, 0)


@pytest.mark.parametrize("epoch", [0, 2])
def test_loader_yields_batches_of_stored_images_with_their_keys(epoch):
    shuffled = loader(10, 4, seed=5, shuffle=True)
    shuffled.batches.set_epoch(epoch)
    expected = list(shuffled.batches)
    for batch, (index, _) in zip(shuffled, expected, strict=True):
        pixels = batch.images[:, 0, 0, 0]
        assert batch.images.dtype == torch.uint8
        assert pixels.equal(index.to(torch.uint8))
        assert batch.labels.equal(index)
        assert batch.key.equal(sample_key(5, epoch, index))


IMAGES = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
LABELS = torch.tensor([0, 1, 2])


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (Images(IMAGES.float(), LABELS), "images of torch.float32"),
        (Images(IMAGES[:, 0], LABELS), "images of torch.uint8 and shape (3, 4, 4)"),
        (Images(IMAGES, LABELS.int()), "labels of torch.int32"),
        (Images(IMAGES, LABELS[:2]), "labels of torch.int64 and shape (2,) for 3 images"),
        (Images(IMAGES, LABELS, LABELS[:2, None]), "factors of shape (2, 1) for 3 images"),
        (Images(IMAGES[:0], LABELS[:0]), "no images"),
        (Images(IMAGES, LABELS + 1), "label 3; expected 0 to 2, as there are 3 classes"),
        (Images(IMAGES, LABELS - 1), "label -1; expected 0 to 2"),
    ],
    ids=range(8),
)
def test_invalid_set_of_images_is_refused(images, message):
    check_images(Images(IMAGES, LABELS), 3, "the test set of Toys")
    with pytest.raises(DataError, match=re.escape(f"the test set of Toys has {message}")):
        check_images(images, 3, "the test set of Toys")


def numbered_images() -> Images:
    images = torch.arange(5, dtype=torch.uint8).reshape(5, 1, 1, 1)
    return Images(images, torch.tensor([0, 1, 1, 0, 1]))


def test_subset_by_indices_or_by_a_mask() -> None:
    every = numbered_images()
    mask = every.labels == 1
    for chosen in (mask, mask.numpy(), mask.tolist(), [1, 2, 4]):
        assert every.subset(chosen).images.flatten().tolist() == [1, 2, 4]
    assert len(every.subset([]).labels) == 0


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ([True, False], r"^the mask has shape \(2,\); expected \(5,\), one value for each image$"),
        ([0.0, 1.0], "^indices are torch.float32; expected integers or a mask$"),
    ],
)
def test_subset_by_something_else_is_refused(chosen: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        numbered_images().subset(chosen)
