"""Recomputes the effect of a claim from run directories, which an archive in results/ has."""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from capsule_lab.errors import RunError, one_line
from capsule_lab.runs.files import write_text
from capsule_lab.system import protocol
from capsule_lab.tables.schema import Table
from capsule_studies.claims.effects import Effect, effect_of, read_csv
from capsule_studies.claims.read import RESULTS, ROOT

_RUNS = "_runs.csv"


@dataclass(frozen=True)
class Recomputed:
    """An effect, the sentence that says where its numbers come from, and whether these are run directories."""

    effect: Effect
    source: str
    from_archive: bool = True


def files_of(claim: dict[str, Any]) -> list[str]:
    """Return the names of the files of runs of a claim: a table of ``sweeps/`` has the same name."""
    if "comparison" in claim:
        return [claim["comparison"]["file"]]
    names = []
    for side in ("first", "second"):
        if isinstance(claim[side], dict):
            names.append(claim[side]["file"].removesuffix(_RUNS))
    return list(dict.fromkeys(names))


def runs_of(claim: dict[str, Any]) -> str:
    """Return the paths of the files of runs of a claim."""
    return " and ".join(f"results/{name}{_RUNS}" for name in files_of(claim))


def archives_of(claim: dict[str, Any]) -> dict[str, Path]:
    """Return the archive of run directories, which may be missing, of each table of a claim."""
    archives = {}
    for name in files_of(claim):
        archives[name] = RESULTS / f"{claim.get('archive', name)}_runs.tar.gz"
    return archives


def recomputed(claim: dict[str, Any]) -> Recomputed:
    """Recompute an effect from the archives of its tables, and from the CSV of runs if they do not have its runs."""
    archives = archives_of(claim)
    files = {}
    for archive in archives.values():
        shown = archive.relative_to(ROOT).as_posix()
        if not archive.is_file():
            return _from_csv(claim, f"there is no archive {shown}")
        files[shown] = archive
    names = " and ".join(files)
    with tempfile.TemporaryDirectory() as scratch:
        reports = Path(scratch) / "reports"
        for name, archive in archives.items():
            folder = Path(scratch) / name
            unpack(archive, folder)
            _rename(folder)
            _write_report_of(name, folder, reports)
        try:
            effect = effect_of(claim, reports)
        except ValueError:
            return _from_csv(claim, f"{names} does not have its runs")
    return Recomputed(effect, f"the run directories in {names}")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive; nothing in it can be written outside of the folder.

    Raises:
        RunError: if the archive is damaged, or names such a place.
    """
    try:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise RunError(
            f"{archive} cannot be unpacked: {one_line(error)}; expected an archive of run directories, as in the "
            "repository"
        ) from error


def _rename(folder: Path) -> None:
    """Give run directories the hash that their configuration has today, because options were renamed since.

    ``results/configurations_now.csv`` has both hashes; a test composes the recorded commands to check them.
    """
    known = read_csv(RESULTS / "configurations_now.csv")
    hash_now = dict(zip(known["recorded_hash"], known["hash_now"], strict=True))
    for directory in [*folder.iterdir()]:
        start, _, recorded = directory.name.rpartition("-")
        now = hash_now.get(recorded, recorded)
        if now != recorded:
            file = directory / "metrics.json"
            result = json.loads(file.read_text())
            write_text(file, json.dumps({**result, "config_hash": now}))
            directory.rename(directory.with_name(f"{start}-{now}"))


def write_report(table: Table, folder: Path, overrides: Sequence[str] = ()) -> None:
    """Write what ``report`` writes about the runs and comparisons of a table."""
    from capsule_lab.tables import comparison_formats, formats
    from capsule_lab.tables.comparisons import compared
    from capsule_lab.tables.summary import summarise

    entries = summarise(table, overrides)
    frames = {
        _RUNS: formats.runs_frame(entries),
        "_comparisons.csv": comparison_formats.as_frame(compared(table, entries)),
    }
    for ending, frame in frames.items():
        write_text(folder / f"{table.name}{ending}", formats.as_csv(frame))


def _write_report_of(name: str, runs: Path, folder: Path) -> None:
    """Write the report of a table about the run directories in ``runs``."""
    from capsule_lab.commands.tables import read_table

    with reading_runs_in(runs):
        write_report(read_table(name), folder)


@contextmanager
def reading_runs_in(folder: Path) -> Iterator[None]:
    """Within, tables find the run directories in ``folder``."""
    before = os.environ.get(protocol.RUNS)
    os.environ[protocol.RUNS] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[protocol.RUNS]
        else:
            os.environ[protocol.RUNS] = before


def _from_csv(claim: dict[str, Any], why: str) -> Recomputed:
    effect = effect_of(claim)
    found = effect.over_runs or effect.found
    source = f"{runs_of(claim)}, because {why}"
    return Recomputed(replace(effect, found=found), source, from_archive=False)
