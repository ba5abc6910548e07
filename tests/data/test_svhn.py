"""SVHN: what the network sees and the experiment; its files are in ``test_sources``."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torchvision import datasets

from capsule_lab.config.compose import compose
from capsule_lab.data import SVHNDataModule, svhn
from capsule_lab.data.standins.coloured_digits import coloured_digits
from capsule_lab.data.transforms import sample_key
from capsule_lab.train import train
from tests.helpers.commands import NO_PICTURES
from tests.helpers.data_modules import network_of_experiment, trainer

# --- the files --------------------------------------------------------------------------------------------------------


def test_checksums_are_those_that_torchvision_has():
    assert dict(datasets.SVHN.split_list[part][1:] for part in ("train", "test")) == svhn.SVHNFiles.checksums


def test_server_is_the_one_that_torchvision_has():
    urls = [datasets.SVHN.split_list[part][0] for part in ("train", "test")]
    assert urls == [svhn.SERVER + name for name in svhn.SVHNFiles.checksums]


# --- what the network sees --------------------------------------------------------------------------------------------


def standin(*, training: bool = True, **options: Any) -> SVHNDataModule:
    data = SVHNDataModule(source="standin", **options)
    data.trainer = trainer(training=training)
    data.setup("fit")
    return data


@pytest.mark.parametrize(
    ("training", "options", "moved"),
    [
        (True, {}, False),
        (True, {"shift": 2}, True),
        (False, {"shift": 2}, False),
        (True, {"shift": 2, "augment": False}, False),
    ],
    ids=str,
)
def test_pixels_are_in_the_unit_interval_and_stay_where_they_are_unless_asked(training, options, moved):
    data = standin(training=training, **options)
    batch = next(iter(data.train_dataloader()))
    images = data.on_after_batch_transfer(batch, 0).images
    assert images.dtype == torch.float32
    assert 0 <= images.min() < 0.1 < 0.9 < images.max() <= 1
    assert images.shape[1:] == data.spec.image_shape == (3, 32, 32)
    assert images.equal(batch.images / 255) is not moved


@pytest.mark.parametrize("largest", [1, 3])
def test_every_training_image_is_moved_by_at_most_shift(largest):
    point = torch.zeros(500, 3, 32, 32, dtype=torch.uint8)
    point[:, :, 16, 16] = 255
    data = SVHNDataModule(source="standin", shift=largest)
    moved = data.transform(point, sample_key(0, 0, torch.arange(500)), augment=True)
    places = {(down, right) for _, _, down, right in moved.nonzero().tolist()}
    around = range(16 - largest, 16 + largest + 1)
    assert places == {(down, right) for down in around for right in around}
    assert moved.sum() == 500 * 3


def test_what_is_drawn_depends_on_the_key_alone():
    images, key = coloured_digits(train=True).images[:50], sample_key(0, 0, torch.arange(50))
    data = SVHNDataModule(source="standin", shift=3)
    together = data.transform(images, key, augment=True)
    assert together.equal(data.transform(images, key, augment=True))
    assert data.transform(images[5:9], key[5:9], augment=True).equal(together[5:9])
    assert not data.transform(images, key + 1, augment=True).equal(together)


CHANGED = {"shift": 2, "validation_share": 0.5}


@pytest.mark.parametrize("option", [name for name in inspect.signature(SVHNDataModule).parameters if name != "options"])
def test_every_option_does_something(option):
    plain, changed = standin(), standin(**{option: CHANGED[option]})
    images, key = coloured_digits(train=True).images[:50], sample_key(0, 0, torch.arange(50))
    seen, other = (data.transform(images, key, augment=True) for data in (plain, changed))
    assert not seen.equal(other) or len(plain.sets["train"].labels) != len(changed.sets["train"].labels)


@pytest.mark.usefixtures("unchecked_types")
def test_a_negative_shift_is_refused():
    with pytest.raises(ValueError, match=r"data\.shift is -1; expected 0 \(no shift\) or more pixels"):
        SVHNDataModule(shift=-1)


# --- the experiment ---------------------------------------------------------------------------------------------------


def test_network_of_the_experiment_is_as_large_as_published():
    network = network_of_experiment("sabour2017/svhn")
    assert sum(parameter.numel() for parameter in network.parameters()) == 1_004_976
    assert network.decoder is None
    assert not network.digits.routing.leaky


@pytest.mark.parametrize(
    ("decoder", "terms"), [("null", {"margin"}), ("[8]", {"margin", "reconstruction"})], ids=["without", "with"]
)
def test_experiment_trains_with_and_without_a_decoder(tmp_path, decoder, terms):
    small = ["model.channels=4", "model.primary_types=2", f"model.decoder={decoder}", "trainer.accelerator=cpu"]
    config = compose("train", ["experiment=sabour2017/svhn", "debug=smoke", *small, *NO_PICTURES])
    result = train(config, tmp_path / "run")
    assert result["test"].keys() == {"error", "loss", *terms}
    assert result["test"]["loss"] == pytest.approx(sum(result["test"][term] for term in terms))
    assert result["provenance"]["source"] == "standin"
