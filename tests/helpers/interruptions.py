"""Runs in this process that are interrupted at any point by a signal, or as if by kill -9."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from omegaconf import DictConfig

from capsule_lab.commands.train import train
from capsule_lab.errors import InterruptError
from capsule_lab.system.signals import interruptible
from tests.helpers.training import checkpoint, curves, results, run

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
"""Hooks of a callback at which a signal is sent."""


class Counting(Callback):
    """Counts the calls of ``HOOKS`` and sends a signal at call number ``at``."""

    def __init__(self, at: int | None = None, signum: int = signal.SIGTERM) -> None:
        self.seen: list[str] = []
        self.at = at
        self.signum = signum
        for hook in HOOKS:
            setattr(self, hook, self._hook(hook))

    def _hook(self, name: str) -> Any:
        def hook(*_: Any) -> None:
            self.seen.append(name)
            if self.at == len(self.seen) - 1:
                signal.raise_signal(self.signum)

        return hook


def killed_at_writes(
    config: DictConfig, directory: Path, folder: Path, every: int
) -> Iterator[Path]:
    """Copies of a run's directory as kill -9 would leave it before a file is replaced, from the last to the first."""
    copies: list[Path] = []
    real = os.replace

    def replace(source: Any, target: Any) -> None:
        copies.append(Path(shutil.copytree(directory, folder / str(len(copies)))))
        real(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", replace)
        train(config, directory)
    yield from copies[::-every]


def stopped_and_resumed(
    config: DictConfig, directory: Path, at: int, signum: int
) -> dict[str, Any]:
    """The result of a run that a signal stops at call ``at`` of ``HOOKS``, and that is then resumed."""
    try:
        with interruptible():
            return run(config, directory, Counting(at, signum))
    except InterruptError:
        return train(resumed(config), directory)


def resumed(config: DictConfig) -> DictConfig:
    """The configuration with ``train.resume=true``."""
    config = config.copy()
    config.train.resume = True
    return config


def differences(
    result: dict[str, Any], directory: Path, expected: dict[str, Any], whole: Path
) -> list[str]:
    """Names of the parts in which an interrupted run differs from an uninterrupted one; empty if they are equal."""
    ours = _parts(result, directory)
    theirs = _parts(expected, whole)
    return [name for name in ours if ours[name] != theirs[name]]


def _parts(result: dict[str, Any], directory: Path) -> dict[str, Any]:
    """What a run leaves behind, as values that can be compared."""
    last = checkpoint(directory)
    return {
        "results": results(result),
        "steps and epochs": (last["global_step"], last["epoch"]),
        "weights": _plain(last["state_dict"]),
        "optimizer": _plain(last["optimizer_states"]),
        "metrics.csv": curves(directory),
        "best.ckpt": _plain(checkpoint(directory, "best")["state_dict"]),
    }


def _plain(value: Any) -> Any:
    """The value with tensors as bytes, which can be compared."""
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
