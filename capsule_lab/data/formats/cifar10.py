"""Reader of CIFAR10's files, which are Python 2 pickles; it does not run other code that a pickle may contain."""

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

_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {  # functions named in the files, and their replacements
    ("numpy.core.multiarray", "_reconstruct"): np.ndarray.__new__,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): lambda kind, *_: np.dtype(kind),  # its further arguments are deprecated since numpy 2.4
}


def read_batch(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Read the pixels ``(n, 3, 32, 32)`` and labels ``(n,)`` of one file.

    Raises:
        DataError: if the file has another format, or a label is out of range.
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
            f"of (n, {size}) and labels of (n,): remove it and its folder to download them again"
        )
    unknown = np.setdiff1d(labels, range(len(CLASSES)))
    if len(unknown):
        raise DataError(
            f"{path} has label {unknown[0]}; expected 0 to 9: remove it and its folder to download them again"
        )
    return pixels.reshape(-1, 3, SIZE, SIZE), labels


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles arrays only: a pickle can otherwise call any function, and a file with the right MD5 can be forged."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it contains {module}.{name}; only numpy's arrays are allowed")
        return _ALLOWED[module, name]
