"""Lines and bar of progress, with a clock and a trainer of the test's own."""

from __future__ import annotations

import logging
import os
import pty
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.callbacks import Timer

from capsule_lab.callbacks import ProgressBar, ProgressLines
from tests.helpers.clock import Clock
from tests.helpers.modules import classifier

STEPS = 8
METRICS = {"train/loss": 0.5, "train/error": 44.0, "val/error": 12.345, "val/dead_capsules": 0.0}


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
            trainer.logged_metrics = METRICS
        trainer.current_epoch = 2
        callback.on_train_end(trainer, module)
    return [record.getMessage() for record in caplog.records]


def test_a_line_for_each_epoch(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    assert lines(caplog, clock, 1) == [
        "epoch 1  step 4/8  loss 0.5  error 44.00 %, val 12.35 %  left 0:00:04",
        "epoch 2  step 8/8  loss 0.5  error 44.00 %, val 12.35 %  left 0:00:00",
    ]


def test_a_long_epoch_has_lines_of_its_own_and_the_first_comes_early(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    found = lines(caplog, clock, 40)
    assert found[:2] == ["epoch 1  step 1/8  loss 0.25", "this run will take about 5 min on this machine"]
    assert found[2] == "epoch 1  step 3/8  loss 0.25  left 0:03:20"
    assert [line.split()[1] for line in found[2:]] == ["1", "1", "2", "2", "2"]
    assert [line.split()[3][0] for line in found[2:]] == ["3", "4", "6", "8", "8"]


@pytest.mark.parametrize("bar", [False, True])
def test_duration_of_a_long_run_is_announced_once_without_the_first_steps(
    bar: bool, caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    module: Any = classifier()
    for first, steps, seconds, expected in (
        (0, 1800, 1, "this run will take about 32 min on this machine"),
        (0, 18000, 1, "this run will take about 5 h on this machine"),
        (600, 1800, 1, "the rest of this run will take about 22 min on this machine"),
        (0, 50, 1, None),
        (0, 1800, 0.01, None),
    ):
        caplog.clear()
        callback, module.total_steps = (ProgressBar() if bar else ProgressLines()), steps
        trainer: Any = SimpleNamespace(
            global_step=first, current_epoch=0, is_global_zero=True, callbacks=[], logged_metrics={}
        )
        callback.left.start(trainer, module)
        with caplog.at_level(logging.INFO, "capsule_lab"):
            for duration in [60, 60, *[seconds] * 18]:  # the first steps compile kernels
                assert bool(callback.left.text(trainer)) == (trainer.global_step > first + 2)
                trainer.global_step, clock.now = trainer.global_step + 1, clock.now + duration
                callback.on_train_batch_end(trainer, module, {"loss": 0.25}, None, 0)
        found = [record.getMessage() for record in caplog.records if "will take" in record.getMessage()]
        assert found == ([expected] if expected else [])


def test_time_left_is_not_more_than_a_timer_leaves(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, left in ((90, "0:01:30"), (900, "0:02:00")):
        timer, module, callback = Timer(timedelta(seconds=900)), classifier(), ProgressLines()
        monkeypatch.setattr(timer, "time_remaining", lambda limit=limit: limit)
        module.total_steps = STEPS
        trainer: Any = SimpleNamespace(global_step=0, callbacks=[timer])
        callback.on_train_start(trainer, module)
        trainer.global_step, clock.now = 2, clock.now + 500
        callback.left.count(trainer)
        trainer.global_step, clock.now = 4, clock.now + 60
        assert callback.left.text(trainer) == f"left {left}"


# --- the bar on a terminal -------------------------------------------------------------------------------------------


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> Iterator[list[str]]:
    """A pseudo terminal as ``sys.stdout``; afterwards the lines that were drawn on it, one below the other."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    reader, writer = pty.openpty()
    read, drawn = bytearray(), list[str]()

    def read_all() -> None:
        with suppress(OSError):  # how a terminal says that nobody writes any more
            while part := os.read(reader, 65536):
                read.extend(part)

    thread = threading.Thread(target=read_all)
    thread.start()
    with os.fdopen(writer, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        yield drawn
    thread.join(timeout=60)
    os.close(reader)
    text = read.decode()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    drawn += [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def draw(callback: ProgressBar, clock: Clock) -> None:
    """Two of three epochs of 12 steps, a validation after each, and a test; as long as real numbers are."""
    module: Any = classifier()
    module.total_steps = 120_036
    trainer: Any = SimpleNamespace(
        global_step=120_000, current_epoch=0, max_epochs=3, is_global_zero=True, sanity_checking=False, callbacks=[],
        logged_metrics={}, num_training_batches=12, num_val_batches=[2], num_test_batches=[3],
    )  # fmt: skip
    callback.on_train_start(trainer, module)
    for epoch in range(2):
        trainer.current_epoch = epoch
        callback.on_train_epoch_start(trainer, module)
        for batch in range(12):
            trainer.global_step, clock.now = trainer.global_step + 1, clock.now + 400
            callback.on_train_batch_end(trainer, module, {"loss": 0.25123456}, None, batch)
        callback.on_validation_batch_end(trainer, module, None, None, 0)
        clock.now += 400
        callback.on_validation_batch_end(trainer, module, None, None, 1)
        trainer.logged_metrics = METRICS
    trainer.current_epoch = 2
    callback.on_train_end(trainer, module)
    callback.on_test_start(trainer, module)
    clock.now += 400
    callback.on_test_batch_end(trainer, module, None, None, 2)
    callback.on_test_end(trainer, module)


@pytest.mark.parametrize("columns", [30, 80, 160])
def test_bar_is_one_line_and_epochs_stay_above_it(clock: Clock, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    with terminal(monkeypatch, columns) as drawn:
        handler, root = logging.StreamHandler(sys.stdout), logging.getLogger()
        monkeypatch.setattr(root, "handlers", [handler])
        monkeypatch.setattr(logging.getLogger("capsule_lab"), "level", logging.INFO)
        before = sys.stdout
        draw(ProgressBar(), clock)
        assert sys.stdout is before
        assert handler.stream is before
    assert all(len(line) <= columns for line in drawn)
    epoch, validation, test = ("epoch 2/3 ", "validation 2/2", "test") if columns >= 80 else ("", "", "")
    last_of_epoch = [line for line in drawn if re.match(rf"{epoch}.*120024/120036.* left ", line)]
    assert last_of_epoch, "\n".join(drawn)
    assert last_of_epoch[0].endswith("left 1:23:38")
    if columns >= 80:
        assert "━━━━" in last_of_epoch[0]
        assert "120024/120036 loss 0.2512  val error 12.35 %" in last_of_epoch[0]
        kept = [line for line in drawn if line.startswith("epoch 2  step 120024/120036  loss 0.5  error 44.00 %")]
        assert len(kept) == 1
    assert any(re.match(rf"{validation}.*120012/120036", line) for line in drawn)
    assert drawn[-1].startswith(test)
    assert drawn[-1].endswith("3/3")


def test_bar_ends_with_the_run(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    callback, module = ProgressBar(), classifier()
    trainer: Any = SimpleNamespace(is_global_zero=True)
    with terminal(monkeypatch, 80):
        before = sys.stdout
        callback.on_test_start(trainer, module)
        assert sys.stdout is not before
        callback.on_exception(trainer, module, KeyboardInterrupt())
        assert sys.stdout is before
