"""Lines and bar of progress, with a clock and a trainer of the test's own."""

import io
import logging
import re
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.callbacks import Timer

from capsule_lab.callbacks import ProgressBar, ProgressLines, progress, progress_callback
from tests.helpers.clock import Clock
from tests.helpers.modules import classifier

STEPS = 8
OF_EVERY_TRAINER = {
    "is_global_zero": True,
    "default_root_dir": ".",
    "state": SimpleNamespace(fn="fit"),
    "callbacks": [],
}
METRICS = {"train/loss": 0.5, "train/error": 44.0, "val/error": 12.345, "val/dead_capsules": 0.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("capsule_lab.callbacks.progress.time", clock)
    return clock


def lines(
    caplog: pytest.LogCaptureFixture,
    clock: Clock,
    seconds_per_step: float,
    validated: tuple[int, ...] = (0, 1),
) -> list[str]:
    """What is logged in a run of two epochs of four steps, with a validation after some of them."""
    module, callback = classifier(), ProgressLines(60.0)
    module.total_steps = STEPS
    trainer: Any = SimpleNamespace(global_step=0, current_epoch=0, **OF_EVERY_TRAINER)
    trainer.logged_metrics = {}
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
            if epoch in validated:
                callback.on_validation_end(trainer, module)
        trainer.current_epoch = 2
        callback.on_train_end(trainer, module)
    return caplog.messages


def test_a_line_for_each_epoch(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    assert lines(caplog, clock, 1) == [
        "epoch 1  step 4/8 (50 %)  loss 0.5  error 44.00 %, val 12.35 %  left 0:00:04",
        "epoch 2  step 8/8 (100 %)  loss 0.5  error 44.00 %, val 12.35 %  left 0:00:00",
    ]


def test_validation_error_is_only_in_the_line_of_the_epoch_that_validated(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    first, second = lines(caplog, clock, 1, validated=(0,))
    assert "val 12.35 %" in first
    assert "loss 0.5  error 44.00 %  left" in second


def test_a_long_epoch_has_more_lines_and_the_first_comes_early(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    found = lines(caplog, clock, 40)
    assert found[:2] == [
        "epoch 1  step 1/8 (12 %)  loss 0.25",
        "epoch 1  step 3/8 (37 %)  loss 0.25  left 0:03:20",
    ]
    assert [line.split()[1:4:2] for line in found[2:]] == [
        ["1", "4/8"],
        ["2", "6/8"],
        ["2", "8/8"],
        ["2", "8/8"],
    ]


def test_time_left_is_not_more_than_a_timer_leaves(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, left in ((90, "0:01:30"), (900, "0:02:00")):
        timer, module, callback = Timer(timedelta(seconds=900)), classifier(), ProgressLines()
        monkeypatch.setattr(timer, "time_remaining", lambda limit=limit: limit)
        module.total_steps = STEPS
        trainer: Any = SimpleNamespace(global_step=0, **OF_EVERY_TRAINER)
        trainer.callbacks = [timer]
        callback.on_train_start(trainer, module)
        trainer.global_step = 2
        clock.now += 500
        callback.left.count(trainer)
        trainer.global_step = 4
        clock.now += 60
        assert callback.left.text(trainer) == f"left {left}"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def drawn(self) -> list[str]:
        """What was drawn, one line below the other."""
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())
        return [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def draw(callback: ProgressBar, clock: Clock) -> None:
    """Two of three epochs of 12 steps, a validation after each, and a test; as long as real numbers are."""
    module: Any = classifier()
    module.total_steps = 120_036
    trainer: Any = SimpleNamespace(
        global_step=120_000,
        current_epoch=0,
        max_epochs=3,
        sanity_checking=False,
        logged_metrics={},
        num_training_batches=12,
        num_val_batches=[2],
        num_test_batches=[3],
        **OF_EVERY_TRAINER,
    )
    callback.on_train_start(trainer, module)
    for epoch in range(2):
        trainer.current_epoch = epoch
        callback.on_train_epoch_start(trainer, module)
        for batch in range(12):
            trainer.global_step += 1
            clock.now += 400
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
def test_bar_is_one_line_and_epochs_stay_above_it(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    terminal = Terminal()
    handler = logging.StreamHandler(terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    monkeypatch.setattr(logging.getLogger("capsule_lab"), "level", logging.INFO)
    draw(ProgressBar(), clock)
    assert sys.stdout is handler.stream is terminal
    drawn = terminal.drawn()
    assert max(len(line) for line in drawn) <= columns
    has_descriptions = columns >= 80
    epoch = "epoch 2/3 " if has_descriptions else ""
    last_of_epoch = [line for line in drawn if re.match(rf"{epoch}.*120024/120036.* left ", line)]
    assert last_of_epoch, "\n".join(drawn)
    assert last_of_epoch[0].endswith("left 1:23:38")
    if has_descriptions:
        assert "━━━━" in last_of_epoch[0]
        assert "120024/120036 99 % loss 0.2512  val error 12.35 %" in last_of_epoch[0]
        line_of_epoch = "epoch 2  step 120024/120036 (99 %)  loss 0.5  error 44.00 %"
        assert sum(line.startswith(line_of_epoch) for line in drawn) == 1
    validation = "validation 2/2" if has_descriptions else ""
    steps = "120012/120036 99 %" if has_descriptions else "120012/120036"
    assert any(re.match(rf"{validation}.*{steps}", line) for line in drawn)
    assert drawn[-1].startswith("test" if has_descriptions else "")
    assert drawn[-1].endswith("3/3 100 %" if has_descriptions else "3/3")


def test_bar_of_a_run_that_fails_gives_the_output_back(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    failing = ProgressBar()
    failing.on_test_start(SimpleNamespace(is_global_zero=True), None)
    assert sys.stdout is not terminal
    failing.on_exception(SimpleNamespace(is_global_zero=False), None, KeyboardInterrupt())
    assert sys.stdout is terminal


@pytest.mark.parametrize(
    ("in_notebook", "package", "kind"),
    [
        (True, "ipywidgets", ProgressBar),
        (True, None, ProgressLines),
        (False, "ipywidgets", ProgressLines),
    ],
)
def test_a_notebook_has_a_bar(
    monkeypatch: pytest.MonkeyPatch, in_notebook: bool, package: Any, kind: type
) -> None:
    monkeypatch.setattr(progress, "Console", lambda: SimpleNamespace(is_jupyter=in_notebook))
    monkeypatch.setattr(progress, "find_spec", lambda name: name == package or None)
    assert type(progress_callback()) is kind
