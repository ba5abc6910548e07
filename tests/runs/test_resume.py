"""A run that is interrupted anywhere ends as if it had not been."""

from __future__ import annotations

import itertools
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig

from capsule_lab.config.compose import compose
from capsule_lab.errors import InterruptError
from capsule_lab.system.signals import SIGNALS
from capsule_lab.train import train
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, TINY_CNN, TINY_DATA
from tests.helpers.interruptions import Counting, differences, killed_at_writes, resumed, stopped_and_resumed
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


# --- every point -----------------------------------------------------------------------------------------------------

SHORT = [*TINY_DATA, *NO_PICTURES, "data.train_images=128", "data.batch_size=32"]  # four steps an epoch
SHORT += ["trainer.limit_test_batches=1"]
KINDS = {
    "epochs": ["trainer.max_epochs=2"],
    "steps": ["trainer.max_steps=6"],
    "validation every three steps": [*BY_STEPS, "trainer.val_check_interval=3", "trainer.max_steps=7"],
    "validation every other epoch": ["trainer.max_steps=10", "trainer.check_val_every_n_epoch=2"],
    "two batches a step": ["trainer.max_steps=3", "trainer.accumulate_grad_batches=2"],
    "validation within epochs": ["trainer.max_epochs=2", "trainer.val_check_interval=2"],
    "capsules": ["trainer.max_steps=6"],
    "never an old checkpoint": ["trainer.max_steps=6", "callbacks.last.every_minutes=0"],
}


def test_end_of_a_run_by_steps_can_be_interrupted_anywhere(tmp_path: Path) -> None:
    """The last step ends neither an epoch nor an interval, so that a validation and a row of metrics.csv follow it."""
    config = compose("train", [*SHORT, *TINY_CNN, *KINDS["steps"]])
    count = Counting()
    with pytest.MonkeyPatch.context() as patch:
        expected = run(config, tmp_path / "whole", patch, count)
    last_step = len(count.seen) - 1 - count.seen[::-1].index("on_train_batch_start")
    for at in range(last_step, count.seen.index("on_test_start"), 2):
        found = stopped_and_resumed(config, tmp_path / str(at), at, signal.SIGTERM)
        assert differences(found, tmp_path / str(at), expected, tmp_path / "whole") == [], count.seen[at]
    config.callbacks.last.every_minutes = 0  # a checkpoint wherever there can be one
    for copy in killed_at_writes(config, tmp_path / "often", tmp_path, "metrics.csv", "metrics.json"):
        assert differences(train(resumed(config), copy), copy, expected, tmp_path / "whole") == [], copy.name


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_run_can_be_interrupted_at_every_point(tmp_path: Path, kind: str) -> None:
    """By each signal in every hook, and by kill -9 before every file that is put in place."""
    config = compose("train", [*SHORT, *(TINY_CAPSNET if kind == "capsules" else TINY_CNN), *KINDS[kind]])
    count = Counting()
    with pytest.MonkeyPatch.context() as patch:
        expected = run(config, tmp_path / "whole", patch, count)
    wrong = {}
    for at, signum in zip(range(len(count.seen)), itertools.cycle(SIGNALS), strict=False):
        directory = tmp_path / "stopped"
        found = stopped_and_resumed(config, directory, at, signum)
        wrong[at, count.seen[at], signum.name] = differences(found, directory, expected, tmp_path / "whole")
        shutil.rmtree(directory)
    config.callbacks.last.every_minutes = 0
    for copy in killed_at_writes(config, tmp_path / "often", tmp_path):
        found = train(resumed(config), copy)
        wrong[copy.name, "kill", ""] = differences(found, copy, expected, tmp_path / "whole")
    assert {point: names for point, names in wrong.items() if names} == {}
