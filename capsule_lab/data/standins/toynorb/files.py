"""The data set: rendered toy by toy, each kept at once, then written into six files of smallNORB's format."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout
from jaxtyping import Int32

from capsule_lab.data.formats.binary_matrix import write_matrix
from capsule_lab.data.standins.toynorb import processes
from capsule_lab.data.standins.toynorb.rendering import check_levels, check_size_and_seed, render
from capsule_lab.data.standins.toynorb.toys import CATEGORIES, TEST_INSTANCES, TRAIN_INSTANCES
from capsule_lab.errors import DataError
from capsule_lab.system.files import atomically

VERSION = 1
"""Raised whenever an image changes."""

STANDIN_NAME = "stand-in for smallNORB: toynorb, 50 toys rendered by capsule_lab"

_GENERATOR = "capsule_lab.data.standins.toynorb"
_SPLITS = {"training": TRAIN_INSTANCES, "testing": TEST_INSTANCES}
_EYES = (-1, 1)
_WORK = ".rendering-"
_SMALL = 5_000_000  # ours: rays that take some 20 seconds; starting processes takes 5, and 15 on a busy machine

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


class _Job(NamedTuple):
    category: int
    instance: int


def render_files(
    folder: Path,
    *,
    size: int = 96,
    elevations: Sequence[int] = range(9),
    azimuths: Sequence[int] = range(18),
    lightings: Sequence[int] = range(6),
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Render training and test toys into six files of smallNORB's format, and ``provenance.json`` beside them.

    Each file is complete when it appears, ``provenance.json`` last. Finished toys are kept in a hidden folder inside,
    so that after an interruption the same call continues where it stopped; of two processes that render into one
    folder, the second waits for the first. A set that is there already is left as it is.

    Rows are in the order of smallNORB's test files: instance, elevation, azimuth, lighting, and fastest category.

    Args:
        folder: gets the files; created if it does not exist.
        size: edge of the images in pixels; smallNORB's is 96.
        elevations: indices, 0 to 8.
        azimuths: indices, 0 to 17; the files hold twice the index, as smallNORB's do.
        lightings: 0 to 5.
        seed: another seed makes other toys.
        workers: processes; default: 1 for a little work, else one for each core. With more than one, a main script
            needs its ``if __name__ == "__main__":``.
        progress: called with toys done and toys in all, at the start and after each.

    Raises:
        ValueError: for an argument out of its range.
        DataError: if ``folder`` holds other files of that format.
    """
    check_levels(elevations, azimuths, lightings)
    check_size_and_seed(size, seed)
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}; expected 1 or more processes")
    plan = _Plan(size, tuple(elevations), tuple(azimuths), tuple(lightings), seed)
    if _is_complete(folder, plan):
        return
    _refuse_other_files(folder, plan)  # before anything is written there
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if _is_complete(folder, plan):
            return
        _refuse_other_files(folder, plan)
        work = _work_folder(folder, plan)
        work.mkdir(exist_ok=True)
        _render_toys(work, plan, workers, progress)
        _write_files(folder, work, plan)
        for unfinished in folder.glob(f"{_WORK}*"):  # of this plan, and of others that were interrupted
            shutil.rmtree(unfinished)


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


def _work_folder(folder: Path, plan: _Plan) -> Path:
    """Where finished toys of this plan are kept until the files are written."""
    return folder / f"{_WORK}{hashlib.sha256(json.dumps(plan.record()).encode()).hexdigest()[:8]}"


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
    interrupted = _work_folder(folder, plan).is_dir()  # then the files are of this plan, and the record is to come
    if other and not interrupted and _recorded_plan(folder) != plan.record():
        raise DataError(
            f"{folder} holds {other[0]}, which is of another set; expected a folder without smallnorb-*.mat: name "
            "another folder, or remove this one"
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process renders into ``folder``."""
    path = folder / ".rendering.lock"
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


def _render_toys(work: Path, plan: _Plan, workers: int | None, progress: Callable[[int, int], None] | None) -> None:
    """Render those toys that ``work`` does not have yet."""
    jobs = [
        _Job(category, instance)
        for instances in _SPLITS.values()
        for instance in instances
        for category in range(len(CATEGORIES))
    ]
    missing = [job for job in jobs if _kept(work, job, plan) is None]
    done = len(jobs) - len(missing)

    def report(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, len(jobs))

    report(0)
    if workers is None:
        views = len(_EYES) * len(plan.elevations) * len(plan.azimuths)
        rays = len(missing) * views * plan.size * plan.size
        workers = 1 if rays < _SMALL else processes.available_cores()
    processes.run(functools.partial(_keep, work, plan), missing, workers, lambda: report(1))


def _keep(work: Path, plan: _Plan, job: _Job) -> None:
    """Render a toy and keep its images."""
    images = render(
        job.category, job.instance, plan.elevations, plan.azimuths, plan.lightings, _EYES,
        size=plan.size, seed=plan.seed,
    )  # fmt: skip
    with atomically(_toy_file(work, job)) as temporary:
        np.save(temporary, images)


def _kept(work: Path, job: _Job, plan: _Plan) -> np.ndarray | None:
    """The images of a toy, as a memory map, if they were rendered before and the file is complete."""
    try:
        images = np.load(_toy_file(work, job), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    shape = (*plan.views, len(_EYES), plan.size, plan.size)
    complete = isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.shape == shape
    return images if complete else None


def _toy_file(work: Path, job: _Job) -> Path:
    return work / f"{CATEGORIES[job.category]}-{job.instance}.npy"


def _write_files(folder: Path, work: Path, plan: _Plan) -> None:
    """The six files, then the record of them."""
    hashes = {}
    for split, instances in _SPLITS.items():
        pair = (len(_EYES), plan.size, plan.size)
        images = np.empty((len(instances), *plan.views, len(CATEGORIES), *pair), np.uint8)
        for number, instance in enumerate(instances):
            for category in range(len(CATEGORIES)):
                kept = _kept(work, _Job(category, instance), plan)
                assert kept is not None
                images[number, :, :, :, category] = kept
        labels, info = labels_and_info(instances, plan.elevations, plan.azimuths, plan.lightings)
        write_matrix(folder / plan.file(split, "cat"), labels)
        write_matrix(folder / plan.file(split, "info"), info)
        write_matrix(folder / plan.file(split, "dat"), images.reshape(-1, *pair))
        hashes[split] = hashlib.sha256(images.data).hexdigest()
    with atomically(folder / "provenance.json") as temporary:
        record = {**plan.record(), "sha256": hashes}
        temporary.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
