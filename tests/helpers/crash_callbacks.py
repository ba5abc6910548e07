"""Failures of a run, or of an evaluation, that happen once."""

import os
import signal
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from capsule_lab.data import MNISTDataModule


class Once(Callback):
    """The first run that comes here is ended by a signal after its first step; later ones are not."""

    def __init__(self, marker: str, signum: int) -> None:
        self.marker, self.signum = Path(marker), signum

    def on_train_batch_end(self, *_: Any) -> None:
        if not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), self.signum)


class MNISTThatKillsOnce(MNISTDataModule):
    """The first process that tests on these images is killed; later ones are not."""

    def __init__(self, marker: str, **options: Any) -> None:
        super().__init__(**options)
        self.marker = Path(marker)

    def test_dataloader(self) -> Any:
        if not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().test_dataloader()
