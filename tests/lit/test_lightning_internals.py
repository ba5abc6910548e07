"""What ``lightning_internals`` does that no run of ours would show, on a model of two weights."""

import logging
import signal
import warnings
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.fabric.strategies.launchers import subprocess_script
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.strategies import DDPStrategy

from capsule_lab.config.build import quiet_lightning_logs
from capsule_lab.lit import lightning_internals

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


class Line(L.LightningModule):
    """Fits a line to 8 points; ``val`` is 1 at the first validation and less at each later one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.validations = 0

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def on_validation_epoch_end(self) -> None:
        self.validations += 1
        self.log("val", 1 / self.validations)


class At(L.Callback):
    """Notes what ``look`` returns in one hook."""

    def __init__(self, hook: str, look: Callable[..., Any]) -> None:
        self.seen: list[Any] = []

        def note(trainer: L.Trainer, _: Any, *arguments: Any, **__: Any) -> None:
            self.seen.append(look(trainer, *arguments))

        setattr(self, hook, note)


def fit(folder: Path, *callbacks: L.Callback, **options: Any) -> L.Trainer:
    """Train on 8 batches of one point per epoch."""
    options = {
        "max_epochs": 2,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(each, ModelCheckpoint) for each in callbacks),
        "logger": False,
        "accelerator": "cpu",
        "num_sanity_val_steps": 0,
        "default_root_dir": folder,
        **options,
    }
    trainer = L.Trainer(**options, callbacks=list(callbacks))
    points = torch.utils.data.DataLoader(torch.arange(8.0).reshape(8, 1))
    trainer.fit(Line(), points, points)
    return trainer


def test_batch_index_counts_over_epochs(tmp_path: Path) -> None:
    def look(trainer: L.Trainer, *_: Any) -> int:
        return lightning_internals.batch_index(trainer)

    at_start = At("on_train_batch_start", look)
    fit(tmp_path, at_start)
    assert at_start.seen == list(range(16))


def test_next_batch_follows_where_lightning_neither_validates_nor_ends(tmp_path: Path) -> None:
    """Noted in every ``on_train_batch_end``; compared with what happens before the next ``on_train_batch_start``."""
    cases: list[dict[str, Any]] = [
        {},
        {"val_check_interval": 3},
        {"val_check_interval": 6, "check_val_every_n_epoch": None},
        {"val_check_interval": 3, "limit_val_batches": 0},
        {"val_check_interval": timedelta(hours=1)},
    ]
    for options in cases:
        for stop_at in (0, 5):
            callback = Between(stop_at)
            fit(tmp_path, callback, **options)
            assert len(callback.predicted) == (stop_at or 16), options
            assert callback.predicted == callback.happened, (options, stop_at)


class Between(L.Callback):
    """Notes for every batch whether the next one was predicted to follow at once, and whether it did.

    Args:
        stop_at: the step after which the run is to stop; 0 for none.
    """

    def __init__(self, stop_at: int) -> None:
        self.stop_at = stop_at
        self.predicted: list[bool] = []
        self.happened: list[bool] = []
        self.between = False

    def on_train_batch_start(self, *_: Any) -> None:
        if self.predicted:
            self.happened.append(not self.between)
        self.between = False

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        trainer.should_stop = trainer.global_step == self.stop_at
        self.predicted.append(lightning_internals.next_batch_follows(trainer))

    def _something_else(self, *_: Any) -> None:
        self.between = True

    on_validation_start = on_train_epoch_end = _something_else

    def on_train_end(self, *_: Any) -> None:
        self.happened.append(False)


@pytest.mark.parametrize(
    ("options", "callbacks", "reason"),
    [
        ({}, [], "steps"),
        ({}, [Timer(timedelta(microseconds=1))], "time limit"),
        ({}, [EarlyStopping("val", stopping_threshold=2.0)], "threshold"),
        ({"max_epochs": 3}, [EarlyStopping("val", mode="max", patience=1)], "callback"),
    ],
)
def test_why_training_ended(
    tmp_path: Path, options: dict[str, Any], callbacks: list[Any], reason: str
) -> None:
    trainer = fit(tmp_path, *callbacks, **options)
    assert lightning_internals.stop_reason(trainer, 8 * options.get("max_epochs", 2)) == reason


def test_relocated_state_keeps_the_best_score(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "filename": "best",
        "monitor": "val",
        "enable_version_counter": False,
    }
    before = ModelCheckpoint(tmp_path / "before", **options)
    after = ModelCheckpoint(tmp_path / "after", **options)
    path = str(tmp_path / "after" / "best.ckpt")
    initial = lightning_internals.relocated_state(before.state_dict(), path, "after")
    assert initial["best_k_models"] == {}
    fit(tmp_path, before)
    (tmp_path / "before").rename(tmp_path / "after")
    directory = str(after.dirpath)
    state = lightning_internals.relocated_state(before.state_dict(), path, directory)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Lightning warns if it forgets the score
        after.load_state_dict(state)
    assert after.best_model_score == before.best_model_score == 0.5
    assert (after.best_model_path, after.best_k_models) == (path, {path: torch.tensor(0.5)})


def test_trainer_that_leaves_signals_alone_has_no_handlers(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    for leave, expected in (
        (lightning_internals.disable_signal_handlers, True),
        (lambda _: None, False),
    ):
        setup = At("setup", lambda trainer, *_, leave=leave: leave(trainer))
        inside = At("on_train_epoch_start", lambda _: signal.getsignal(signal.SIGTERM) == before)
        fit(tmp_path, setup, inside, max_epochs=1)
        assert inside.seen == [expected]


def test_processes_wait_five_minutes_for_each_other_unless_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = []
    monkeypatch.setattr(lightning_internals, "end_with_parent", lambda grace: ended.append(grace))
    for strategy, seconds in (("ddp", 300), (DDPStrategy(timeout=timedelta(seconds=7)), 7)):
        trainer = L.Trainer(
            accelerator="cpu",
            devices=2,
            strategy=strategy,
            logger=False,
            enable_checkpointing=False,
        )
        lightning_internals.limit_waiting(trainer)
        assert trainer.strategy._timeout == timedelta(seconds=seconds)
    launcher = logging.getLogger(subprocess_script.__name__)
    assert launcher.isEnabledFor(logging.INFO), "says which process has ended"
    assert not ended
    monkeypatch.setenv("LOCAL_RANK", "1")
    lightning_internals.limit_waiting(trainer)
    assert ended == [10.0]


def test_harmless_warnings_are_ignored_and_others_are_not() -> None:
    harmless = "The 'val_dataloader' does not have many workers which may be a bottleneck."
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        quiet_lightning_logs()
        warnings.warn(harmless, stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert [str(each.message) for each in given] == ["something else"]


def test_argument_that_wandb_warns_of_is_dropped(tmp_path: Path) -> None:
    logger = WandbLogger(save_dir=tmp_path, mode="offline")
    assert "anonymous" in logger._wandb_init
    lightning_internals.drop_anonymous(logger)
    assert "anonymous" not in logger._wandb_init


class Skipping(Line):
    def on_fit_start(self) -> None:
        lightning_internals.skip_idle_hooks(self.trainer)


class OwnHook(L.Callback):
    def __init__(self) -> None:
        self.calls = 0

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.calls += 1


def test_only_hooks_that_do_nothing_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle: list[str] = []
    monkeypatch.setattr(L.Callback, "on_before_zero_grad", lambda *_: idle.append("called"))
    own = OwnHook()
    at = At("on_before_backward", lambda trainer, _: trainer.global_step)
    monkeypatch.setitem(globals(), "Line", Skipping)
    fit(tmp_path, own, at, max_epochs=1)
    assert idle == []
    assert own.calls == 8
    assert at.seen == [*range(8)]


def test_profiler_of_a_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "Line", Skipping)
    trainer: Any = fit(tmp_path, max_epochs=1, profiler="simple")
    assert len(trainer.profiler.recorded_durations["run_training_batch"]) == 8
    assert type(fit(tmp_path, max_epochs=1).profiler).__name__ == "_NoProfiler"  # type: ignore[attr-defined]


def test_arguments_of_a_step_are_those_of_lightning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop: Any = fit(tmp_path, max_epochs=1).fit_loop.epoch_loop
    theirs = loop._build_kwargs(OrderedDict(), "batch", 3)
    monkeypatch.setitem(globals(), "Line", Skipping)
    loop = fit(tmp_path, max_epochs=1).fit_loop.epoch_loop
    ours = loop._build_kwargs(OrderedDict(), "batch", 3)
    assert ours == theirs == {"batch": "batch", "batch_idx": 3}


def test_shown_metric_is_one_of_the_callback_metrics(tmp_path: Path) -> None:
    def show(trainer: L.Trainer, *_: Any) -> float:
        lightning_internals.show_to_callbacks(trainer, "loss", torch.tensor(2.0))
        return float(trainer.callback_metrics["loss"])

    at = At("on_train_batch_end", show)
    trainer = fit(tmp_path, at, max_epochs=1)
    assert at.seen == [2.0] * 8
    assert set(trainer.callback_metrics) == {"loss", "val"}


def test_name_of_the_current_hook_is_a_plain_attribute() -> None:
    module = lightning_internals.LightningModule()
    module._current_fx_name = "training_step"
    module.layer = torch.nn.Linear(1, 1)
    assert vars(module)["_current_fx_name"] == "training_step"
    assert [name for name, _ in module.named_parameters()] == ["layer.weight", "layer.bias"]
