"""Writer of the data set: renders it toy by toy into six files of smallNORB's format."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from jaxtyping import Int32, UInt8
from rich.console import Console
from rich.progress import track

from capsule_lab.data.download import filling
from capsule_lab.data.formats.binary_matrix import read_matrix, write_matrix
from capsule_lab.errors import DataError
from capsule_lab.system.files import read_regular
from toynorb.rendering import render
from toynorb.toys import CATEGORIES, TEST_INSTANCES, TRAIN_INSTANCES

VERSION = 1
"""Increases whenever an image changes."""

STANDIN_NAME = "stand-in for smallNORB: toynorb, 50 toys rendered by capsule_lab"

_SPLITS = {"training": TRAIN_INSTANCES, "testing": TEST_INSTANCES}
_LEVELS = ("elevations", "azimuths", "lightings")
_EYES = (-1, 1)

log = logging.getLogger(__name__)


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

    Files appear when all are complete; if two processes render into one folder, the second waits for the first.
    An existing set is not changed.

    Rows have the order of smallNORB's test files: instance, elevation, azimuth, lighting, category (fastest).

    Args:
        folder: folder of the files; created if it does not exist.
        size: edge of the images in pixels; smallNORB's is 96.
        elevations: indices, 0 to 8.
        azimuths: indices, 0 to 17; the files contain twice the index, as in smallNORB.
        lightings: 0 to 5.
        seed: another seed makes other toys.
        workers: number of threads; default: one per core.

    Raises:
        DataError: if ``folder`` contains other files of this format.
    """
    plan = {  # determines the bytes of the six files
        "name": STANDIN_NAME,
        "generator": "toynorb",
        "version": VERSION,
        "size": size,
        "elevations": list(elevations),
        "azimuths": list(azimuths),
        "lightings": list(lightings),
        "seed": seed,
    }
    if _is_complete(folder, plan):  # checked before anything is written
        return
    with _locked(folder):
        if not _is_complete(folder, plan):
            with filling(folder) as scratch:
                _write_files(scratch, plan, workers)


def labels_and_info(
    instances: Sequence[int],
    elevations: Sequence[int],
    azimuths: Sequence[int],
    lightings: Sequence[int],
) -> tuple[Int32[np.ndarray, " row"], Int32[np.ndarray, "row 4"]]:
    """Return the category, and the instance, elevation, azimuth (twice the index) and lighting of each row.

    With all levels, they equal smallNORB's files: the categories of both splits, and the factors of the test set.
    """
    twice = [2 * azimuth for azimuth in azimuths]
    grids = np.meshgrid(
        instances, elevations, twice, lightings, range(len(CATEGORIES)), indexing="ij"
    )
    *factors, categories = [grid.ravel().astype(np.int32) for grid in grids]
    return categories, np.stack(factors, axis=1)


def is_as_rendered(
    record: Mapping[str, Any], split: str, images: np.ndarray, labels: np.ndarray, info: np.ndarray
) -> bool:
    """Return whether these are the arrays of a split that ``render_files`` wrote, by its record; takes 0.1 s."""
    try:
        levels = [record[name] for name in _LEVELS]
        expected_labels, expected_info = labels_and_info(_SPLITS[split], *levels)
        expected_hash = record["sha256"][split]
    except (KeyError, TypeError, ValueError):  # the record itself is damaged
        return False
    if not np.array_equal(labels, expected_labels) or not np.array_equal(info, expected_info):
        return False
    return hashlib.sha256(np.ascontiguousarray(images).data).hexdigest() == expected_hash


def _is_complete(folder: Path, plan: dict[str, Any]) -> bool:
    """Return whether the record matches this plan, and the six files exist and are complete.

    Raise a ``DataError`` if ``folder`` contains files of another data set, which would be replaced.
    """
    try:
        record = json.loads(read_regular(folder / "provenance.json"))
        is_ours = {**record, "sha256": None} == {**plan, "sha256": None}
    except (OSError, ValueError, TypeError):
        is_ours = False
    there = sorted(folder.glob("smallnorb-*.mat*"))
    if there and not is_ours:
        raise DataError(
            f"{folder} holds {there[0].name}, which is from another set; expected a folder without smallnorb-*.mat: "
            "choose another folder, or remove this one"
        )
    try:
        for split, content in product(_SPLITS, ("dat", "cat", "info")):
            read_matrix(folder / _file(plan, split, content))
    except DataError:
        return False
    return is_ours


def _file(plan: dict[str, Any], split: str, content: str) -> str:
    """Return the name of a file: smallNORB's name with the actual sizes."""
    instances = "".join(str(instance) for instance in _SPLITS[split])
    levels = "x".join(str(len(plan[name])) for name in _LEVELS)
    size = plan["size"]
    shape = f"{len(CATEGORIES)}x{instances}x{levels}x{len(_EYES)}x{size}x{size}"
    return f"smallnorb-{shape}-{split}-{content}.mat"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process renders into ``folder``."""
    path = folder.with_name(f".{folder.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        log.info("waiting for another process that renders into %s", folder)
        held = lock.acquire()
    with held:
        yield
        path.unlink(missing_ok=True)  # while locked: waiting processes will find complete files


def _write_files(folder: Path, plan: dict[str, Any], workers: int | None) -> None:
    """Render all toys, and write the six files and their record."""
    levels = [plan[name] for name in _LEVELS]
    hashes = {}
    for split, instances in _SPLITS.items():
        labels, info = labels_and_info(instances, *levels)
        images = _rendered(plan, split, workers)
        write_matrix(folder / _file(plan, split, "cat"), labels)
        write_matrix(folder / _file(plan, split, "info"), info)
        write_matrix(folder / _file(plan, split, "dat"), images)
        hashes[split] = hashlib.sha256(images.data).hexdigest()
    record = json.dumps({**plan, "sha256": hashes}, indent=2)
    (folder / "provenance.json").write_text(f"{record}\n", encoding="utf-8")


def _rendered(
    plan: dict[str, Any], split: str, workers: int | None
) -> UInt8[np.ndarray, "row eye size size"]:
    """Render all images of a split; threads suffice, because compiled code releases the GIL."""
    instances = _SPLITS[split]
    size = plan["size"]
    elevations, azimuths, lightings = plan["elevations"], plan["azimuths"], plan["lightings"]
    views = len(elevations), len(azimuths), len(lightings)
    images = np.empty(
        (len(instances), *views, len(CATEGORIES), len(_EYES), size, size), dtype=np.uint8
    )

    def draw(toy: tuple[int, int]) -> None:
        number, category = toy
        images[number, :, :, :, category] = render(
            category,
            instances[number],
            elevations,
            azimuths,
            lightings,
            _EYES,
            size=size,
            seed=plan["seed"],
        )

    toys = list(product(range(len(instances)), range(len(CATEGORIES))))
    pool = ThreadPoolExecutor(workers or os.cpu_count())
    console = Console(stderr=True)
    try:
        progress = track(
            pool.map(draw, toys),
            f"rendering {split} toys",
            len(toys),
            console=console,
            disable=not console.is_terminal,
        )
        for _ in progress:
            pass
    finally:
        pool.shutdown(cancel_futures=True)
    return images.reshape(-1, len(_EYES), size, size)
