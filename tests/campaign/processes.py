"""Processes of the campaign: forked from one that has imported everything, signalled by number only.

Each command is the leader of a session of its own. What it starts is in that session, also when its parent has died,
and nothing else is: no other process is ever signalled.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import multiprocessing.util
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tests.helpers.commands import ENVIRONMENT_OF_THE_DEVELOPER, ROOT, Ended

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
LIMIT = 240.0  # ours: seconds, after which a command hangs; the longest takes 30 on two busy cores
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # of prctl(2)

_started: list[Process] = []
_counter = itertools.count()


class Process:
    """``function()`` in a process of its own, as its main function.

    Args:
        function: what the process does.
        folder: its current directory, where ``<number>.out`` and ``<number>.err`` get its output.
        environment: variables that differ from this process; ``None`` removes one.
    """

    def __init__(self, function: Callable[[], Any], folder: Path, **environment: str | None) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        number = next(_counter)
        self.folder, self.files = folder, [folder / f"{number}.{name}" for name in ("out", "err")]
        self.status: int | None = None
        self.over = False
        self.pid = os.fork()
        if self.pid == 0:
            _be_a_process(function, folder, self.files, environment)
        _started.append(self)
        while status_of(self.pid)[2] != self.pid:
            time.sleep(0.001)  # it has not begun its session yet

    def wait(self, seconds: float = LIMIT) -> Ended | None:
        """How it ended, with the negative number of a signal that killed it; ``None`` if it has not in that time."""
        end = time.monotonic() + seconds
        while self.status is None:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # its number stays taken
            if found:
                self.status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
                self._free()
            elif time.monotonic() > end:
                return None
            else:
                time.sleep(0.01)
        return Ended(self.status, *(file.read_text(errors="replace") for file in self.files))

    def members(self) -> list[int]:
        """Numbers of the living processes of its session, which began with it."""
        return [pid for pid in _numbers() if self._has(pid)]

    def send(self, pid: int, signum: int) -> bool:
        """Send a signal to a process of the session; ``False`` if it has ended."""
        try:
            handle = os.pidfd_open(pid)  # the number cannot become that of another process in between
        except ProcessLookupError:
            return False
        try:
            if not self._has(pid):
                return False
            signal.pidfd_send_signal(handle, signum)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def remain(self, seconds: float) -> list[int]:
        """Processes of the session that are still alive after that time, which ends early if there are none."""
        end = time.monotonic() + seconds
        while (left := self.members()) and time.monotonic() < end:
            time.sleep(0.05)
        return left

    def end(self) -> None:
        """Kill what is left of the session, and free its number; nothing can be asked of it any more."""
        while left := self.members():
            for pid in left:
                self.send(pid, signal.SIGKILL)
            time.sleep(0.01)
        self.wait()
        self._free()

    def _free(self) -> None:
        """Remove the session from the system's table if all of it has ended; its number may then be another's."""
        if self.over or self.members():
            return
        for pid in _numbers():
            if status_of(pid) == ("Z", os.getpid(), self.pid):
                os.waitpid(pid, 0)
        self.over = True

    def _has(self, pid: int) -> bool:
        state, _, session = status_of(pid)
        return not self.over and session == self.pid and state not in "ZX"


def _numbers() -> list[int]:
    return sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())


def status_of(pid: int) -> tuple[str, int, int]:
    """State, parent and session of a process, as proc(5) has them; those of none if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0, 0
    return fields[0], int(fields[1]), int(fields[3])


def command_line_of(pid: int) -> str:
    """The command line of a process, or nothing."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def forked(module: str, *arguments: str, prepare: Callable[[], Any] | None = None) -> Callable[[], Any]:
    """``python -m module *arguments`` without the time for its imports.

    Args:
        module: with the code for ``__main__``.
        arguments: of the command.
        prepare: called in the new process before.
    """

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
    """Import what commands need, and adopt their processes whose parent dies, so that none becomes a zombie."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)
    import torch

    for name in (
        *("lightning", "matplotlib.backends.backend_agg", "sklearn.datasets"),
        *("capsule_lab.callbacks", "capsule_lab.data", "capsule_lab.kernels.cpu", "capsule_lab.config.compose"),
    ):
        importlib.import_module(name)  # starts no thread: this process can be forked
    torch.set_num_threads(1)  # nor may OpenMP, when results are compared: its locks would stay locked in a child


def end_all(folder: Path) -> None:
    """Kill everything that was started in a folder and lives."""
    here = [process for process in _started if process.folder == folder]
    for process in here:
        _started.remove(process)
        process.end()


def _be_a_process(
    function: Callable[[], Any], folder: Path, files: list[Path], environment: dict[str, str | None]
) -> NoReturn:
    """Run ``function`` and end as the interpreter would; nothing of the parent's is cleaned up."""
    status = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        for number, file in zip((1, 2), files, strict=True):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        changes = {**dict.fromkeys(ENVIRONMENT_OF_THE_DEVELOPER), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        for name, value in {**changes, "CAPSULE_LAB_RUNS": str(folder / "runs"), **environment}.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
        for signum in (*STOPPING, signal.SIGCHLD):
            signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background process inherits none
        sys.stdout.reconfigure(line_buffering=True)
        function()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException as error:
        traceback.print_exc()
        status = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    finally:
        try:
            multiprocessing.util._exit_function()  # waits for the processes of a sweep; CPython 3.11
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
