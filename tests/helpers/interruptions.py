"""Runs that are interrupted at any point, in this process: by a signal, or as if by kill -9."""

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

from capsule_lab.errors import InterruptError
from capsule_lab.system.signals import interruptible
from capsule_lab.train import train
from tests.helpers.training import checkpoint, curves, results, run

HOOKS = (
    *("on_train_batch_start", "on_before_optimizer_step", "on_train_batch_end", "on_validation_start"),
    *("on_validation_batch_end", "on_validation_end", "on_train_epoch_end", "on_train_epoch_start"),
    *("on_save_checkpoint", "on_train_end", "on_test_start", "on_test_batch_end"),
)
"""Of a callback; where a signal may come."""


class Counting(Callback):
    """Counts the calls of ``HOOKS``; sends a signal at the one of number ``at``."""

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


def killed_at_writes(config: DictConfig, directory: Path, folder: Path, every: int) -> Iterator[Path]:
    """Copies of a run's directory as kill -9 would leave it before files are put in place, from the last backwards."""
    copies: list[Path] = []
    real = os.replace

    def replace(source: Any, target: Any) -> None:
        copies.append(Path(shutil.copytree(directory, folder / str(len(copies)))))
        real(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", replace)
        train(config, directory)
    yield from copies[::-every]


def stopped_and_resumed(config: DictConfig, directory: Path, at: int, signum: int) -> dict[str, Any]:
    """The result of a run that a signal stopped at the call ``at`` of ``HOOKS``, if it could, and that was resumed."""
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


def differences(found: dict[str, Any], directory: Path, expected: dict[str, Any], whole: Path) -> list[str]:
    """In what a run that was interrupted differs from one that was not; nothing if it is right."""
    ours, theirs = checkpoint(directory), checkpoint(whole)
    pairs = {
        "results": (results(found), results(expected)),
        "steps and epochs": [(each["global_step"], each["epoch"]) for each in (ours, theirs)],
        "weights": [_plain(each["state_dict"]) for each in (ours, theirs)],
        "optimizer": [_plain(each["optimizer_states"]) for each in (ours, theirs)],
        "metrics.csv": (curves(directory), curves(whole)),
        "best.ckpt": [_plain(checkpoint(each, "best")["state_dict"]) for each in (directory, whole)],
    }
    return [name for name, (first, second) in pairs.items() if first != second]


def _plain(value: Any) -> Any:
    """Tensors as bytes, which can be compared."""
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
