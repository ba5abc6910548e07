"""Checkpoints, with a trainer that is a record of facts; whole runs are in tests/runs/test_resume.py."""

from __future__ import annotations

import itertools
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from capsule_lab.callbacks import AtomicCheckpointIO, EmbedConfig, LastCheckpoint, checkpoints, pause_at
from capsule_lab.callbacks.stop_signals import StopSignals
from capsule_lab.config.compose import compose
from capsule_lab.errors import InterruptError, PauseError, RunError
from capsule_lab.system.signals import SIGNALS
from capsule_lab.types import DataSpec

PROVENANCE = {"name": "MNIST", "source": "standin"}


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is a second later whenever it is read."""
    monkeypatch.setattr(
        checkpoints, "time", SimpleNamespace(monotonic=itertools.count(1000).__next__, process_time=float)
    )


# --- EmbedConfig -----------------------------------------------------------------------------------------------------


def embed() -> EmbedConfig:
    return EmbedConfig(compose(), PROVENANCE, DataSpec((1, 28, 28), 10))


def trainer_for(stage: str, **metrics: float) -> Any:
    state, precision = SimpleNamespace(fn=stage), "32-true"
    return SimpleNamespace(state=state, logged_metrics=metrics, loggers=[], global_step=7, precision=precision)


def record_of(callback: EmbedConfig) -> dict[str, Any]:
    checkpoint: dict[str, Any] = {}
    callback.on_save_checkpoint(trainer_for("fit"), None, checkpoint)
    return checkpoint


@pytest.mark.parametrize(("device", "warned"), [("cpu", True), ("cuda", False)])
def test_another_number_of_threads_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, device: str, warned: bool
) -> None:
    fit = trainer_for("fit")
    fit.strategy = SimpleNamespace(root_device=torch.device(device))
    record = {**record_of(embed()), "global_step": 7}
    embed().on_load_checkpoint(fit, None, record)
    assert caplog.messages == []
    began = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: began + 3)
    later = embed()
    later.on_load_checkpoint(fit, None, record)
    assert len(caplog.messages) == warned
    if warned:
        assert f"began on {began} threads and goes on on {began + 3}" in caplog.messages[0]
        assert f"OMP_NUM_THREADS={began} " in caplog.messages[0]
    assert record_of(later)["capsule_lab"]["threads"] == began
    del record["capsule_lab"]["threads"]  # of an earlier version
    embed().on_load_checkpoint(fit, None, record)
    assert len(caplog.messages) == warned


@pytest.mark.usefixtures("seconds")
def test_training_seconds_add_up_over_interruptions() -> None:
    first, second, fit = embed(), embed(), trainer_for("fit")
    first.on_train_start(fit, None)
    record = record_of(first)
    second.on_load_checkpoint(fit, None, {**record, "global_step": 7})
    second.on_train_start(fit, None)
    assert record["capsule_lab"]["seconds"] == 1
    assert record_of(second)["capsule_lab"]["seconds"] == 2
    second.on_train_end(fit, None)
    assert second.seconds == second.seconds == 3  # the clock of a run stands still when it is over


@pytest.mark.usefixtures("seconds")
def test_checkpoint_that_is_tested_changes_nothing() -> None:
    callback = embed()
    callback.on_train_start(trainer_for("fit"), None)
    early = record_of(callback)
    callback.on_validation_end(trainer_for("fit", **{"val/error": 3.0, "train/error": 4.0}), None)
    callback.on_train_end(trainer_for("fit"), None)
    before = callback.seconds, callback.val
    callback.on_load_checkpoint(trainer_for("test"), None, early)
    assert (callback.seconds, callback.val) == before
    assert (callback.val, callback.val_step) == ({"error": 3.0}, 7)


# --- AtomicCheckpointIO ----------------------------------------------------------------------------------------------


def test_checkpoint_that_cannot_be_written_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoints" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"step": 1}, path)

    def fill_the_disk(content: Any, partial: Path) -> None:
        partial.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fill_the_disk)
    with pytest.raises(RunError, match=rf"^cannot write {path} \(No space left"):
        AtomicCheckpointIO().save_checkpoint({"step": 2}, path)
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]


def test_writer_of_torch_that_fails_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(content: Any, partial: Path) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc:872] . PytorchStreamWriter failed writing file data/1")

    monkeypatch.setattr(torch, "save", fail)
    path = tmp_path / "last.ckpt"
    with pytest.raises(RunError, match=rf"^cannot write {path} \(torch's writer failed, .*\); expected a place"):
        AtomicCheckpointIO().save_checkpoint({"step": 2}, path)


# --- LastCheckpoint --------------------------------------------------------------------------------------------------


class Trainer(SimpleNamespace):
    """As much of a Trainer as the callback reads; notes the steps at which it saves."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        facts = {
            "default_root_dir": str(folder),
            "global_step": 0,
            "is_global_zero": True,
            "accumulate_grad_batches": 1,
            "world_size": 1,
            "should_stop": False,
            "max_epochs": -1,
            "current_epoch": 0,
            "breaks": (),  # steps between which and the next batch something else comes
        }
        super().__init__(**{**facts, **changes}, saved=[])

    def save_checkpoint(self, path: Path) -> None:
        self.saved.append(self.global_step)
        path.parent.mkdir(exist_ok=True)
        path.write_text(str(self.global_step))

    @property
    def last(self) -> int:
        """The step of the checkpoint that a resumed run would find."""
        return int((Path(self.default_root_dir) / "checkpoints" / "last.ckpt").read_text())


