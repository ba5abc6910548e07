"""The data set: rendered toy by toy, written into six files of smallNORB's format."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout
from jaxtyping import Int32
from rich.console import Console
from rich.progress import track

from capsule_lab.data.download import filling
from capsule_lab.data.formats.binary_matrix import write_matrix
from capsule_lab.data.standins.toynorb.rendering import check_levels, check_size_and_seed, render
from capsule_lab.data.standins.toynorb.toys import CATEGORIES, TEST_INSTANCES, TRAIN_INSTANCES
from capsule_lab.errors import DataError

VERSION = 1
"""Raised whenever an image changes."""

STANDIN_NAME = "stand-in for smallNORB: toynorb, 50 toys rendered by capsule_lab"

_GENERATOR = "capsule_lab.data.standins.toynorb"
_SPLITS = {"training": TRAIN_INSTANCES, "testing": TEST_INSTANCES}
_EYES = (-1, 1)

log = logging.getLogger(__name__)


class _Plan(NamedTuple):
    """All that the bytes of the six files depend on."""

    size: int
    elevations: tuple[int, ...]
    azimuths: tuple[int, ...]
    lightings: tuple[int, ...]
    seed: int

    @property
    def views(self) -> tuple[int, ...]:
        """How many elevations, azimuths and lightings."""
        return len(self.elevations), len(self.azimuths), len(self.lightings)

    def record(self) -> dict[str, Any]:
        """For ``provenance.json``."""
        plan = {name: value if isinstance(value, int) else list(value) for name, value in self._asdict().items()}
        return {"name": STANDIN_NAME, "generator": _GENERATOR, "version": VERSION, **plan}

    def file(self, split: str, content: str) -> str:
        """Name of a file: smallNORB's, with the true sizes."""
        instances = "".join(map(str, _SPLITS[split]))
        sizes = "x".join(map(str, (*self.views, len(_EYES), self.size, self.size)))
        return f"smallnorb-{len(CATEGORIES)}x{instances}x{sizes}-{split}-{content}.mat"

    def bytes_of(self, content: str) -> int:
        """Size of a file, with its header of 20 bytes or, in four dimensions, 24."""
        rows = len(CATEGORIES) * len(TRAIN_INSTANCES) * int(np.prod(self.views))
        row = {"dat": len(_EYES) * self.size * self.size, "cat": 4, "info": 16}[content]
        return rows * row + (24 if content == "dat" else 20)


def render_files(
    folder: Path,
    *,
    size: int = 96,
    elevations: Sequence[int] = range(9),
    azimuths: Sequence[int] = range(18),
    lightings: Sequence[int] = range(6),
    seed: int = 0,
    workers: int | None = None,
) -> None:
    """Render training and test toys into six files of smallNORB's format, and ``provenance.json`` beside them.

    Files appear when all are complete; of two processes that render into one folder, the second waits for the first.
    A set that is there already is left as it is.

    Rows are in the order of smallNORB's test files: instance, elevation, azimuth, lighting, and fastest category.

    Args:
        folder: gets the files; created if it does not exist.
        size: edge of the images in pixels; smallNORB's is 96.
        elevations: indices, 0 to 8.
        azimuths: indices, 0 to 17; the files hold twice the index, as smallNORB's do.
        lightings: 0 to 5.
        seed: another seed makes other toys.
        workers: threads; default: one for each core.

    Raises:
        ValueError: for an argument out of its range.
        DataError: if ``folder`` holds other files of that format.
    """
    check_levels(elevations, azimuths, lightings)
    check_size_and_seed(size, seed)
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}; expected 1 or more threads")
    plan = _Plan(size, tuple(elevations), tuple(azimuths), tuple(lightings), seed)
    if _is_complete(folder, plan):
        return
    _refuse_other_files(folder, plan)  # before anything is written there
    with _locked(folder):
        if _is_complete(folder, plan):
            return
        _refuse_other_files(folder, plan)
        with filling(folder) as scratch:
            _write_files(scratch, plan, workers or available_cores())


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def labels_and_info(
    instances: Sequence[int], elevations: Sequence[int], azimuths: Sequence[int], lightings: Sequence[int]
) -> tuple[Int32[np.ndarray, " row"], Int32[np.ndarray, "row 4"]]:
    """Category of each row, and its instance, elevation, azimuth (twice the index) and lighting: see ``render_files``.

    For all levels, these are smallNORB's own files: the categories of both splits, and the test factors.
    """
    twice = [2 * azimuth for azimuth in azimuths]
    grids = np.meshgrid(instances, elevations, twice, lightings, range(len(CATEGORIES)), indexing="ij")
    *factors, categories = (grid.ravel().astype(np.int32) for grid in grids)
    return categories, np.stack(factors, axis=1)


