"""A run that is interrupted anywhere ends as if it had not been."""

from __future__ import annotations

import csv
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from omegaconf import DictConfig

from capsule_lab import build, runs
from capsule_lab.command import InterruptError
from capsule_lab.train import train
from tests.conftest import TINY_CAPSNET, TINY_CNN

STEPS_PER_EPOCH = 4  # 256 images in batches of 64
BY_EPOCHS = ["trainer.max_epochs=4"]
BY_STEPS = [
    "trainer.max_epochs=-1",
    "trainer.max_steps=16",
    "trainer.check_val_every_n_epoch=null",
    "trainer.val_check_interval=6",
]


class SignalAt(Callback):
    """Sends a signal to this process at the end of a step."""

    def __init__(self, step: int, signum: int = signal.SIGTERM) -> None:
        self.step, self.signum = step, signum

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            signal.raise_signal(self.signum)


def run(config: DictConfig, directory: Path, monkeypatch: pytest.MonkeyPatch, *extra: Callback) -> dict[str, Any]:
    """``train`` with more callbacks."""
    directory.mkdir(exist_ok=True)
    genuine = build.build_trainer
    with monkeypatch.context() as patch:
        patch.setattr(build, "build_trainer", lambda c, d, *callbacks: genuine(c, d, *extra, *callbacks))
        return train(config, directory)


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return runs.read_checkpoint(directory / "checkpoints" / "last.ckpt")[0]["state_dict"]


def curves(directory: Path) -> list[dict[str, str]]:
    with (directory / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


# the first step, the last of an epoch, one before a validation within an epoch, the middle of an epoch
@pytest.mark.parametrize("stop", [1, 4, 6, 7])
@pytest.mark.parametrize(
    ("length", "model"),
    [
        pytest.param(BY_EPOCHS, TINY_CNN, id="epochs, with dropout"),
        pytest.param(BY_STEPS, TINY_CNN, id="steps, with dropout"),
        pytest.param(BY_STEPS, TINY_CAPSNET, id="steps, capsules"),
    ],
)
def test_resumed_run_equals_uninterrupted(
    stop: int,
    length: list[str],
    model: list[str],
    tiny: Callable[..., DictConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tiny(*length, "callbacks.reconstructions=null", "callbacks.confusion=null", model=model)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = run(config, whole, monkeypatch)
    with pytest.raises(InterruptError, match=r"to continue exactly: .*train\.resume=true"):
        run(config, parts, monkeypatch, SignalAt(stop))
    config.train.resume = True
    found = run(config, parts, monkeypatch)

    assert found["steps"] == expected["steps"]
    assert {k: found[k] for k in ("test", "validation")} == {k: expected[k] for k in ("test", "validation")}
    torch.testing.assert_close(weights(parts), weights(whole), rtol=0, atol=0)
    assert curves(parts) == curves(whole)
