"""A signal stops a command with the status 128 plus its number; a closed pipe ends it without a message."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from capsule_lab.errors import InterruptError
from capsule_lab.system import signals
from tests.helpers.commands import ROOT, environment_of_a_command


def handlers() -> list[object]:
    return [signal.getsignal(signum) for signum in signals.SIGNALS]


def read_file(signum: int) -> None:
    try:
        signal.raise_signal(signum)
    except Exception as error:
        raise ValueError("the file is damaged, not the command interrupted") from error


@pytest.mark.parametrize("signum", signals.SIGNALS, ids=lambda signum: signum.name)
def test_signal_raises_outside_of_training_and_sets_a_flag_in_training(
    signum: signal.Signals,
) -> None:
    before = handlers()
    message = f"^stopped by {signum.name}$"
    with pytest.raises(InterruptError, match=message) as caught, signals.interruptible():
        read_file(signum)
    assert caught.value.signum == signum
    assert handlers() == before
    request = signals.StopRequest()
    request.install()
    signal.raise_signal(signum)
    assert request.received == signum
    message = r"stopped immediately; train\.resume=true continues"
    with pytest.raises(InterruptError, match=message) as caught:
        signal.raise_signal(signum)
    assert caught.value.signum == signum
    assert handlers() == before


def test_saving_goes_on_when_slurm_ends_the_job_after_its_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NAME", "capsule_lab")
    before = handlers()
    request = signals.StopRequest()
    request.install()
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGTERM)
    request.restore()
    assert request.received == signal.SIGUSR1
    assert handlers() == before


@pytest.mark.filterwarnings("ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning")
def test_signal_in_a_destructor_is_raised_later() -> None:
    class Closing:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(InterruptError, match="no result"), signals.interruptible("no result"):
        Closing()  # is deleted at once


def test_ignored_sighup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with signals.interruptible():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_orphan_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(signals, "_TO_ORPHANS", ((signal.SIGTERM, 0.2), (signal.SIGKILL, 0.0)))
    reading, writing = os.pipe()

    def child() -> None:
        os.close(reading)
        signals.end_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(writing, b"started")
        time.sleep(20)
        os.write(writing, b" and ended by itself")
        os._exit(0)

    parent = os.fork()
    if parent == 0:
        if os.fork() == 0:
            child()
        time.sleep(0.1)
        os._exit(0)
    os.waitpid(parent, 0)
    os.close(writing)
    start_time = time.monotonic()
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "started"  # to the end of the process
    assert time.monotonic() - start_time < 10


CLOSED = """
import logging, sys
from capsule_lab.system.terminal import usable_streams
logging.basicConfig(stream=sys.stdout, level="INFO")
with usable_streams():
    for number in range(100_000):
        logging.info("line %d", number)
    print("the end", flush=True)
"""


def test_closed_pipe_ends_a_command_without_a_message(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLOSED]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes) as process:
        assert process.stdout.readline() == b"INFO:root:line 0\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE


@pytest.mark.whole
def test_closed_pipe_ends_a_job_of_hydra_without_a_message(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    predict = [sys.executable, "-m", "capsule_lab", "predict"]
    picture = ROOT / "docs" / "seven.png"
    environment = environment_of_a_command(PYTHONUNBUFFERED="1")
    ended = subprocess.run(
        [*predict, "ckpt=em_caps_mnist", f"images={picture}", "to=csv"],
        cwd=tmp_path,
        env=environment,
        stdout=writing,
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    assert b"Error" not in ended.stderr
    assert ended.returncode == 128 + signal.SIGPIPE
