"""A run and an evaluation that are killed only the first time."""

import os
import signal
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from capsule_lab.data import MNISTDataModule


class Once(Callback):
    """Sends a signal to the first run after its first step; later runs are not disturbed."""

    def __init__(self, marker: str, signum: int) -> None:
        self.marker, self.signum = Path(marker), signum

    def on_train_batch_end(self, *_: Any) -> None:
        if not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), self.signum)


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
