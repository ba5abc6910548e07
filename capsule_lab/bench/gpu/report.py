"""What the parts have found so far, in one file: which of them are still to run, and how they are run."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from capsule_lab.bench.gpu.page import as_page
from capsule_lab.bench.gpu.part_process import GRACE, run_part
from capsule_lab.bench.gpu.parts import PARTS, Part, Size
from capsule_lab.config.compose import conf_dir
from capsule_lab.errors import RunError
from capsule_lab.runs import files
from capsule_lab.system import environment

_LOG = logging.getLogger(__name__)


class Record(TypedDict):
    """What became of a part.

    Attributes:
        key: what it was measured with, see ``current_key``.
        state: ``done``; ``wrong``, if it has proved something to be; ``failed``, if it did not come to its end.
        seconds: that it took, the start of its process included.
        ended: when, ISO 8601.
        error: of one that failed, a sentence.
        found: of the others, what its function returned.
    """

    key: dict[str, str]
    state: str
    seconds: float
    ended: str
    error: str | None
    found: dict[str, Any]


class Report(TypedDict):
    """The file: the latest key, facts of the process that wrote it, and the parts by name."""

    key: dict[str, str]
    process: dict[str, Any]
    parts: dict[str, Record]


_SCHEMA = TypeAdapter(Report)
JSON, PAGE = "gpu.json", "gpu.html"


def current_key(device: torch.device, size: Size) -> dict[str, str]:
    """Device, versions and sources: a part that was measured with others is measured again."""
    triton = version("triton") if importlib.util.find_spec("triton") else "none"
    return {
        "device": environment.hardware(device),
        "size": size,
        "torch": torch.__version__,
        "triton": triton,
        "sources": sources_hash(),
    }


def sources_hash() -> str:
    """Of all code and configurations: a checkout that was copied without its history has no commit."""
    digest = hashlib.sha256()
    for folder, pattern in ((Path(environment.__file__).parents[1], "*.py"), (conf_dir(), "*.yaml")):
        for file in sorted(folder.rglob(pattern)):
            digest.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def run_parts(
    folder: Path, device: torch.device, size: Size, parts: Sequence[Part], *, resume: bool, limit: float
) -> tuple[dict[str, Record], list[Part]]:
    """Run what has not been done yet, and write both files after every part.

    Args:
        folder: of the two files, and of a log for each part.
        device, size: that parts are called with.
        parts: to run, if there is a need.
        resume: whether parts that were done before, with the same ``current_key``, are kept.
        limit: seconds for all of them; a part that does not fit in what is left is not begun.

    Returns:
        the records of all parts, by name, and the parts that were not begun.

    Raises:
        RunError: if a file cannot be written.
    """
    deadline, key, left = time.monotonic() + limit, current_key(device, size), []
    records = read_records(folder)
    files.check_writable(folder / JSON)
    for part in parts:
        remaining = deadline - time.monotonic()
        if resume and is_done(records.get(part.name), key):
            _LOG.info("%s: done before", part.name)
        elif remaining < part.seconds:
            left.append(part)
        else:
            _LOG.info("%s: %s", part.name, part.sentence)
            log, kill_after = folder / f"{part.name}.log", min(part.seconds + GRACE, remaining)
            records[part.name] = _record(part, key, partial(run_part, part, device.type, size, kill_after, log))
            write(folder, records, key)
    write(folder, records, key)
    return records, left


def read_records(folder: Path) -> dict[str, Record]:
    """What an earlier call has written there, by the names of the parts; damaged files count as missing."""
    report = files.read_record(folder / JSON, _SCHEMA)
    return report["parts"] if report else {}


def is_done(record: Record | None, key: dict[str, str]) -> bool:
    """Whether a part needs not be run again."""
    return record is not None and record["state"] == "done" and record["key"] == key


def write(folder: Path, records: dict[str, Record], key: dict[str, str]) -> None:
    """Both files, the parts in their order; page and numbers are of the same moment."""
    in_order = {part.name: records[part.name] for part in PARTS if part.name in records}
    report: Report = {"key": key, "process": environment.of_this_process(), "parts": in_order}
    files.write_record(folder / JSON, cast(dict[str, Any], report))
    files.write_text(folder / PAGE, as_page(report))


def _record(part: Part, key: dict[str, str], run: Callable[[], dict[str, Any]]) -> Record:
    """Run a part, whose failure is no reason to stop."""
    began, found, error = time.monotonic(), dict[str, Any](), None
    try:
        found = run()
        state = "wrong" if found.get("failures") else "done"
    except RunError as caught:
        state, error = "failed", f"{part.name} {caught}"
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    seconds = round(time.monotonic() - began, 1)
    return {"key": key, "state": state, "seconds": seconds, "ended": ended, "error": error, "found": found}
