import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from capsule_lab.data.sources import tensor_hash
from capsule_lab.data.standins.digits import _read_digits, standin_digits


def test_file_of_digits_is_that_of_scikit_learn():
    pixels, labels = load_digits(return_X_y=True)
    assert np.array_equal(_read_digits(), np.column_stack([pixels, labels]))


BOX = [False] * 4 + [True] * 20 + [False] * 4


@pytest.mark.parametrize(
    ("train", "size", "known"),
    [
        (True, 1438, "cf5564048b863847"),
        (False, 359, "85a0b0362cbd5716"),
    ],
)
def test_standin_has_the_form_of_mnist_with_digits_in_a_box_of_20_pixels(train, size, known):
    made = standin_digits.__wrapped__(train=train)
    images, labels, _ = made
    assert tensor_hash(made) == known
    assert images.shape == (size, 1, 28, 28)
    assert images.dtype == torch.uint8
    assert images.max() == 255
    assert labels.unique().tolist() == list(range(10))
    is_used = images.amax((0, 1)) > 0
    assert is_used.any(0).tolist() == BOX
    assert is_used.any(1).tolist() == BOX


def test_training_and_test_images_of_the_standin_differ():
    train = standin_digits(train=True).images.flatten(1).float()
    test = standin_digits(train=False).images.flatten(1).float()
    assert torch.cdist(test, train).min() > 0
