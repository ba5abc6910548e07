"""A part in a process of its own: an error of CUDA ends one process, and a kernel that hangs can only be killed."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from capsule_lab.bench.gpu.parts import Part, Size
from capsule_lab.errors import RunError, printable
from capsule_lab.runs.files import tail

START = 10.0  # ours: seconds that a process takes to import torch and Lightning, and to open the device
GRACE = 20.0  # ours: seconds above its plan in which a part may end the case that it is at
LAST_LINES = 5  # ours: of a log, among which is the reason


def run_part(part: Part, device: str, size: Size, kill_after: float, log: Path) -> dict[str, Any]:
    """What the part found.

    Args:
        part: which.
        device: ``cpu`` or ``cuda``.
        size: see ``Size``.
        kill_after: seconds after which it is killed, with all processes that it has started.
        log: file for what it prints, written anew.

    Raises:
        RunError: if it fails, is killed or takes too long; a sentence.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        arguments = [part.function, device, size, str(part.seconds - START), str(result)]
        with log.open("w") as file, started(python("capsule_lab.bench.gpu", *arguments), file) as process:
            try:
                status = process.wait(kill_after)
            except subprocess.TimeoutExpired as error:
                raise RunError(f"took longer than {kill_after:.0f} seconds and was killed; its log is {log}") from error
        if status == 0:
            return dict(json.loads(result.read_text()))
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else "failed"
    last = next((line for line in reversed(tail(log, LAST_LINES)) if line.strip()), "it printed nothing")
    raise RunError(f"{how}: {printable(last)}; its log is {log}")


def python(module: str, *arguments: str) -> list[str]:
    """The command ``python -m module`` with this interpreter."""
    return [sys.executable, "-m", module, *arguments]


@contextmanager
def started(command: Sequence[str], output: Any, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, killed at the end of the block with all that it has started.

    Args:
        command: to run.
        output: file for its standard output and standard error.
        **environment: more variables than this process has.
    """
    paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]  # also where nothing is installed
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for the command, which kills it
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment},
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # of a driver that does not let go of it
            process.wait(GRACE)


def finite(value: Any) -> Any:
    """``value`` with ``None`` for every number that JSON has no notation for."""
    if isinstance(value, dict):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
