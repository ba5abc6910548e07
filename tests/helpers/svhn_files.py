"""Small files in SVHN's format, valid and broken ones."""

import numpy as np
import torch

from capsule_lab.data.loader import Images
from tests.helpers.matlab import matlab

RANDOM = np.random.default_rng(0)


def drawn(number: int) -> dict[str, np.ndarray]:
    """The content of a file. Labels are 1 to 10; 10 stands for the digit 0."""
    pixels = RANDOM.integers(0, 256, (32, 32, 3, number), dtype=np.uint8)
    return {
        "X": pixels,
        "y": RANDOM.permutation(np.arange(number, dtype=np.uint8) % 10 + 1)[:, None],
    }


ARRAYS = {"train_32x32.mat": drawn(60), "test_32x32.mat": drawn(20)}


def stored(arrays: dict[str, np.ndarray]) -> Images:
    """The images of the data module, with digits as labels."""
    images = arrays["X"].transpose(3, 2, 0, 1)  # [image channel row column]
    labels = torch.from_numpy(arrays["y"][:, 0]).long()
    labels[labels == 10] = 0
    return Images(torch.from_numpy(np.ascontiguousarray(images)), labels)


CONTENTS = {name: matlab(**arrays) for name, arrays in ARRAYS.items()}
TRAINING, TEST = (stored(arrays) for arrays in ARRAYS.values())


def downloads(contents: dict[str, bytes]) -> dict[str, bytes]:
    """The files of the server."""
    return contents


WHOLE = ARRAYS["test_32x32.mat"]
BROKEN = {
    "truncated": (
        matlab(**WHOLE)[:-500],
        r"cannot be read \(.+\); expected a file of SVHN: remove it",
    ),
    "corrupt": (
        matlab(**WHOLE)[:5000] + bytes(20) + matlab(**WHOLE)[5020:],
        r"cannot be read \(.+\)",
    ),
    "another file": (b"<html>a login page</html>" * 20, r"cannot be read \(.+\)"),
    "of MATLAB 7.3": (
        b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(100),
        r"cannot be read \(.+\)",
    ),
    "no labels": (matlab(X=WHOLE["X"]), r"cannot be read \('y'\)"),
    "too few labels": (
        matlab(X=WHOLE["X"], y=WHOLE["y"][:19]),
        r"has labels of torch.int64 and shape \(19,\) for 20",
    ),
    "scaled": (matlab(X=WHOLE["X"] / 255, y=WHOLE["y"]), "has images of torch.float64"),
}
