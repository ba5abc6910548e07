"""CIFAR10: augmentation and the experiment; its files are in ``test_sources``."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from torchvision import datasets

from capsule_lab.config.compose import compose
from capsule_lab.data import CIFAR10DataModule, cifar10
from capsule_lab.data.transforms import sample_key
from capsule_lab.train import train
from tests.helpers.commands import NO_PICTURES
from tests.helpers.data_modules import network_of_experiment, trainer

RANDOM = np.random.default_rng(0)
PHOTOGRAPHS = torch.from_numpy(RANDOM.integers(0, 256, (400, 3, 32, 32), dtype=np.uint8))
KEYS = sample_key(0, 0, torch.arange(400))


@pytest.fixture
def not_standardised(monkeypatch) -> None:
    """What the network would see before its last step."""
    monkeypatch.setattr(cifar10, "standardise", lambda images: images)


def seen(training: bool = True, images: torch.Tensor = PHOTOGRAPHS, key: torch.Tensor = KEYS, **options):
    data = CIFAR10DataModule(source="standin", **options)
    return data.transform(images, key[: len(images)], augment=training)


# --- the files --------------------------------------------------------------------------------------------------------


def test_checksums_are_those_that_torchvision_has():
    assert dict([*datasets.CIFAR10.train_list, *datasets.CIFAR10.test_list]) == cifar10.CIFAR10Files.checksums


def test_archive_is_the_one_that_torchvision_has():
    source = datasets.CIFAR10
    assert source.url == cifar10.SERVER + cifar10.ARCHIVE
    assert source.tgz_md5 == cifar10.ARCHIVE_MD5


# --- what the network sees --------------------------------------------------------------------------------------------


def standardised(image: np.ndarray) -> np.ndarray:
    return (image - image.mean()) / max(image.std(), image.size**-0.5)


@pytest.mark.parametrize(("crop", "corner"), [(24, 4), (32, 0), (23, 4), (1, 15)])
def test_evaluation_is_on_the_centre_standardised(crop, corner):
    expected = PHOTOGRAPHS[:20, :, corner : corner + crop, corner : corner + crop].double().numpy()
    images = seen(training=False, images=PHOTOGRAPHS[:20], crop=crop)
    assert images.dtype == torch.float32
    assert images.is_contiguous() or crop == 32
    np.testing.assert_allclose(images, np.stack([standardised(image) for image in expected]), atol=1e-5)


@pytest.mark.parametrize("crop", [8, 24, 32])
def test_size_is_that_of_the_spec(crop):
    assert seen(crop=crop).shape[1:] == CIFAR10DataModule(crop=crop).spec.image_shape == (3, crop, crop)


def test_training_patches_are_standardised():
    images = seen()
    torch.testing.assert_close(images.mean(dim=(1, 2, 3)), torch.zeros(400), atol=1e-5, rtol=0)
    torch.testing.assert_close(images.std(dim=(1, 2, 3), correction=0), torch.ones(400))


def test_a_blank_image_stays_finite():
    images = seen(images=torch.full((20, 3, 32, 32), 255, dtype=torch.uint8))
    assert images.isfinite().all()


@pytest.mark.usefixtures("not_standardised")
def test_training_patches_come_from_everywhere_and_half_of_them_are_mirrored():
    """Of images that say where each of their pixels was."""
    places = torch.arange(32 * 32).reshape(1, 1, 32, 32).expand(5000, 3, 32, 32).float()
    data = CIFAR10DataModule(source="standin", brightness=0.0, contrast=0.0)
    corners = data.transform(places, sample_key(0, 0, torch.arange(5000)), augment=True)[:, 0, 0].round().long()
    left, right = corners[:, 0], corners[:, -1]
    mirrored = left > right
    assert 0.45 < mirrored.float().mean() < 0.55
    first = torch.minimum(left, right)
    assert torch.cartesian_prod(torch.arange(9), torch.arange(9)).tolist() == [
        [place // 32, place % 32] for place in first.unique().tolist()
    ]
    assert (left - right).abs().unique().tolist() == [23]


@pytest.mark.usefixtures("not_standardised")
@pytest.mark.parametrize(("options", "largest"), [({}, 63), ({"brightness": 20.0}, 20), ({"brightness": 0.0}, 0)])
def test_brightness_is_within_its_range(options, largest):
    images = seen(crop=32, flip=False, contrast=0.0, **options)
    added = images - PHOTOGRAPHS
    torch.testing.assert_close(added, added[:, :1, :1, :1].expand_as(added), atol=1e-3, rtol=0)
    assert added.abs().max() <= largest + 1e-3
    assert largest == 0 or added.min() < -0.9 * largest < 0.9 * largest < added.max()


@pytest.mark.usefixtures("not_standardised")
@pytest.mark.parametrize(
    ("options", "low", "high"), [({}, 0.2, 1.8), ({"contrast": 0.1}, 0.9, 1.1), ({"contrast": 0.0}, 1.0, 1.0)]
)
def test_contrast_is_within_its_range_about_the_mean_of_each_channel(options, low, high):
    pixels = PHOTOGRAPHS.float()
    images = seen(crop=32, flip=False, brightness=0.0, **options)
    torch.testing.assert_close(images.mean(dim=(2, 3)), pixels.mean(dim=(2, 3)), atol=1e-2, rtol=0)
    factor = images.std(dim=(2, 3)) / pixels.std(dim=(2, 3))
    torch.testing.assert_close(factor, factor[:, :1].expand(-1, 3), atol=1e-3, rtol=0)
    assert low - 1e-3 <= factor.min() <= low + 0.05
    assert high - 0.05 <= factor.max() <= high + 1e-3


@pytest.mark.usefixtures("not_standardised")
def test_contrast_is_about_the_mean_of_the_patch():
    """Cut first: what is cut away does not matter."""
    framed = PHOTOGRAPHS[:50].clone()
    corners = cifar10.random_integers(KEYS[:50], 0, 0, 8), cifar10.random_integers(KEYS[:50], 1, 0, 8)
    rows = torch.arange(32)
    inside = [((rows >= corner[:, None]) & (rows < corner[:, None] + 24)) for corner in corners]
    framed[~(inside[0][:, None, :, None] & inside[1][:, None, None, :]).expand_as(framed)] = 0
    assert seen(images=framed).equal(seen(images=PHOTOGRAPHS[:50]))


def test_what_is_drawn_depends_on_the_key_alone():
    together = seen()
    torch.testing.assert_close(torch.cat([seen(images=PHOTOGRAPHS[:7]), seen(images=PHOTOGRAPHS)[7:]]), together)
    alone = CIFAR10DataModule(source="standin").transform(PHOTOGRAPHS[5:6], KEYS[5:6], augment=True)
    torch.testing.assert_close(alone, together[5:6])
    assert seen().equal(together)
    assert not seen(key=sample_key(0, 1, torch.arange(400))).allclose(together)


@pytest.mark.parametrize(
    ("training", "options", "same"), [(True, {}, False), (False, {}, True), (True, {"augment": False}, True)], ids=str
)
def test_training_images_alone_are_augmented(training, options, same):
    data = CIFAR10DataModule(source="standin", **options)
    data.trainer = trainer(training=training)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    still = data.transform(batch.images, batch.key, augment=False)
    assert data.on_after_batch_transfer(batch, 0).images.equal(still) is same


CHANGED = {"crop": 20, "flip": False, "brightness": 5.0, "contrast": 0.3, "eval_batch_size": 7, "validation_share": 0.5}


@pytest.mark.parametrize(
    "option", [name for name in inspect.signature(CIFAR10DataModule).parameters if name != "options"]
)
@pytest.mark.usefixtures("not_standardised")
def test_every_option_does_something(option):
    found = []
    for options in ({}, {option: CHANGED[option]}):  # with and without
        data = CIFAR10DataModule(source="standin", **options)
        data.setup("fit")
        images = data.transform(PHOTOGRAPHS, KEYS, augment=True)
        found.append(
            (images.shape, images[..., 0].sum().item(), len(data.val_dataloader()), len(data.sets["train"].labels))
        )
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": 0}, r"data\.crop is 0; expected 1 to 32 pixels"),
        ({"crop": 33}, r"data\.crop is 33; expected 1 to 32 pixels"),
        ({"brightness": -1.0}, r"data\.brightness is -1.0; expected 0 \(none\) or more"),
        ({"brightness": float("nan")}, r"data\.brightness is nan; expected 0"),
        ({"contrast": 1.5}, r"data\.contrast is 1.5; expected 0 \(none\) to 1"),
        ({"contrast": -0.1}, r"data\.contrast is -0.1; expected 0"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked_types")
def test_options_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CIFAR10DataModule(**options)


# --- the experiment ---------------------------------------------------------------------------------------------------


def test_network_of_the_experiment_is_as_large_as_published():
    network = network_of_experiment("sabour2017/cifar10")
    assert sum(parameter.numel() for parameter in network.parameters()) == 22_476_448
    assert network.decoder is None
    assert network.digits.routing.leaky
    assert network.primary.scale == 1 / 65


def test_experiment_trains_without_a_decoder(tmp_path):
    small = ["model.channels=4", "model.primary_types=2", "model.class_dim=4", "trainer.accelerator=cpu"]
    config = compose("train", ["experiment=sabour2017/cifar10", "debug=smoke", *small, *NO_PICTURES])
    result = train(config, tmp_path / "run")
    assert result["test"].keys() == {"error", "loss", "margin"}
    assert result["test"]["loss"] == pytest.approx(result["test"]["margin"])
    assert result["provenance"]["source"] == "standin"
