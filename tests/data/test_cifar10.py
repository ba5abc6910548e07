"""CIFAR10: augmentation and the experiment. ``test_sources`` covers its files."""

import inspect

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torchvision import datasets

from capsule_lab.commands import compose
from capsule_lab.config import build
from capsule_lab.data import CIFAR10DataModule, cifar10, transforms
from capsule_lab.data.transforms import random_integers, random_uniform, sample_key

RANDOM = np.random.default_rng(0)
# of each channel, which contrast therefore changes
BRIGHTEST = np.array([64, 128, 256]).reshape(3, 1, 1)
PIXELS = RANDOM.integers(0, BRIGHTEST, (50, 3, 32, 32), dtype=np.uint8)
PHOTOGRAPHS = torch.from_numpy(PIXELS)
KEYS = sample_key(0, 0, torch.arange(50))


def test_checksums_are_those_of_torchvision():
    source = datasets.CIFAR10
    assert dict([*source.train_list, *source.test_list]) == cifar10.CIFAR10Files.checksums
    assert source.url == cifar10.SERVER + cifar10.ARCHIVE
    assert source.tgz_md5 == cifar10.ARCHIVE_MD5


def standardised(image: np.ndarray) -> np.ndarray:
    return (image - image.mean()) / max(image.std(), image.size**-0.5)


@pytest.mark.parametrize(("crop", "corner"), [(24, 4), (32, 0), (23, 4), (1, 15)])
def test_evaluation_is_on_the_centre_standardised(crop, corner):
    data = CIFAR10DataModule(source="standin", crop=crop)
    images = data.transform(PHOTOGRAPHS, KEYS, augment=False)
    assert images.dtype == torch.float32
    assert images.shape[1:] == data.spec.image_shape
    centre = slice(corner, corner + crop)
    crops = PIXELS[:, :, centre, centre]
    for image, pixels in zip(images, crops, strict=True):
        expected = standardised(pixels.astype(float))
        assert_allclose(image, expected, atol=1e-5)


def test_training_images_equal_the_published_steps_one_by_one(monkeypatch):
    """Five random numbers per image, from its key. The last step undoes brightness, so it is also compared before."""
    data = CIFAR10DataModule(source="standin")
    seen = data.transform(PHOTOGRAPHS, KEYS, augment=True)
    monkeypatch.setattr(transforms, "standardise", lambda images: images)
    before = data.transform(PHOTOGRAPHS, KEYS, augment=True)
    tops = random_integers(KEYS, 0, 0, 8)
    lefts = random_integers(KEYS, 1, 0, 8)
    mirrorings = random_integers(KEYS, 2, 0, 1)
    brightnesses = random_uniform(KEYS, 3, -63.0, 63.0)
    contrasts = random_uniform(KEYS, 4, 0.2, 1.8)
    for number, pixels in enumerate(PIXELS):
        rows = slice(tops[number], tops[number] + 24)
        columns = slice(lefts[number], lefts[number] + 24)
        patch = pixels[:, rows, columns].astype(float)
        if mirrorings[number]:
            patch = patch[:, :, ::-1]
        patch = patch + brightnesses[number].item()
        mean = patch.mean(axis=(1, 2), keepdims=True)
        expected = mean + contrasts[number].item() * (patch - mean)
        assert_allclose(before[number], expected, atol=1e-3)
        assert_allclose(seen[number], standardised(expected), atol=1e-4)


CHANGED = {
    "crop": 20,
    "flip": False,
    "brightness": 5.0,
    "contrast": 0.3,
    "eval_batch_size": 7,
    "validation_share": 0.5,
}


def observed(**options) -> tuple[object, ...]:
    """What an option can change: augmented images, and the sizes of sets and batches."""
    data = CIFAR10DataModule(source="standin", **options)
    data.setup("fit")
    images = data.transform(PHOTOGRAPHS, KEYS, augment=True)
    first_column = images[..., 0].sum().item()
    batches = len(data.val_dataloader())
    size = len(data.sets["train"].labels)
    return images.shape, first_column, batches, size


def test_every_option_is_changed_below():
    assert {*inspect.signature(CIFAR10DataModule).parameters} == {*CHANGED, "options"}


@pytest.mark.parametrize("option", CHANGED)
def test_every_option_changes_the_data(monkeypatch, option):
    monkeypatch.setattr(transforms, "standardise", lambda images: images / 255)
    changed = observed(**{option: CHANGED[option]})
    assert changed != observed()


def test_network_of_the_experiment_has_the_published_size():
    config = compose("train", ["experiment=sabour2017/cifar10"])
    network = build.build_without_weights(config).network
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count == 22_476_448
    assert network.digits.routing.leaky
    assert network.primary.scale == 1 / 65


def test_arrays_of_the_stored_size_are_cropped(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, PIXELS)
    data = CIFAR10DataModule(source="standin")
    expected = data.transform(PHOTOGRAPHS, KEYS, augment=False)
    assert torch.equal(data.from_arrays(path), expected)
