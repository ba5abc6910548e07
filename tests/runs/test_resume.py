"""A run that is interrupted anywhere ends as if it had not been."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig

from capsule_lab.config import compose
from capsule_lab.errors import InterruptError
from capsule_lab.train import train
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, TINY_CNN, TINY_DATA
from tests.helpers.training import SignalAt, checkpoint, curves, results, run, weights

Whole = tuple[str, DictConfig, Path, dict[str, Any]]
BY_STEPS = [
    "trainer.max_epochs=-1",
    "trainer.max_steps=16",
    "trainer.check_val_every_n_epoch=null",
    "trainer.val_check_interval=6",
]
RUNS = {
    "epochs, capsules": ["trainer.max_epochs=4", *TINY_CAPSNET],
    "steps, dropout": [*BY_STEPS, *TINY_CNN],
}
SAVED_AT = {  # by the step of the signal; an epoch has four steps, 256 images in batches of 64
    "epochs, capsules": {1: 1, 4: 4, 7: 7},  # the first step, the last of an epoch, within one
    "steps, dropout": {1: 1, 4: 4, 6: 7, 10: 10},  # after step 6 comes a validation, which would be left out
}

pytestmark = pytest.mark.xdist_group("resume")


@pytest.fixture(scope="module", params=RUNS)
def uninterrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A run from its first to its last step."""
    config = compose("train", [*TINY_DATA, *RUNS[request.param], *NO_PICTURES])
    directory = tmp_path_factory.mktemp("whole")
    return request.param, config, directory, train(config, directory)


def test_run_that_is_interrupted_again_and_again_equals_an_uninterrupted_one(
    uninterrupted: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, config, whole, expected = uninterrupted
    signals = itertools.cycle([signal.SIGTERM, signal.SIGUSR1])
    for step, expected_step in SAVED_AT[name].items():
        with pytest.raises(InterruptError, match=r"to continue exactly: .*train\.resume=true") as caught:
            run(config, tmp_path, monkeypatch, SignalAt(step, signum := next(signals)))
        assert checkpoint(tmp_path)["global_step"] == expected_step
        (tmp_path / "metrics.csv").unlink(missing_ok=True)  # its rows are in the checkpoint, that of the epoch included
        assert caught.value.signum == signum
        config = config.copy()
        config.train.resume = True
    found = train(config, tmp_path)

    assert results(found) == results(expected)
    torch.testing.assert_close(weights(tmp_path), weights(whole), rtol=0, atol=0)
    assert curves(tmp_path) == curves(whole)
