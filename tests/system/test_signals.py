"""Signals stop a command at every moment, with a status of 128 more than their number."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from capsule_lab.errors import InterruptError
from capsule_lab.system import signals
from tests.helpers.commands import Ended, interpreter, start


def handlers() -> list[object]:
    return [signal.getsignal(each) for each in signals.SIGNALS]


def forked(run: Callable[[], None]) -> int:
    """The status, as shells have it, of a process that calls ``run``."""
    process = os.fork()
    if not process:
        run()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_signal_raises_what_is_not_taken_for_another_fault() -> None:
    before = handlers()
    for signum in signals.SIGNALS:
        with pytest.raises(InterruptError, match=f"^stopped by {signum.name}$") as caught, signals.interruptible():
            _read_what_others_wrote(signum)
        assert caught.value.signum == signum
    assert handlers() == before


def _read_what_others_wrote(signum: int) -> None:
    try:
        signal.raise_signal(signum)
    except Exception as error:
        raise ValueError("the file is damaged") from error


def test_signal_that_python_drops_is_raised_later() -> None:
    class Closing:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(InterruptError, match="no result"), signals.interruptible("no result"):
        Closing()  # is deleted at once


def test_error_that_a_signal_led_to_is_an_interruption() -> None:
    with pytest.raises(InterruptError, match=r"^stopped by SIGTERM$"), signals.interruptible():
        _drop_the_interruption()
    with pytest.raises(ValueError, match="not one"), signals.interruptible():
        raise ValueError("not one")


def _drop_the_interruption() -> None:
    try:
        signal.raise_signal(signal.SIGTERM)
    except BaseException:  # as C code does
        raise ValueError from None


def test_sighup_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with signals.interruptible():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signal_waits_while_it_is_postponed() -> None:
    done = []
    with pytest.raises(InterruptError), signals.interruptible(), signals.postponed():
        done += [os.kill(os.getpid(), signal.SIGTERM), "written"]
    assert done == [None, "written"]


def test_process_without_a_command_ends_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        signals.exit_at_once()
        signal.raise_signal(signal.SIGUSR1)

    assert forked(run) == 128 + signal.SIGUSR1
    assert capfd.readouterr().err == "capsule_lab: stopped by SIGUSR1\n"


@pytest.mark.parametrize(
    ("argv", "original", "expected"),
    [
        (["-m"], ["python", "-u", "-m", "capsule_lab.train", "seed=1"], True),
        (["-m"], ["python", "-mcapsule_lab"], True),
        (["-m"], ["python", "-m", "mine.train"], False),
        (["mine.py"], ["python", "mine.py", "capsule_lab.train"], False),
        (["/usr/bin/capsule-lab"], ["python", "/usr/bin/capsule-lab", "train"], True),
    ],
    ids=str,
)
def test_commands_are_told_from_other_programs(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], original: list[str], expected: bool
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", original)
    assert signals.is_command() is expected


@pytest.mark.parametrize("deaf", [False, True], ids=["ends by itself", "has to be killed"])
def test_process_ends_with_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaf: bool) -> None:
    monkeypatch.setattr(signals, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(signals, "_TO_ORPHANS", ((signal.SIGTERM, 0.2), (signal.SIGKILL, 0.0)))
    reading, writing = os.pipe()

    def child() -> None:
        os.close(reading)
        if deaf:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signals.end_with_parent()
        try:
            with signals.interruptible() if not deaf else signals.postponed():
                os.write(writing, b"started ")
                time.sleep(20)
        except InterruptError:
            os.write(writing, b"saved")
        os._exit(0)

    def parent() -> None:
        if not os.fork():
            child()
        time.sleep(0.1)

    forked(parent)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        began = time.monotonic()
        assert pipe.read() == ("started " if deaf else "started saved")  # to the end of the process
    assert time.monotonic() - began < 10


def test_ctrl_c_during_the_imports_of_a_command(tmp_path: Path) -> None:
    """As soon as it has handlers, which takes milliseconds."""
    with start("-m", "capsule_lab.train", cwd=tmp_path) as process:
        status = Path(f"/proc/{process.pid}/status")
        handled = 0
        while not handled >> (signal.SIGUSR1 - 1) & 1 and process.poll() is None:
            (caught,) = (line for line in status.read_text().splitlines() if line.startswith("SigCgt:"))
            handled = int(caught.split()[1], 16)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (128 + signal.SIGINT, "", "capsule_lab: stopped by SIGINT\n")


def test_signal_after_the_end_of_python_changes_no_status(tmp_path: Path) -> None:
    """While the C library unloads torch, Python's handlers are gone already."""
    script = """
import ctypes, signal, sys
sys.argv, sys.orig_argv = ["-m"], ["python", "-m", "capsule_lab.train"]
import capsule_lab
library = ctypes.CDLL(None)
library.__cxa_atexit(library["raise"], signal.SIGHUP, None)
"""
    assert interpreter("-c", script, cwd=tmp_path) == Ended(0, "", "")
