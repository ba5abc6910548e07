"""The average of the weights is what is validated, saved, tested and opened; training goes on with the others."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from omegaconf import DictConfig

from capsule_lab import runs
from capsule_lab.commands.evaluate import evaluate
from capsule_lab.commands.train import train
from tests.helpers.commands import NO_PICTURES, Tiny
from tests.helpers.tiers import whole_but
from tests.helpers.training import checkpoint, interrupted_and_resumed, results, run

Weights = dict[str, torch.Tensor]

NORMALISED = ["model=cnn_small", "model.channels=[4,4,4]"]  # with batch normalisation
DECAYED = (0.5, "null", 0)
SHORT = [
    *NO_PICTURES,
    "trainer.max_steps=6",
    "trainer.precision=32-true",
    "schedule.learning_rate.initial=0.01",
]


class Recorder(Callback):
    """The network's state after every step, and in every validation."""

    def __init__(self) -> None:
        self.steps: list[Weights] = []
        self.validated: dict[int, Weights] = {}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.steps.append(state_of(pl_module))

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.validated[trainer.global_step] = state_of(pl_module)


def state_of(module: Any) -> Weights:
    state = module.network.state_dict()
    return {f"network.{name}": value.detach().clone() for name, value in state.items()}


def averaged(tiny: Tiny, *overrides: str) -> DictConfig:
    return tiny("callbacks=averaged_weights", *SHORT, *overrides, model=NORMALISED)


def average(steps: list[Weights], decay: float | None) -> Weights:
    """Transcribed from the definitions, in float64."""
    found = {name: value.double() for name, value in steps[0].items()}
    for count, step in enumerate(steps[1:], start=1):
        share = 1 / (count + 1)
        if decay is not None:
            share = 1 - min(decay, (1 + count) / (10 + count))
        for name, value in found.items():
            found[name] = value + share * (step[name].double() - value)
    return found


def assert_same(found: Weights, expected: Weights, *, exact: bool = True) -> None:
    tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-4, "atol": 1e-6}
    for name, value in expected.items():
        if name.endswith("num_batches_tracked"):  # a whole number, never used
            continue
        value = value.to(found[name].dtype)
        torch.testing.assert_close(found[name], value, msg=name, **tolerance)


@pytest.mark.parametrize(
    ("decay", "start", "first"), whole_but([DECAYED, (None, "1/2 run", 3)], DECAYED)
)
def test_average_is_validated_saved_and_tested(
    tiny: Tiny, tmp_path: Path, decay: Any, start: str, first: int
) -> None:
    directory = tmp_path / "run"
    config = averaged(
        tiny,
        f"callbacks.averaged_weights.start={start}",
        f"callbacks.averaged_weights.decay={decay or 'null'}",
        "train.test=last",
    )
    recorder = Recorder()
    result = run(config, directory, recorder)
    steps = recorder.steps
    saved = checkpoint(directory)
    averages = saved["state_dict"]
    assert_same(averages, average(steps[first:], decay), exact=False)
    assert_same(saved["current_model_state"], steps[-1])
    kernel = "network.features.0.weight"
    assert not averages[kernel].equal(steps[-1][kernel])
    at_4 = average(steps[first:4], decay)
    assert_same(recorder.validated[4], at_4, exact=False)
    assert_same(recorder.validated[6], averages)
    opened = runs.open(directory / "checkpoints" / "last.ckpt")
    assert_same(state_of(opened.module), averages)
    tested = evaluate(opened, trainer=config.trainer)
    assert result["test"] == tested["test"]


def test_without_an_average_yet_all_is_as_usual(tiny: Tiny, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    recorder = Recorder()
    config = averaged(tiny, "callbacks.averaged_weights.start=5 epochs")
    run(config, directory, recorder)
    saved = checkpoint(directory)
    assert "current_model_state" not in saved
    assert_same(saved["state_dict"], recorder.steps[-1])
    assert_same(recorder.validated[4], recorder.steps[3])


FROM_THE_BEGINNING = ("null", [1, 4])
FROM_THE_MIDDLE = ("1/2 run", [2, 5])


@pytest.mark.whole
@pytest.mark.parametrize(
    ("start", "stops"), whole_but([FROM_THE_BEGINNING, FROM_THE_MIDDLE], FROM_THE_MIDDLE)
)
def test_run_with_averaged_weights_resumes_exactly(
    tiny: Tiny, tmp_path: Path, start: str, stops: list[int]
) -> None:
    config = averaged(
        tiny,
        f"callbacks.averaged_weights.start={start}",
        "callbacks.averaged_weights.decay=0.9",
    )
    whole = train(config, tmp_path / "whole")
    resumed = interrupted_and_resumed(config, tmp_path / "run", *stops)
    assert results(resumed) == results(whole)
    found = checkpoint(tmp_path / "run")
    expected = checkpoint(tmp_path / "whole")
    for state in ("state_dict", "current_model_state"):
        assert_same(found[state], expected[state])
    updates = found["averaging_state"]["n_averaged"]
    expected_updates = expected["averaging_state"]["n_averaged"]
    assert torch.equal(updates, expected_updates)


@pytest.mark.whole
def test_average_of_a_run_begins_with_the_weights_of_another(tiny: Tiny, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    train(tiny(*SHORT, model=NORMALISED), plain)
    config = averaged(tiny, f"ckpt={plain}", "trainer.max_steps=8")
    result = train(config, tmp_path / "run")
    assert result["steps"] == 8
    saved = checkpoint(tmp_path / "run")
    assert saved["averaging_state"]["n_averaged"] == 2
