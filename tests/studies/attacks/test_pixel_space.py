"""Pixels as the network sees them, or grey levels before preprocessing."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

from capsule_lab.data.transforms import crop_at, standardise, to_unit_interval
from capsule_lab.errors import ConfigError, RunError
from capsule_lab.studies.attacks.gradient import UNIT, Box
from capsule_lab.studies.attacks.pixel_space import GREY_LEVELS, grey_levels_per_unit, prepare
from capsule_lab.studies.attacks.session import logits_of
from capsule_lab.studies.images import StudyImages
from capsule_lab.types import Batch, CapsuleOutput

STORED = torch.randint(0, 256, (3, 2, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
BATCH = Batch(STORED, torch.tensor([0, 1, 2]), torch.tensor([5, 6, 7]))


class Data:
    """A data module, as far as attacks need one."""

    def __init__(self, preprocessing: str, batch: Batch) -> None:
        self.preprocessing = preprocessing
        self.batch = batch

    test_names, val_names = ("test",), ()

    def setup(self, stage: str) -> None:
        assert stage == "test"

    def test_dataloader(self) -> list[list[Batch]]:
        return [[self.batch]]

    def unpaired_batch(self, batch: Batch, name: str) -> Batch:
        assert name == "test"
        if self.preprocessing == "unit":
            return batch._replace(images=to_unit_interval(batch.images))
        if self.preprocessing == "mirrored":
            return batch._replace(images=to_unit_interval(batch.images).flip(-1))
        if self.preprocessing == "rounded":
            return batch._replace(
                images=to_unit_interval(batch.images) if batch.images.dtype == torch.uint8 else STORED / 9
            )
        if self.preprocessing == "crops":
            return batch._replace(images=to_unit_interval(batch.images)[:, None])
        return batch._replace(images=standardise(crop_at(batch.images.float(), (1, 1), 6)))


def prepared(preprocessing: str, space: str = "input", batch: Batch = BATCH) -> list:
    return prepare(StudyImages(Data(preprocessing, batch), "test", torch.device("cpu")), space)


def test_digits_have_255_grey_levels_per_unit_and_a_box() -> None:
    (batch,) = prepared("unit")
    assert batch.box == UNIT
    assert batch.grey_levels == pytest.approx([255] * 3, abs=1e-3)
    assert torch.equal(batch.images, to_unit_interval(STORED))
    assert batch.key.tolist() == [5, 6, 7]


def test_standardised_crops_have_their_own_deviation_and_no_box() -> None:
    (batch,) = prepared("standardised")
    assert batch.box == Box()
    crops = STORED[:, :, 1:7, 1:7].double()
    assert batch.grey_levels.double().numpy() == pytest.approx(
        crops.flatten(1).std(1, unbiased=False).numpy(), rel=1e-4
    )


def test_images_that_are_moved_have_no_grey_levels() -> None:
    assert grey_levels_per_unit(STORED, to_unit_interval(STORED).flip(-1)).isnan().all()
    smaller = grey_levels_per_unit(STORED, torch.zeros(3, 2, 12, 12))
    assert smaller.isnan().all()


def test_grey_levels_are_attacked_before_preprocessing() -> None:
    (batch,) = prepared("standardised", "grey_levels")
    assert batch.box == GREY_LEVELS == (0, 255)
    assert torch.equal(batch.images, STORED.float())
    assert batch.grey_levels.tolist() == [1] * 3


def test_standardising_is_differentiated_and_blind_to_brightness() -> None:
    """A uniform change of grey levels changes nothing, so the gradient is across it."""
    network = Network()
    images = STORED.double().requires_grad_()
    preprocess = lambda grey: standardise(crop_at(grey, (1, 1), 6))  # noqa: E731
    (gradient,) = torch.autograd.grad(logits_of(network, preprocess)(images)[:, 0].sum(), images)
    assert gradient.abs().max() > 1e-4
    assert gradient.sum((1, 2, 3)).abs().max() < 1e-10
    assert (gradient[:, :, 0] == 0).all(), "pixels outside of the crop"


def test_data_that_cannot_be_attacked() -> None:
    for preprocessing, labels, message in [
        ("unit", torch.zeros(3, 2, dtype=torch.int64), "images of Data have several labels; expected data with one"),
        ("crops", BATCH.labels, "images are seen through several crops; expected data.test_crops=1"),
    ]:
        with pytest.raises(RunError, match=re.escape(message)):
            prepared(preprocessing, batch=BATCH._replace(labels=labels))


def test_moved_grey_levels_are_refused() -> None:
    with pytest.raises(RunError, match=r"images of Data are moved by preprocessing.*; expected space=input"):
        prepared("rounded", "grey_levels")


def test_a_network_without_logits_is_refused() -> None:
    network = Network(logits=False)
    with pytest.raises(ConfigError, match=re.escape("Network gives no logits with this routing; an attack needs them")):
        logits_of(network, unchanged)(torch.zeros(1, 2, 6, 6))


def test_half_precision_logits_become_float32() -> None:
    network = Network()
    network.weight = network.weight.bfloat16()
    assert network(torch.zeros(1, 2, 6, 6)).logits.dtype == torch.bfloat16
    assert logits_of(network, unchanged)(torch.zeros(1, 2, 6, 6)).dtype == torch.float32


def unchanged(images: Tensor) -> Tensor:
    return images


class Network(nn.Module):
    def __init__(self, *, logits: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weight = torch.randn(72, 3, generator=generator, dtype=torch.float64)
        self.logits = logits

    def forward(self, images: Tensor) -> CapsuleOutput:
        scores = images.flatten(1).to(self.weight) @ self.weight
        return CapsuleOutput(scores.sigmoid(), None, scores if self.logits else None)
