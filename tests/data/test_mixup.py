"""Mixup: shares and partners of mixed images, and runs that resume exactly."""

from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from capsule_lab.commands.train import train
from capsule_lab.data import MNISTDataModule
from capsule_lab.data.loader import EpochBatches, Images, InMemory
from capsule_lab.data.mixup import WithPartners, mix, shares_of
from capsule_lab.losses import cross_entropy_loss, margin_loss, sigmoid_cross_entropy_loss
from capsule_lab.types import Batch
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, TINY_CNN, Tiny
from tests.helpers.training import curves, interrupted_and_resumed, results, weights

COUNT = 40


def images(count: int = COUNT) -> Images:
    """Image n has brightness n and class n modulo 3."""
    index = torch.arange(count)
    return Images(
        index.to(torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2), index % 3, index[:, None]
    )


def mixed(index: torch.Tensor, epoch: int = 0, alpha: float = 0.4) -> Batch:
    stored = WithPartners(InMemory(images(), seed=5))[index, epoch]
    return mix(stored._replace(images=stored.images.float()), shares_of(alpha), 3)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_shares_are_distributed_as_beta(alpha: float) -> None:
    shares = shares_of(alpha).double().numpy()
    beta = stats.beta(alpha, alpha)
    assert stats.kstest(shares, beta.cdf).statistic < 0.02  # float32 rounds what is next to 1
    assert [shares.mean(), shares.var()] == pytest.approx([beta.mean(), beta.var()], rel=1e-3)


def test_images_and_labels_are_mixed_in_the_same_shares() -> None:
    index = torch.arange(COUNT)
    batch = mixed(index)
    assert batch.images.shape == (COUNT, 1, 2, 2)
    torch.testing.assert_close(batch.labels.sum(1), torch.ones(COUNT))
    partners = WithPartners(InMemory(images(), seed=5))[index, 0].images[COUNT:, 0, 0, 0].long()
    own = batch.labels.gather(1, (index % 3)[:, None])[:, 0]
    other = partners % 3 != index % 3  # labels of two images of one class do not show the share
    brightness = own * index + (1 - own) * partners
    torch.testing.assert_close(batch.images[other, 0, 1, 1], brightness[other])
    assert other.sum() > COUNT / 3
    assert len(partners.unique()) > COUNT / 3
    assert torch.equal(batch.factors, index[:, None])
    assert torch.equal(batch.key, InMemory(images(), seed=5)[index, 0].key)
    assert len(batch.labels.amax(1).unique()) > COUNT / 3
    assert not torch.equal(batch.labels, mixed(index, epoch=1).labels)


def test_mixture_does_not_depend_on_its_batch_or_process() -> None:
    whole = mixed(torch.arange(COUNT))
    batches = [
        index
        for rank in range(2)
        for index, _ in EpochBatches(COUNT, 5, rank=rank, world_size=2, shuffle=True)
    ]
    for index in batches:
        part = mixed(index)
        assert torch.equal(part.images, whole.images[index])
        assert torch.equal(part.labels, whole.labels[index])
    assert len(torch.cat(batches)) == COUNT


def test_set_with_partners_is_moved_to_a_device() -> None:
    moved = WithPartners(InMemory(images(), seed=5)).to(torch.device("meta"))
    assert moved.device == torch.device("meta")
    assert len(moved) == COUNT


def test_class_of_a_mixture_has_the_larger_share() -> None:
    labels = torch.tensor([[0.0, 0.3, 0.7], [1.0, 0.0, 0.0]])
    one = Batch(torch.zeros(2, 1, 2, 2), labels, torch.arange(2))
    assert one.classes.tolist() == [2, 0]
    assert one._replace(labels=torch.tensor([1, 2])).classes.tolist() == [1, 2]


@pytest.mark.parametrize("loss", [cross_entropy_loss, margin_loss, sigmoid_cross_entropy_loss])
def test_loss_of_one_hot_shares_equals_that_of_labels(loss: Any) -> None:
    scores, labels = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.1, 0.9]]), torch.tensor([0, 1])
    whole = torch.nn.functional.one_hot(labels, 3).float()
    torch.testing.assert_close(loss(scores, whole), loss(scores, labels))
    assert not torch.allclose(loss(scores, 0.7 * whole + 0.1), loss(scores, labels))


MIXUP = ["data.mixup=0.4", "trainer.max_epochs=2", "trainer.precision=32-true", *NO_PICTURES]


@pytest.mark.whole  # two whole fits
@pytest.mark.parametrize(
    "model", [TINY_CNN, [*TINY_CAPSNET[:-1], "model.decoder=null"]], ids=["cnn", "capsnet"]
)
def test_run_of_mixtures_resumes_exactly(tiny: Tiny, tmp_path: Path, model: list[str]) -> None:
    config = tiny(*MIXUP, "callbacks.not_learning.min_steps=8", model=model)
    whole = train(config, tmp_path / "whole")
    assert results(interrupted_and_resumed(config, tmp_path / "run", 3)) == results(whole)
    ours, expected = weights(tmp_path / "run"), weights(tmp_path / "whole")
    assert [name for name in expected if not torch.equal(ours[name], expected[name])] == []
    errors = [float(row["train/error"]) for row in curves(tmp_path / "run") if row["train/error"]]
    assert all(0 < error <= 100 for error in errors)
    config.data.mixup = None
    assert results(train(config, tmp_path / "plain")) != results(whole)


def test_images_are_not_mixed_outside_of_training() -> None:
    data = MNISTDataModule(source="standin", mixup=0.4, train_images=20, batch_size=10)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert (len(batch.images), batch.labels.dtype) == (10, torch.int64)
    assert data.on_after_batch_transfer(batch, 0).images.isfinite().all()
