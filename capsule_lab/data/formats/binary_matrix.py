"""smallNORB's binary matrices: one array per file, with its shape and dtype in the header.

The header consists of little-endian int32 numbers: magic (the dtype), number of dimensions, and at least three sizes
(missing ones are 1). The numbers of the array follow, last index fastest. A name that ends in ``.gz`` means that the
whole file is compressed, as published.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from capsule_lab.errors import DataError
from capsule_lab.system.files import open_regular

_KINDS: dict[int, np.dtype[Any]] = {  # magics as documented beside the smallNORB files
    0x1E3D4C51: np.dtype("<f4"),
    0x1E3D4C53: np.dtype("<f8"),
    0x1E3D4C54: np.dtype("<i4"),
    0x1E3D4C55: np.dtype("u1"),
    0x1E3D4C56: np.dtype("<i2"),
}
_MAGICS = {kind.newbyteorder("="): magic for magic, kind in _KINDS.items()}
_FEWEST_SIZES = 3  # of the format: a vector is written with sizes (n, 1, 1)


def read_matrix(path: Path) -> np.ndarray:
    """Return the array in ``path``, read-only: a memory map of a ``.mat``, unpacked into memory from a ``.mat.gz``.

    Raises:
        DataError: if the file cannot be read, has another format, or does not have the length that its header states.
    """
    try:
        with open_regular(path) as file:
            if path.suffix == ".mat":
                content: Any = np.memmap(file, np.uint8, "r")
            else:
                content = np.frombuffer(gzip.decompress(file.read()), np.uint8)
        magic, dimensions = struct.unpack_from("<Ii", content)
        stored_sizes = max(dimensions, _FEWEST_SIZES)
        sizes = struct.unpack_from(f"<{stored_sizes}i", content, 8)
        shape = np.broadcast_shapes(sizes[: max(dimensions, 1)])  # raises for negative sizes
        numbers = content[8 + 4 * stored_sizes :]
        return numbers.view(_KINDS[magic]).reshape(shape)
    except (OSError, EOFError, zlib.error, struct.error, KeyError, ValueError) as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise DataError(
            f"{path} cannot be read ({reason}); expected a complete binary matrix in smallNORB's format: replace it"
        ) from error


def write_matrix(path: Path, array: np.ndarray) -> None:
    """Write ``array``, compressed if the name ends in ``.gz``; raise a ``KeyError`` if the format lacks its dtype."""
    sizes = array.shape + (1,) * (_FEWEST_SIZES - array.ndim)
    magic = _MAGICS[array.dtype.newbyteorder("=")]
    header = struct.pack(f"<Ii{len(sizes)}i", magic, array.ndim, *sizes)
    with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as file:
        file.write(header)
        file.write(np.ascontiguousarray(array, _KINDS[magic]).data)
