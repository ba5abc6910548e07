"""Mixup: shares and partners of mixed images, and runs that resume exactly."""

from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch.testing import assert_close

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
    pixels = index.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return Images(pixels, labels=index % 3, factors=index[:, None])


def plain() -> InMemory:
    return InMemory(images(), seed=5)


def mixed(index: torch.Tensor, epoch: int = 0, alpha: float = 0.4) -> Batch:
    stored = WithPartners(plain())[index, epoch]
    floats = stored._replace(images=stored.images.float())
    return mix(floats, shares_of(alpha), 3)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_shares_are_distributed_as_beta(alpha: float) -> None:
    shares = shares_of(alpha).double().numpy()
    beta = stats.beta(alpha, alpha)
    distance = stats.kstest(shares, beta.cdf).statistic
    assert distance < 0.02  # float32 rounds what is next to 1
    assert shares.mean() == pytest.approx(beta.mean(), rel=1e-3)
    assert shares.var() == pytest.approx(beta.var(), rel=1e-3)


def test_images_and_labels_are_mixed_in_the_same_shares() -> None:
    index = torch.arange(COUNT)
    batch = mixed(index)
    assert batch.images.shape == (COUNT, 1, 2, 2)
    assert_close(batch.labels.sum(1), torch.ones(COUNT))
    stored = WithPartners(plain())[index, 0]
    _, partners = stored.images[:, 0, 0, 0].long().split(COUNT)
    label = index % 3
    own_share = batch.labels[index, label]
    expected = own_share * index + (1 - own_share) * partners
    brightness = batch.images[:, 0, 1, 1]
    differs = partners % 3 != label  # labels of two images of one class do not show the share
    assert_close(brightness[differs], expected[differs])
    enough = COUNT / 3
    largest_shares = batch.labels.amax(1)
    assert differs.sum() > enough
    assert len(partners.unique()) > enough
    assert len(largest_shares.unique()) > enough
    assert batch.factors.equal(index[:, None])
    assert batch.key.equal(plain()[index, 0].key)
    in_next_epoch = mixed(index, epoch=1)
    assert not batch.labels.equal(in_next_epoch.labels)


def test_mixture_does_not_depend_on_its_batch_or_process() -> None:
    whole = mixed(torch.arange(COUNT))
    seen = 0
    for rank in range(2):
        for index, _ in EpochBatches(COUNT, 5, rank=rank, world_size=2, shuffle=True):
            part = mixed(index)
            assert part.images.equal(whole.images[index])
            assert part.labels.equal(whole.labels[index])
            seen += len(index)
    assert seen == COUNT


def test_set_with_partners_is_moved_to_a_device() -> None:
    moved = WithPartners(plain()).to(torch.device("meta"))
    assert moved.device == torch.device("meta")
    assert len(moved) == COUNT


def test_class_of_a_mixture_has_the_larger_share() -> None:
    shares = torch.tensor([[0.0, 0.3, 0.7], [1.0, 0.0, 0.0]])
    batch = Batch(torch.zeros(2, 1, 2, 2), shares, torch.arange(2))
    assert batch.classes.tolist() == [2, 0]
    whole = batch._replace(labels=torch.tensor([1, 2]))
    assert whole.classes.tolist() == [1, 2]


@pytest.mark.parametrize("loss", [cross_entropy_loss, margin_loss, sigmoid_cross_entropy_loss])
def test_loss_of_one_hot_shares_equals_that_of_labels(loss: Any) -> None:
    scores = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.1, 0.9]])
    labels = torch.tensor([0, 1])
    whole = torch.nn.functional.one_hot(labels, 3).float()
    mixture = 0.7 * whole + 0.1
    expected = loss(scores, labels)
    assert_close(loss(scores, whole), expected)
    assert not torch.allclose(loss(scores, mixture), expected)


MIXUP = [
    "data.mixup=0.4",
    "trainer.max_epochs=2",
    "trainer.precision=32-true",
    "callbacks.not_learning.min_steps=8",
    *NO_PICTURES,
]
WITHOUT_DECODER = [*TINY_CAPSNET[:-1], "model.decoder=null"]


@pytest.mark.whole  # two whole fits
@pytest.mark.parametrize("model", [TINY_CNN, WITHOUT_DECODER], ids=["cnn", "capsnet"])
def test_run_of_mixtures_resumes_exactly(tiny: Tiny, tmp_path: Path, model: list[str]) -> None:
    config = tiny(*MIXUP, model=model)
    whole = train(config, tmp_path / "whole")
    directory = tmp_path / "run"
    parts = interrupted_and_resumed(config, directory, 3)
    assert results(parts) == results(whole)
    found = weights(directory)
    for name, expected in weights(tmp_path / "whole").items():
        assert found[name].equal(expected), name
    for row in curves(directory):
        error = row["train/error"]
        assert error == "" or 0 < float(error) <= 100
    config.data.mixup = None
    plain = train(config, tmp_path / "plain")
    assert results(plain) != results(whole)


def test_images_are_not_mixed_outside_of_training() -> None:
    data = MNISTDataModule(source="standin", mixup=0.4, train_images=20, batch_size=10)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert len(batch.images) == 10
    assert batch.labels.dtype == torch.int64
    after = data.on_after_batch_transfer(batch, 0)
    assert after.images.isfinite().all()
