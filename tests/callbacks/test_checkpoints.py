"""Checkpoints, with a trainer that is a record of facts; whole runs are in tests/runs/test_resume.py."""

import itertools
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from capsule_lab.callbacks import (
    AtomicCheckpointIO,
    EmbedConfig,
    LastCheckpoint,
    checkpoints,
    pause_at,
)
from capsule_lab.commands import compose
from capsule_lab.errors import PauseError, RunError
from capsule_lab.types import DataSpec


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is a second later whenever it is read."""
    clock = SimpleNamespace(monotonic=itertools.count(1000).__next__, process_time=float)
    monkeypatch.setattr(checkpoints, "time", clock)


def embed() -> EmbedConfig:
    return EmbedConfig(compose(), {}, DataSpec((1, 28, 28), 10), {"kind": "digit"}, [1] * 10)


def trainer_for(stage: str, device: str = "cpu", **metrics: float) -> Any:
    return SimpleNamespace(
        state=SimpleNamespace(fn=stage),
        strategy=SimpleNamespace(root_device=torch.device(device)),
        loggers=[],
        logged_metrics=metrics,
        global_step=7,
        precision="32-true",
    )


def saved(callback: EmbedConfig) -> dict[str, Any]:
    checkpoint: dict[str, Any] = {"global_step": 7}
    callback.on_save_checkpoint(trainer_for("fit"), None, checkpoint)
    return checkpoint


def test_another_number_of_threads_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, threads = saved(embed()), torch.get_num_threads()
    embed().on_load_checkpoint(trainer_for("fit"), None, checkpoint)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 3)
    embed().on_load_checkpoint(trainer_for("fit", "cuda"), None, checkpoint)
    assert caplog.messages == []
    later = embed()
    later.on_load_checkpoint(trainer_for("fit"), None, checkpoint)
    (message,) = caplog.messages
    assert f"began on {threads} threads and continues on {threads + 3}" in message
    assert f"OMP_NUM_THREADS={threads} " in message
    assert saved(later)["capsule_lab"]["threads"] == threads


@pytest.mark.usefixtures("seconds")
def test_training_seconds_add_up_over_interruptions_and_a_test_changes_nothing() -> None:
    first, second = embed(), embed()
    fit = trainer_for("fit", **{"val/error": 3.0, "train/error": 4.0})
    first.on_train_start(fit, None)
    checkpoint = saved(first)
    second.on_load_checkpoint(fit, None, checkpoint)
    second.on_train_start(fit, None)
    assert checkpoint["capsule_lab"]["seconds"] == 1
    assert saved(second)["capsule_lab"]["seconds"] == 2
    second.on_validation_end(fit, None)
    second.on_train_end(fit, None)
    second.on_load_checkpoint(trainer_for("test"), None, checkpoint)
    assert second.seconds == second.seconds == 3, "the clock of a run stands still when it is over"
    assert (second.val, second.val_step) == ({"error": 3.0}, 7)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device"), "No space left"),
        (
            RuntimeError("[enforce fail at inline_container.cc:872] . writing file data/1"),
            "torch's writer failed, .*",
        ),
    ],
    ids=["full disk", "torch's writer"],
)
def test_checkpoint_that_cannot_be_written_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    path = tmp_path / "checkpoints" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"step": 1}, path)

    def fail(content: Any, partial: Path) -> None:
        partial.write_bytes(b"half of it")
        raise error

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(RunError, match=rf"^cannot write {path} \({message}"):
        AtomicCheckpointIO().save_checkpoint({"step": 2}, path)
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]


class Trainer(SimpleNamespace):
    """As much of a Trainer as the callback reads; notes the steps at which it saves."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        facts = {
            "default_root_dir": str(folder),
            "global_step": 0,
            "accumulate_grad_batches": 1,
            "world_size": 1,
            "should_stop": False,
            "max_epochs": -1,
            "current_epoch": 0,
            "breaks": (),  # steps that are followed by something else than a batch
        }
        super().__init__(**{**facts, **changes}, saved=[])

    def save_checkpoint(self, path: Path) -> None:
        assert path == Path(self.default_root_dir) / "checkpoints" / "last.ckpt"
        self.saved.append(self.global_step)


