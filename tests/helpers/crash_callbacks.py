"""Runs and an evaluation that are killed, or wait to be stopped, only the first time."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from capsule_lab.callbacks import LastCheckpoint
from capsule_lab.data import MNISTDataModule


class Once(Callback):
    """Sends a signal to the first run after its first step; later runs are not disturbed."""

    def __init__(self, marker: str, signum: int) -> None:
        self.marker, self.signum = Path(marker), signum

    def on_train_batch_end(self, *_: Any) -> None:
        if not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), self.signum)


class WaitsOnce(Callback):
    """Waits after the first step for the signal that stops the run; a run that continues is not disturbed."""

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        marker = Path(trainer.default_root_dir) / "waits"
        if marker.exists():
            return
        marker.touch()
        (last,) = (
            callback for callback in trainer.callbacks if isinstance(callback, LastCheckpoint)
        )
        end = time.monotonic() + 240  # a test that failed leaves nothing behind
        while last.signals.received is None:
            assert time.monotonic() < end, "no signal came"
            time.sleep(0.1)


class KillOneProcess(Callback):
    """Kills one process of a run after a step, only the first time; every process writes its id beside ``marker``."""

    def __init__(self, marker: str, rank: int, step: int) -> None:
        self.marker, self.rank, self.step = Path(marker), rank, step

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        self.marker.with_suffix(f".{trainer.global_rank}").write_text(str(os.getpid()))

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if (trainer.global_rank, trainer.global_step) == (
            self.rank,
            self.step,
        ) and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class MNISTThatKillsOnce(MNISTDataModule):
    """Kills the first process that tests on these images; later processes are not disturbed."""

    def __init__(self, marker: str, **options: Any) -> None:
        super().__init__(**options)
        self.marker = Path(marker)

    def test_dataloader(self) -> Any:
        if not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().test_dataloader()
