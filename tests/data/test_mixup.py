"""Mixtures of two training images: their shares, their partners, and that a run of them resumes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from scipy import stats

from capsule_lab.config.compose import compose
from capsule_lab.data import MNISTDataModule
from capsule_lab.data.loader import EpochBatches, Images, InMemory
from capsule_lab.data.mixup import WithPartners, mix, shares_of
from capsule_lab.errors import InterruptError
from capsule_lab.losses import cross_entropy_loss, margin_loss, sigmoid_cross_entropy_loss
from capsule_lab.train import train
from capsule_lab.types import Batch
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, TINY_CNN
from tests.helpers.training import SignalAt, checkpoint, curves, results, run, weights

Tiny = Callable[..., DictConfig]

COUNT = 40


def images(count: int = COUNT) -> Images:
    """Image n has the brightness n and the class n modulo 3."""
    index = torch.arange(count)
    return Images(index.to(torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2), index % 3, index[:, None])


def mixed(index: torch.Tensor, epoch: int = 0, alpha: float = 0.4) -> Batch:
    stored = WithPartners(InMemory(images(), seed=5))[index, epoch]
    return mix(stored._replace(images=stored.images.float()), shares_of(alpha), 3)


# --- shares ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_shares_are_distributed_as_beta(alpha: float) -> None:
    shares = shares_of(alpha).double().numpy()
    beta = stats.beta(alpha, alpha)
    assert stats.kstest(shares, beta.cdf).statistic < 0.02  # float32 rounds what is next to 1
    assert [shares.mean(), shares.var()] == pytest.approx([beta.mean(), beta.var()], rel=1e-3)


# --- batches ---------------------------------------------------------------------------------------------------------


def test_image_and_labels_are_of_two_images_in_the_same_shares() -> None:
    index = torch.arange(COUNT)
    found = mixed(index)
    assert found.images.shape == (COUNT, 1, 2, 2)
    torch.testing.assert_close(found.labels.sum(1), torch.ones(COUNT))
    partners = WithPartners(InMemory(images(), seed=5))[index, 0].images[COUNT:, 0, 0, 0].long()
    own = found.labels.gather(1, (index % 3)[:, None])[:, 0]
    other = partners % 3 != index % 3  # of the same class the share cannot be told from the labels
    brightness = own * index + (1 - own) * partners
    torch.testing.assert_close(found.images[other, 0, 1, 1], brightness[other])
    assert other.sum() > COUNT / 3
    assert len(partners.unique()) > COUNT / 3
    assert found.factors is not None
    assert torch.equal(found.factors, index[:, None])
    assert torch.equal(found.key, InMemory(images(), seed=5)[index, 0].key)
    assert len(found.labels.amax(1).unique()) > COUNT / 3
    assert not torch.equal(found.labels, mixed(index, epoch=1).labels)


def test_mixtures_depend_neither_on_the_batch_nor_on_the_processes() -> None:
    whole = mixed(torch.arange(COUNT))
    batches = [index for rank in range(2) for index, _ in EpochBatches(COUNT, 5, rank=rank, world_size=2, shuffle=True)]
    for index in batches:
        part = mixed(index)
        assert torch.equal(part.images, whole.images[index])
        assert torch.equal(part.labels, whole.labels[index])
    assert len(torch.cat(batches)) == COUNT


def test_set_is_moved_with_its_partners() -> None:
    moved = WithPartners(InMemory(images(), seed=5)).to(torch.device("meta"))
    assert moved.device == torch.device("meta")
    assert len(moved) == COUNT


def test_classes_are_those_of_the_larger_share() -> None:
    labels = torch.tensor([[0.0, 0.3, 0.7], [1.0, 0.0, 0.0]])
    one = Batch(torch.zeros(2, 1, 2, 2), labels, torch.arange(2))
    assert one.classes.tolist() == [2, 0]
    assert one._replace(labels=torch.tensor([1, 2])).classes.tolist() == [1, 2]


@pytest.mark.parametrize("loss", [cross_entropy_loss, margin_loss, sigmoid_cross_entropy_loss])
def test_loss_of_whole_shares_is_that_of_classes(loss: Any) -> None:
    scores, labels = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.1, 0.9]]), torch.tensor([0, 1])
    whole = torch.nn.functional.one_hot(labels, 3).float()
    torch.testing.assert_close(loss(scores, whole), loss(scores, labels))
    assert not torch.allclose(loss(scores, 0.8 * whole + 0.1), loss(scores, labels))


# --- runs ------------------------------------------------------------------------------------------------------------

MIXUP = ["data.mixup=0.4", "trainer.max_epochs=2", "trainer.precision=32-true", *NO_PICTURES]


@pytest.mark.whole  # two whole fits
@pytest.mark.parametrize("model", [TINY_CNN, [*TINY_CAPSNET[:-1], "model.decoder=null"]], ids=["cnn", "capsnet"])
def test_run_of_mixtures_resumes_exactly(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: list[str]
) -> None:
    config = tiny(*MIXUP, "callbacks.not_learning.min_steps=8", model=model)
    whole = train(config, tmp_path / "whole")
    with pytest.raises(InterruptError):
        run(config, tmp_path / "run", monkeypatch, SignalAt(3))
    assert checkpoint(tmp_path / "run")["global_step"] == 3
    config.train.resume = True
    assert results(train(config, tmp_path / "run")) == results(whole)
    found, expected = weights(tmp_path / "run"), weights(tmp_path / "whole")
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    errors = [float(row["train/error"]) for row in curves(tmp_path / "run") if row["train/error"]]
    assert all(0 < error <= 100 for error in errors)
    config.data.mixup = None
    config.train.resume = False
    assert results(train(config, tmp_path / "plain")) != results(whole)


def test_loader_outside_of_training_mixes_nothing() -> None:
    data = MNISTDataModule(source="standin", mixup=0.4, train_images=20, batch_size=10)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert (len(batch.images), batch.labels.dtype) == (10, torch.int64)
    assert data.on_after_batch_transfer(batch, 0).images.isfinite().all()


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [],
            "data.mixup: a decoder reconstructs one class, but images are mixtures of two; expected model.decoder=null",
        ),
        (
            ["model.decoder=null", "loss=spread"],
            "data.mixup: the spread loss is for one label per image, these have shares of classes, as of data.mixup: ",
        ),
        (["data=multimnist"], "data: data.mixup is 0.4, and every image has 2 labels; expected null"),
    ],
    ids=str,
)
def test_what_cannot_be_mixed_is_refused(tmp_path: Path, overrides: list[str], message: str) -> None:
    few = ["data.source=standin", "data.train_images=256", "trainer.accelerator=cpu"]
    with pytest.raises(ValueError, match=re.escape(message)):
        train(compose("train", [*few, *MIXUP, *overrides]), tmp_path / "run")
