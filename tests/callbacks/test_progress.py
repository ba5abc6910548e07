"""Lines of progress, with a clock and a trainer of the test's own."""

from __future__ import annotations

import logging
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.callbacks import Timer

from capsule_lab.callbacks import ProgressLines
from tests.helpers.modules import classifier

STEPS = 8


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("capsule_lab.callbacks.progress.time", clock)
    return clock


def lines(
    caplog: pytest.LogCaptureFixture, clock: Clock, seconds_per_step: float, seconds: float = 60.0, **facts: Any
) -> list[str]:
    """What is logged in a run of two epochs of four steps."""
    module, callback = classifier(), ProgressLines(seconds)
    module.total_steps = STEPS
    trainer: Any = SimpleNamespace(
        global_step=0, current_epoch=0, is_global_zero=True, logged_metrics={}, callbacks=[], **facts
    )
    with caplog.at_level(logging.INFO, "capsule_lab"):
        callback.on_train_start(trainer, module)
        for epoch in range(2):
            trainer.current_epoch = epoch
            callback.on_train_epoch_start(trainer, module)
            for batch in range(4):
                trainer.global_step += 1
                clock.now += seconds_per_step
                callback.on_train_batch_end(trainer, module, {"loss": 0.25}, None, batch)
            trainer.logged_metrics = {"train/loss": 0.5, "val/error": 12.345, "val/dead_capsules": 0.0}
        trainer.current_epoch = 2
        callback.on_train_end(trainer, module)
    return [record.getMessage() for record in caplog.records]


def test_a_line_for_each_epoch(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    assert lines(caplog, clock, 1) == [
        "epoch 1  step 4/8  train/loss 0.5  val/error 12.35  time left 0:00:04",
        "epoch 2  step 8/8  train/loss 0.5  val/error 12.35  time left 0:00:00",
    ]


def test_a_long_epoch_has_lines_of_its_own(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    found = lines(caplog, clock, 40)
    assert "epoch 0  step 2/8  loss 0.25  time left 0:04:00" in found
    assert [line.partition("  step ")[2][0] for line in found] == ["2", "4", "4", "6", "8", "8"]


@pytest.mark.parametrize(("limit", "left"), [(90, "0:01:30"), (900, "0:02:00")])
def test_time_left_is_not_more_than_max_time_leaves(
    caplog: pytest.LogCaptureFixture, clock: Clock, monkeypatch: pytest.MonkeyPatch, limit: int, left: str
) -> None:
    timer = Timer(timedelta(seconds=900))
    monkeypatch.setattr(timer, "time_remaining", lambda: limit)
    module, callback = classifier(), ProgressLines()
    module.total_steps = STEPS
    trainer: Any = SimpleNamespace(global_step=0, callbacks=[timer])
    callback.on_train_start(trainer, module)
    trainer.global_step, clock.now = 4, clock.now + 120
    assert callback.left(trainer) == left
