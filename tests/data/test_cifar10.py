"""CIFAR10: augmentation and the experiment. ``test_sources`` covers its files."""

import inspect

import numpy as np
import pytest
import torch
from torchvision import datasets

from capsule_lab.commands import compose
from capsule_lab.config import build
from capsule_lab.data import CIFAR10DataModule, cifar10, transforms
from capsule_lab.data.transforms import random_integers, random_uniform, sample_key

RANDOM = np.random.default_rng(0)
BRIGHTEST = np.array([64, 128, 256])[
    :, None, None
]  # of each channel, which contrast therefore changes
PHOTOGRAPHS = torch.from_numpy(RANDOM.integers(0, BRIGHTEST, (50, 3, 32, 32), dtype=np.uint8))
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
    expected = PHOTOGRAPHS[:, :, corner : corner + crop, corner : corner + crop].double().numpy()
    images = data.transform(PHOTOGRAPHS, KEYS, augment=False)
    assert images.dtype == torch.float32
    assert images.shape[1:] == data.spec.image_shape
    np.testing.assert_allclose(
        images, np.stack([standardised(image) for image in expected]), atol=1e-5
    )


def test_training_images_equal_the_published_steps_one_by_one(monkeypatch):
    """Five random numbers per image, from its key. The last step undoes brightness, so it is also compared before."""
    data = CIFAR10DataModule(source="standin")
    seen = data.transform(PHOTOGRAPHS, KEYS, augment=True)
    monkeypatch.setattr(transforms, "standardise", lambda images: images)
    before = data.transform(PHOTOGRAPHS, KEYS, augment=True)
    top, left, mirrored = (
        random_integers(KEYS, stream, 0, most).tolist() for stream, most in enumerate((8, 8, 1))
    )
    added = random_uniform(KEYS, 3, -63.0, 63.0).tolist()
    factor = random_uniform(KEYS, 4, 0.2, 1.8).tolist()
    for i, image in enumerate(PHOTOGRAPHS.double().numpy()):
        patch = image[:, top[i] : top[i] + 24, left[i] : left[i] + 24]
        patch = (patch[:, :, ::-1] if mirrored[i] else patch) + added[i]
        mean = patch.mean(axis=(1, 2), keepdims=True)
        expected = mean + factor[i] * (patch - mean)
        np.testing.assert_allclose(before[i].numpy(), expected, atol=1e-3)
        np.testing.assert_allclose(seen[i].numpy(), standardised(expected), atol=1e-4)


CHANGED = {
    "crop": 20,
    "flip": False,
    "brightness": 5.0,
    "contrast": 0.3,
    "eval_batch_size": 7,
    "validation_share": 0.5,
}


@pytest.mark.parametrize(
    "option",
    [name for name in inspect.signature(CIFAR10DataModule).parameters if name != "options"],
)
def test_every_option_changes_the_data(monkeypatch, option):
    monkeypatch.setattr(transforms, "standardise", lambda images: images / 255)
    observed = []
    for options in ({}, {option: CHANGED[option]}):  # with and without
        data = CIFAR10DataModule(source="standin", **options)
        data.setup("fit")
        images = data.transform(PHOTOGRAPHS, KEYS, augment=True)
        observed.append(
            (
                images.shape,
                images[..., 0].sum().item(),
                len(data.val_dataloader()),
                len(data.sets["train"].labels),
            )
        )
    assert observed[0] != observed[1]


def test_network_of_the_experiment_has_the_published_size():
    network = build.build_without_weights(
        compose("train", ["experiment=sabour2017/cifar10"])
    ).network
    assert sum(parameter.numel() for parameter in network.parameters()) == 22_476_448
    assert network.digits.routing.leaky
    assert network.primary.scale == 1 / 65
