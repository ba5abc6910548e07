"""IDX, the format of MNIST's files: unsigned bytes in any number of dimensions (LeCun, Cortes and Burges)."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from capsule_lab.data.download import reading

_UNSIGNED_BYTES = 8  # the format's code for this type


def read_idx(path: Path, name: str, item: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """The array in the file at ``path``, of the data set ``name``: ``(n, *item)``.

    The header is big-endian: two zero bytes, the type, the number of dimensions, and the sizes as int32.

    Raises:
        DataError: if the file cannot be read, or is not of this format and type.
    """
    with reading(path, name):
        content = path.read_bytes()
        zeros, kind, dimensions = struct.unpack_from(">HBB", content)
        if zeros or kind != _UNSIGNED_BYTES:
            raise ValueError("it is not an IDX file of unsigned bytes")
        shape = struct.unpack_from(f">{dimensions}I", content, 4)
        if shape[1:] != item:
            raise ValueError(f"it holds an array of shape {shape}, not {('n', *item)}")
        return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy()
