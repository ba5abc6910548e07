"""What must hold after a fault: one sentence, the same results, nothing left."""

import json
import re
from pathlib import Path
from typing import Any

from tests.campaign.processes import LIMIT, Process
from tests.helpers.commands import Ended
from tests.helpers.interruptions import differences

TRACEBACK = "Traceback (most recent call last)"


class Fault(Exception):
    """A fault that was not survived: the kind of failure, as differs, traceback or hangs, and what was seen."""

    def __init__(self, verdict: str, detail: str = "") -> None:
        words = " ".join(detail.split())
        super().__init__(f"{verdict}: {words if len(words) < 600 else f'{words[:200]} … {words[-400:]}'}")


class NotHitError(Exception):
    """The fault did not take place: the process had ended before."""


def ended(process: Process, seconds: float = LIMIT) -> Ended:
    """How a process ended, if it does."""
    result = process.wait(seconds)
    if result is None:
        raise Fault("hangs", "".join(file.read_text(errors="replace") for file in process.files))
    return result


def expect_sentence(result: Ended, *statuses: int, most: int = 1) -> None:
    """One line ``capsule_lab: …`` on stderr and one of these statuses, if it failed; never a traceback.

    Args:
        result: of a command.
        statuses: of failures that may be, 2 if none is given.
        most: sentences; each process of a run may say one.
    """
    if TRACEBACK in result.err + result.out:
        raise Fault("traceback", f"status {result.status}: {result.err or result.out}")
    if result.status and result.status not in (statuses or (2,)):
        raise Fault("wrong status", f"{result.status}, expected 0 or one of {statuses or (2,)}: {result.err}")
    lines = re.findall(r"^capsule_lab: .+$", result.err, re.MULTILINE)
    if result.status and not 1 <= len(lines) <= most:
        raise Fault("no sentence", f"status {result.status}, {len(lines)} sentences: {result.err}")


def expect_success(result: Ended) -> None:
    expect_sentence(result)
    if result.status:
        raise Fault("fails", result.err)


def stopped_by(result: Ended, signum: int) -> None:
    """A command that a signal came to: as that signal says, or it had ended."""
    if result.status == -signum and (signum == 9 or not result.out):
        return  # SIGKILL, or any other before the command did anything, as while it imports
    expect_sentence(result, 128 + signum)


def expect_equal(folder: Path, whole: Path) -> None:
    """All runs in a folder are bit for bit those that nothing happened to, and nothing else is left."""
    found, expected = ({_first(file.parent): file.parent for file in each.glob("runs/*/config.yaml")} for each in (
        folder, whole,
    ))  # fmt: skip
    if found.keys() != expected.keys():
        raise Fault("differs", f"runs are {sorted(found)}, not {sorted(expected)}")
    for directory in sorted(file.parent for file in folder.glob("runs/*/config.yaml")):
        other = expected[_first(directory)]
        wrong = differences(_read(directory / "metrics.json"), directory, _read(other / "metrics.json"), other)
        for file in other.glob("evaluations/*.json"):
            if _read(file)["test"] != _read(directory / "evaluations" / file.name)["test"]:
                wrong.append(file.name)
        if wrong:
            raise Fault("differs", f"{directory.name}: {', '.join(wrong)}")
    left = [*folder.glob("runs/*/checkpoints/.*.ckpt"), *folder.glob("runs/cells/[!.]*.json")]
    if left:
        raise Fault("leftover", ", ".join(str(path.relative_to(folder)) for path in left))


def _first(directory: Path) -> str:
    """The name of a run, or of the first of its configuration."""
    return re.sub(r"(-[0-9a-f]{8})-\d+$", r"\1", directory.name)


def _read(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text())
    return content
