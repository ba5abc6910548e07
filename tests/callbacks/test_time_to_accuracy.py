"""Time to accuracy: errors, and a clock, that the test decides; whole runs at the end."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers.logger import DummyLogger

from capsule_lab.callbacks import TimeToAccuracy
from capsule_lab.commands import compose
from capsule_lab.commands.train import summary, train
from capsule_lab.lit import lightning_internals
from capsule_lab.metrics import ErrorRate
from tests.helpers.clock import Clock
from tests.helpers.commands import CHOSEN, NO_PICTURES, TINY_CNN, TINY_DATA
from tests.helpers.modules import batch, loader, trainer
from tests.helpers.training import curves

STEP, VALIDATION, SAVE, LOADING = 1.0, 10.0, 100.0, 0.25  # seconds
START_UP = 1000.0
BATCH = batch()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock(0.0)
    monkeypatch.setattr("capsule_lab.callbacks.time_to_accuracy.time", found)
    return found


class Timed(L.LightningModule):
    """Takes a second for a step, ten for a validation, 100 for a checkpoint; has the errors that it is given."""

    def __init__(self, clock: Clock, errors: Sequence[float]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.clock, self.errors = clock, errors

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.clock.now += STEP
        return self.weight.sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.clock.now += VALIDATION

    def on_validation_epoch_end(self) -> None:
        self.log("val/error", self.errors[self.global_step // 2 - 1])  # every two steps

    def on_save_checkpoint(self, checkpoint: Any) -> None:
        self.clock.now += SAVE

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_start(self) -> None:
        # as AbstractModule
        self.trainer.should_stop = lightning_internals.stopped_at_threshold(self.trainer)


class Batches(list):
    """Batches of an epoch that take time to load."""

    def __init__(self, clock: Clock, count: int) -> None:
        super().__init__([BATCH] * count)
        self.clock = clock

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            self.clock.now += LOADING
            yield each

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """All batches are the same."""


class Interrupt(Callback):
    """Saves after a step, and ends the run there."""

    def __init__(self, step: int, file: Path) -> None:
        self.step, self.file = step, file

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.file)
            raise KeyError("interrupted")


class Kept(DummyLogger):
    """What is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: dict[str, tuple[float, int]] = {}

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.logged |= {name: (value, step) for name, value in metrics.items()}


def fit(
    folder: Path,
    clock: Clock,
    errors: Sequence[float],
    *more: Callback,
    ckpt_path: Path | None = None,
    **options: Any,
) -> tuple[TimeToAccuracy, L.Trainer]:
    """A run of ten steps that is validated after every other one."""
    callback = TimeToAccuracy(**options)
    clock.now += START_UP
    run = trainer(
        default_root_dir=folder,
        enable_checkpointing=True,
        logger=Kept(),
        callbacks=[callback, *more],
        val_check_interval=2,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
    )
    run.fit(
        Timed(clock, errors),
        Batches(clock, 10),
        loader(BATCH),
        ckpt_path=ckpt_path,
        weights_only=True,
    )
    return callback, run


ERRORS = [50.0, 1.0, 0.6, 0.5, 0.1]


PER_BATCH = len(BATCH.labels)
"""Images in a batch."""


@pytest.fixture
def reached(tmp_path: Path, clock: Clock) -> tuple[TimeToAccuracy, Any]:
    """The callback and the Trainer of a run that reaches 1 % at step 4 and 0.5 % at step 8."""
    return fit(tmp_path, clock, ERRORS)


def test_first_validation_at_which_each_is_reached(reached: tuple[TimeToAccuracy, Any]) -> None:
    callback, run = reached
    first = callback.reached["99"]
    assert first["step"] == 4
    assert first["images"] == 4 * PER_BATCH
    assert first["error"] == 1.0
    second = callback.reached["99.5"]
    assert second["step"] == 8
    assert second["images"] == 8 * PER_BATCH
    assert second["error"] == 0.5
    assert run.global_step == 8, "the run ends there"
    assert lightning_internals.stop_reason(run, 10) == "threshold"


