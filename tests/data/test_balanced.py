"""Balanced sampling: frequencies of an epoch, repetitions, resuming, several processes, and what is refused."""

from itertools import chain, islice
from typing import Any

import pytest
import torch

from capsule_lab.data import MNISTDataModule, MultiMNISTDataModule
from capsule_lab.data.balanced import BalancedBatches, Repeated
from capsule_lab.data.loader import Images, InMemory, ResumableLoader

SIZES = [70, 25, 6]
LABELS = torch.arange(3).repeat_interleave(torch.tensor(SIZES))
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
        repetitions = images.bincount(minlength=SIZE)
        first, second, third = (set(part.tolist()) for part in repetitions.split(SIZES))
        assert first == {0, 1}, "drawn without replacement"
        assert second == {1, 2}
        assert third <= {5, 6}
        of_first = images[images < SIZES[0]]
        frequent |= set(of_first.tolist())
    assert len(frequent) > 60, "other images in each epoch"


def order_of(sampler: BalancedBatches, epoch: int) -> tuple[int, ...]:
    sampler.set_epoch(epoch)
    order = sampler.order()
    return tuple(order.tolist())


def test_order_depends_only_on_seed_and_epoch() -> None:
    orders = set()
    for seed in range(2):
        for epoch in range(2):
            order = order_of(batches(seed=seed), epoch)
            torch.manual_seed(3)
            other = batches(batch_size=5, seed=seed)
            assert order_of(other, epoch) == order
            orders.add(order)
    assert len(orders) == 4


@pytest.mark.parametrize("world_size", [2, 4])
def test_processes_share_the_batches_of_one_without_repetition(world_size: int) -> None:
    alone = indices(batches())
    shards = []
    for rank in range(world_size):
        shard = batches(8 // world_size, rank=rank, world_size=world_size)
        shards.append(indices(shard))
    everything = []
    for batch, *parts in zip(alone, *shards, strict=True):
        together = [*chain(*parts)]
        assert sorted(together) == sorted(batch)
        everything += together
    assert len(set(everything)) == len(everything) == SIZE // 8 * 8


def loader() -> ResumableLoader:
    numbers = torch.arange(SIZE, dtype=torch.uint8)
    pixels = numbers.view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    stored = InMemory(Images(pixels, LABELS), seed=5)
    return ResumableLoader(Repeated(stored), batches(seed=5), pin_memory=False)


def test_epoch_continues_exactly_after_a_checkpoint() -> None:
    whole = loader()
    whole.batches.set_epoch(3)
    expected = [*whole]
    stopped = loader()
    stopped.batches.set_epoch(3)
    before = [*islice(stopped, 4)]
    assert len(before) == 4
    continued = loader()
    continued.load_state_dict(stopped.state_dict())
    continued.batches.set_epoch(3)
    for found, batch in zip(continued, expected[4:], strict=True):
        assert found.key.equal(batch.key)
        assert found.images.equal(batch.images)


def test_repetitions_of_an_image_have_other_keys() -> None:
    stored = loader().dataset
    index = torch.tensor([100, 100 + SIZE, 100 + 2 * SIZE])
    batch = stored[index, 0]
    assert (batch.images == 100).all()
    assert (batch.labels == 2).all()
    assert len(batch.key.unique()) == 3
    not_repeated = InMemory(stored.data, 5)
    assert batch.key[0] == not_repeated[index[:1], 0].key
    meta = torch.device("meta")
    assert stored.to(meta).device == meta


def validation_keys(data: MNISTDataModule) -> torch.Tensor:
    keys = [batch.key for batch in data.val_dataloader()]
    return torch.cat(keys)


def test_only_training_is_balanced() -> None:
    options: dict[str, Any] = {
        "source": "standin",
        "train_images": 200,
        "batch_size": 20,
    }
    data = MNISTDataModule(sampling="balanced", **options)
    data.setup("fit")
    training = data.sets["train"]
    in_order = training.labels.argsort()
    data.sets["train"] = training.subset(in_order[:60])
    present = data.class_counts()
    assert present.sum() == 60
    is_present = present > 0
    labels = torch.cat([batch.labels for batch in data.train_dataloader()])
    counts = labels.bincount(minlength=10)[is_present]
    assert counts.amax() - counts.amin() <= 1
    assert present[is_present].amax() > 6
    natural = MNISTDataModule(**options)
    natural.setup("fit")
    assert validation_keys(data).equal(validation_keys(natural))


def test_balanced_mixtures_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one of them"):
        MNISTDataModule(source="standin", sampling="balanced", mixup=0.2).setup("fit")


def test_several_labels_of_an_image_are_not_balanced() -> None:
    with pytest.raises(ValueError, match="not one class for each image"):
        MultiMNISTDataModule(source="standin", sampling="balanced").setup("fit")
