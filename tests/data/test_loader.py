"""Batches: every image once per epoch, a reproducible order, resuming, and several processes."""

import re
from itertools import islice, product

import pytest
import torch

from capsule_lab.data.loader import EpochBatches, Images, InMemory, ResumableLoader, check_images
from capsule_lab.data.transforms import sample_key
from capsule_lab.errors import DataError


def indices(batches: EpochBatches) -> list[list[int]]:
    return [index.tolist() for index, _ in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return [image for batch in batches for image in batch]


def loader(size: int = 50, batch_size: int = 8, *, seed: int = 0, **options) -> ResumableLoader:
    images = (
        torch.arange(size, dtype=torch.uint8)[:, None, None, None]
        .expand(size, 1, 2, 2)
        .contiguous()
    )
    dataset = InMemory(Images(images, torch.arange(size) % 10), seed)
    return ResumableLoader(
        dataset, EpochBatches(size, batch_size, seed=seed, **options), pin_memory=False
    )


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    ("size", "end"), [(12, []), (13, [1]), (15, [3]), (4, []), (3, [3]), (1, [1])]
)
def test_epoch_has_every_image_once_except_a_dropped_last_batch(size, end, drop_last):
    sizes = [4] * (size // 4) + ([] if drop_last and size > 4 else end)
    for shuffle in [False, True]:
        batches = EpochBatches(size, 4, shuffle=shuffle, drop_last=drop_last)
        seen = indices(batches)
        assert [len(batch) for batch in seen] == sizes
        assert len(batches) == len(sizes)
        assert len(set(flat(seen))) == sum(sizes)
        assert shuffle or flat(seen) == list(range(sum(sizes)))


def test_order_depends_only_on_seed_and_epoch():
    def order(seed: int, epoch: int, batch_size: int = 10, *before: int) -> list[int]:
        batches = EpochBatches(100, batch_size, seed=seed, shuffle=True)
        for number in (*before, epoch):
            batches.set_epoch(number)
            drawn = flat(indices(batches))
        return drawn

    torch.manual_seed(0)
    orders = [order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(indices) for indices in orders}) == 4
    torch.manual_seed(1)
    assert order(0, 1, 7, 0, 5) == order(0, 1, 32) == orders[1]


def test_two_processes_together_have_the_batches_of_one():
    for shuffle, drop_last, size in product(
        (False, True), (False, True), (32, 31, 30, 26, 8, 7, 2)
    ):
        options = {"shuffle": shuffle, "drop_last": drop_last}
        one = EpochBatches(size, 8, **options)
        two = [EpochBatches(size, 4, **options, rank=rank, world_size=2) for rank in (0, 1)]
        together = [sorted(a + b) for a, b in zip(*map(indices, two), strict=True)]
        assert together == [sorted(batch) for batch in indices(one)]
        assert len(two[0]) == len(two[1]) == len(one)


@pytest.mark.parametrize(
    ("size", "world_size"), [(25, 2), (9, 2), (17, 4), (18, 4), (19, 4), (23, 4), (5, 4)]
)
def test_last_batch_too_small_for_all_processes_joins_the_one_before(size, world_size):
    ranks = [
        EpochBatches(size, 8 // world_size, rank=r, world_size=world_size)
        for r in range(world_size)
    ]
    seen = [indices(rank) for rank in ranks]
    assert len({len(batches) for batches in seen}) == 1
    assert all(len(batch) > 0 for batches in seen for batch in batches)
    assert sorted(flat(flat(seen))) == list(range(size))


def keys(loader: ResumableLoader, epoch: int) -> list[list[int]]:
    loader.batches.set_epoch(epoch)
    return [batch.key.tolist() for batch in loader]


def stop_after(handed_out: int, epoch: int, **options) -> tuple[list[list[int]], dict[str, int]]:
    """Keys of the batches handed out so far, and the state of the loader in a checkpoint."""
    stopped = loader(**options)
    stopped.batches.set_epoch(epoch)
    before = [batch.key.tolist() for batch in islice(stopped, handed_out)]
    return before, stopped.state_dict()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"drop_last": True},
        *({"batch_size": 4, "rank": rank, "world_size": 2} for rank in (0, 1)),
    ],
    ids=str,
)
def test_resumed_epoch_has_exactly_the_remaining_batches(options):
    whole, following = (keys(loader(shuffle=True, **options), epoch) for epoch in (3, 4))
    for handed_out in range(6):
        before, state = stop_after(handed_out, 3, shuffle=True, **options)
        assert state == {"epoch": 3, "batch": handed_out}
        resumed = loader(shuffle=True, **options)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert before + keys(resumed, 3) == whole
        assert keys(resumed, 4) == following


def test_loader_can_be_resumed_twice_in_one_epoch():
    _, state = stop_after(2, 0)
    resumed, again = loader(), loader()
    resumed.load_state_dict(state)
    assert len(list(islice(resumed, 3))) == 3
    again.load_state_dict(resumed.state_dict())
    assert keys(again, 0) == keys(loader(), 0)[5:]


@pytest.mark.parametrize(("handed_out", "after"), [(2, 1), (7, 1), (2, 2), (7, 0)])
def test_state_of_another_or_a_complete_epoch_is_forgotten(handed_out, after):
    """Stopped after two of seven batches, as with trainer.limit_train_batches, or after all of them."""
    _, state = stop_after(handed_out, 0, shuffle=True)
    resumed = loader(shuffle=True)
    resumed.load_state_dict(state)
    assert keys(resumed, after) == keys(loader(shuffle=True), after)
    assert keys(resumed, 0) == keys(loader(shuffle=True), 0)


@pytest.mark.parametrize("epoch", [0, 2])
def test_loader_yields_batches_of_stored_images_with_their_keys(epoch):
    shuffled = loader(10, 4, seed=5, shuffle=True)
    shuffled.batches.set_epoch(epoch)
    for batch, (index, _) in zip(shuffled, list(shuffled.batches), strict=True):
        assert batch.images.dtype == torch.uint8
        assert batch.images[:, 0, 0, 0].tolist() == batch.labels.tolist() == index.tolist()
        assert batch.key.equal(sample_key(5, epoch, index))


IMAGES, LABELS = torch.zeros(3, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1, 2])


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
