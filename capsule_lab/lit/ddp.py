"""The processes of a distributed run: how long they wait for each other, and what becomes of them if one is lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from capsule_lab.errors import ConfigError, RunError, one_line
from capsule_lab.lit.lightning_internals import set_collective_timeout, take_processes
from capsule_lab.system.signals import end_with_parent

TIMEOUT_VARIABLE = "CAPSULE_LAB_DDP_TIMEOUT"
"""Environment variable: seconds that processes wait for each other; by default ``_TIMEOUT``."""

_TIMEOUT = 300  # ours: seconds; torch's 1800 would keep a cluster's GPUs idle, a slow disk may take a minute
_LONGEST = 10**8  # ours: seconds, three years; torch counts in milliseconds
_GRACE = 10.0  # ours: seconds; gloo notices a lost process at once, NCCL does not
_LOCATION = re.compile(r"^\[[^]]*\]\s*")  # in the source of gloo
_LOST = re.compile(
    r"Connection (closed|reset) by peer|timed out|Broken pipe|Socket (closed|Timeout)|failed to recv|"
    r"NCCL (error|communicator was aborted)|Watchdog caught collective operation timeout|peer closed",
    re.IGNORECASE,
)
"""What gloo, NCCL and the store of torch 2.11 to 2.15 say when another process does not answer."""


@contextmanager
def processes_of(trainer: Any, then: str) -> Iterator[None]:
    """While this process trains or tests together with others: it ends when one of them has ended or does not answer.

    Args:
        trainer: of the run.
        then: what to do in that case, the end of the message.

    Raises:
        ConfigError: if the environment has no time for it.
        RunError: if that is so.
    """
    seconds = _timeout()
    if trainer.world_size == 1:
        yield
        return
    set_collective_timeout(trainer, timedelta(seconds=seconds))
    others = _Others(trainer, then)
    if os.environ.get("LOCAL_RANK", "0") != "0":
        end_with_parent(_GRACE)
    try:
        yield
    except RuntimeError as error:  # torch's errors of communication, of which not all have a class of their own
        if not _LOST.search(str(error)):
            raise
        sentence = others.sentence(one_line(error))
        others.kill()  # one of them may stand still
        raise RunError(sentence) from error
    finally:
        others.watched = False


class _Others:
    """The processes that this one has started for the run, watched by a thread.

    Lightning's own thread kills this process, too, without a word.
    """

    def __init__(self, trainer: Any, then: str) -> None:
        self.trainer = trainer
        self.then = then
        self.processes: list[subprocess.Popen[Any]] = []
        self.watched = True
        threading.Thread(target=self._watch, name="processes-of-the-run", daemon=True).start()

    def sentence(self, reason: str = "") -> str:
        """What has happened, as far as it is known, and what to do."""
        ended = [f"process {each.pid} {_how(each.returncode)}" for each in self.processes if each.poll()]
        what = (
            f"has ended ({', '.join(ended)})"
            if ended
            else f"has ended or does not answer ({_LOCATION.sub('', reason)[:60]})"
        )
        return f"another process of this run {what}; {self.then}"

    def kill(self) -> None:
        for each in self.processes:
            each.kill()
            each.wait()

    def _watch(self) -> None:
        while self.watched:
            self.processes += take_processes(self.trainer)
            if any(each.poll() for each in self.processes):
                time.sleep(_GRACE)  # it should have noticed
                break
            time.sleep(0.5)
        if self.watched:
            sentence = self.sentence()
            self.kill()
            sys.stderr.write(f"capsule_lab: {sentence}\n")
            sys.stderr.flush()
            os._exit(2)  # its main thread waits for them within CUDA or C++


def _how(status: int) -> str:
    return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}, its own message is above"


def _timeout() -> float:
    text = os.environ.get(TIMEOUT_VARIABLE) or str(_TIMEOUT)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds <= _LONGEST:
        raise ConfigError(f"{TIMEOUT_VARIABLE} is {text}; expected seconds, more than 0 and at most {_LONGEST}")
    return seconds
