"""Pictures of a folder, decoded once into a single file of pixels, from which training reads them."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from filelock import FileLock
from PIL import ExifTags, Image
from torch import Tensor

from capsule_lab.data.download import filling
from capsule_lab.data.folder_listing import ListedPicture, Listing, list_folder, list_pictures
from capsule_lab.data.formats import pictures
from capsule_lab.data.loader import Images, PixelFile, Rows
from capsule_lab.data.sources import AbstractSource
from capsule_lab.errors import DataError, one_line, printable
from capsule_lab.system.files import expanded, open_regular, read_regular

log = logging.getLogger(__name__)

FORMAT = 1
"""Version of the packed file; part of its key."""
_PIXELS = "pixels.u8"
_INDEX = "index.json"
_SAMPLE = 20  # ours: pictures per class that decide between grey and colour
_NAMED = 5  # ours: pictures that a message names
_BLOCK = 1024  # ours: pictures that are read before they are written
_MEASURED = 100  # ours: pictures whose widths and heights the index keeps, evenly spaced
_ALWAYS_HASHED = 2**28  # ours: bytes, which take less than a second
_TURNED = (5, 6, 7, 8)  # EXIF: orientations by a quarter turn
_GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "F")  # modes of Pillow


Size = int | Sequence[int]
"""Pixels a side of square images, or height and width of oblong ones."""


def height_and_width(size: Size) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


class Unreadable(NamedTuple):
    """A picture that cannot be read, with its path relative to the folder."""

    file: str
    reason: str


class _Written(NamedTuple):
    """What was written to the file of pixels."""

    kept: list[ListedPicture]
    bad: list[Unreadable]
    sha256: str


class PackedFolder(AbstractSource):
    """Pictures of a folder, packed into ``<directory>/folder-<key>`` when they are first needed.

    The key depends on name, size and time of every file and on all options of reading, so that a changed picture leads
    to a new pack. ``pixels.u8`` has the pixels ``(n, channel, height, width)``, and ``index.json`` their names, and the
    widths and heights of some pictures.
    ``path`` is ``None`` in a configuration that does not name it; ``reading`` is ``size``, ``fit`` and ``background``.
    With ``by_class=False``, the names of folders are not classes: all labels are 0.
    Pictures that cannot be read are an error with ``bad="fail"``, and left out with ``"skip"``. Links to pictures and
    to folders of classes are followed, because data is often linked; what is no regular file cannot be read.
    """

    def __init__(
        self, path: str | None, directory: Path, *, bad: str, workers: int, **reading: Any
    ) -> None:
        self.path = None if path is None else expanded(path).absolute()
        self.directory = directory
        self.bad = bad
        self.workers = workers
        self.reading = reading
        self.channels: int | None = None
        self.known: tuple[str, ...] = ()
        self.by_class = True
        self.index: dict[str, Any] = {}
        self.folder = directory

    @property
    def root(self) -> Path:
        """The folder of the pictures.

        Raises:
            DataError: if the configuration does not name it.
        """
        if self.path is None:
            raise DataError(
                "data.path is missing; expected data.path=<a folder with a folder of pictures per class>"
            )
        return self.path

    @cached_property
    def listing(self) -> Listing:
        return list_folder(self.root, self.known) if self.by_class else list_pictures(self.root)

    @property
    def kept(self) -> list[ListedPicture]:
        """The pictures in the file of pixels, in its order; call ``find`` first."""
        return [ListedPicture(*picture) for picture in self.index["files"]]

    def find_channels(self) -> int:
        """Return the number of channels; 1 if the first pictures of every class are grey."""
        if self.channels is None:
            self.channels = 1 if self._sample_is_grey() else 3
        return self.channels

    def _sample_is_grey(self) -> bool:
        files_by_class: list[list[str]] = [[] for _ in self.listing.classes]
        for picture in self.listing.files:
            files_by_class[picture.label].append(picture.file)
        for files in files_by_class:
            step = max(1, len(files) // _SAMPLE)
            for file in files[::step]:
                if not _is_grey(self.root / file):
                    return False
        return True

    def is_here(self) -> bool:
        return (self._pack_folder() / _INDEX).is_file()

    def find(self) -> None:
        self.folder = self._pack_folder()
        # several runs of a sweep may start at once
        lock = FileLock(self.folder.with_name(f".{self.folder.name}.lock"))
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with lock:
                if not (self.folder / _INDEX).is_file():
                    self._pack()
        except OSError as error:
            reason = error.strerror or one_line(error)
            raise DataError(
                f"the pictures of {self.path} cannot be written to {self.folder} ({reason}); expected a writable "
                "directory with enough space: choose another one with data.directory=…"
            ) from error
        self.index = self._read_index()
        self._check_readable([Unreadable(*each) for each in self.index["bad"]])
        self._check_every_class_is_kept()

    def load(self, *, train: bool) -> Images:
        stored = PixelFile(self.folder / _PIXELS, self.index["shape"])
        rows = []
        labels = []
        for row, picture in enumerate(self.kept):
            is_wanted = picture.part != "test" if train else picture.part in ("", "test")
            if is_wanted:
                rows.append(row)
                labels.append(picture.label)
        images = Rows(stored, torch.tensor(rows, dtype=torch.int64))
        return Images(cast(Tensor, images), torch.tensor(labels, dtype=torch.int64))

    def provenance(self) -> dict[str, Any]:
        return {
            "name": f"pictures of {self.root.name}",
            "pictures": len(self.index["files"]),
            "left_out": len(self.index["bad"]),
            "sha256": self.index["sha256"],
        }

    def _pack_folder(self) -> Path:
        return self.directory / f"folder-{self._key()[:16]}"

    def _key(self) -> str:
        """Return a SHA-256 of everything that determines the pixels of the pack."""
        states = [(*picture, *_state(self.root / picture.file)) for picture in self.listing.files]
        content = [
            FORMAT,
            self.reading,
            self.find_channels(),
            self.listing.classes,
            self.bad,
            states,
        ]
        return hashlib.sha256(json.dumps(content).encode(errors="surrogateescape")).hexdigest()

    def _image_shape(self) -> tuple[int, int, int]:
        return self.find_channels(), *height_and_width(self.reading["size"])

    # --- writing

    def _pack(self) -> None:
        image_shape = self._image_shape()
        number = len(self.listing.files)
        needed = number * math.prod(image_shape)
        free = shutil.disk_usage(self.directory).free
        if needed > free:
            raise OSError(f"{needed / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free")
        log.info("reading %d pictures of %s", number, self.path)
        with filling(self.folder) as scratch:
            written = self._write_pixels(scratch / _PIXELS, self.find_channels())
            if self.bad == "fail":
                self._check_readable(written.bad)
            index = {
                "files": written.kept,
                "bad": written.bad,
                "shape": (len(written.kept), *image_shape),
                "sha256": written.sha256,
                "sides": self._sides(),
            }
            (scratch / _INDEX).write_text(json.dumps(index), encoding="utf-8")

    def _write_pixels(self, path: Path, channels: int) -> _Written:
        kept: list[ListedPicture] = []
        bad: list[Unreadable] = []
        digest = hashlib.sha256()
        with path.open("wb") as out:
            for picture, pixels in zip(self.listing.files, self._read(channels), strict=True):
                if isinstance(pixels, str):
                    bad.append(Unreadable(picture.file, reason=pixels))
                    continue
                digest.update(pixels)
                out.write(pixels)
                kept.append(picture)
        return _Written(kept, bad, digest.hexdigest())

    def _read(self, channels: int) -> Iterator[bytes | str]:
        """Yield the result of ``read_pixels`` for each listed picture, in this order."""
        read = partial(read_pixels, channels=channels, **self.reading)
        paths = [self.root / picture.file for picture in self.listing.files]
        # Pillow warns of damaged metadata, which does not matter here
        with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(self.workers) as pool:
            for first in range(0, len(paths), _BLOCK):
                yield from pool.map(read, paths[first : first + _BLOCK])

    def _sides(self) -> list[tuple[int, int]]:
        """Return width and height of pictures throughout the folder, without those that cannot be read."""
        step = math.ceil(len(self.listing.files) / _MEASURED)
        sides = []
        for picture in self.listing.files[::step]:
            size = _size(self.root / picture.file)
            if size is not None:
                sides.append(size)
        return sides

    # --- checks

    def _check_readable(self, bad: Sequence[Unreadable]) -> None:
        """Fail if there are pictures that cannot be read; log them instead if they are left out."""
        if not bad:
            return
        named = ", ".join(f"{file} ({reason})" for file, reason in bad[:_NAMED])
        more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        what = (
            f"{len(bad)} of {len(self.listing.files)} pictures of {self.path} cannot be read: "
            f"{printable(named)}{more}"
        )
        if self.bad == "fail":
            raise DataError(
                f"{what}; expected pictures: remove them, or leave them out with data.bad=skip"
            )
        log.warning("%s; they are left out", printable(what))

    def _check_every_class_is_kept(self) -> None:
        listed = {(picture.part, picture.label) for picture in self.listing.files}
        kept = {(picture.part, picture.label) for picture in self.kept}
        lost = sorted(listed - kept)
        if lost:
            part, label = lost[0]
            folder = self.root / part / self.listing.classes[label]
            raise DataError(
                f"no picture of {folder} can be read; expected one or more: replace them"
            )

    def _read_index(self) -> dict[str, Any]:
        """Return the index, after a check that it and the pixels are those that were written for this listing."""
        try:
            index: dict[str, Any] = json.loads(read_regular(self.folder / _INDEX))
            problem = self._problem_of_index(index) or self._problem_of_pixels(index)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            problem = f"{type(error).__name__}: {one_line(error)[:200]}"
        if problem:
            raise DataError(
                f"{self.folder} is damaged ({problem}): remove it, and the pictures are read again"
            )
        return index

    def _problem_of_index(self, index: Any) -> str:
        left_out = {name for name, reason in index["bad"] if isinstance(reason, str)}
        kept = [[*picture] for picture in self.listing.files if picture.file not in left_out]
        is_complete = len(kept) + len(index["bad"]) == len(self.listing.files)
        if index["files"] != kept or not is_complete:
            return f"{_INDEX} does not have the pictures of {self.path}"
        shape = [len(kept), *self._image_shape()]
        return "" if index["shape"] == shape else f"{_INDEX} has another shape than {shape}"

    def _problem_of_pixels(self, index: Mapping[str, Any]) -> str:
        """Compare size and SHA-256; the latter of a large file only if it was changed after the index was written."""
        written = (self.folder / _INDEX).stat().st_mtime_ns
        expected = math.prod(index["shape"])
        with open_regular(self.folder / _PIXELS) as file:
            state = os.fstat(file.fileno())
            if state.st_size != expected:
                return f"{_PIXELS} has {state.st_size} bytes instead of {expected}"
            if state.st_size > _ALWAYS_HASHED and state.st_mtime_ns <= written:
                return ""
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != index["sha256"]:
            return f"{_PIXELS} has another SHA-256 than in {_INDEX}"
        return ""


def _state(path: Path) -> tuple[int, int]:
    """Return size and time of a file; zeros for a broken link."""
    try:
        state = path.stat()
    except OSError:
        return 0, 0
    return state.st_size, state.st_mtime_ns


def _size(path: Path) -> tuple[int, int] | None:
    """Return width and height of a picture, upright, from the beginning of its file; ``None`` if it cannot be read."""
    try:
        with open_regular(path) as file, Image.open(file) as picture:
            width, height = picture.size
            is_turned = picture.getexif().get(ExifTags.Base.Orientation, 1) in _TURNED
            return (height, width) if is_turned else (width, height)
    except Exception:  # of any kind, from Pillow; reported when all pictures are read
        return None


def _is_grey(path: Path) -> bool:
    """Return whether a picture is grey, from the beginning of its file; ``True`` if it cannot be read."""
    try:
        with open_regular(path) as file, Image.open(file) as picture:
            return picture.mode in _GREY
    except Exception:  # of any kind, from Pillow; reported when all pictures are read
        return True


def read_pixels(
    path: Path, *, size: Size, channels: int, fit: pictures.Fit, background: str
) -> bytes | str:
    """Return the pixels ``(channel, height, width)`` of a picture as bytes, or the reason why it cannot be read."""
    height, width = height_and_width(size)
    try:
        opened = pictures.open_picture(path, max(height, width))
        opaque = pictures.opaque(opened, background)
        fitted = pictures.fitted(opaque, (width, height), fit, background)
        return pictures.as_pixels(fitted, channels).numpy().tobytes()
    except DataError as error:
        return str(error).removeprefix(f"{path} cannot be read: ")
