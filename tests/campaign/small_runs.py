"""Runs of a second, what they give if nothing happens to them, and something that happens at a certain moment."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.campaign.outcomes import ended, expect_success, only_run, outcome
from tests.campaign.processes import Process, end_all, forked
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, TINY_CNN, TINY_DATA

STEPS_WITHIN_AN_EPOCH = ["trainer.max_epochs=-1", "trainer.max_steps=7"]  # an epoch has four steps
CONFIGURATIONS = {
    "epochs": [*TINY_CAPSNET, "trainer.max_epochs=3", *NO_PICTURES],
    "pictures": [*TINY_CAPSNET, "trainer.max_epochs=2"],
    "max_steps": [*TINY_CAPSNET, *STEPS_WITHIN_AN_EPOCH, *NO_PICTURES],
    "dropout, validation every 3 steps": [
        *TINY_CNN,
        *STEPS_WITHIN_AN_EPOCH,
        "trainer.check_val_every_n_epoch=null",
        "trainer.val_check_interval=3",
        *NO_PICTURES,
    ],
    "accumulated gradients": [
        *TINY_CNN,
        "trainer.max_epochs=3",
        "trainer.accumulate_grad_batches=2",
        "trainer.val_check_interval=2",
        *NO_PICTURES,
    ],
    "EMCaps": [
        *("model=em_caps_small", "model.channels=4", "model.primary_types=2", "model.conv_types=[2,2]"),
        *("trainer.max_epochs=2", *NO_PICTURES),
    ],
    "two digits": [*TINY_CAPSNET, "data=multimnist", "trainer.max_epochs=2", *NO_PICTURES],
    "validation every second epoch": [
        *TINY_CNN,
        "trainer.max_epochs=5",
        "trainer.check_val_every_n_epoch=2",
        *NO_PICTURES,
    ],
}
SAVES_OFTEN = "callbacks.last.every_minutes=0.0001"
RESUME = "train.resume=true"
TEMPORARY: list[Path] = []
"""The folder of all files of the campaign; the runner makes and removes it."""

Prepare = Callable[[], Any]


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """A folder for one case; what still runs in it is killed in the end, and all that is in it removed."""
    folder = Path(tempfile.mkdtemp(dir=TEMPORARY[0]))
    try:
        yield folder
    finally:
        end_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


def train(
    configuration: str, folder: Path, *more: str, prepare: Prepare | None = None, **environment: str | None
) -> Process:
    """A training run in ``folder``, under way."""
    overrides = [*TINY_DATA, *CONFIGURATIONS[configuration], *more]
    return Process(forked("capsule_lab.train", *overrides, prepare=prepare), folder, **environment)


class Reference(NamedTuple):
    """An uninterrupted run.

    Attributes:
        outcome: as ``outcomes.outcome`` gives it.
        seconds: from its start to its end.
        hooks: of callbacks, in the order in which they were called.
        changes: of files below ``runs``, as they followed each other.
    """

    outcome: dict[str, Any]
    seconds: float
    hooks: list[str]
    changes: list[str]


@functools.cache
def reference(configuration: str, *more: str) -> Reference:
    """A configuration trained without a fault."""
    with fresh_folder() as folder:
        hooks, changes = at_hook(0, folder / "hooks"), at_file_change(0, folder, folder / "changes")
        began = time.monotonic()
        expect_success(ended(train(configuration, folder, *more, prepare=lambda: (hooks(), changes()))))
        seconds = time.monotonic() - began
        seen = [(folder / name).read_text().splitlines() for name in ("hooks", "changes")]
        return Reference(outcome(only_run(folder)), seconds, *seen)


def signal_here(signum: int) -> Prepare:
    """What sends a signal to the process that it is called in."""
    return lambda: os.kill(os.getpid(), signum)


KILL = signal_here(signal.SIGKILL)


def at_hook(number: int, log: Path | None = None, action: Prepare = KILL) -> Prepare:
    """Prepares a process to do something at the so many-th call of a hook of callbacks, before LastCheckpoint's own."""

    def prepare() -> None:
        from lightning.pytorch.callbacks import Callback

        from capsule_lab.config import build

        event = _counter(number, log, action)
        names = [name for name in dir(Callback) if name.startswith("on_") and name != "on_exception"]
        hooks = {name: functools.partialmethod(lambda self, label, *_, **__: event(label), name) for name in names}
        every_hook, build_trainer = type("EveryHook", (Callback,), hooks)(), build.build_trainer
        build.build_trainer = lambda config, directory, *callbacks: build_trainer(
            config, directory, every_hook, *callbacks
        )

    return prepare


def at_file_change(number: int, folder: Path, log: Path | None = None, action: Prepare = KILL) -> Prepare:
    """Prepares a process to do something before the so many-th change of a file or folder below ``folder/runs``."""
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

    def prepare() -> None:
        event, runs = _counter(number, log, action), str(folder / "runs")

        def audit(name: str, arguments: tuple[Any, ...]) -> None:
            changes = name in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate")
            if not changes and not (name == "open" and isinstance(arguments[2], int) and arguments[2] & writing):
                return
            path = arguments[1] if name == "os.rename" else arguments[0]
            if isinstance(path, str | bytes | os.PathLike) and os.path.abspath(os.fsdecode(path)).startswith(runs):
                event(f"{name} {os.path.basename(os.fsdecode(path))}")

        sys.addaudithook(audit)

    return prepare


def _counter(number: int, log: Path | None, action: Prepare) -> Callable[[str], None]:
    """Counts calls, writes down their labels, and calls ``action`` at the so many-th."""
    count, file = 0, os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if log else None

    def event(label: str) -> None:
        nonlocal count
        count += 1
        if file is not None:
            os.write(file, f"{label}\n".encode())
        if count == number:
            action()

    return event
