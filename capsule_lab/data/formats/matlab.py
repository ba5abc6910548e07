"""Reader of MATLAB's files of format 5, which ``save -v6`` and ``save -v7`` write ("MAT-File Format", MathWorks).

The compiled reader of SciPy ends the process for some damaged files; here, each length is compared with what is there.
A file is a header of 128 bytes and data elements. An element is its type, the number of its bytes, and these bytes. A
matrix is an element of elements: flags, dimensions, name, numbers.
"""

from __future__ import annotations

import math
import mmap
import struct
import zlib
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_HEADER = 128  # bytes before the first element
_ORDERS = {b"IM": "<", b"MI": ">"}  # the last two bytes of the header, by order of bytes
_MATRIX, _COMPRESSED = 14, 15  # types of elements
_NUMBERS = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}
_TEXTS = {
    1: "ascii",
    2: "ascii",
    4: "utf-16-{}",
    16: "utf-8",
    17: "utf-16-{}",
    18: "utf-32-{}",
}
_NUMERIC = [
    "double",
    "single",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
]
_KINDS = ["cell", "struct", "object", "char", "sparse", *_NUMERIC, "function", "opaque"]
_LOGICAL, _COMPLEX = 0x200, 0x800  # flags of a matrix
_EARLY = "it ends early"
_OTHER = "it has an element of type {} where a matrix was expected"
_LARGEST = 2**32 + 8  # bytes of an element and of its head, whose length is stated in 32 bits
_LARGEST_HEAD = 4096  # ours: bytes of flags, dimensions and name, which has at most 63 letters


