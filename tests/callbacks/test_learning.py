"""The diagnostics of learning in runs: what they leave, and that training is the same without them."""

import csv
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
from torch import nn

from capsule_lab.analysis.learning import measure_layers
from capsule_lab.callbacks import LearningDiagnostics, VarianceFloor
from capsule_lab.callbacks.learning import first_images
from capsule_lab.commands import compose
from capsule_lab.commands.train import check_training as check
from capsule_lab.commands.train import train
from capsule_lab.config.build import build_data, build_module
from capsule_lab.layers import CoordinateClassCapsules
from capsule_lab.networks import EMCaps
from capsule_lab.types import Batch
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, TINY_CNN, Tiny
from tests.helpers.networks import small_capsnet, small_em_caps
from tests.helpers.tiers import whole_but
from tests.helpers.training import TimeOver, checkpoint, curves, run, weights

TINY_EM_CAPS = [
    "model=em_caps_small_normalised",
    "model.channels=4",
    "model.primary.types=3",
    "model.conv.types=[3,2]",
]
MODELS = {
    "capsnet": TINY_CAPSNET,
    "cnn": [*TINY_CNN, "model.dropout=0.5"],
    "em_caps": TINY_EM_CAPS,
}
FEW = [
    *NO_PICTURES,
    "data.batch_size=8",
    "data.train_images=64",
    "trainer.max_epochs=1",
    "train.test=none",
    "callbacks.routing_stats=null",
    "trainer.limit_val_batches=0",
    "callbacks.best=null",
    "trainer.accumulate_grad_batches=2",
    "trainer.precision=32-true",
]
LEARNING = [
    "+callbacks.learning._target_=capsule_lab.callbacks.LearningDiagnostics",
    "+callbacks.learning.every_n_steps=2",
    "+callbacks.learning.images=4",
]


def table(run: Path) -> list[dict[str, str]]:
    with (run / "learning.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", whole_but(MODELS, "capsnet"))
def test_training_is_the_same_with_and_without(name: str, tiny: Tiny, tmp_path: Path) -> None:
    """With dropout, batch normalisation and accumulated gradients: weights, statistics, state of Adam, curves."""
    model = MODELS[name]
    without = tmp_path / "without"
    with_it = tmp_path / "with"
    train(tiny(*FEW, "callbacks.variance_floor=null", model=model), without)
    train(tiny(*FEW, *LEARNING, model=model), with_it)
    expected = checkpoint(without)
    found = checkpoint(with_it)
    for part in ("state_dict", "optimizer_states"):
        torch.testing.assert_close(found[part], expected[part], rtol=0, atol=0)
    measured = []
    others = []
    for row in curves(with_it):
        has_measurements = row["learning/loss"] != ""
        (measured if has_measurements else others).append(row)
    for row, of_run_without in zip(others, curves(without), strict=True):
        assert of_run_without.items() <= row.items()

    rows = table(with_it)
    assert [row["step"] for row in rows] == ["0", "2"]
    for row, logged in zip(rows, measured, strict=True):
        assert row.pop("step") == logged["step"]
        for quantity, value in row.items():
            if value:
                of_curve = float(logged[f"learning/{quantity}"])
                assert of_curve == pytest.approx(float(value))
    quantities = rows[0].keys()
    assert any(key.startswith("relative_step_") for key in quantities)
    has_capsules = name != "cnn"
    assert ("pose_std_primary" in quantities) is has_capsules


@pytest.mark.whole
def test_bf16_is_measured_in_float32_and_steps_are_those_of_the_optimizer(
    tiny: Tiny, tmp_path: Path
) -> None:
    few = [*FEW, *LEARNING, "trainer.max_steps=1"]
    measured = {}
    for precision in ("32-true", "bf16-mixed"):
        directory = tmp_path / precision
        train(tiny(*few, f"trainer.precision={precision}", model=TINY_CNN), directory)
        (measured[precision],) = table(directory)
    of_float32 = measured["32-true"]
    for key, value in of_float32.items():
        if not key.startswith("relative_step"):
            assert measured["bf16-mixed"][key] == value, key

    config = tiny(model=TINY_CNN)
    lightning.seed_everything(config.seed, workers=True, verbose=False)
    spec = build_data(config).spec
    initial = build_module(config, spec).network.state_dict()
    final = weights(tmp_path / "32-true")
    steps = []
    for name, value in initial.items():
        if value.any():
            step = float(of_float32[f"relative_step_{name}"])
            change = final[f"network.{name}"] - value
            expected = float(change.norm() / value.norm())
            assert step == pytest.approx(expected, rel=1e-4)
            steps.append(step)
    assert max(steps) > 0.001


