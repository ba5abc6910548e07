"""Named arrays in files of NumPy (``.npz``, ``.npy``) and MATLAB (``.mat``); reading them runs no code of the file."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from capsule_lab.data.formats import matlab
from capsule_lab.errors import DataError, one_line, printable
from capsule_lab.system.files import open_regular

ENDINGS = (".npz", ".npy", ".mat")
"""Endings of the names of such files."""

_LARGEST = 2**34  # ours: bytes of an array, 5 million colour images of 32x32
_HDF5 = b"MATLAB 7.3"  # how such a file begins
_BYTES_IN_MATLAB = {
    "double": 8,
    "single": 4,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "logical": 1,
    "char": 4,  # as NumPy stores text
}
"""Types of MATLAB that are read, and the bytes of each number."""


class Header(NamedTuple):
    """What a file states about an array before its numbers.

    Attributes:
        shape: length of each axis.
        nbytes: bytes of the array; ``None`` if its elements are no plain numbers or text, such as Python objects.
        kind: name of its type, for messages.
    """

    shape: tuple[int, ...]
    nbytes: int | None
    kind: str


class ArrayFile:
    """A file of arrays. The constructor reads their headers only.

    Attributes:
        path: the file.
        headers: by name of the array; the array of a ``.npy`` file has the name of the file.

    Raises:
        DataError: here and from ``read``, if the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        kind = path.suffix.lower()
        if path.is_dir() or kind not in ENDINGS:
            raise DataError(
                f"{path} is {'a folder' if path.is_dir() else 'another kind of file'}; expected a file of arrays whose "
                f"name ends in {', '.join(ENDINGS)}; for a folder of pictures: data=folder"
            )
        find = {".npz": _headers_of_npz, ".npy": _headers_of_npy, ".mat": _headers_of_mat}[kind]
        with self._opened() as file:
            self.headers = find(file, path)

    @property
    def is_of_matlab(self) -> bool:
        """Whether the first axis may be the height, as in MATLAB."""
        return self.path.suffix.lower() == ".mat"

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of the array of this name; raise a ``DataError`` if it is too large, or no plain array."""
        header = self.headers[name]
        if header.nbytes is None:
            raise DataError(
                f"{self.path}: {name} is {header.kind}; expected numbers or text: convert it, such as with "
                f"{'double() or char()' if self.is_of_matlab else 'np.stack() or astype()'}, and save it again"
            )
        if header.nbytes > _LARGEST:
            raise DataError(
                f"{self.path}: {name} has {header.nbytes / 1e9:.0f} GB; expected at most {_LARGEST / 1e9:.0f}: save it "
                "as uint8, or use data=folder, which reads from disk"
            )
        return header.shape

    def read(self, name: str) -> npt.NDArray[Any]:
        """Return the array of this name, see ``shape_of``."""
        self.shape_of(name)
        with self._opened() as file:
            if self.is_of_matlab:
                return matlab.read_matrix(matlab.mapped(file), name).values()
            if self.path.suffix.lower() == ".npy":
                return np.lib.format.read_array(file, allow_pickle=False)
            with zipfile.ZipFile(file) as packed, packed.open(f"{name}.npy") as member:
                return np.lib.format.read_array(member, allow_pickle=False)

    @contextmanager
    def _opened(self) -> Iterator[BufferedIOBase]:
        """Open the file, and turn errors of the readers in this block into a ``DataError``."""
        try:
            with open_regular(self.path) as file:
                yield file
        except DataError:
            raise
        except FileNotFoundError as error:
            raise DataError(
                f"{self.path} does not exist; expected a .npz, .npy or .mat file: correct data.path, data.labels or "
                "data.groups"
            ) from error
        except (
            Exception
        ) as error:  # readers of formats raise many types of errors for damaged files
            reason = getattr(error, "strerror", None) or one_line(error) or type(error).__name__
            raise DataError(
                f"{self.path} cannot be read ({printable(reason)[:300]}); expected a file of np.savez, np.save or "
                "MATLAB's save -v7: save the arrays again"
            ) from error


def _headers_of_npz(file: BufferedIOBase, _: Path) -> dict[str, Header]:
    headers = {}
    with zipfile.ZipFile(file) as packed:
        for member in packed.namelist():
            if member.endswith(".npy"):
                with packed.open(member) as content:
                    headers[member.removesuffix(".npy")] = _header(content)
    return headers


def _headers_of_npy(file: BufferedIOBase, path: Path) -> dict[str, Header]:
    return {path.stem: _header(file)}


def _header(file: BufferedIOBase | IO[bytes]) -> Header:
    """Read the header of an array in NumPy's format."""
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in read:
        raise ValueError(f"version {version} of the format of .npy")
    shape, _, dtype = read[version](file)
    if dtype.hasobject:
        return Header(shape, None, "an array of Python objects")
    if dtype.names:
        return Header(shape, None, "an array of records")
    return Header(shape, math.prod(shape) * dtype.itemsize, str(dtype))


def _headers_of_mat(file: BufferedIOBase, path: Path) -> dict[str, Header]:
    if file.read(len(_HDF5)) == _HDF5:
        raise DataError(
            f"{path} is of MATLAB 7.3, which is HDF5; expected an older version: save it again with "
            "save('name.mat', 'images', 'labels', '-v7')"
        )
    headers = {}
    for head in matlab.read_heads(matlab.mapped(file)):
        size = _BYTES_IN_MATLAB.get(head.kind)
        nbytes = None if size is None else size * math.prod(head.shape)
        headers[head.name] = Header(head.shape, nbytes, f"of MATLAB's type {head.kind}")
    return headers
