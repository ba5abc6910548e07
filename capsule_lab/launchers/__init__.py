"""Launchers, which start the runs of a sweep on this machine or on a SLURM cluster. Each run is a command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from omegaconf import DictConfig

from capsule_lab.system import protocol


def _ended() -> str:
    return "ended"


def _unknown() -> Mapping[str, Any]:
    return {}


class Job(NamedTuple):
    """A run of a sweep."""

    name: str  # for messages
    arguments: tuple[str, ...]  # of Python, see ``arguments_for``
    config: DictConfig  # configuration of the training, with its number of GPUs
    fingerprint: str  # hash that identifies its lock, its log and its record of a failure
    environment: Mapping[str, str] = {}  # additional variables
    in_tables: bool = True  # whether tables find its result: not with train.directory or ckpt
    outcome: Callable[[], str] = _ended  # describes the result once it has ended, for messages
    record: Callable[[], Mapping[str, Any]] = _unknown  # of the latest finished or paused run
    to_continue: str = "the same command continues"  # after the sweep was stopped, for messages

    @property
    def command(self) -> list[str]:
        """The command that starts it."""
        return [sys.executable, *self.arguments]


def arguments_for(command: str, overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of Python that run a command of this package."""
    return ("-m", "capsule_lab", command, *overrides)


def environment_for(job: Mapping[str, str], **more: str) -> dict[str, str]:
    """Return the environment of a job: that of this process, without ``CAPSULE_LAB_RUN``, and the job's variables."""
    inherited = {**os.environ}
    inherited.pop(protocol.RUN, None)
    return {**inherited, "PYTHONUNBUFFERED": "1", **job, **more}
