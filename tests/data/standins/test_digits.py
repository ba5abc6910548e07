import numpy as np
import torch
from sklearn.datasets import load_digits

from capsule_lab.data.sources import tensor_hash
from capsule_lab.data.standins.digits import _read_digits, standin_digits


def test_file_of_digits_is_that_of_scikit_learn():
    pixels, labels = load_digits(return_X_y=True)
    assert np.array_equal(_read_digits(), np.column_stack([pixels, labels]))


def test_standin_has_the_form_of_mnist_with_digits_in_a_box_of_20_pixels():
    for train, size, known in [(True, 1438, "cf5564048b863847"), (False, 359, "85a0b0362cbd5716")]:
        images, labels, _ = made = standin_digits.__wrapped__(train=train)
        assert images.shape == (size, 1, 28, 28)
        assert images.dtype == torch.uint8
        assert labels.unique().tolist() == list(range(10))
        assert images.max() == 255
        assert tensor_hash(made) == known
        for axis in (0, 1):
            assert (
                images.amax(dim=(0, 1)).any(dim=axis).tolist()
                == [False] * 4 + [True] * 20 + [False] * 4
            )


def test_training_and_test_images_of_the_standin_differ():
    train, test = (standin_digits(train=train) for train in (True, False))
    distances = torch.cdist(test.images.flatten(1).float(), train.images.flatten(1).float())
    assert distances.min() > 0