def is_as_rendered(
    record: Mapping[str, Any], split: str, images: np.ndarray, labels: np.ndarray, info: np.ndarray
) -> bool:
    """Whether these are the arrays that ``render_files`` wrote, by the record that it left; hashed in 0.1 s.

    Args:
        record: what is in ``provenance.json``.
        split: ``"training"`` or ``"testing"``.
        images, labels, info: of the three files.
    """
    try:
        levels = [record[name] for name in ("elevations", "azimuths", "lightings")]
        check_levels(*levels)
        expected, known = labels_and_info(_SPLITS[split], *levels), record["sha256"][split]
    except (KeyError, TypeError, ValueError):  # the record itself is damaged
        return False
    same = all(map(np.array_equal, (labels, info), expected))
    return same and hashlib.sha256(np.ascontiguousarray(images).data).hexdigest() == known


def _is_complete(folder: Path, plan: _Plan) -> bool:
    """Whether the record is of this plan, and the six files are there, of the right sizes."""
    if _recorded_plan(folder) != plan.record():
        return False
    files = {folder / plan.file(split, content): content for split in _SPLITS for content in ("dat", "cat", "info")}
    return all(path.is_file() and path.stat().st_size == plan.bytes_of(files[path]) for path in files)


def _recorded_plan(folder: Path) -> dict[str, Any] | None:
    """What ``provenance.json`` says, without the hashes."""
    try:
        record = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return {name: value for name, value in record.items() if name != "sha256"} if isinstance(record, dict) else None


def _refuse_other_files(folder: Path, plan: _Plan) -> None:
    """Check that ``folder`` holds no files of another data set, which would be replaced.

    Raises:
        DataError: if it does.
    """
    other = sorted(path.name for path in folder.glob("smallnorb-*.mat*"))
    if other and _recorded_plan(folder) != plan.record():
        raise DataError(
            f"{folder} holds {other[0]}, which is of another set; expected a folder without smallnorb-*.mat: name "
            "another folder, or remove this one"
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process renders into ``folder``."""
    path = folder.with_name(f".{folder.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        log.info("another process renders into %s: waiting for it", folder)
        lock.acquire()
    try:
        yield
        path.unlink(missing_ok=True)  # while locked: processes that wait then find the files complete
    finally:
        lock.release()


def _write_files(folder: Path, plan: _Plan, workers: int) -> None:
    """Render all toys and write the six files and the record of them."""
    hashes, console = {}, Console(stderr=True)
    for split, instances in _SPLITS.items():
        pair = (len(_EYES), plan.size, plan.size)
        images = np.empty((len(instances), *plan.views, len(CATEGORIES), *pair), np.uint8)
        pool = ThreadPoolExecutor(workers)  # threads are enough, as compiled code runs outside of Python's lock
        try:
            drawn = {
                pool.submit(
                    render, category, instance, plan.elevations, plan.azimuths, plan.lightings, _EYES,
                    size=plan.size, seed=plan.seed,
                ): (number, category)
                for number, instance in enumerate(instances)
                for category in range(len(CATEGORIES))
            }  # fmt: skip
            bar = functools.partial(track, console=console, disable=not console.is_terminal)
            for toy in bar(as_completed(drawn), f"rendering {split} toys", len(drawn)):
                number, category = drawn.pop(toy)
                images[number, :, :, :, category] = toy.result()
        finally:
            pool.shutdown(cancel_futures=True)
        labels, info = labels_and_info(instances, plan.elevations, plan.azimuths, plan.lightings)
        write_matrix(folder / plan.file(split, "cat"), labels)
        write_matrix(folder / plan.file(split, "info"), info)
        write_matrix(folder / plan.file(split, "dat"), images.reshape(-1, *pair))
        hashes[split] = hashlib.sha256(images.data).hexdigest()
    record = {**plan.record(), "sha256": hashes}
    (folder / "provenance.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