@pytest.fixture(autouse=True)
def _breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Lightning does between two batches is in tests/lit/test_lightning_internals.py."""
    monkeypatch.setattr(
        checkpoints, "next_batch_follows", lambda trainer: trainer.global_step not in trainer.breaks
    )


def train(callback: LastCheckpoint, trainer: Trainer, steps: int) -> None:
    """The hooks of so many batches of one epoch."""
    for batch in range(steps):
        trainer.global_step += 1
        callback.on_train_batch_end(trainer, None, None, None, batch)


@pytest.mark.usefixtures("seconds")
def test_where_and_when_checkpoints_are_saved(tmp_path: Path) -> None:
    """A look at the clock at every step, one more at every save."""
    for minutes, steps, facts, expected in (
        (0, 4, {"accumulate_grad_batches": 2}, [2, 4]),
        (0, 4, {"breaks": [3]}, [1, 2, 4]),  # before a validation or an end
        (0.05, 8, {}, [4, 8]),
    ):
        callback, trainer = LastCheckpoint(every_minutes=minutes), Trainer(tmp_path, **facts)
        callback.saved_at = checkpoints.time.monotonic()
        train(callback, trainer, steps)
        assert trainer.saved == expected, (minutes, facts)


@pytest.mark.usefixtures("seconds")
def test_time_that_a_save_takes_is_left(tmp_path: Path) -> None:
    """Each look at the clock is a second: two in a step, and a save takes one; without it the last step would be 5."""
    callback, trainer = LastCheckpoint(), Trainer(tmp_path, checkpoint_callbacks=[])
    trainer.checkpoint_callbacks.append(callback)
    pause_at(trainer, 1009)
    callback._save(trainer)
    with pytest.raises(PauseError):
        train(callback, trainer, steps=8)
    assert trainer.saved == [0, 4]
    later = Trainer(tmp_path)
    with pytest.raises(PauseError):
        callback.on_train_start(later, None)
    callback.on_exception(later, None, PauseError())
    assert later.saved == [], "before the first step everything stays as it is"


@pytest.mark.parametrize("received", [False, True])
def test_processes_ask_each_other_once_per_step_unless_there_is_something(
    tmp_path: Path, received: bool
) -> None:
    questions: list[bool] = []

    def reduce(value: bool, *, all: bool) -> bool:
        questions.append(value)
        return value

    saver = LastCheckpoint()
    saver.saved_at = time.monotonic()
    saver.signals.received = signal.SIGTERM if received else None
    strategy = SimpleNamespace(reduce_boolean_decision=reduce)
    trainer: Any = Trainer(tmp_path, world_size=2, strategy=strategy)
    assert saver._is_due(trainer, 60) is received
    assert saver.stopping is received
    assert saver.pausing is False
    count = 3 if received else 1
    assert len(questions) == count
    saver.on_test_batch_end(trainer, None)
    assert len(questions) == count, "processes may have different numbers of batches to test"
    trainer.strategy.reduce_boolean_decision = lambda value, **_: True
    with pytest.raises(PauseError):
        saver.on_train_start(trainer, None)
    saver.signals.restore()


@pytest.mark.usefixtures("seconds")
@pytest.mark.parametrize("ends", [{"should_stop": True}, {"max_epochs": 1}], ids=str)
def test_last_epoch_is_saved_with_the_end_of_the_run(tmp_path: Path, ends: dict[str, Any]) -> None:
    callback, trainer = LastCheckpoint(every_minutes=0), Trainer(tmp_path, breaks=[4], **ends)
    train(callback, trainer, steps=4)
    callback.on_train_epoch_end(trainer, None)
    assert trainer.saved[-1] == 3
    callback.on_train_end(trainer, None)
    assert trainer.saved[-1] == 4
