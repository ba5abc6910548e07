"""Reader of CIFAR10's files, which are Python 2 pickles; it does not run other code that a pickle may contain.

A file can be forged with the right MD5. Its instructions are therefore read first, and only those of the published
files are allowed. Then they are executed with inert objects in place of numpy's classes, and the array is made from
its bytes.
"""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from capsule_lab.data.download import reading
from capsule_lab.errors import DataError

NAME = "CIFAR10"
SIZE = 32  # Krizhevsky 2009: pixels a side
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_INSTRUCTIONS = {
    "PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BUILD", "NONE", "NEWFALSE", "BININT", "BININT1", "BININT2",
    "BINSTRING", "SHORT_BINSTRING", "EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS", "TUPLE",
    "TUPLE1", "TUPLE2", "TUPLE3", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
}  # fmt: skip
"""Names in ``pickletools`` of what protocol 2 needs for text, integers, lists, one dictionary and numpy's array."""
_MOST_TUPLES = 10  # ours: the files have 6; the hash of deeply nested ones overflows the stack of C
_NAMES = ("numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype")
# numpy's dtype of unsigned bytes, as it is pickled
_UINT8_ARGUMENTS = ("u1", 0, 1)
_UINT8_STATE = (3, "|", None, None, None, -1, -1, 0)


class StoredBatch(NamedTuple):
    """The content of one file.

    Attributes:
        pixels: ``(n, 3, 32, 32)``.
        labels: ``(n,)``, indices of ``CLASSES``.
    """

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]


def read_batch(path: Path) -> StoredBatch:
    """Read one file.

    Raises:
        DataError: if the file has another format, or a label is out of range.
    """
    with reading(path, NAME), path.open("rb") as file:
        _check_instructions(file.read())
        file.seek(0)
        batch = _InertUnpickler(file, encoding="latin1").load()
        if type(batch) is not dict:
            raise ValueError(f"it has {type(batch).__name__}, not data and labels")
        if not batch.keys() >= {"data", "labels"}:
            raise ValueError(f"it has {', '.join(map(str, batch))}, not data and labels")
        pixels = _pixels(batch["data"])
        labels = _labels(batch["labels"])
    if len(labels) != len(pixels):
        raise DataError(
            f"{path} holds {len(pixels)} images and {len(labels)} labels; expected as many labels as images: remove it "
            "and its folder to download them again"
        )
    return StoredBatch(pixels.reshape(-1, 3, SIZE, SIZE), labels)


def _check_instructions(content: bytes) -> None:
    """Check that a pickle has only instructions of the published files, before any of them is executed."""
    tuples = 0
    for instruction, argument, _ in pickletools.genops(content):
        name = instruction.name
        if name not in _INSTRUCTIONS:
            raise ValueError(
                f"it has the instruction {name} of pickle; only arrays and lists are allowed"
            )
        if name == "GLOBAL":
            function = str(argument).replace(" ", ".")
            if function not in _NAMES:
                raise ValueError(f"it names {function[:80]}; only numpy's arrays are allowed")
        # pickle would allocate memory for so many objects
        if name == "LONG_BINPUT" and int(argument or 0) > len(content):
            raise ValueError(f"it has object number {argument} in {len(content)} bytes")
        if name.startswith("TUPLE"):
            tuples += 1
    if tuples > _MOST_TUPLES:
        raise ValueError(f"it has {tuples} tuples; expected at most {_MOST_TUPLES}")


class _Inert:
    """Replaces a class or function of numpy and what it returns; it only keeps its arguments."""

    def __init__(self, name: str, arguments: tuple[Any, ...] = ()) -> None:
        self.name = name
        self.arguments = arguments
        self.state: Any = None

    def __call__(self, *arguments: Any) -> _Inert:
        return _Inert(f"{self.name}()", arguments)

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _InertUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _Inert(f"{module}.{name}")


def _pixels(array: Any) -> npt.NDArray[np.uint8]:
    """Make the array ``(n, 3072)`` from the state that numpy wrote: version, shape, dtype, order and bytes."""
    if type(array) is not _Inert or type(array.state) is not tuple or len(array.state) != 5:
        raise ValueError("its data is not an array")
    _, shape, dtype, is_fortran, content = array.state
    if not _is_uint8(dtype) or is_fortran is not False:
        raise ValueError("its data is not uint8, row by row")
    if type(content) is not str or type(shape) is not tuple:
        raise ValueError("its data has no bytes or no shape")
    size = 3 * SIZE**2
    number, remainder = divmod(len(content), size)
    if shape != (number, size) or remainder:
        raise ValueError(
            f"its data has {len(content)} bytes of shape {str(shape)[:80]}; expected (n, {size})"
        )
    pixels = bytearray(content, "latin1")  # from_numpy warns of an array that cannot be written
    return np.frombuffer(pixels, np.uint8).reshape(-1, size)


def _is_uint8(dtype: Any) -> bool:
    if type(dtype) is not _Inert:
        return False
    return dtype.arguments == _UINT8_ARGUMENTS and dtype.state == _UINT8_STATE


def _labels(labels: Any) -> npt.NDArray[np.int64]:
    if type(labels) is not list or not all(type(label) is int for label in labels):
        raise ValueError("its labels are not a list of integers")
    for label in labels:
        if label not in range(len(CLASSES)):
            raise ValueError(f"it has label {label}; expected 0 to {len(CLASSES) - 1}")
    return np.array(labels, dtype=np.int64)
