"""Adds the records of a table's finished cells to an archive in results/.

``CAPSULE_LAB_RUNS=runs python -m capsule_studies.claims.archive routing_controls`` writes
``results/routing_controls_runs.tar.gz``. Run directories that the archive already has stay in it, since they may have
been trained on another machine. Weights are left out.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from capsule_lab.commands.tables import read_table
from capsule_lab.errors import CapsuleLabError, RunError, printable
from capsule_lab.runs.directories import root
from capsule_lab.runs.files import atomically
from capsule_lab.system import protocol
from capsule_lab.tables.cells import Cell, EvaluationCell
from capsule_lab.tables.evaluations import result_file
from capsule_lab.tables.expand import distinct, expand
from capsule_studies.claims.read import RESULTS
from capsule_studies.claims.recompute import unpack

RECORDS = ("config.yaml", "metrics.csv", "metrics.json", "predictions.npz")
"""Files of a training run that are archived."""
_PERMISSIONS = 0o644


def add_records(cells: Sequence[Cell], archive: Path) -> int:
    """Add the records of the cells that have finished, and return the number of these cells.

    Raises:
        RunError: if no cell has finished, or the archive exists and is damaged.
    """
    finished = [cell for cell in cells if cell.finished]
    if not finished:
        raise RunError(
            f"none of {len(cells)} cells has finished in {root()}; expected the folder of runs in {protocol.RUNS}"
        )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if archive.is_file():
            unpack(archive, folder)
        for cell in finished:
            for file in _records_of(cell):
                target = folder / file.relative_to(_directory(cell).parent)
                target.parent.mkdir(parents=True, exist_ok=True)
                _copy(file, target, _directory(cell).parent)
        _pack(folder, archive)
    return len(finished)


def _directory(cell: Cell) -> Path:
    assert cell.finished
    return cell.finished[0]


def _records_of(cell: Cell) -> Iterator[Path]:
    directory = _directory(cell)
    for name in RECORDS:
        file = directory / name
        if file.is_file():
            yield file
    if isinstance(cell, EvaluationCell):
        yield result_file(directory, cell.fingerprint)


def _copy(file: Path, target: Path, folder: Path) -> None:
    """Copy a record; commands that name the folder of runs, which another machine lacks, name ``runs`` instead."""
    if file.suffix == ".npz":
        shutil.copyfile(file, target)
    else:
        text = file.read_text(encoding="utf-8")
        target.write_text(text.replace(f"{folder.resolve()}/", "runs/"), encoding="utf-8")


def _pack(folder: Path, archive: Path) -> None:
    """Write the files of a folder; the same files give the same bytes, so that a commit shows what is new."""
    with (
        atomically(archive) as temporary,
        temporary.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as packed,
    ):
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                entry = tarfile.TarInfo(file.relative_to(folder).as_posix())
                entry.size = file.stat().st_size
                entry.mode = _PERMISSIONS
                with file.open("rb") as content:
                    packed.addfile(entry, content)


def main(arguments: Sequence[str] | None = None) -> int:
    """Add the records of one table to its archive, or to that of another table; return the status of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", help="a table in sweeps/")
    parser.add_argument("--into", help="the table whose archive is written (default: the same)")
    chosen = parser.parse_args(arguments)
    try:
        cells = distinct(expand(read_table(chosen.table)))
        owner = read_table(chosen.into or chosen.table)
        archive = RESULTS / f"{owner.name}_runs.tar.gz"
        added = add_records(cells, archive)
    except CapsuleLabError as error:
        sys.stderr.write(f"archive: {printable(str(error))}\n")
        return 2
    sys.stdout.write(f"{archive}: {added} of {len(cells)} cells have finished\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
