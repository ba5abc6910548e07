"""CIFAR10's files: pickles of Python 2, read without running what they may ask for."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from capsule_lab.data.download import reading
from capsule_lab.errors import DataError

NAME = "CIFAR10"
SIZE = 32  # Krizhevsky 2009: pixels a side
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {  # functions that the files name, and what is called instead
    ("numpy.core.multiarray", "_reconstruct"): np.ndarray.__new__,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): lambda kind, *_: np.dtype(kind),  # its further arguments are deprecated since numpy 2.4
}


def read_batch(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Pixels ``(n, 3, 32, 32)`` and labels ``(n,)`` of one of the files.

    Raises:
        DataError: if it is not such a file, or a label is out of range.
    """
    with reading(path, NAME), path.open("rb") as file:
        batch = _ArrayUnpickler(file, encoding="latin1").load()  # numpy's advice for arrays that Python 2 pickled
        if not batch.keys() >= {"data", "labels"}:
            raise ValueError(f"it has {', '.join(map(str, batch))}, not data and labels")
        pixels, labels = np.asarray(batch["data"]), np.asarray(batch["labels"], dtype=np.int64)
    size = 3 * SIZE**2
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (size,) or labels.shape != pixels.shape[:1]:
        raise DataError(
            f"{path} holds {pixels.dtype} of shape {pixels.shape} and labels of shape {labels.shape}; expected uint8 "
            f"of (n, {size}) and labels of (n,): remove it and its folder to have them downloaded again"
        )
    unknown = np.setdiff1d(labels, range(len(CLASSES)))
    if len(unknown):
        raise DataError(
            f"{path} has label {unknown[0]}; expected 0 to 9: remove it and its folder to have them downloaded again"
        )
    return pixels.reshape(-1, 3, SIZE, SIZE), labels


class _ArrayUnpickler(pickle.Unpickler):
    """Creates arrays only. A pickle may otherwise call any function, and a file with the right MD5 can be forged."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, and may ask for numpy's arrays only")
        return _ALLOWED[module, name]
