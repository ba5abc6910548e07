"""The stand-in for MNIST."""

from __future__ import annotations

import torch

from capsule_lab.data.sources import tensor_hash
from capsule_lab.data.standins.digits import standin_digits


def test_standin_has_the_form_of_mnist():
    for train, size in [(True, 1438), (False, 359)]:
        images, labels, _ = standin_digits(train=train)
        assert images.shape == (size, 1, 28, 28)
        assert images.dtype == torch.uint8
        assert labels.unique().tolist() == list(range(10))
        assert images.max() == 255


def test_standin_digits_fill_a_box_of_20_pixels():
    for train in [True, False]:
        ink = standin_digits(train=train).images.amax(dim=(0, 1))
        outside = torch.ones(28, 28, dtype=torch.bool)
        outside[4:24, 4:24] = False
        assert not ink[outside].any()
        assert ink[4:24, 4:24].any(dim=0).all()
        assert ink[4:24, 4:24].any(dim=1).all()


def test_standin_is_the_same_every_time():
    assert tensor_hash(standin_digits.__wrapped__(train=True)) == "cf5564048b863847"


def test_standin_tests_on_other_images_than_it_trains_on():
    train, test = (standin_digits(train=train) for train in (True, False))
    distances = torch.cdist(test.images.flatten(1).float(), train.images.flatten(1).float())
    assert distances.min() > 0
