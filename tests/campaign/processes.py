"""Processes of the campaign: forked from a process that has imported everything, and signalled by number only.

Each command leads a session of its own, which holds its descendants, even after their parent has died, and no other
process. Only processes of these sessions are signalled.
"""

import ctypes
import importlib
import itertools
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers.commands import ENVIRONMENT_OF_THE_DEVELOPER, ROOT, Ended

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
LIMIT = 240.0  # ours: seconds, after which a command hangs; the longest takes 30 on two busy cores
_SET_PARENT_DEATH_SIGNAL = 1  # of prctl(2)
_numbers = itertools.count()


class Process:
    """``function()`` in a process of its own; ``folder`` is its current directory and holds its output."""

    def __init__(self, function: Callable[[], Any], folder: Path) -> None:
        number = next(_numbers)
        self.files = [folder / f"{number}.out", folder / f"{number}.err"]
        for file in self.files:
            file.touch()  # the process may be killed before it opens them
        context = multiprocessing.get_context("fork")
        self.child = context.Process(target=self._run, args=(function, folder))
        self.child.start()
        self.pid = int(self.child.pid or 0)
        while self.child.is_alive() and status_of(self.pid)[2] != self.pid:
            time.sleep(0.001)  # it has not begun its session yet

    def wait(self, seconds: float = LIMIT) -> Ended | None:
        """How it ended, with the negative number of a signal that killed it; ``None`` if it still runs."""
        self.child.join(seconds)
        if self.child.exitcode is None:
            return None
        out, err = self.files
        return Ended(
            self.child.exitcode,
            out.read_text(errors="replace"),
            err.read_text(errors="replace"),
        )

    def members(self) -> list[int]:
        """Numbers of the living processes of its session."""
        numbers = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        return [pid for pid in sorted(numbers) if self._has(pid)]

    def send(self, pid: int, signum: int) -> bool:
        """Send a signal to a process of the session; ``False`` if it has ended."""
        if not self._has(pid):
            return False
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            return False
        return True

    def remain(self, seconds: float, but: int = 0) -> list[int]:
        """Processes of the session, except ``but``, that are alive after that time; return early if there are none."""
        end = time.monotonic() + seconds
        while True:
            left = [pid for pid in self.members() if pid != but]
            if not left or time.monotonic() >= end:
                return left
            time.sleep(0.05)

    def end(self) -> None:
        """Kill all processes of the session."""
        while left := self.members():
            for pid in left:
                self.send(pid, signal.SIGKILL)
            time.sleep(0.01)
        self.wait()

    def _has(self, pid: int) -> bool:
        state, _, session = status_of(pid)
        return session == self.pid and state not in "ZX"

    def _run(self, function: Callable[[], Any], folder: Path) -> None:
        os.setsid()
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        for number, file in zip((1, 2), self.files, strict=True):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        os.chdir(folder)
        for name in ENVIRONMENT_OF_THE_DEVELOPER:
            os.environ.pop(name, None)
        os.environ |= {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "CAPSULE_LAB_RUNS": str(folder / "runs"),
        }
        for signum in STOPPING:
            signal.signal(signum, signal.SIG_DFL)
        # a shell's background process inherits none
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdout.reconfigure(line_buffering=True)
        function()


def status_of(pid: int) -> tuple[str, int, int]:
    """State, parent and session of a process as in proc(5); ``("X", 0, 0)`` if it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0, 0
    return fields[0], int(fields[1]), int(fields[3])


def forked(
    module: str, *arguments: str, prepare: Callable[[], Any] | None = None
) -> Callable[[], Any]:
    """``python -m module *arguments`` without its imports; ``prepare`` is called first."""

    def main() -> None:
        sys.argv = [module, *arguments]
        if prepare:
            prepare()
        sys.modules.pop(module, None)  # else runpy warns
        runpy.run_module(module, run_name="__main__", alter_sys=True)

    return main


def executed(module: str, *arguments: str) -> Callable[[], Any]:
    """``python -m module *arguments``, with its imports."""
    return lambda: os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def preload() -> None:
    """Import what commands need."""
    import torch

    # none starts a thread: this process can be forked
    for name in (
        "lightning",
        "matplotlib.backends.backend_agg",
        "sklearn.datasets",
        "capsule_lab.callbacks",
        "capsule_lab.data",
        "capsule_lab.kernels.cpu",
        "capsule_lab.config.compose",
    ):
        importlib.import_module(name)
    # nor may OpenMP, when results are compared: its locks would stay locked in a child
    torch.set_num_threads(1)
