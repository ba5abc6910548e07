"""Each function of ``lightning_internals``, on a model of two weights, so that an upgrade of Lightning fails here."""

from __future__ import annotations

import re
import signal
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger

from capsule_lab import lightning_internals
from capsule_lab.build import be_quiet
from capsule_lab.callbacks.stop_signals import StopSignals
from capsule_lab.runs.signals import SIGNALS

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


class Line(L.LightningModule):
    """Fits a line to 8 points; ``val`` is 1 at the first validation and less at each later one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.validations = 0
        self.batches: float = 0

    def configure_optimizers(self) -> Any:
        self.batches = lightning_internals.batches_per_epoch(self.trainer)
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.layer(batch).square().mean()
        self.log("train", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def on_validation_epoch_end(self) -> None:
        self.validations += 1
        self.log("val", 1 / self.validations)


class Logged(Logger):
    """Notes what is logged."""

    name, version = "logged", ""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.seen.append((metrics, step))

    def log_hyperparams(self, *_: Any) -> None:
        pass


class At(L.Callback):
    """Notes what ``look`` returns in one hook."""

    def __init__(self, hook: str, look: Callable[..., Any]) -> None:
        self.seen: list[Any] = []
        setattr(self, hook, lambda trainer, _, *arguments: self.seen.append(look(trainer, *arguments)))


def fit(folder: Path, *callbacks: L.Callback, ckpt_path: Path | None = None, **options: Any) -> tuple[Line, L.Trainer]:
    """Train on 8 batches of one point per epoch."""
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    quiet |= {"accelerator": "cpu", "num_sanity_val_steps": 0, "default_root_dir": folder}
    if not any(isinstance(callback, ModelCheckpoint) for callback in callbacks):
        quiet["enable_checkpointing"] = False
    trainer = L.Trainer(**{"max_epochs": 2, **quiet, **options}, callbacks=list(callbacks))
    line, points = Line(), torch.utils.data.DataLoader(torch.arange(8.0).reshape(8, 1))
    trainer.fit(line, points, points, ckpt_path=ckpt_path, weights_only=False)
    return line, trainer


@pytest.mark.parametrize(
    ("options", "batches"),
    [({}, 8), ({"limit_train_batches": 3}, 3), ({"max_epochs": -1, "max_steps": 5}, 8)],
    ids=str,
)
def test_batches_per_epoch_are_known_to_configure_optimizers(
    tmp_path: Path, options: dict[str, Any], batches: int
) -> None:
    line, _ = fit(tmp_path, **options)
    assert line.batches == batches


def test_batch_index_counts_over_epochs_and_interruptions(tmp_path: Path) -> None:
    before = At("on_train_batch_start", lambda trainer, *_: lightning_internals.batch_index(trainer))
    _, trainer = fit(tmp_path, before, max_epochs=1)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    after = At("on_train_batch_start", lambda trainer, *_: lightning_internals.batch_index(trainer))
    fit(tmp_path, after, max_epochs=2, ckpt_path=tmp_path / "last.ckpt")
    assert before.seen + after.seen == list(range(16))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, []),
        ({"val_check_interval": 3}, [3, 6]),
        ({"val_check_interval": 6, "check_val_every_n_epoch": None}, [6, 12]),
        ({"val_check_interval": 3, "limit_val_batches": 0}, []),
    ],
    ids=str,
)
def test_validation_follows_where_lightning_validates(
    tmp_path: Path, options: dict[str, Any], expected: list[int]
) -> None:
    """Within an epoch; at its end the caller knows."""
    predicted: list[int] = []

    def look(trainer: L.Trainer, outputs: Any, batch: Any, batch_idx: int) -> None:
        if not trainer.is_last_batch and lightning_internals.validation_follows(trainer, batch_idx):
            predicted.append(trainer.global_step)

    validated = At("on_validation_start", lambda trainer: (trainer.global_step, trainer.is_last_batch))
    fit(tmp_path, At("on_train_batch_end", look), validated, **options)
    epochs = [step % 8 for step in predicted] if "check_val_every_n_epoch" not in options else predicted
    within = [step for step, is_last in validated.seen if not is_last]
    assert predicted == within
    assert sorted({*epochs}) == expected


@pytest.mark.parametrize(("threshold", "stopped"), [(0.9, True), (0.0, False)])
def test_threshold_that_was_met_is_known_after_an_interruption(tmp_path: Path, threshold: float, stopped: bool) -> None:
    def stopping() -> EarlyStopping:
        return EarlyStopping("val", stopping_threshold=threshold, patience=9)

    _, trainer = fit(tmp_path, stopping(), max_epochs=3)
    assert lightning_internals.stopped_at_threshold(trainer) is stopped
    assert trainer.global_step == (16 if stopped else 24)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    at_start = At("on_train_start", lightning_internals.stopped_at_threshold)
    fit(tmp_path, stopping(), at_start, max_epochs=4, ckpt_path=tmp_path / "last.ckpt")
    assert at_start.seen == [stopped]


@pytest.mark.parametrize(
    ("options", "callbacks", "reason"),
    [
        ({}, [], "steps"),
        ({"max_time": timedelta(microseconds=1)}, [], "time limit"),
        ({}, [EarlyStopping("val", stopping_threshold=2.0)], "threshold"),
        ({"max_epochs": 3}, [EarlyStopping("val", mode="max", patience=1)], "callback"),
    ],
    ids=["steps", "time limit", "threshold", "callback"],
)
def test_why_training_ended(tmp_path: Path, options: dict[str, Any], callbacks: list[Any], reason: str) -> None:
    _, trainer = fit(tmp_path, *callbacks, **options)
    assert lightning_internals.stop_reason(trainer, 8 * options.get("max_epochs", 2)) == reason


def test_metrics_of_the_epoch_that_ends_are_what_is_logged_of_it(tmp_path: Path) -> None:
    logged = Logged()
    at_end = At("on_train_epoch_end", lightning_internals.epoch_metrics)
    fit(tmp_path, at_end, logger=logged, log_every_n_steps=8)
    assert [({name: float(value) for name, value in metrics.items()}, step) for metrics, step in at_end.seen] == [
        (metrics, step) for metrics, step in logged.seen if "train" in metrics
    ]
    assert [step for _, step in at_end.seen] == [7, 15]


def test_relocated_state_keeps_the_best_score(tmp_path: Path) -> None:
    def best(folder: str) -> ModelCheckpoint:
        return ModelCheckpoint(tmp_path / folder, filename="best", monitor="val", enable_version_counter=False)

    before, after = best("before"), best("after")
    fit(tmp_path, before)
    (tmp_path / "before").rename(tmp_path / "after")
    path = str(tmp_path / "after" / "best.ckpt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Lightning warns if it forgets the score
        after.load_state_dict(lightning_internals.relocated_state(before.state_dict(), path, str(after.dirpath)))
    assert after.best_model_score == before.best_model_score == 0.5
    assert (after.best_model_path, after.best_k_models) == (path, {path: torch.tensor(0.5)})


def test_state_of_a_run_without_a_best_is_relocated() -> None:
    state = ModelCheckpoint("before", monitor="val").state_dict()
    assert lightning_internals.relocated_state(state, "after/best.ckpt", "after")["best_k_models"] == {}


def test_argument_that_lightning_refuses_is_a_misconfiguration() -> None:
    with pytest.raises(lightning_internals.MisconfigurationException):
        L.Trainer(limit_train_batches=-1)


def test_lightning_handles_signals_from_before_training_starts_until_after_it_ends(tmp_path: Path) -> None:
    """What ``StopSignals`` relies on: its handlers replace Lightning's, and put them back before Lightning does."""
    signals, before = StopSignals(), {signum: signal.getsignal(signum) for signum in SIGNALS}
    start = At("on_train_start", lambda _: (signal.getsignal(signal.SIGTERM), signals.install()))
    inside = At("on_train_epoch_start", lambda _: [signal.getsignal(signum) for signum in SIGNALS])
    end = At("on_train_end", lambda _: (signals.restore(), signal.getsignal(signal.SIGTERM)))
    fit(tmp_path, start, inside, end, max_epochs=1)
    assert inside.seen == [[signals._handle] * len(SIGNALS)]
    of_lightning = start.seen[0][0]
    assert of_lightning is not before[signal.SIGTERM]
    assert end.seen == [(None, of_lightning)]
    assert {signum: signal.getsignal(signum) for signum in SIGNALS} == before


@pytest.fixture(scope="module")
def source() -> str:
    """Lightning's and torch's source of what may warn, with strings over several lines joined."""
    files = [file for part in ("fabric", "pytorch") for file in (Path(L.__file__).parent / part).rglob("*.py")]
    files += [Path(torch.utils._pytree.__file__)]
    return re.sub(r'"\s*\n\s*f?"', "", "".join(file.read_text() for file in files))


@pytest.mark.parametrize("pattern", lightning_internals.HARMLESS_WARNINGS)
def test_every_harmless_warning_still_exists(source: str, pattern: str) -> None:
    text = pattern.removeprefix(".*").removesuffix(".*")
    assert re.search(text, source), "no such warning any more: take it out of HARMLESS_WARNINGS"


def test_harmless_warnings_are_ignored_and_others_are_not() -> None:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        be_quiet()
        warnings.warn("The 'val_dataloader' does not have many workers which may be a bottleneck.", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert [str(each.message) for each in given] == ["something else"]
