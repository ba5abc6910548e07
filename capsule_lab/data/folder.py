"""Pictures of one's own: a folder for each class. They are read once, into a file of their pixels."""

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
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from filelock import FileLock
from PIL import Image, ImageColor
from torch import Tensor

from capsule_lab.data.base import AbstractDataModule
from capsule_lab.data.download import filling
from capsule_lab.data.formats import pictures
from capsule_lab.data.loader import Images, PixelFile, Rows
from capsule_lab.data.mnist import check_shift
from capsule_lab.data.sources import AbstractSource
from capsule_lab.data.splits import Indices, Validation, parse_share, split_validation
from capsule_lab.data.transforms import (
    random_integers,
    random_shift,
    to_unit_interval,
    transform_each,
)
from capsule_lab.errors import (
    DataError,
    check_choice,
    check_number,
    is_unicode,
    one_line,
    printable,
)
from capsule_lab.system.files import expanded, open_regular, read_regular
from capsule_lab.types import DataSpec

log = logging.getLogger(__name__)

FORMAT = 1
"""Version of the packed file; part of its key."""
PARTS = ("train", "val", "test")
_PIXELS, _INDEX = "pixels.u8", "index.json"
_SAMPLE = 20  # ours: pictures per class that decide between grey and colour
_NAMED = 5  # ours: pictures that a message names
_BLOCK = 1024  # ours: pictures that are read before they are written
_THREADS = 8  # ours: more would wait for the disk
_LOOKED_AT = 100  # ours: pictures whose proportions are looked at, evenly spaced
_LEAST_SHARE = 0.5  # ours: share of a picture that a crop should keep
_LEAST_PIXELS = 4  # ours: fewer pixels, along the short side of a padded picture, show nothing
_ALWAYS_HASHED = 2**28  # ours: bytes, which take less than a second
_FEW = 1000  # ours: with fewer training pictures, networks here learn them by heart
_SPLIT_SEED = 0  # ours: test and validation pictures must not change with the seed of a run
_MIRROR = 2  # stream of its random draws, after those of the shift
_GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "F")  # modes of Pillow


class Listing(NamedTuple):
    """Names of the files in a folder of pictures.

    Attributes:
        classes: names of the classes, sorted.
        files: path relative to the folder, class and part of each picture; without parts, the part is empty.
    """

    classes: tuple[str, ...]
    files: list[tuple[str, int, str]]

    @property
    def parts(self) -> set[str]:
        return {part for _, _, part in self.files}


def list_folder(path: Path, known: tuple[str, ...] = ()) -> Listing:
    """List the pictures in ``<path>/<class>/**``, or in ``<path>/train/<class>/**`` and the same for val and test.

    ``known`` are the classes of a trained network, which number the folders; by default the classes are the folders.
    Raise a ``DataError`` if there is no such folder, or if its folders are not those of two or more classes.
    """
    top = _folders(path)
    has_parts = "train" in top
    if has_parts and (others := [name for name in top if name not in PARTS]):
        raise DataError(
            f"{path} has train and {others[0]}; expected only train, val and test beside it: rename it"
        )
    parts = {part: path / part for part in PARTS if part in top} if has_parts else {"": path}
    folders = {part: _folders(folder) for part, folder in parts.items()}
    classes = known or tuple(next(iter(folders.values())))
    for name in classes:
        if not is_unicode(name):
            raise DataError(
                f"{path} has a folder named {name!a}; expected a name in UTF-8: rename it"
            )
    if len(classes) < 2:
        found = f"one class, {classes[0]}" if classes else "no folders"
        where = next(iter(parts.values()))
        raise DataError(
            f"{where} has {found}; expected two classes or more, and a folder of pictures for each of them"
        )
    files: list[tuple[str, int, str]] = []
    for part, names in folders.items():
        for name in names:
            folder = parts[part] / name
            if name not in classes:
                owner = "the network" if known else "train"
                raise DataError(
                    f"{folder} is not a class of {owner}; expected folders named {', '.join(classes)}"
                )
            found_pictures = pictures.pictures_in(folder)
            if not found_pictures:
                raise DataError(
                    f"{folder} has no pictures; expected files that end in {', '.join(pictures.ENDINGS)}: add some, or "
                    "remove the folder"
                )
            files += [
                (os.path.relpath(file, path), classes.index(name), part) for file in found_pictures
            ]
    return Listing(classes, files)


