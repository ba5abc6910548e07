"""SVHN's files of cropped digits, as MATLAB stores them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.io

from capsule_lab.data.download import check_labels, reading
from capsule_lab.errors import DataError

NAME = "SVHN"
SIZE = 32  # Netzer 2011: pixels a side

_TEN = 10  # Netzer 2011: how the files label the digit 0


def read_digits(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Pixels ``(n, 3, 32, 32)`` and digits ``(n,)`` of one of the files, whose X is ``(32, 32, 3, n)``, y ``(n, 1)``.

    Raises:
        DataError: if it is not such a file, or a label is out of range.
    """
    with reading(path, NAME):
        content = scipy.io.loadmat(path, variable_names=("X", "y"))
        if not content.keys() >= {"X", "y"}:
            raise ValueError("it has no X or no y")
        pixels, labels = content["X"], content["y"].astype(np.int64)
    expected = (SIZE, SIZE, 3, len(labels)), (len(labels), 1)
    if pixels.dtype != np.uint8 or (pixels.shape, labels.shape) != expected:
        raise DataError(
            f"{path} holds {pixels.dtype} of shape {pixels.shape} and labels of shape {labels.shape}; expected uint8 "
            f"of {expected[0]} and labels of {expected[1]}: remove it and its folder to have them downloaded again"
        )
    check_labels(path, labels, range(1, _TEN + 1))
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels[:, 0] % _TEN
