"""Small files in smallNORB's format: as the real files or as its stand-in."""

import hashlib
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from capsule_lab.data.formats.binary_matrix import read_matrix, write_matrix
from capsule_lab.data.standins import toynorb_files

# instances, as published
TRAINING = (4, 6, 7, 8, 9)
TESTING = (0, 1, 2, 3, 5)
LEVELS: dict[str, Sequence[int]] = {
    "elevations": (0, 4),
    "azimuths": (0, 12),
    "lightings": (1,),
}
NAMES = {
    "training": "5x46789x9x18x6x2x96x96-training",
    "testing": "5x01235x9x18x6x2x96x96-testing",
}


def labels_and_factors(
    instances: Sequence[int],
    elevations: Sequence[int] = range(9),
    azimuths: Sequence[int] = range(0, 36, 2),
    lightings: Sequence[int] = range(6),
) -> tuple[np.ndarray, np.ndarray]:
    """Categories and info as the real test files order them; the full set unless levels are named."""
    rows = product(instances, elevations, azimuths, lightings, range(5))
    table = np.array([*rows], dtype=np.int32)
    return table[:, 4], table[:, :4]


def write_set(
    folder: Path, *, side: int, size: str | None = None, suffix: str = ".mat", **levels: Sequence
) -> Path:
    """The six files in the real format, with random pixels; by default 100 + 100 pairs from 4 viewpoints."""
    levels = {**LEVELS, **levels}
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(side)
    for part, instances in (("training", TRAINING), ("testing", TESTING)):
        labels, factors = labels_and_factors(instances, **levels)
        shape = len(labels), 2, side, side
        images = random.integers(0, 256, shape, dtype=np.uint8)
        name = NAMES[part].replace("96x96", size or "96x96")
        for content, array in (("dat", images), ("cat", labels), ("info", factors)):
            write_matrix(folder / f"smallnorb-{name}-{content}{suffix}", array)
    return folder


def write_standin(directory: Path, **levels: Sequence[int]) -> Path:
    """Write files into a data directory that count as the stand-in, in both sizes."""
    for folder in ("48x48", "48x48-small"):
        write_set(directory / "toynorb" / folder, side=48, size="48x48", **levels)
        write_record(directory / "toynorb" / folder, **levels)
    return directory


def write_record(folder: Path, **levels: Sequence[int]) -> None:
    """The renderer's record of the files in ``folder``."""
    levels = {**LEVELS, **levels}
    # files hold twice the index
    levels["azimuths"] = [azimuth // 2 for azimuth in levels["azimuths"]]
    hashes = {}
    for part in NAMES:
        (path,) = folder.glob(f"*-{part}-dat.mat")
        hashes[part] = hashlib.sha256(read_matrix(path).tobytes()).hexdigest()
    record = {
        "version": toynorb_files.VERSION,
        "seed": 0,
        "pixels": "random",
        **levels,
        "sha256": hashes,
    }
    (folder / "provenance.json").write_text(json.dumps(record, default=list))