@pytest.mark.whole
def test_resumed_run_has_the_measurements_of_an_uninterrupted_one(
    tiny: Tiny, tmp_path: Path
) -> None:
    few = [*FEW, *LEARNING, "trainer.accumulate_grad_batches=1"]
    whole = tmp_path / "whole"
    directory = tmp_path / "run"
    train(tiny(*few, model=TINY_CNN), whole)
    paused = run(tiny(*few, model=TINY_CNN), directory, TimeOver(5))
    assert paused["status"] == "paused"
    assert [row["step"] for row in table(directory)] == ["0", "2", "4"]
    train(tiny(*few, "train.resume=true", model=TINY_CNN), directory)
    expected = table(whole)
    assert len(expected) == 4
    assert table(directory) == expected


def test_debug_learning_goes_with_models_and_data() -> None:
    for model, data in (
        ("capsnet", "mnist"),
        ("cnn_small", "multimnist"),
        ("em_caps_paper", "smallnorb"),
    ):
        check(compose("train", ["debug=learning", f"model={model}", f"data={data}"]))


def images() -> Batch:
    pixels = torch.rand(4, 1, 17, 17, generator=torch.Generator().manual_seed(1))
    return Batch(pixels, torch.tensor([0, 1, 2, 0]), torch.arange(4))


def warnings(
    network: nn.Module, caplog: pytest.LogCaptureFixture, *, step: int = 0, first: bool = True
) -> list[str]:
    caplog.clear()
    callback, module = VarianceFloor(images=4), SimpleNamespace(network=network)
    for number in range(2):
        trainer: Any = SimpleNamespace(global_step=step + number, is_global_zero=first)
        callback.on_train_batch_start(trainer, module, images(), number)
    return caplog.messages


def em_caps(weight_std: float) -> EMCaps:
    torch.manual_seed(0)
    classes = partial(CoordinateClassCapsules, coordinates="none", weight_std=weight_std)
    return small_em_caps((1, 17, 17), 3, types=3, conv_weight_std=weight_std, classes=classes)


@pytest.mark.parametrize(("weight_std", "where"), [(10.0, "below"), (1e-4, "above")])
def test_floor_far_from_the_votes_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, weight_std: float, where: str
) -> None:
    (message,) = warnings(em_caps(weight_std), caplog)
    assert f"far {where} the variance of the votes: conv_capsules_1 (0.0005 beside " in message


def test_floor_is_near_the_votes_of_usual_weights() -> None:
    layers = measure_layers(em_caps(0.1), images().images)
    variance = layers["conv_capsules_1"].votes_variance
    assert 0.0005 / 100 < variance < 0.0005 * 100


def test_floor_is_looked_at_once_and_only_where_there_is_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert warnings(em_caps(10.0), caplog, step=5) == [], "a run that is resumed"
    assert warnings(em_caps(10.0), caplog, first=False) == [], "not the first process"
    capsnet = small_capsnet((1, 17, 17), 3, class_dim=4)
    assert warnings(capsnet, caplog) == []
    assert warnings(nn.Linear(1, 1), caplog) == []


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    callback = LearningDiagnostics()
    callback.step = 0
    module = SimpleNamespace(network=nn.Linear(1, 1))
    trainer: Any = SimpleNamespace(is_global_zero=False, global_step=1, default_root_dir=tmp_path)
    callback.on_before_optimizer_step(trainer, module, None)
    callback.on_train_batch_end(trainer, module, None, images(), 0)
    callback.on_train_end(trainer, module)
    assert callback.step is None
    assert callback.before == {}
    assert callback.rows == []
    assert [*tmp_path.iterdir()] == []


def test_first_images_are_whole_records_in_full_precision() -> None:
    batch = images()
    factors = torch.arange(8).reshape(4, 2)
    few = first_images(batch._replace(images=batch.images.bfloat16(), factors=factors), 3)
    assert few.images.dtype is torch.float32
    assert few.images.shape == (3, 1, 17, 17)
    assert few.labels.tolist() == [0, 1, 2]
    assert few.factors.dtype is torch.int64
    assert few.factors.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert few.parts is None
