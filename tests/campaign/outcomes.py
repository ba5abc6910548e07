"""Checks after a fault: one message, the same results, no files left."""

import json
import re
from pathlib import Path
from typing import Any

from tests.campaign.processes import LIMIT, Process
from tests.helpers.commands import Ended
from tests.helpers.interruptions import differences

TRACEBACK = "Traceback (most recent call last)"


class Fault(Exception):
    """A fault that was not survived: the kind of failure, such as differs, traceback or hangs, and its details."""

    def __init__(self, verdict: str, detail: str = "") -> None:
        words = " ".join(detail.split())
        if len(words) >= 600:
            words = f"{words[:200]} … {words[-400:]}"
        super().__init__(f"{verdict}: {words}")


class NotHitError(Exception):
    """The fault did not happen because the process had already ended."""


def ended(process: Process, seconds: float = LIMIT) -> Ended:
    """Wait for the end of a process; raise ``Fault`` if it hangs."""
    result = process.wait(seconds)
    if result is None:
        output = [file.read_text(errors="replace") for file in process.files]
        raise Fault("hangs", "".join(output))
    return result


def expect_sentence(result: Ended, *statuses: int, most: int = 1) -> None:
    """Check that a failed command has one line ``capsule_lab: …`` on stderr and an allowed status, and no traceback.

    Args:
        result: of a command.
        statuses: allowed statuses of a failure; 2 if none is given.
        most: largest number of lines; each process of a run may print one.
    """
    if TRACEBACK in result.err + result.out:
        raise Fault("traceback", f"status {result.status}: {result.err or result.out}")
    allowed = statuses or (2,)
    if result.status and result.status not in allowed:
        expected = f"expected 0 or one of {allowed}"
        raise Fault("wrong status", f"{result.status}, {expected}: {result.err}")
    lines = re.findall(r"^capsule_lab: .+$", result.err, re.MULTILINE)
    if result.status and not 1 <= len(lines) <= most:
        raise Fault("no sentence", f"status {result.status}, {len(lines)} sentences: {result.err}")


def expect_success(result: Ended) -> None:
    expect_sentence(result)
    if result.status:
        raise Fault("fails", result.err)


def stopped_by(result: Ended, signum: int) -> None:
    """Check that a signalled command ended by that signal, or had already ended."""
    if result.status == -signum and (signum == 9 or not result.out):
        return  # SIGKILL, or another signal during the imports
    expect_sentence(result, 128 + signum)


def expect_equal(folder: Path, whole: Path) -> None:
    """Check that all runs in a folder equal undisturbed ones bit for bit, and that no other files are left."""
    directories = _directories(folder)
    expected = {_first(directory): directory for directory in _directories(whole)}
    names = {_first(directory) for directory in directories}
    if names != expected.keys():
        raise Fault("differs", f"runs are {sorted(names)}, not {sorted(expected)}")
    for directory in directories:
        wrong = _differences(directory, expected[_first(directory)])
        if wrong:
            raise Fault("differs", f"{directory.name}: {', '.join(wrong)}")
    left = [*folder.glob("runs/*/checkpoints/.*.ckpt"), *folder.glob("runs/cells/[!.]*.json")]
    if left:
        raise Fault("leftover", ", ".join(str(path.relative_to(folder)) for path in left))


def _directories(folder: Path) -> list[Path]:
    return sorted(file.parent for file in folder.glob("runs/*/config.yaml"))


def _differences(directory: Path, other: Path) -> list[str]:
    """The names of what differs in a run and its evaluations."""
    result = _read(directory / "metrics.json")
    expected = _read(other / "metrics.json")
    wrong = differences(result, directory, expected, other)
    for file in other.glob("evaluations/*.json"):
        own = directory / "evaluations" / file.name
        if _read(file)["test"] != _read(own)["test"]:
            wrong.append(file.name)
    return wrong


def _first(directory: Path) -> str:
    """The name of the first run of the same configuration."""
    return re.sub(r"(-[0-9a-f]{8})-\d+$", r"\1", directory.name)


def _read(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text())
    return content
