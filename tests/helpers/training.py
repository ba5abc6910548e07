"""Training runs in this process, interruptions at a step, and functions that read the files of a run."""

import csv
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from omegaconf import DictConfig

from capsule_lab import runs
from capsule_lab.callbacks import LastCheckpoint
from capsule_lab.commands.train import train
from capsule_lab.config import build
from capsule_lab.errors import InterruptError


class SignalAt(Callback):
    """Sends a signal to this process at the end of a step."""

    def __init__(self, step: int, signum: int = signal.SIGTERM) -> None:
        self.step, self.signum = step, signum

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            signal.raise_signal(self.signum)


class TimeOver(Callback):
    """Ends the time of the command after ``batches`` batches of training and testing."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def _count(self, trainer: Any, *_: Any) -> None:
        self.batches -= 1
        if self.batches == 0:
            for callback in trainer.checkpoint_callbacks:
                if isinstance(callback, LastCheckpoint):
                    callback.deadline = -math.inf

    on_train_batch_end = on_test_batch_end = _count


def add_callback(patch: pytest.MonkeyPatch, make: Callable[[], Callback]) -> None:
    """Add a new callback to each Trainer that is built from now on."""
    original = build.build_callbacks
    patch.setattr(build, "build_callbacks", lambda group: [*original(group), make()])


def run(config: DictConfig, directory: Path, *extra: Callback) -> dict[str, Any]:
    """Run ``train`` with more callbacks."""
    with pytest.MonkeyPatch.context() as patch:
        for callback in extra:
            add_callback(patch, lambda callback=callback: callback)
        return train(config, directory)


def interrupted_and_resumed(config: DictConfig, directory: Path, *steps: int) -> dict[str, Any]:
    """The result of a run that a signal stops after each of these steps."""
    for step in steps:
        with pytest.raises(InterruptError):
            run(config, directory, SignalAt(step))
        assert checkpoint(directory)["global_step"] == step
        config = config.copy()
        config.train.resume = True
    return train(config, directory)


def checkpoint(directory: Path, name: str = "last") -> dict[str, Any]:
    """The content of a checkpoint of a run."""
    return torch.load(
        directory / "checkpoints" / f"{name}.ckpt", map_location="cpu", weights_only=True
    )


def weights(directory: Path) -> dict[str, torch.Tensor]:
    """The weights at the end of a run."""
    return checkpoint(directory)["state_dict"]


def trained_module(path: Path) -> Any:
    """The module of a run or a checkpoint."""
    return runs.open(path, trust=["tests"]).module


def curves(directory: Path) -> list[dict[str, str]]:
    """The rows of ``metrics.csv``."""
    with (directory / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def results(result: dict[str, Any]) -> dict[str, Any]:
    """The part of a result that does not depend on time and place of the run."""
    return {key: result[key] for key in ("test", "val", "steps", "epochs", "provenance")}


SMALL_MODELS = {
    "capsnet": ["model.channels=4", "model.primary.types=2", "model.decoder=[8]"],
    "em_caps_small": ["model.channels=4", "model.primary.types=2", "model.conv.types=[2,2]"],
    "cnn_small": ["model.channels=[4,4,4]"],
}
"""One model of each kind, with overrides that make it small."""
