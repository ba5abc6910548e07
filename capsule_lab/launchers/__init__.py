"""Launchers, which start the runs of a sweep on this machine or on a SLURM cluster. Each run is a command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from omegaconf import DictConfig

PARENT_VARIABLE = "CAPSULE_LAB_PARENT"
"""Environment variable with the parent process; a command stops when this process ends."""
DEADLINE_VARIABLE = "CAPSULE_LAB_DEADLINE"
"""Environment variable with the time, as of ``time.time``, at which a run must pause."""


class Job(NamedTuple):
    """A run of a sweep."""

    name: str  # for messages
    arguments: tuple[str, ...]  # of Python: -m capsule_lab.train …
    config: DictConfig  # configuration of the training, with its number of GPUs
    fingerprint: str  # hash that identifies its lock, its log and its record of a failure
    environment: Mapping[str, str] = {}  # additional variables
    in_tables: bool = True  # whether tables find its result: not with train.directory or ckpt

    @property
    def command(self) -> list[str]:
        """The command that starts it."""
        return [sys.executable, *self.arguments]


def environment_for(job: Mapping[str, str], **more: str) -> dict[str, str]:
    """Return the environment of a job: that of this process, without ``CAPSULE_LAB_RUN``, and the job's variables."""
    inherited = {**os.environ}
    inherited.pop("CAPSULE_LAB_RUN", None)
    return {**inherited, "PYTHONUNBUFFERED": "1", **job, **more}