def test_weights_that_reached_it_are_saved(
    reached: tuple[TimeToAccuracy, Any], tmp_path: Path
) -> None:
    file = tmp_path / "checkpoints" / "reached_99.ckpt"
    saved = torch.load(file, weights_only=True)
    assert saved["global_step"] == 4
    assert saved["state_dict"]["weight"].item() == pytest.approx(-0.4)


def test_only_the_time_of_training_is_counted(
    reached: tuple[TimeToAccuracy, Any], clock: Clock
) -> None:
    """Of loading, what comes after a validation or before the first step is not counted: one batch of each."""
    callback, _ = reached
    tolerance = 2 * LOADING
    second = callback.reached["99.5"]
    # four of eight batches follow a step; Lightning loads a batch ahead
    training = 8 * STEP + 4 * LOADING
    assert second["seconds"] == pytest.approx(training, abs=tolerance)
    seconds = callback.seconds
    assert seconds["validation"] == pytest.approx(4 * VALIDATION, abs=tolerance)
    assert START_UP <= seconds["start_up"] <= START_UP + tolerance
    assert 2 * SAVE <= seconds["checkpoints"] <= 2 * SAVE + 2 * tolerance
    assert sum(seconds.values()) == clock.now, "all of the time is accounted for"
    assert second["wall_seconds"] == clock.now - SAVE, "before the checkpoint of that validation"


def test_times_are_logged(reached: tuple[TimeToAccuracy, Any]) -> None:
    callback, run = reached
    logged = run.logger.logged
    seconds = callback.reached["99"]["seconds"]
    assert logged["time_to_accuracy/99/images"] == (4 * PER_BATCH, 3)
    assert logged["time_to_accuracy/99/seconds"] == (seconds, 3)
    assert logged["time_to_accuracy/images"] == (8 * PER_BATCH, 7), "with every validation"


def test_run_that_has_ended_is_not_trained_on(
    reached: tuple[TimeToAccuracy, Any], tmp_path: Path, clock: Clock
) -> None:
    callback, run = reached
    file = tmp_path / "last.ckpt"
    run.save_checkpoint(file)
    again, run = fit(tmp_path, clock, ERRORS, ckpt_path=file)
    assert run.global_step == 8
    assert again.reached == callback.reached


def test_two_accuracies_in_one_validation(tmp_path: Path, clock: Clock) -> None:
    callback, run = fit(tmp_path, clock, [50.0, *[0.4] * 4])
    first = callback.reached["99"]
    second = callback.reached["99.5"]
    for name in ("step", "seconds", "images", "error"):
        assert first[name] == second[name]
    assert run.global_step == 4
    checkpoints = tmp_path / "checkpoints"
    files = sorted(file.name for file in checkpoints.iterdir())
    assert files == ["reached_99.5.ckpt", "reached_99.ckpt"]


def test_accuracy_that_is_not_reached_has_no_numbers(tmp_path: Path, clock: Clock) -> None:
    callback, run = fit(tmp_path, clock, [50.0, 1.0, 0.7, 0.8, 0.6])
    found = callback.results()
    first = callback.reached["99"]
    assert found["99/seconds"] == first["seconds"]
    for name in ("seconds", "wall_seconds", "images", "step", "error"):
        assert found[f"99.5/{name}"] is None
    assert run.global_step == 10
    assert lightning_internals.stop_reason(run, 10) == "steps"


def test_run_that_goes_on_after_all_accuracies(tmp_path: Path, clock: Clock) -> None:
    callback, run = fit(tmp_path, clock, [0.1] * 5, stop=False)
    assert run.global_step == 10
    for each in callback.reached.values():
        assert each["step"] == 2
    assert len(callback.reached) == 2


