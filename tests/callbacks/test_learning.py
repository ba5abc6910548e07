"""The diagnostics of learning in runs: what they leave, and that training is the same without them."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
from omegaconf import DictConfig
from torch import nn

from capsule_lab.analysis.learning import measure_layers
from capsule_lab.callbacks import LearningDiagnostics, VarianceFloor
from capsule_lab.callbacks.learning import first_images
from capsule_lab.config.build import build_data, build_module
from capsule_lab.config.check import check
from capsule_lab.config.compose import compose
from capsule_lab.networks import CapsNet, EMCaps
from capsule_lab.train import train
from capsule_lab.types import Batch
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, TINY_CNN
from tests.helpers.training import TimeOver, checkpoint, curves, run, weights

Tiny = Callable[..., DictConfig]
TINY_EM_CAPS = [
    "model=em_caps_small_normalised", "model.channels=4", "model.primary_types=3", "model.conv_types=[3,2]",
]  # fmt: skip
MODELS = {"capsnet": TINY_CAPSNET, "cnn": [*TINY_CNN, "model.dropout=0.5"], "em_caps": TINY_EM_CAPS}
FEW = [
    "data.batch_size=8", "data.train_images=64", "trainer.max_epochs=1", "train.test=none", *NO_PICTURES,
    "callbacks.routing_stats=null", "trainer.limit_val_batches=0", "callbacks.best=null",
    "trainer.accumulate_grad_batches=2", "trainer.precision=32-true",
]  # fmt: skip
LEARNING = [
    "+callbacks.learning._target_=capsule_lab.callbacks.LearningDiagnostics", "+callbacks.learning.every_n_steps=2",
    "+callbacks.learning.images=4",
]  # fmt: skip


def table(run: Path) -> list[dict[str, str]]:
    with (run / "learning.csv").open(newline="") as file:
        return list(csv.DictReader(file))


# --- in runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_training_is_the_same_with_and_without(
    name: str, tiny: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With dropout, batch normalisation and accumulated gradients: weights, statistics, state of Adam, curves."""
    without, with_it = tmp_path / "without", tmp_path / "with"
    train(tiny(*FEW, "callbacks.variance_floor=null", model=MODELS[name]), without)
    with caplog.at_level(logging.INFO):
        train(tiny(*FEW, *LEARNING, model=MODELS[name]), with_it)
    expected, found = checkpoint(without), checkpoint(with_it)
    for part in ("state_dict", "optimizer_states"):
        torch.testing.assert_close(found[part], expected[part], rtol=0, atol=0)
    measured = [row for row in curves(with_it) if row["learning/loss"]]
    rest = [row for row in curves(with_it) if not row["learning/loss"]]
    known, shown = (
        [{key: value for key, value in row.items() if value} for row in rows] for rows in (curves(without), rest)
    )
    assert shown == known

    rows = table(with_it)
    assert [row["step"] for row in rows] == ["0", "2"]
    assert [row["step"] for row in measured] == ["0", "2"]
    for row, logged in zip(rows, measured, strict=True):
        numbers = {f"learning/{key}": float(value) for key, value in row.items() if key != "step" and value}
        assert {key: float(value) for key, value in logged.items() if key in numbers} == pytest.approx(numbers)
    assert any(key.startswith("relative_step_") for key in rows[0])
    assert ("pose_std_primary" in rows[0]) is (name != "cnn")
    content = json.loads((with_it / "learning.json").read_text())
    assert [each["step"] for each in content["measurements"]] == [0, 2]
    assert content["measurements"][1]["gradient"]["norm"] == pytest.approx(float(rows[1]["gradient_norm"]))
    assert (with_it / "figures" / "learning.png").is_file()
    said = [record.getMessage() for record in caplog.records]
    start = said.index("diagnosis of 2 measurements, see learning.csv and figures/learning.png:")
    assert [f"- {sentence}" for sentence in content["diagnosis"]] == said[start + 1 :][: len(content["diagnosis"])]


def test_bf16_is_measured_in_float32_and_steps_are_those_of_the_optimizer(tiny: Tiny, tmp_path: Path) -> None:
    """The first measurement, before any step, is that of a run in float32."""
    few = [*FEW, *LEARNING, "trainer.max_steps=1"]
    runs = {}
    for precision in ("32-true", "bf16-mixed"):
        train(tiny(*few, f"trainer.precision={precision}", model=TINY_CNN), tmp_path / precision)
        (runs[precision],) = table(tmp_path / precision)
    same = [key for key in runs["32-true"] if not key.startswith("relative_step")]
    assert {key: runs["bf16-mixed"][key] for key in same} == {key: runs["32-true"][key] for key in same}

    config = tiny(model=TINY_CNN)
    lightning.seed_everything(config.seed, workers=True, verbose=False)
    initial = build_module(config, build_data(config).spec).network.state_dict()
    final = weights(tmp_path / "32-true")
    expected = {
        name: float((final[f"network.{name}"] - value).norm() / value.norm())
        for name, value in initial.items()
        if value.any()
    }
    found = {name: float(runs["32-true"][f"relative_step_{name}"]) for name in expected}
    assert found == pytest.approx(expected, rel=1e-4)
    assert max(found.values()) > 0.001


