"""What must hold after a fault: one sentence, the same results, nothing left."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.helpers.commands import Ended
from tests.helpers.training import checkpoint, curves, results

TRACEBACK = "Traceback (most recent call last)"


class Fault(Exception):
    """A fault that was not survived.

    Args:
        verdict: the kind of failure: differs, traceback, no sentence, hangs, alive, leftover.
        detail: what was seen.
    """

    def __init__(self, verdict: str, detail: str = "") -> None:
        words = " ".join(re.sub(r"[~^]{2,}", "", detail).split())  # without the markers of tracebacks
        super().__init__(f"{verdict}: {words if len(words) < 600 else f'{words[:200]} … {words[-400:]}'}")


class NotHitError(Exception):
    """The fault did not take place: the process had ended before."""


def ended(process: Any, seconds: float | None = None) -> Ended:
    """How a process ended.

    Raises:
        Fault: if it does not.
    """
    result = process.wait() if seconds is None else process.wait(seconds)
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
        return  # SIGKILL, or any other before the command did anything: the real one has its own campaign
    expect_sentence(result, 128 + signum)


def outcome(directory: Path) -> dict[str, Any]:
    """All of a finished run that must not depend on what happened to it."""
    last, best = checkpoint(directory), checkpoint(directory, "best")
    result = json.loads((directory / "metrics.json").read_text())
    return {
        **results(result),
        "weights tested": result["weights_tested"],
        "rows of metrics.csv": curves(directory) if (directory / "metrics.csv").is_file() else None,
        **{f"last.ckpt {key}": last[key] for key in ("global_step", "epoch", "state_dict", "optimizer_states")},
        **{f"best.ckpt {key}": best[key] for key in ("global_step", "epoch", "state_dict")},
    }


def expect_equal(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Equal bit for bit; the names of what differs are in the message."""
    wrong = [name for name in {**expected, **found} if not same(found.get(name), expected.get(name))]
    if wrong:
        seen = (f"{name} is {_shown(found.get(name))}, not {_shown(expected.get(name))}" for name in wrong)
        raise Fault("differs", "; ".join(seen))


def _shown(value: Any) -> str:
    """The beginning of a value; of rows, how many and the last."""
    return f"{len(value)} rows to {str(value[-1])[:80]}" if isinstance(value, list) and value else str(value)[:80]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and one.equal(other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    both_nan = isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    return bool(one == other) or both_nan


def only_run(folder: Path) -> Path:
    """The one run directory in ``folder/runs``."""
    found = [file.parent for file in folder.glob("runs/*/config.yaml")]
    if len(found) != 1:
        raise Fault("differs", f"{len(found)} run directories: {sorted(path.name for path in found)}")
    return found[0]


def expect_nothing_left(folder: Path) -> None:
    """No temporary checkpoint and no record of a run that is over."""
    left = [*(folder / "runs").glob("*/checkpoints/.*.ckpt"), *(folder / "runs").glob("cells/[!.]*.json")]
    if left:
        raise Fault("leftover", ", ".join(str(path.relative_to(folder)) for path in left))
