"""A callback that makes SLURM jobs wait for a signal."""

import json
import os
import time
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from capsule_lab.callbacks import LastCheckpoint
from capsule_lab.system.slurm import this_job


class Hold(Callback):
    """Each process of a job waits at a step for a signal, once.

    ``held-<rank>.json`` in the run's directory names the job and the process that waits.
    Outside of SLURM it does nothing."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        marker = Path(trainer.default_root_dir) / f"held-{trainer.global_rank}.json"
        if "SLURM_JOB_ID" not in os.environ or trainer.global_step != self.step or marker.exists():
            return
        marker.write_text(json.dumps({"job": this_job(), "pid": os.getpid()}))
        (last,) = (
            callback for callback in trainer.callbacks if isinstance(callback, LastCheckpoint)
        )
        end = time.monotonic() + 300  # a test that failed leaves nothing behind
        while last.signals.received is None:
            assert time.monotonic() < end, "no signal came"
            time.sleep(0.1)