@pytest.fixture(autouse=True)
def _breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Lightning does between two batches is in tests/test_lightning_internals.py."""
    monkeypatch.setattr(checkpoints, "next_batch_follows", lambda trainer: trainer.global_step not in trainer.breaks)


def train(callback: LastCheckpoint, trainer: Trainer, steps: int) -> None:
    """The hooks of so many batches of one epoch."""
    for batch in range(steps):
        trainer.global_step += 1
        callback.on_train_batch_end(trainer, None, None, None, batch)


@pytest.mark.parametrize(
    ("facts", "saved"),
    [
        ({}, [1, 2, 3, 4]),
        ({"accumulate_grad_batches": 2}, [2, 4]),
        ({"breaks": [3]}, [1, 2, 4]),
    ],
    ids=["between steps", "not while accumulating", "not before a validation or an end"],
)
@pytest.mark.usefixtures("seconds")
def test_where_checkpoints_are_saved(tmp_path: Path, facts: dict[str, Any], saved: list[int]) -> None:
    callback, trainer = LastCheckpoint(every_minutes=0), Trainer(tmp_path, **facts)
    train(callback, trainer, steps=4)
    assert trainer.saved == saved


@pytest.mark.parametrize(("minutes", "saved"), [(0.05, [4, 8]), (5, [])])
@pytest.mark.usefixtures("seconds")
def test_checkpoint_is_as_old_as_it_may_become(tmp_path: Path, minutes: float, saved: list[int]) -> None:
    """A look at the clock at every step, one more at every save."""
    callback, trainer = LastCheckpoint(every_minutes=minutes), Trainer(tmp_path)
    callback.saved_at = 1000 - 1
    train(callback, trainer, steps=8)
    assert trainer.saved == saved


def end_of_step(callback: LastCheckpoint, trainer: Any, where: str) -> None:
    """The hooks behind a step within an epoch, the last of an epoch, or the last of the run."""
    if where == "within an epoch":
        callback.on_train_batch_end(trainer, None, None, None, 3)
    callback.on_train_epoch_end(trainer, None)
    if where == "at its end":
        callback.on_train_epoch_start(trainer, None)
    callback.on_train_end(trainer, None)


@pytest.mark.parametrize("where", ["within an epoch", "at its end", "in the last one"])
def test_signal_saves_and_then_stops(tmp_path: Path, where: str) -> None:
    callback, trainer = LastCheckpoint(), Trainer(tmp_path, global_step=4)
    callback.on_train_start(trainer, None)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(InterruptError) as caught:
        end_of_step(callback, trainer, where)
    callback.on_exception(trainer, None, caught.value)
    assert trainer.last == 4
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["last.ckpt"]
    assert trainer.saved == ([4, 4] if where == "in the last one" else [4])
    assert caught.value.signum == signal.SIGTERM
    assert "SIGTERM at step 4" in str(caught.value)
    assert "train.resume=true" in str(caught.value)


@pytest.mark.parametrize("where", ["within an epoch", "at its end", "in the last one"])
def test_end_of_the_time_saves_and_then_pauses(tmp_path: Path, where: str) -> None:
    callback, trainer = LastCheckpoint(), Trainer(tmp_path, global_step=4)
    callback.on_train_start(trainer, None)
    callback.deadline = 0.0
    with pytest.raises(PauseError) as caught:
        end_of_step(callback, trainer, where)
    callback.on_exception(trainer, None, caught.value)
    assert trainer.last == 4


@pytest.mark.usefixtures("seconds")
def test_time_that_a_save_takes_is_left(tmp_path: Path) -> None:
    """Each look at the clock is a second: two in a step, and a save takes one; without it the last step would be 5."""
    callback, trainer = LastCheckpoint(), Trainer(tmp_path, checkpoint_callbacks=[])
    trainer.checkpoint_callbacks.append(callback)
    pause_at(trainer, 1009)
    callback._save(trainer)
    with pytest.raises(PauseError):
        train(callback, trainer, steps=8)
    assert trainer.last == 4


def test_time_that_is_over_before_the_first_step_leaves_everything_as_it_is(tmp_path: Path) -> None:
    callback, trainer = LastCheckpoint(), Trainer(tmp_path)
    callback.deadline = 0.0
    with pytest.raises(PauseError):
        callback.on_train_start(trainer, None)
    callback.on_exception(trainer, None, PauseError())
    assert trainer.saved == []


def test_time_that_is_over_in_another_process_is_over_in_this_one(tmp_path: Path) -> None:
    asked: list[Any] = []
    strategy = SimpleNamespace(reduce_boolean_decision=lambda value, **how: asked.append((value, how)) or True)
    trainer = Trainer(tmp_path, world_size=2, strategy=strategy)
    callback = LastCheckpoint()  # which knows of no deadline
    assert callback._is_over(trainer)
    assert asked == [(False, {"all": False})]
    callback.on_test_batch_end(trainer, None, None, None, 0)
    assert len(asked) == 1, "processes may have different numbers of batches to test"


@pytest.mark.usefixtures("seconds")
@pytest.mark.parametrize("ends", [{"should_stop": True}, {"max_epochs": 1}], ids=str)
def test_last_epoch_is_saved_with_the_end_of_the_run(tmp_path: Path, ends: dict[str, Any]) -> None:
    """From a checkpoint before it, a run that a threshold has stopped would go on."""
    callback, trainer = LastCheckpoint(every_minutes=0), Trainer(tmp_path, breaks=[4], **ends)
    train(callback, trainer, steps=4)
    callback.on_train_epoch_end(trainer, None)
    assert trainer.last == 3
    callback.on_train_end(trainer, None)
    assert trainer.last == 4


# --- StopSignals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signum", SIGNALS, ids=lambda signum: signum.name)
def test_first_signal_is_kept_and_the_second_raises(signum: signal.Signals) -> None:
    before = {each: signal.getsignal(each) for each in SIGNALS}
    signals = StopSignals()
    signals.install()
    signal.raise_signal(signum)
    assert signals.received == signum
    with pytest.raises(InterruptError) as caught:
        signal.raise_signal(signum)
    assert caught.value.signum == signum
    assert {each: signal.getsignal(each) for each in SIGNALS} == before


@pytest.mark.parametrize(("noted", "questions"), [(False, 1), (True, 3)])
def test_processes_ask_each_other_once_per_step_unless_there_is_something(noted: bool, questions: int) -> None:
    """Each question is a collective operation, for which a GPU is waited for."""
    asked: list[bool] = []

    def reduce(value: bool, *, all: bool) -> bool:
        asked.append(value)
        return value

    saver = LastCheckpoint()
    saver.saved_at = time.monotonic()
    saver.signals.received = signal.SIGTERM if noted else None
    trainer: Any = SimpleNamespace(world_size=2, strategy=SimpleNamespace(reduce_boolean_decision=reduce))
    assert saver._is_due(trainer, 60) is noted
    assert (saver.stopping, saver.pausing, len(asked)) == (noted, False, questions)