def _folders(path: Path) -> list[str]:
    """Return the sorted names of the folders in ``path``, also of links to folders."""
    try:
        with os.scandir(path) as entries:
            return sorted(
                each.name
                for each in entries
                if os.path.isdir(each) and not pictures.is_hidden(each.name)
            )
    except OSError as error:
        raise DataError(
            f"data.path: {path} cannot be read ({error.strerror}); expected a folder with a folder of pictures for "
            "each class"
        ) from error


class PackedFolder(AbstractSource):
    """Pictures of a folder, packed into ``<directory>/folder-<key>`` when they are first needed.

    The key depends on name, size and time of every file and on all options of reading, so that a changed picture makes
    another pack. ``pixels.u8`` has the pixels ``(n, channel, size, size)``, and ``index.json`` their names, and the
    widths and heights of some pictures.
    ``path`` is ``None`` in a configuration that does not name it; ``reading`` is ``size``, ``fit`` and ``background``.
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
        self.index: dict[str, Any] = {}
        self.folder = directory

    @cached_property
    def listing(self) -> Listing:
        if self.path is None:
            raise DataError(
                "data.path is missing; expected data.path=<a folder with a folder of pictures per class>"
            )
        return list_folder(self.path, self.known)

    def find_channels(self) -> int:
        """Return the number of channels; 1 if the first pictures of every class are grey."""
        if self.channels is None:
            path, listing = cast(Path, self.path), self.listing
            of_class = (
                [name for name, number, _ in listing.files if number == k]
                for k in range(len(listing.classes))
            )
            sample = (
                path / name
                for names in of_class
                for name in names[:: max(1, len(names) // _SAMPLE)]
            )
            self.channels = 1 if all(map(_is_grey, sample)) else 3
        return self.channels

    def _sides(self) -> list[tuple[int, int]]:
        """Return width and height of pictures throughout the folder, without those that cannot be read."""
        path, files = cast(Path, self.path), self.listing.files
        found = (_size(path / name) for name, _, _ in files[:: -(-len(files) // _LOOKED_AT)])
        return [size for size in found if size is not None]

    def is_here(self) -> bool:
        return (self.directory / f"folder-{self._key()[:16]}" / _INDEX).is_file()

    def find(self) -> None:
        key = self._key()
        self.folder = self.directory / f"folder-{key[:16]}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with FileLock(
                self.folder.with_name(f".{self.folder.name}.lock")
            ):  # several runs of a sweep
                if not (self.folder / _INDEX).is_file():
                    self._pack()
        except OSError as error:
            reason = error.strerror or one_line(error)
            raise DataError(
                f"the pictures of {self.path} cannot be written to {self.folder} ({reason}); expected a writable "
                "directory with enough space: choose another one with data.directory=…"
            ) from error
        self.index = self._read_index()
        self._check_readable(self.index["bad"])

    def load(self, *, train: bool) -> Images:
        files = self.index["files"]
        stored = PixelFile(self.folder / _PIXELS, self.index["shape"])
        chosen = [
            row
            for row, (_, _, part) in enumerate(files)
            if (part != "test" if train else part in ("", "test"))
        ]
        rows = torch.tensor(chosen, dtype=torch.int64)
        labels = torch.tensor([files[row][1] for row in chosen], dtype=torch.int64)
        return Images(cast(Tensor, Rows(stored, rows)), labels)

    def provenance(self) -> dict[str, Any]:
        return {
            "name": f"pictures of {cast(Path, self.path).name}",
            "pictures": len(self.index["files"]),
            "left_out": len(self.index["bad"]),
            "sha256": self.index["sha256"],
        }

    def _key(self) -> str:
        facts = [(*file, *_state(cast(Path, self.path) / file[0])) for file in self.listing.files]
        content = [
            FORMAT,
            self.reading,
            self.find_channels(),
            self.listing.classes,
            self.bad,
            facts,
        ]
        return hashlib.sha256(json.dumps(content).encode(errors="surrogateescape")).hexdigest()

    def _pack(self) -> None:
        path, files, size = cast(Path, self.path), self.listing.files, self.reading["size"]
        channels = self.find_channels()
        needed, free = len(files) * channels * size**2, shutil.disk_usage(self.directory).free
        if needed > free:
            raise OSError(f"{needed / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free")
        log.info("reading %d pictures of %s", len(files), path)
        kept, bad, digest = [], [], hashlib.sha256()
        with filling(self.folder) as scratch:
            with (scratch / _PIXELS).open("wb") as out:
                read = partial(read_pixels, channels=channels, **self.reading)
                for file, pixels in zip(
                    files, self._read([path / file[0] for file in files], read), strict=True
                ):
                    if isinstance(pixels, str):
                        bad.append((file[0], pixels))
                        continue
                    digest.update(pixels)
                    out.write(pixels)
                    kept.append(file)
            if self.bad == "fail":
                self._check_readable(bad)
            shape = len(kept), channels, size, size
            index = {
                "files": kept,
                "bad": bad,
                "shape": shape,
                "sha256": digest.hexdigest(),
                "sides": self._sides(),
            }
            (scratch / _INDEX).write_text(json.dumps(index), encoding="utf-8")

    def _read(self, paths: Sequence[Path], read: Any) -> Iterator[bytes | str]:
        with (
            warnings.catch_warnings(action="ignore"),
            ThreadPoolExecutor(self.workers) as pool,
        ):  # Pillow's metadata
            for first in range(0, len(paths), _BLOCK):
                yield from pool.map(read, paths[first : first + _BLOCK])

    def _check_readable(self, bad: Sequence[Sequence[str]]) -> None:
        """Fail or log if there are pictures that cannot be read, and fail if a class has no others."""
        if bad:
            named = printable(", ".join(f"{name} ({reason})" for name, reason in bad[:_NAMED]))
            more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
            what = f"{len(bad)} of {len(self.listing.files)} pictures of {self.path} cannot be read: {named}{more}"
            if self.bad == "fail":
                raise DataError(
                    f"{what}; expected pictures: remove them, or leave them out with data.bad=skip"
                )
            log.warning("%s; they are left out", printable(what))
        of_files, of_kept = (
            {(part, k) for _, k, part in files}
            for files in (self.listing.files, self.index.get("files", ()))
        )
        if self.index and (lost := sorted(of_files - of_kept)):
            part, number = lost[0]
            folder = cast(Path, self.path) / part / self.listing.classes[number]
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
        kept = [[*file] for file in self.listing.files if file[0] not in left_out]
        shape = [len(kept), self.find_channels(), self.reading["size"], self.reading["size"]]
        if index["files"] != kept or len(kept) + len(index["bad"]) != len(self.listing.files):
            return f"{_INDEX} does not have the pictures of {self.path}"
        return "" if index["shape"] == shape else f"{_INDEX} has another shape than {shape}"

    def _problem_of_pixels(self, index: Mapping[str, Any]) -> str:
        """Compare size and SHA-256; the latter of a large file only if it was changed after the index was written."""
        written = (self.folder / _INDEX).stat().st_mtime_ns
        with open_regular(self.folder / _PIXELS) as file:
            state, expected = os.fstat(file.fileno()), math.prod(index["shape"])
            if state.st_size != expected:
                return f"{_PIXELS} has {state.st_size} bytes instead of {expected}"
            if state.st_size > _ALWAYS_HASHED and state.st_mtime_ns <= written:
                return ""
            same = hashlib.file_digest(file, "sha256").hexdigest() == index["sha256"]
            return "" if same else f"{_PIXELS} has another SHA-256 than in {_INDEX}"


def _state(path: Path) -> tuple[int, int]:
    """Return size and time of a file; zeros for a broken link."""
    try:
        state = path.stat()
    except OSError:
        return 0, 0
    return state.st_size, state.st_mtime_ns


def _size(path: Path) -> tuple[int, int] | None:
    """Return width and height of a picture, from the beginning of its file; ``None`` if it cannot be read."""
    try:
        with open_regular(path) as file, Image.open(file) as picture:
            return picture.size
    except Exception:  # of any kind, from Pillow; reported when all pictures are read
        return None


def _is_grey(path: Path) -> bool:
    """Return whether a picture is grey, from the beginning of its file; one that cannot be read does not matter."""
    try:
        with open_regular(path) as file, Image.open(file) as picture:
            return picture.mode in _GREY
    except Exception:  # of any kind, from Pillow; reported when all pictures are read
        return True


def read_pixels(
    path: Path, *, size: int, channels: int, fit: pictures.Fit, background: str
) -> bytes | str:
    """Return the pixels ``(channel, size, size)`` of a picture as bytes, or the reason why it cannot be read."""
    try:
        picture = pictures.opaque(pictures.open_picture(path, size), background)
        return (
            pictures.as_pixels(pictures.fitted(picture, (size, size), fit, background), channels)
            .numpy()
            .tobytes()
        )
    except DataError as error:
        return str(error).removeprefix(f"{path} cannot be read: ")


class PictureFolder(AbstractDataModule):
    """Pictures in a folder for each class, torchvision's ``ImageFolder``; pixels in [0, 1].

    The layout is ``<path>/<class>/**.png``, or ``<path>/train/<class>/**.png`` with ``val`` and ``test`` beside
    ``train``. Test and validation pictures that have no folder are drawn from the others in proportion to the classes,
    and do not depend on the seed. Without augmentation, networks learn a few hundred pictures by heart, so that
    shifts are on by default. The constructor reads no files; ``spec`` lists the folder.

    Args:
        path: the folder.
        size: pixels a side; pictures become squares.
        channels: 1, 3, or ``"auto"``: 1 if a sample of the pictures is grey.
        fit: see ``formats.pictures.fitted``.
        background: name or ``#rrggbb`` of the colour that replaces transparency.
        bad: ``"fail"`` or ``"skip"`` pictures that cannot be read.
        test_share: share of all pictures to test on, if there is no folder ``test``.
        shift: largest shift of training pictures in each direction, in pixels; ``None`` is a tenth of ``size``.
        mirror: mirror half of the training pictures.
        augment_with: further random transformations, each the name of a class of ``torchvision.transforms.v2`` or a
            mapping of the name to its arguments; applied before mirroring and shifting.
        workers: number of threads that read pictures, or ``"auto"``.
        batch_size, eval_batch_size, validation, validation_share, options: see ``AbstractDataModule``.

    Raises:
        DataError: from ``spec`` and ``prepare_data``, if the folder or its pictures cannot be used.
    """

    validations = ("stratified", "none")
    real_source: PackedFolder

    def __init__(
        self,
        *,
        path: str | None = None,
        size: int = 64,
        channels: Literal["auto"] | int = "auto",
        fit: pictures.Fit = "crop",
        background: str = "white",
        bad: Literal["fail", "skip"] = "fail",
        test_share: float | str = "1/5",
        shift: int | None = None,
        mirror: bool = False,
        augment_with: Sequence[Any] = (),
        workers: Literal["auto"] | int = "auto",
        batch_size: int = 32,  # ours: several steps per epoch also with few pictures
        eval_batch_size: int = 100,  # ours
        validation: str = "stratified",
        **options: Any,
    ) -> None:
        super().__init__(
            batch_size=batch_size, eval_batch_size=eval_batch_size, validation=validation, **options
        )
        check_number("data.size", size, 2)
        check_choice("data.channels", channels, ("auto", 1, 3))
        check_choice("data.fit", fit, ("crop", "pad", "stretch"))
        check_choice("data.bad", bad, ("fail", "skip"))
        if workers != "auto":
            check_number("data.workers", workers, 1)
        try:
            ImageColor.getrgb(background)
        except ValueError as error:
            raise ValueError(
                f"data.background is {background!r}; expected a colour, such as white or #808080"
            ) from error
        self.size = size
        self.fit = fit
        self.background = background
        self.test_share = parse_share(test_share, "data.test_share")
        self.shift = size // 10 if shift is None else shift
        check_shift(self.shift, size)
        self.mirror = mirror
        self.pipeline = transformations(augment_with, 1 if channels == 1 else 3, size)
        self.real_source = PackedFolder(
            path, self.directory, bad=bad, workers=min(_THREADS, os.cpu_count() or 1) if workers == "auto" else workers,
            size=size, fit=fit, background=background,
        )  # fmt: skip
        self.real_source.channels = None if channels == "auto" else channels
        self._spec: DataSpec | None = None
        self._split: tuple[Indices, Indices] | None = None

    @property
    def spec(self) -> DataSpec:
        if self._spec is None:
            classes = self.real_source.listing.classes
            self._spec = DataSpec(
                (self.real_source.find_channels(), self.size, self.size), len(classes), classes
            )
        return self._spec

    def use_spec(self, spec: DataSpec) -> None:
        source, (channels, *_) = self.real_source, spec.image_shape
        if spec.classes:
            source.known = spec.classes
            source.channels = source.channels or channels
            self._spec = DataSpec(
                (source.channels, self.size, self.size), spec.num_classes, spec.classes
            )

    @property
    def input_form(self) -> dict[str, Any]:
        return super().input_form | {"fit": self.fit, "background": self.background}

    def load(self, *, train: bool) -> Images:
        images = super().load(train=train)
        if "test" in self.real_source.listing.parts:
            return images
        labels = images.labels.numpy()
        rest, test = split_validation(
            labels, "stratified", self.test_share, _SPLIT_SEED, "data.test_share"
        )
        return images.subset(rest if train else test)

    def split_training(self, images: Images) -> tuple[Indices, Indices]:
        rows = cast(Any, images.images).rows.tolist()
        parts = np.array([self.real_source.index["files"][row][2] for row in rows])
        if "val" in parts:
            return np.flatnonzero(parts != "val"), np.flatnonzero(parts == "val")
        validation = cast(Validation, self.validation)
        return split_validation(
            images.labels.numpy(), validation, self.validation_share, _SPLIT_SEED
        )

    def _setup_training(self) -> None:
        super()._setup_training()
        warn_of_fit(self.real_source.index.get("sides", ()), self.size, self.fit)
        number = len(self.sets["train"].labels)
        if number < _FEW:
            log.warning(
                "%d training pictures are few: the training error will fall far below the validation error; add "
                "pictures or transformations, such as data.mirror=true or data.augment_with=[{RandomRotation: {degrees:"
                " 10}}]",
                number,
            )

    def transform(self, images: Tensor, key: Tensor, *, augment: bool) -> Tensor:
        if augment and self.pipeline is not None:
            images = transform_each(self.pipeline, images, key)
        pixels = to_unit_interval(images)
        if augment and self.mirror:
            mirrored = random_integers(key, _MIRROR, 0, 1).bool()
            pixels = torch.where(mirrored[:, None, None, None], pixels.flip(3), pixels)
        return random_shift(pixels, key, self.shift) if augment else pixels


def warn_of_fit(sides: Sequence[Sequence[int]], size: int, fit: pictures.Fit) -> None:
    """Warn if a square of ``size`` pixels shows little of most pictures, whose widths and heights are ``sides``."""
    if not sides or fit == "stretch":
        return
    width, height = sorted(sides, key=lambda side: min(side) / max(side))[len(sides) // 2]
    share = min(width, height) / max(width, height)
    is_thin = share * size < _LEAST_PIXELS
    if fit == "pad" and is_thin:
        log.warning(
            "with data.fit=pad, most pictures take fewer than %d of %d pixels in one direction, such as one of %dx%d; "
            "set data.fit=stretch, which changes their proportions, or a larger data.size",
            *(_LEAST_PIXELS, size, width, height),
        )
    if fit == "crop" and share < _LEAST_SHARE:
        log.warning(
            "data.fit=crop keeps the middle square only and cuts off most of most pictures, such as %.0f %% of one of "
            "%dx%d; set data.fit=%s",
            *(100 * (1 - share), width, height),
            "stretch, which changes their proportions"
            if is_thin
            else "pad, which keeps everything, or stretch",
        )


def transformations(names: Sequence[Any], channels: int, size: int) -> Any:
    """Build the option ``augment_with``, or return ``None`` if it is empty, after a trial on a black image.

    Only classes of ``torchvision.transforms.v2`` with plain arguments are built, because a configuration may come from
    a file of others. Raise a ``ValueError`` if a name is not such a class, or if arguments or result are not suitable.
    """
    if not names:
        return None
    from torchvision.transforms import v2  # slow to import

    steps = []
    for item in names:
        given = dict(item) if isinstance(item, Mapping) else {item: {}}
        name, arguments = next(iter(given.items()), (None, {}))
        kind = getattr(v2, name, None) if isinstance(name, str) else None
        if len(given) != 1 or not isinstance(kind, type) or not issubclass(kind, v2.Transform):
            raise ValueError(
                f"data.augment_with contains {item!r}; expected classes of torchvision.transforms.v2 with their "
                "arguments, such as [{RandomRotation: {degrees: 10}}]"
            )
        try:
            steps.append(kind(**(arguments or {})))
        except Exception as error:  # of any kind, from torchvision
            raise ValueError(
                f"data.augment_with: {name} refuses its arguments: {one_line(error)}"
            ) from error
    pipeline = v2.Compose(steps)
    image = torch.zeros(1, channels, size, size, dtype=torch.uint8)
    try:
        result = transform_each(pipeline, image, torch.zeros(1, dtype=torch.int64))
        found = f"{result.dtype} of shape {tuple(result.shape[1:])}"
    except Exception as error:  # of any kind, from torchvision
        found = one_line(error)
    if found != (expected := f"{image.dtype} of shape {tuple(image.shape[1:])}"):
        raise ValueError(
            f"data.augment_with gives {found}; expected transformations that keep {expected}"
        )
    return pipeline