@pytest.mark.parametrize("step", [3, 5, 7])
def test_interrupted_run_records_what_a_whole_one_does(
    tmp_path: Path, clock: Clock, step: int
) -> None:
    whole, _ = fit(tmp_path / "whole", clock, ERRORS)
    folder = tmp_path / "again"
    file = tmp_path / "last.ckpt"
    with pytest.raises(KeyError, match="interrupted"):
        fit(folder, clock, ERRORS, Interrupt(step, file))
    clock.now += 1e6
    again, run = fit(folder, clock, ERRORS, ckpt_path=file)
    for threshold, expected in whole.reached.items():
        found = again.reached[threshold]
        for name in ("step", "images", "error"):
            assert found[name] == expected[name]
        assert found["seconds"] == pytest.approx(expected["seconds"], abs=2 * LOADING)
    start_up = again.seconds["start_up"]
    assert 2 * START_UP <= start_up < 2 * START_UP + 10, "both commands start"
    assert run.global_step == 8


@pytest.mark.parametrize(("wrong", "reached"), [(50, True), (51, False)])
def test_exactly_the_accuracy_is_reached(
    tmp_path: Path, clock: Clock, wrong: int, reached: bool
) -> None:
    """0.5 % of 10,000 images, as a metric in float32 has it."""
    labels = torch.zeros(10_000, dtype=torch.long)
    predictions = labels.clone()
    predictions[:wrong] = 1
    scores = torch.nn.functional.one_hot(predictions, 10).float()
    metric = ErrorRate(10)
    metric.update(scores, labels)
    error = float(metric.compute())
    callback, _ = fit(tmp_path, clock, [error] * 5)
    assert ("99.5" in callback.reached) is reached


def test_accelerator_has_done_its_steps_before_the_clock_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[str] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: waited.append(device.type))
    callback = TimeToAccuracy()
    device = torch.device("cuda")
    for phase in ("training", "training", "validation", "checkpoints"):
        callback._enter(phase, device)
    assert waited == ["cuda"], "once, at the validation"


CALLBACK = (
    "+callbacks.time_to_accuracy={_target_: capsule_lab.callbacks.TimeToAccuracy, thresholds: [1]}"
)
RUN = [*TINY_CNN, *TINY_DATA, *NO_PICTURES, CALLBACK, "trainer.max_epochs=1", "train.test=last"]


def test_result_has_times_and_the_test_of_the_weights_that_reached_it(tmp_path: Path) -> None:
    """A run that reaches 1 % and not 99.9 %."""
    directory = tmp_path / "run"
    thresholds = "callbacks.time_to_accuracy.thresholds=[1, 99.9]"
    result = train(compose("train", [*RUN, thresholds]), directory)
    found = result["time_to_accuracy"]
    test_error = result["test"]["error"]
    assert found["1/step"] == 4
    assert found["1/images"] == 256
    assert found["1/error"] == result["val"]["error"]
    assert 0 < found["1/seconds"] < found["1/wall_seconds"]
    assert found["1/test_error"] == test_error, "of the same step"
    assert found["99.9/seconds"] is None
    assert found["99.9/test_error"] is None
    assert result["weights_tested"] == "last"

    rows = curves(directory)
    (test,) = [row for row in rows if row["test/error"]]
    assert float(test["test/error"]) == test_error
    (validation,) = [row for row in rows if row["val/error"]]
    assert float(validation["time_to_accuracy/images"]) == 256

    _, first, second, *_ = summary(result, directory, CHOSEN).splitlines()
    seconds = f"{found['1/seconds']:.0f} s of training"
    assert first.startswith(f"1 %         after {seconds}, 256 images, test error then ")
    assert second == "99.9 %      not reached"


@pytest.mark.whole
def test_run_without_a_test_tests_no_weights(tmp_path: Path) -> None:
    options = ["callbacks.time_to_accuracy.thresholds=[1]", "train.test=none"]
    result = train(compose("train", [*RUN, *options]), tmp_path / "run")
    found = result["time_to_accuracy"]
    assert found["1/step"] == 4
    assert found["1/test_error"] is None
