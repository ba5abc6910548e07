"""smallNORB's binary matrices: one array in one file, with its shape and dtype in the header.

Little-endian int32 throughout the header: magic (the kind of number), number of dimensions, the sizes, at least
three of them (missing ones are 1). Then the numbers, last index fastest. ``.gz`` at the end of the name means
gzip around all of it, as the files are published.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from capsule_lab.errors import DataError
from capsule_lab.system.files import atomically

_KINDS: dict[int, np.dtype[Any]] = {  # magics as documented beside the smallNORB files
    0x1E3D4C51: np.dtype("<f4"),
    0x1E3D4C53: np.dtype("<f8"),
    0x1E3D4C54: np.dtype("<i4"),
    0x1E3D4C55: np.dtype("u1"),
    0x1E3D4C56: np.dtype("<i2"),
}
_MAGICS = {kind.newbyteorder("="): magic for magic, kind in _KINDS.items()}
_FEWEST_SIZES = 3  # of the format: a vector is written with sizes (n, 1, 1)
_MOST_SIZES = 8  # ours: twice smallNORB's; more means another kind of file
_LONGEST_HEADER = 4 * (2 + _MOST_SIZES)
_CHUNK = 2**20
_GZIP_MAGIC = b"\x1f\x8b"  # RFC 1952


def read_matrix(path: Path) -> np.ndarray:
    """The array in ``path``, read-only: a memory map of a ``.mat``, unpacked into memory from a ``.mat.gz``.

    Raises:
        DataError: if the file cannot be read, is of another format, or is shorter or longer than its header says.
    """
    try:
        if path.suffix == ".gz":
            return _read_packed(path)
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(_LONGEST_HEADER)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"{path} cannot be read ({reason}); expected a whole binary matrix of smallNORB's format: replace the file"
        ) from error
    kind, shape, offset = _layout(path, header)
    _check_size(path, size, kind, shape, offset)
    if 0 in shape:  # nothing to map
        return np.empty(shape, kind)
    return np.memmap(path, kind, "r", offset, shape)


def write_matrix(path: Path, array: np.ndarray) -> None:
    """Write ``array`` to ``path``, gzip-compressed if the name ends in ``.gz``; the file is complete or not there.

    Raises:
        ValueError: for a kind of number or a number of dimensions that the format does not have.
    """
    magic = _MAGICS.get(array.dtype.newbyteorder("="))
    if magic is None or not 1 <= array.ndim <= _MOST_SIZES:
        kinds = ", ".join(kind.name for kind in _KINDS.values())
        raise ValueError(
            f"the array for {path.name} is {array.dtype} with {array.ndim} dimensions; expected one of {kinds} with 1 "
            f"to {_MOST_SIZES}"
        )
    sizes = [*array.shape, *[1] * (_FEWEST_SIZES - array.ndim)]
    header = struct.pack(f"<{2 + len(sizes)}i", magic, array.ndim, *sizes)
    content = np.ascontiguousarray(array.astype(_KINDS[magic], copy=False))
    with atomically(path) as temporary, temporary.open("wb") as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:  # the same bytes every time
                packed.write(header)
                packed.write(content.data)
        else:
            file.write(header)
            file.write(content.data)


def _read_packed(path: Path) -> np.ndarray:
    """A packed file; no more of it is unpacked than its header promises, as a small file can unpack to any size."""
    with gzip.open(path) as file:
        content = bytearray(file.read(_LONGEST_HEADER))
        kind, shape, offset = _layout(path, content)
        while len(content) <= _bytes(kind, shape, offset) and (chunk := file.read(_CHUNK)):
            content += chunk
    _check_size(path, len(content), kind, shape, offset)
    array = np.frombuffer(content, kind, math.prod(shape), offset).reshape(shape)
    array.flags.writeable = False
    return array


def _layout(path: Path, header: bytes | bytearray) -> tuple[np.dtype, tuple[int, ...], int]:
    """Kind of number, sizes, and where the numbers begin, of a file that begins with ``header``."""
    magic, dimensions = struct.unpack("<Ii", header[:8].ljust(8, b"\0"))
    written = max(dimensions, _FEWEST_SIZES)
    offset = 4 * (2 + written)
    sizes: tuple[int, ...] = ()
    if magic in _KINDS and 1 <= dimensions <= _MOST_SIZES and len(header) >= offset:
        sizes = struct.unpack_from(f"<{written}i", header, offset=8)
    if not sizes or min(sizes) < 0 or any(filler != 1 for filler in sizes[dimensions:]):
        packed = header.startswith(_GZIP_MAGIC)
        found = "a gzip archive (.gz is missing from its name)" if packed else "another kind of file"
        raise DataError(
            f"{path} begins with {header[:8].hex(' ') or 'nothing'}, {found}; expected a binary matrix of smallNORB's "
            "format: replace or rename the file"
        )
    return _KINDS[magic], sizes[:dimensions], offset


def _bytes(kind: np.dtype, shape: tuple[int, ...], offset: int) -> int:
    """Size of the whole file."""
    return offset + math.prod(shape) * kind.itemsize


def _check_size(path: Path, size: int, kind: np.dtype, shape: tuple[int, ...], offset: int) -> None:
    expected = _bytes(kind, shape, offset)
    if size != expected:
        found = f"truncated: {size} bytes" if size < expected else f"too long: {size} bytes or more"
        raise DataError(
            f"{path} is {found} unpacked; expected {expected} for {'x'.join(map(str, shape))} numbers of "
            f"{kind.name}, as its header says: replace the file"
        )