def test_resumed_run_has_the_measurements_of_an_uninterrupted_one(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, directory = [*FEW, *LEARNING, "trainer.accumulate_grad_batches=1"], tmp_path / "run"
    train(tiny(*few, model=TINY_CNN), tmp_path / "whole")
    assert run(tiny(*few, model=TINY_CNN), directory, monkeypatch, TimeOver(5))["status"] == "paused"
    assert [row["step"] for row in table(directory)] == ["0", "2", "4"]
    train(tiny(*few, "train.resume=true", model=TINY_CNN), directory)
    assert table(directory) == table(tmp_path / "whole")
    assert len(table(directory)) == 4


@pytest.mark.parametrize("model", ["capsnet", "cnn_small", "em_caps", "em_caps_paper"])
@pytest.mark.parametrize("data", ["mnist", "smallnorb", "multimnist"])
def test_debug_learning_goes_with_models_and_data(model: str, data: str) -> None:
    config = compose("train", ["debug=learning", f"model={model}", f"data={data}"])
    check(config)
    assert (config.trainer.max_steps, config.train.test) == (100, "none")


def test_debug_learning(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny("debug=learning", "data.batch_size=8", "trainer.max_steps=1", model=TINY_CNN)
    train(config, tmp_path / "run")
    assert [row["step"] for row in table(tmp_path / "run")] == ["0"]


# --- on their own ----------------------------------------------------------------------------------------------------


def images(size: int = 17) -> Batch:
    pixels = torch.rand(4, 1, size, size, generator=torch.Generator().manual_seed(1))
    return Batch(pixels, torch.tensor([0, 1, 2, 0]), torch.arange(4))


def warnings(network: nn.Module, caplog: pytest.LogCaptureFixture, *, step: int = 0, first: bool = True) -> list[str]:
    """What is said at two batches."""
    caplog.clear()
    callback, module = VarianceFloor(images=4), SimpleNamespace(network=network)
    for number in range(2):
        trainer: Any = SimpleNamespace(global_step=step + number, is_global_zero=first)
        callback.on_train_batch_start(trainer, module, images(), number)
    return [record.getMessage() for record in caplog.records]


def em_caps(weight_std: float) -> EMCaps:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"channels": 4, "primary_types": 3, "conv_types": (3, 2), "coordinates": "none"}
    return EMCaps((1, 17, 17), 3, **sizes, conv_weight_std=weight_std, class_weight_std=weight_std)


def test_floor_far_from_the_votes_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = warnings(em_caps(10.0), caplog)
    assert "far below the variance of the votes: conv_capsules_1 (0.0005 beside " in message
    (message,) = warnings(em_caps(1e-4), caplog)
    assert "far above the variance of the votes: conv_capsules_1 (0.0005 beside " in message


def test_others_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    network = em_caps(0.1)
    votes = measure_layers(network, images().images)["conv_capsules_1"].votes_variance
    assert votes is not None
    assert 0.0005 / 100 < votes < 0.0005 * 100
    assert warnings(em_caps(10.0), caplog, step=5) == [], "a run that is resumed"
    assert warnings(em_caps(10.0), caplog, first=False) == [], "not the first process"
    assert warnings(CapsNet((1, 17, 17), 3, channels=4, primary_types=2, class_dim=4), caplog) == []
    assert warnings(nn.Linear(1, 1), caplog) == []


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    callback = LearningDiagnostics()
    callback.current = object()
    trainer: Any = SimpleNamespace(is_global_zero=False, global_step=1, default_root_dir=tmp_path)
    callback.current = SimpleNamespace(step=0)
    module: Any = SimpleNamespace(network=nn.Linear(1, 1))
    callback.on_before_optimizer_step(trainer, module, None)
    callback.on_train_batch_end(trainer, module, None, images(), 0)
    callback.on_train_end(trainer, module)
    assert (callback.current, callback.before, callback.measurements) == (None, {}, [])
    assert [*tmp_path.iterdir()] == []


def test_first_images_are_whole_records_in_full_precision() -> None:
    batch = images()
    few = first_images(batch._replace(images=batch.images.bfloat16(), factors=torch.arange(8).reshape(4, 2)), 3)
    assert (few.images.dtype, few.images.shape, few.labels.tolist()) == (torch.float32, (3, 1, 17, 17), [0, 1, 2])
    assert few.factors is not None
    assert (few.factors.dtype, few.factors.tolist(), few.parts) == (torch.int64, [[0, 1], [2, 3], [4, 5]], None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_n_steps": 0}, "every_n_steps is 0; expected 1 or more"),
        ({"images": 1}, "images is 1; expected 2 or more"),
        ({"relative_change": 0.0}, "relative_change is 0.0; expected more than 0"),
        ({"changes": 0}, "changes is 0; expected 1 or more"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LearningDiagnostics(**options)


def test_floor_needs_two_images() -> None:
    with pytest.raises(ValueError, match="images is 1; expected 2 or more"):
        VarianceFloor(images=1)
