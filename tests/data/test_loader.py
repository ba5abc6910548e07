"""Batches: every image once, an order that can be repeated, resumed and dealt out."""

from __future__ import annotations

import re
from itertools import islice

import pytest
import torch

from capsule_lab.data.loader import EpochBatches, Images, InMemory, ResumableLoader, check_images
from capsule_lab.data.transforms import sample_key
from capsule_lab.errors import DataError
from capsule_lab.types import Batch


def indices(batches: EpochBatches) -> list[list[int]]:
    return [index.tolist() for index, _ in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return [image for batch in batches for image in batch]


def loader(size: int = 50, batch_size: int = 8, *, seed: int = 0, **options) -> ResumableLoader:
    images = torch.arange(size, dtype=torch.uint8)[:, None, None, None].expand(size, 1, 2, 2).contiguous()
    dataset = InMemory(Images(images, torch.arange(size) % 10), seed)
    return ResumableLoader(dataset, EpochBatches(size, batch_size, seed=seed, **options), pin_memory=False)


def test_every_image_once_per_epoch():
    for shuffle in [False, True]:
        for size, sizes in [(12, [4, 4, 4]), (13, [4, 4, 4, 1]), (15, [4, 4, 4, 3]), (4, [4]), (3, [3]), (1, [1])]:
            batches = EpochBatches(size, 4, shuffle=shuffle)
            seen = indices(batches)
            assert [len(batch) for batch in seen] == sizes
            assert len(batches) == len(sizes)
            assert sorted(flat(seen)) == list(range(size))


def test_drop_last_leaves_out_the_ragged_end_but_never_everything():
    for size, sizes in [(12, [4, 4, 4]), (13, [4, 4, 4]), (15, [4, 4, 4]), (4, [4]), (5, [4]), (3, [3]), (1, [1])]:
        batches = EpochBatches(size, 4, shuffle=True, drop_last=True)
        seen = indices(batches)
        assert [len(batch) for batch in seen] == sizes
        assert len(batches) == len(sizes)
        assert len(set(flat(seen))) == sum(sizes)


def test_dropped_images_differ_between_epochs():
    batches = EpochBatches(15, 4, shuffle=True, drop_last=True)
    first = set(flat(indices(batches)))
    batches.set_epoch(1)
    assert set(flat(indices(batches))) != first


def test_stored_order_without_shuffle():
    batches = EpochBatches(10, 4)
    batches.set_epoch(3)
    assert indices(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_order_is_a_function_of_seed_and_epoch():
    for seed, epoch, same in [(0, 0, True), (1, 0, False), (0, 1, False), (1, 1, False)]:
        reference = EpochBatches(100, 10, shuffle=True)
        batches = EpochBatches(100, 10, seed=seed, shuffle=True)
        batches.set_epoch(epoch)
        assert (indices(batches) == indices(reference)) is same


def test_order_does_not_depend_on_what_was_drawn_before():
    torch.manual_seed(0)
    used = EpochBatches(100, 10, shuffle=True)
    indices(used)
    used.set_epoch(7)
    torch.manual_seed(1)
    fresh = EpochBatches(100, 10, shuffle=True)
    fresh.set_epoch(7)
    assert indices(used) == indices(fresh)


def test_order_does_not_depend_on_the_batch_size():
    assert flat(indices(EpochBatches(100, 7, shuffle=True))) == flat(indices(EpochBatches(100, 32, shuffle=True)))


def test_batches_come_with_their_epoch():
    batches = EpochBatches(10, 4)
    batches.set_epoch(6)
    assert [epoch for _, epoch in batches] == [6, 6, 6]


def test_two_processes_see_together_what_one_would():
    for shuffle in [False, True]:
        for drop_last in [False, True]:
            for size in [32, 31, 30, 26, 8, 7, 2]:
                one = EpochBatches(size, 8, shuffle=shuffle, drop_last=drop_last)
                two = [
                    EpochBatches(size, 4, shuffle=shuffle, drop_last=drop_last, rank=r, world_size=2) for r in (0, 1)
                ]
                together = [sorted(a + b) for a, b in zip(*map(indices, two), strict=True)]
                assert together == [sorted(batch) for batch in indices(one)]
                assert len(two[0]) == len(two[1]) == len(one)


def test_end_too_short_to_go_round_joins_the_batch_before():
    for size, world_size in [(25, 2), (9, 2), (17, 4), (18, 4), (19, 4), (23, 4), (5, 4)]:
        ranks = [EpochBatches(size, 8 // world_size, rank=r, world_size=world_size) for r in range(world_size)]
        seen = [indices(rank) for rank in ranks]
        assert len({len(batches) for batches in seen}) == 1
        assert all(len(batch) > 0 for batches in seen for batch in batches)
        assert sorted(flat(flat(seen))) == list(range(size))


def test_set_smaller_than_a_batch_is_one_batch():
    for world_size in [1, 2]:
        for drop_last in [False, True]:
            for size in [2, 3, 7]:
                ranks = [
                    EpochBatches(size, 8, drop_last=drop_last, rank=r, world_size=world_size) for r in range(world_size)
                ]
                seen = [indices(rank) for rank in ranks]
                assert [len(batches) for batches in seen] == [1] * world_size
                assert sorted(flat(flat(seen))) == list(range(size))


def keys(loader: ResumableLoader, epoch: int) -> list[list[int]]:
    loader.batches.set_epoch(epoch)
    return [batch.key.tolist() for batch in loader]


def stop_after(handed_out: int, epoch: int, **options) -> tuple[list[list[int]], dict[str, int]]:
    """Keys of the batches handed out until then, and what a checkpoint would keep."""
    stopped = loader(**options)
    stopped.batches.set_epoch(epoch)
    before = [batch.key.tolist() for batch in islice(stopped, handed_out)]
    return before, stopped.state_dict()


def test_resume_yields_exactly_the_remaining_batches():
    for drop_last in [False, True]:
        for handed_out in range(6):
            options = {"shuffle": True, "drop_last": drop_last}
            before, state = stop_after(handed_out, 3, **options)
            resumed = loader(**options)
            resumed.load_state_dict(state)
            assert before + keys(resumed, 3) == keys(loader(**options), 3)


def test_resume_of_each_process():
    for rank in [0, 1]:
        options = {"shuffle": True, "batch_size": 4, "rank": rank, "world_size": 2}
        before, state = stop_after(2, 0, **options)
        resumed = loader(**options)
        resumed.load_state_dict(state)
        assert before + keys(resumed, 0) == keys(loader(**options), 0)


def test_resume_twice_in_one_epoch():
    _, state = stop_after(2, 0)
    resumed = loader()
    resumed.load_state_dict(state)
    assert len(list(islice(resumed, 3))) == 3
    again = loader()
    again.load_state_dict(resumed.state_dict())
    assert keys(again, 0) == keys(loader(), 0)[5:]


def test_epoch_after_a_resumed_one_is_complete():
    _, state = stop_after(4, 0, shuffle=True)
    resumed = loader(shuffle=True)
    resumed.load_state_dict(state)
    keys(resumed, 0)
    assert keys(resumed, 1) == keys(loader(shuffle=True), 1)


def test_state_is_the_epoch_and_the_number_of_its_batches():
    for epoch in [0, 3]:
        for handed_out in [1, 4, 7]:
            _, state = stop_after(handed_out, epoch)
            assert state == {"epoch": epoch, "batch": handed_out}


def test_state_before_the_first_batch():
    assert loader().state_dict() == {"epoch": 0, "batch": 0}


def test_state_of_an_epoch_does_not_offset_another_one():
    """Two batches of seven, as with trainer.limit_train_batches, or all: then a checkpoint, then the next epoch."""
    for after in [1, 2]:
        for handed_out in [2, 7]:
            _, state = stop_after(handed_out, 0, shuffle=True)
            resumed = loader(shuffle=True)
            resumed.load_state_dict(state)
            assert keys(resumed, after) == keys(loader(shuffle=True), after)


def test_state_of_a_complete_epoch_starts_the_same_epoch_again():
    _, state = stop_after(7, 0)
    resumed = loader()
    resumed.load_state_dict(state)
    assert keys(resumed, 0) == keys(loader(), 0)


def test_state_of_another_epoch_is_forgotten_with_the_first_batch():
    _, state = stop_after(2, 0)
    resumed = loader()
    resumed.load_state_dict(state)
    keys(resumed, 1)
    assert keys(resumed, 0) == keys(loader(), 0)


def test_state_survives_being_loaded_and_saved_again():
    _, state = stop_after(2, 0)
    resumed = loader()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state


def test_loader_yields_batches_of_stored_images_with_their_keys():
    for epoch in [0, 2]:
        whole = loader(10, 4, seed=5)
        whole.batches.set_epoch(epoch)
        first = next(iter(whole))
        assert isinstance(first, Batch)
        assert first.images.dtype == torch.uint8
        assert first.images[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
        assert first.labels.tolist() == [0, 1, 2, 3]
        assert first.key.equal(sample_key(5, epoch, torch.arange(4)))


def test_loader_indexes_once_per_batch(monkeypatch):
    asked = []
    get = InMemory.__getitem__
    monkeypatch.setattr(InMemory, "__getitem__", lambda self, batch: asked.append(len(batch[0])) or get(self, batch))
    assert len(list(loader(50, 8))) == 7
    assert asked == [8] * 6 + [2]


def test_length_of_the_loader_is_its_number_of_batches():
    for size, drop_last, length in [(50, False, 7), (50, True, 6), (48, True, 6), (3, True, 1)]:
        batches = loader(size, drop_last=drop_last)
        assert len(batches) == len(list(batches)) == length


def test_subset_keeps_the_order_asked_for():
    images = loader(6).dataset.data.subset([4, 1, 1])
    assert images.labels.tolist() == [4, 1, 1]
    assert images.images[:, 0, 0, 0].tolist() == [4, 1, 1]


def test_sets_that_are_none_are_refused():
    images, labels = torch.zeros(3, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1, 2])
    wrong = {
        "images of torch.float32": Images(images.float(), labels),
        "images of torch.uint8 and shape (3, 4, 4)": Images(images[:, 0], labels),
        "labels of torch.int32": Images(images, labels.int()),
        "labels of torch.int64 and shape (2,) for 3 images": Images(images, labels[:2]),
        "factors of shape (2, 1) for 3 images": Images(images, labels, labels[:2, None]),
        "no images": Images(images[:0], labels[:0]),
        "label 3; expected 0 to 2, as there are 3 classes": Images(images, labels + 1),
        "label -1; expected 0 to 2": Images(images, labels - 1),
    }
    for message, each in wrong.items():
        with pytest.raises(DataError, match=re.escape(f"the test set of Toys has {message}")):
            check_images(each, 3, "the test set of Toys")
    check_images(Images(images, labels), 3, "the test set of Toys")