class Matrix(NamedTuple):
    """A matrix of a file.

    Attributes:
        name: empty in a struct.
        kind: MATLAB's name of its type, such as ``"uint8"``.
        shape: length of each axis; empty for kinds that have no axes.
        order: of the bytes, ``"<"`` or ``">"``.
        body: elements after the name.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    order: str
    body: memoryview

    def values(self) -> npt.NDArray[Any]:
        """Return the numbers, in the type in which they are stored, or the text, one for each row.

        Raises:
            ValueError: if it is another kind of matrix, or has more or fewer numbers than its dimensions state.
        """
        stored, content, _ = _split(self.body, self.order)
        if self.kind == "char" and stored in _TEXTS:
            suffix = "le" if self.order == "<" else "be"
            codec = _TEXTS[stored].format(suffix)
            text = bytes(content).decode(codec)
            letters = text.encode("utf-32-le")
            found = np.frombuffer(letters, "<U1")
        elif self.kind in ("logical", *_NUMERIC) and stored in _NUMBERS:
            found = np.frombuffer(content, self.order + _NUMBERS[stored])
        else:
            raise ValueError(f"{self.name} is of MATLAB's type {self.kind}, stored as {stored}")
        if found.size != math.prod(self.shape):
            raise ValueError(f"{self.name} has shape {self.shape}, but {found.size} numbers follow")
        native = found.dtype.newbyteorder("=")
        copy = found.astype(native)  # which may be written to
        array = copy.reshape(self.shape, order="F")
        return _rows_of_text(array) if self.kind == "char" else array

    def fields(self) -> dict[str, Matrix]:
        """Return the fields of a struct.

        Raises:
            ValueError: if it is not a single struct, or is damaged.
        """
        if self.kind != "struct" or math.prod(self.shape) != 1:
            raise ValueError(f"{self.name} is {self.kind} of shape {self.shape}, not a struct")
        _, length, rest = _split(self.body, self.order)
        (width,) = struct.unpack(f"{self.order}i", length)
        _, names, rest = _split(rest, self.order)
        found = {}
        for start in range(0, len(names), width):
            end = start + width
            name = _text(names[start:end])
            _, content, rest = _split(rest, self.order)
            found[name] = _matrix(content, self.order)
        return found


def mapped(file: BufferedIOBase) -> memoryview:
    """Return the bytes of an open file, which are read when they are needed."""
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def map_path(path: Path) -> memoryview:
    """Return the bytes of a file, see ``mapped``."""
    with path.open("rb") as file:
        return mapped(file)


def read_heads(content: bytes | memoryview) -> Iterator[Matrix]:
    """Yield the matrices of a file; of those that are compressed, only the beginning of the ``body``.

    Raises:
        ValueError, struct.error, zlib.error: if the file is damaged, or not of format 5.
    """
    for packed, body, order in _elements(content):
        head = _unpacked(body, order, _LARGEST_HEAD) if packed else body
        yield _matrix(head, order)


def read_matrix(content: bytes | memoryview, name: str) -> Matrix:
    """Return the matrix of this name.

    Raises:
        KeyError: if there is none.
        ValueError, struct.error, zlib.error: see ``read_heads``.
    """
    elements = _elements(content)
    for head, (packed, body, order) in zip(read_heads(content), elements, strict=True):
        if head.name == name:
            whole = _unpacked(body, order, _LARGEST) if packed else body
            return _matrix(whole, order)
    raise KeyError(name)


def _elements(content: bytes | memoryview) -> Iterator[tuple[bool, memoryview, str]]:
    """Yield for each matrix whether it is compressed, its bytes and their order."""
    rest = memoryview(content)
    mark = bytes(rest[_HEADER - 2 : _HEADER])
    order = _ORDERS.get(mark)
    if order is None:
        raise ValueError("it is not a file of MATLAB's format 5")
    rest = rest[_HEADER:]
    while rest:
        kind, body, rest = _split(rest, order)
        if kind not in (_MATRIX, _COMPRESSED):
            raise ValueError(_OTHER.format(kind))
        yield kind == _COMPRESSED, body, order


def _split(content: memoryview, order: str) -> tuple[int, memoryview, memoryview]:
    """Return the type and the bytes of the first element, and what follows it."""
    kind, size = _tag(content, order)
    if kind >> 16:  # up to four bytes, whose number shares four bytes with the type
        return kind & 0xFFFF, content[4 : 4 + min(kind >> 16, 4)], content[8:]
    body = content[8 : 8 + size]
    if len(body) < size:
        raise ValueError(_EARLY)
    padding = 0 if kind == _COMPRESSED else -size % 8
    return kind, body, content[8 + size + padding :]


def _tag(content: memoryview, order: str) -> tuple[int, int]:
    """Return the type of the first element, and the number of its bytes."""
    if len(content) < 8:
        raise ValueError(_EARLY)
    kind, size = struct.unpack_from(f"{order}II", content)
    return kind, size


def _unpacked(packed: memoryview, order: str, most: int) -> memoryview:
    """Return the bytes of a compressed matrix; no more than ``most`` are unpacked."""
    unpacker = zlib.decompressobj()
    unpacked = memoryview(unpacker.decompress(packed, most))
    kind, size = _tag(unpacked, order)
    body = unpacked[8:]
    if kind != _MATRIX:
        raise ValueError(_OTHER.format(kind))
    if len(body) < min(size, most - 8):
        raise ValueError(_EARLY)
    return body


def _matrix(content: memoryview, order: str) -> Matrix:
    """Read flags, dimensions and name."""
    _, flags, rest = _split(content, order)
    (flag,) = struct.unpack_from(f"{order}I", flags)
    number = flag & 0xFF
    if not 1 <= number <= len(_KINDS):
        raise ValueError(f"it has a matrix of type {number}")
    kind = "logical" if flag & _LOGICAL else _KINDS[number - 1]
    if flag & _COMPLEX:
        kind = f"complex {kind}"
    shape: tuple[int, ...] = ()
    if kind != "opaque":
        _, sizes, rest = _split(rest, order)
        shape = struct.unpack(f"{order}{len(sizes) // 4}i", sizes)
    if min(shape, default=0) < 0:
        raise ValueError(f"it has a matrix of shape {shape}")
    _, name, rest = _split(rest, order)
    return Matrix(_text(name), kind, shape, order, rest)


def _text(content: memoryview) -> str:
    return bytes(content).split(b"\0")[0].decode("latin-1")


def _rows_of_text(letters: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Join the last axis."""
    *outer, length = letters.shape
    if not letters.size:
        return np.zeros(0, "U1")  # whatever the other lengths, which cost a damaged file nothing
    return np.ascontiguousarray(letters).view(f"U{length}").reshape(outer)
