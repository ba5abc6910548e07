"""Balanced sampling: frequencies of an epoch, repetitions, resuming, several processes, and what is refused."""

from itertools import chain, islice
from typing import Any

import pytest
import torch

from capsule_lab.data import MNISTDataModule, MultiMNISTDataModule
from capsule_lab.data.balanced import BalancedBatches, Repeated
from capsule_lab.data.loader import Images, InMemory, ResumableLoader

LABELS = torch.arange(3).repeat_interleave(torch.tensor([70, 25, 6]))
SIZE = len(LABELS)


def batches(batch_size: int = 8, **options: Any) -> BalancedBatches:
    options = {"shuffle": True, "drop_last": True, **options}
    return BalancedBatches(SIZE, batch_size, labels=LABELS.numpy(), **options)


def indices(sampler: BalancedBatches) -> list[list[int]]:
    return [index.tolist() for index, _ in sampler]


def test_classes_are_equally_frequent_and_their_images_equally_repeated() -> None:
    frequent = set()
    for epoch in range(4):
        sampler = batches()
        sampler.set_epoch(epoch)
        order = sampler.order()
        images = order % SIZE
        assert len(order.unique()) == SIZE, "the repetitions of an image have indices of their own"
        counts = LABELS[images].bincount(minlength=3)
        assert sorted(counts.tolist()) == [33, 34, 34]
        of_images = images.bincount(minlength=SIZE)
        assert of_images[:70].amax() == 1, "drawn without replacement"
        assert set(of_images[70:95].tolist()) == {1, 2}
        assert set(of_images[95:].tolist()) <= {5, 6}
        frequent |= set(images[images < 70].tolist())
    assert len(frequent) > 60, "other images in each epoch"


def test_order_depends_only_on_seed_and_epoch() -> None:
    orders = set()
    for seed in range(2):
        for epoch in range(2):
            sampler = batches(seed=seed)
            sampler.set_epoch(epoch)
            order = tuple(sampler.order().tolist())
            torch.manual_seed(3)
            other = batches(batch_size=5, seed=seed)
            other.set_epoch(epoch)
            assert tuple(other.order().tolist()) == order
            orders.add(order)
    assert len(orders) == 4


@pytest.mark.parametrize("world_size", [2, 4])
def test_processes_share_the_batches_of_one_without_repetition(world_size: int) -> None:
    alone = indices(batches())
    shards = []
    for rank in range(world_size):
        shards.append(indices(batches(8 // world_size, rank=rank, world_size=world_size)))
    together = [[*chain(*parts)] for parts in zip(*shards, strict=True)]
    assert [sorted(batch) for batch in together] == [sorted(batch) for batch in alone]
    everything = [*chain(*together)]
    assert len(set(everything)) == len(everything) == SIZE // 8 * 8


def loader() -> ResumableLoader:
    pixels = torch.arange(SIZE, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    repeated = Repeated(InMemory(Images(pixels, LABELS), seed=5))
    return ResumableLoader(repeated, batches(seed=5), pin_memory=False)


def test_epoch_continues_exactly_after_a_checkpoint() -> None:
    whole = loader()
    whole.batches.set_epoch(3)
    expected = [*whole]
    stopped = loader()
    stopped.batches.set_epoch(3)
    assert len([*islice(stopped, 4)]) == 4
    continued = loader()
    continued.load_state_dict(stopped.state_dict())
    continued.batches.set_epoch(3)
    rest = [*continued]
    assert len(rest) == len(expected) - 4
    for found, batch in zip(rest, expected[4:], strict=True):
        assert found.key.equal(batch.key)
        assert found.images.equal(batch.images)


def test_repetitions_of_an_image_have_other_keys() -> None:
    stored = loader().dataset
    index = torch.tensor([100, 100 + SIZE, 100 + 2 * SIZE])
    batch = stored[index, 0]
    assert batch.images[:, 0, 0, 0].tolist() == [100] * 3
    assert batch.labels.tolist() == [2] * 3
    assert len(batch.key.unique()) == 3
    assert batch.key[0] == InMemory(stored.data, 5)[index[:1], 0].key
    assert stored.to(torch.device("meta")).device == torch.device("meta")


def test_only_training_is_balanced() -> None:
    options: dict[str, Any] = {"source": "standin", "train_images": 200, "batch_size": 20}
    data = MNISTDataModule(sampling="balanced", **options)
    data.setup("fit")
    data.sets["train"] = data.sets["train"].subset(data.sets["train"].labels.argsort()[:60])
    present = data.class_counts()
    assert present.sum() == 60
    labels = torch.cat([batch.labels for batch in data.train_dataloader()])
    counts = labels.bincount(minlength=10)[present > 0]
    assert counts.amax() - counts.amin() <= 1 < present[present > 0].amax() - 5
    natural = MNISTDataModule(**options)
    natural.setup("fit")
    of_validation = [
        torch.cat([batch.key for batch in each.val_dataloader()]) for each in (data, natural)
    ]
    assert of_validation[0].equal(of_validation[1])


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (MNISTDataModule, {"sampling": "balanced", "mixup": 0.2}, "expected one of them"),
        (MultiMNISTDataModule, {"sampling": "balanced"}, "not one class for each image"),
    ],
)
def test_what_cannot_be_balanced_is_refused(module: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        module(source="standin", **options).setup("fit")
