"""Where the runs of a sweep go: side by side on this machine, or to a SLURM cluster. Each run is a command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from omegaconf import DictConfig

PARENT_VARIABLE = "CAPSULE_LAB_PARENT"
"""Environment variable with the process whose end ends a command."""
DEADLINE_VARIABLE = "CAPSULE_LAB_DEADLINE"
"""Environment variable with the time, by ``time.time``, at which a run has to be paused."""


class Job(NamedTuple):
    """A run of a sweep."""

    name: str  # for messages
    arguments: tuple[str, ...]  # of Python: -m capsule_lab.train …
    trainer: DictConfig  # its part of the configuration, which says how many GPUs the run takes
    fingerprint: str  # the hash by which its lock, its log and its record of a failure are found
    environment: Mapping[str, str] = {}  # variables that it needs
    in_tables: bool = True  # whether tables find its result: not of a directory of its own, or other initial weights

    @property
    def command(self) -> list[str]:
        """What starts it."""
        return [sys.executable, *self.arguments]


def environment_for(job: Mapping[str, str], **more: str) -> dict[str, str]:
    """The environment of a job: that of this process, without what is for this process only, and the job's own."""
    inherited = {**os.environ}
    inherited.pop("CAPSULE_LAB_RUN", None)
    return {**inherited, "PYTHONUNBUFFERED": "1", **job, **more}
