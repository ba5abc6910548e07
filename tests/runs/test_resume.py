"""A run that is interrupted anywhere ends as if it had not been."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from capsule_lab.config import compose
from capsule_lab.errors import InterruptError
from capsule_lab.train import train
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, TINY_CNN, TINY_DATA
from tests.helpers.training import SignalAt, curves, run, weights

Whole = tuple[DictConfig, Path, dict[str, Any]]
STEPS_PER_EPOCH = 4  # 256 images in batches of 64
BY_EPOCHS = ["trainer.max_epochs=4"]
BY_STEPS = [
    "trainer.max_epochs=-1",
    "trainer.max_steps=16",
    "trainer.check_val_every_n_epoch=null",
    "trainer.val_check_interval=6",
]


LENGTHS = {"epochs, with dropout": (BY_EPOCHS, TINY_CNN), "steps, with dropout": (BY_STEPS, TINY_CNN)}
LENGTHS["steps, capsules"] = (BY_STEPS, TINY_CAPSNET)


@pytest.fixture(scope="module", params=LENGTHS)
def uninterrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A run from its first to its last step."""
    length, model = LENGTHS[request.param]
    config = compose("train", [*model, *TINY_DATA, *length, *NO_PICTURES])
    directory = tmp_path_factory.mktemp("whole")
    return config, directory, train(config, directory)


@pytest.mark.parametrize(
    ("stop", "signum"),
    [
        pytest.param(1, signal.SIGTERM, id="the first step"),
        pytest.param(4, signal.SIGUSR1, id="the last of an epoch"),
        pytest.param(6, signal.SIGTERM, id="one before a validation within an epoch"),
        pytest.param(7, signal.SIGUSR1, id="the middle of an epoch"),
    ],
)
def test_resumed_run_equals_uninterrupted(
    uninterrupted: Whole, stop: int, signum: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, whole, expected = uninterrupted
    with pytest.raises(InterruptError, match=rf"^stopped by {signum.name} .*to continue exactly: .*train\.resume=true"):
        run(config, tmp_path, monkeypatch, SignalAt(stop, signum))
    found = run(OmegaConf.merge(config, {"train": {"resume": True}}), tmp_path, monkeypatch)

    assert found["steps"] == expected["steps"]
    assert {k: found[k] for k in ("test", "val")} == {k: expected[k] for k in ("test", "val")}
    torch.testing.assert_close(weights(tmp_path), weights(whole), rtol=0, atol=0)
    assert curves(tmp_path) == curves(whole)
