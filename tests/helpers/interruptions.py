"""Runs that are interrupted at any point, in this process: by a signal, or as if by kill -9."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback
from omegaconf import DictConfig

from capsule_lab import atomic
from capsule_lab.errors import InterruptError
from capsule_lab.signals import interruptible
from capsule_lab.train import train
from tests.helpers.training import run

HOOKS = (
    "on_train_batch_start",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_batch_end",
    "on_validation_end",
    "on_train_epoch_end",
    "on_train_epoch_start",
    "on_save_checkpoint",
    "on_train_end",
    "on_test_start",
    "on_test_batch_end",
)
"""Of a callback; where a signal may come."""


class Counting(Callback):
    """Counts the calls of ``HOOKS``; sends a signal at one of them.

    Args:
        at: its number; ``None`` for no signal.
        signum: which signal.
    """

    def __init__(self, at: int | None = None, signum: int = signal.SIGTERM) -> None:
        self.seen: list[str] = []
        self.at, self.signum = at, signum
        for hook in HOOKS:
            setattr(self, hook, self._hook(hook))

    def _hook(self, name: str) -> Any:
        def hook(*_: Any) -> None:
            self.seen.append(name)
            if self.at == len(self.seen) - 1:
                signal.raise_signal(self.signum)

        return hook


def killed_at_every_write(config: DictConfig, directory: Path, folder: Path) -> Iterator[Path]:
    """Copies of a run's directory as kill -9 would leave it before each file that it puts in place.

    Args:
        config: of the run.
        directory: in which it runs, to its end.
        folder: for the copies; each is deleted when the next is asked for.
    """
    copies: list[Path] = []
    real = os.replace

    def replace(source: Any, target: Any) -> None:
        copies.append(Path(shutil.copytree(directory, folder / str(len(copies)))))
        real(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atomic.os, "replace", replace)
        train(config, directory)
    for copy in copies:
        yield copy
        shutil.rmtree(copy)


def stopped_and_resumed(
    config: DictConfig, directory: Path, patch: pytest.MonkeyPatch, at: int, signum: int
) -> dict[str, Any]:
    """The result of a run that a signal stopped at the call ``at`` of ``HOOKS``, and that was resumed.

    It is that of the first run if the signal came too late to stop anything.
    """
    try:
        with interruptible("stopped"):
            return run(config, directory, patch, Counting(at, signum))
    except InterruptError:
        config = config.copy()
        config.train.resume = True
        return train(config, directory)
