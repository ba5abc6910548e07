"""The loop on pairs: what is logged, saved and refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from capsule_lab import runs
from capsule_lab.config.compose import compose
from capsule_lab.errors import ConfigError, InterruptError
from capsule_lab.train import summary, train
from tests.helpers.commands import Ended
from tests.helpers.training import SignalAt, run, weights

Cli = Callable[..., Ended]

SMALL = [
    *("model=transforming_autoencoder", "data=mnist_pairs", "data.source=standin", "model.capsules=4"),
    "trainer.accelerator=cpu",
]
SHORT = ["data.train_images=96", "data.batch_size=32", "data.eval_images=40", "trainer.max_epochs=2"]
SHORT += ["trainer.limit_test_batches=1"]
AFFINE = ["model=transforming_autoencoder_affine", "data.change=affine", "model.recognition=[5]"]
OF_SHIFTS = {
    *("loss", "reconstruction", "copying", "mean_image", "presence_change", "dead_capsules"),
    *("shift_r2", "slope_capsules"),
}


def trained(tmp_path: Path, *overrides: str) -> tuple[dict[str, Any], Path]:
    directory = tmp_path / "run"
    return train(compose("train", [*SMALL, *SHORT, *overrides]), directory), directory


Run = tuple[dict[str, Any], Path]


@pytest.fixture(scope="module")
def of_shifts(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of a transforming auto-encoder, and its result."""
    return trained(tmp_path_factory.mktemp("pairs"))


@pytest.mark.xdist_group("pairs")
def test_a_run_has_quantities_in_place_of_errors(of_shifts: Run) -> None:
    result, directory = of_shifts
    for split in ("val", "test"):
        assert {*result[split]} >= OF_SHIFTS
        assert "error" not in result[split]
    assert result["best"]["val"]["loss"] == min(result["best"]["val"]["loss"], result["val"]["loss"])
    assert (directory / "figures" / "val_pairs.png").is_file()
    lines = summary(
        result, directory, {"model": "transforming_autoencoder", "routing": "none", "data": "mnist_pairs"}, []
    )
    assert f"test loss {result['test']['loss']:.4g}" in lines
    assert "copying" in lines
    assert "test error" not in lines
    assert "capsule_lab analyse" in lines, "and not another routing, which it has not"
    assert runs.open(directory).network.capsules == 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("overrides", "quantity"),
    [
        (AFFINE, "matrix_error_unchanged"),
        (["model=pair_autoencoder", "~model.capsules"], "mean_image"),
    ],
)
def test_other_networks_on_pairs(overrides: list[str], quantity: str, tmp_path: Path) -> None:
    small = [each for each in SMALL if not each.startswith("model.")] if "pair_autoencoder" in overrides[0] else SMALL
    given = [each for each in overrides if not each.startswith("~")]
    result = train(compose("train", [*small, *SHORT, *given]), tmp_path / "run")
    assert quantity in result["test"]


def test_stereo_pairs(toynorb: Path, tmp_path: Path) -> None:
    overrides = [
        *("model=transforming_autoencoder_stereo", "data=smallnorb_pairs", "data.source=standin"),
        *(f"data.directory={toynorb}", "model.recognition=[4]", "model.generation=4", "model.shared=true"),
        *("data.batch_size=2", "data.eval_images=4", "trainer.max_epochs=1", "trainer.accelerator=cpu"),
    ]
    result = train(compose("train", overrides), tmp_path / "run")
    assert {"matrix_error", "matrix_error_unchanged", "copying"} <= {*result["test"]}
    assert "pairs of" in result["provenance"]["test_images"]


@pytest.mark.whole
def test_a_classifier_is_trained_on_the_first_images(tmp_path: Path) -> None:
    overrides = ["model=cnn_small", "data=mnist_pairs", "data.source=standin", *SHORT, "trainer.accelerator=cpu"]
    assert "error" in train(compose("train", overrides), tmp_path / "run")["test"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=mnist"], "TransformingAutoencoder is told a shift, and the data has none; expected data=mnist_pairs"),
        (["data.change=affine"], "is told a shift, and the data has a matrix"),
        (["model.pose=matrix"], "is told a matrix, and the data has a shift"),
        (["+module.cuda_graphs=true"], "module: cuda_graphs is true, and this network takes a change beside images"),
        (["data.mixup=0.2"], "data.mixup: TransformingAutoencoder does not classify; expected null"),
    ],
)
def test_data_without_the_change_is_refused(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        trained(tmp_path, *overrides)


@pytest.mark.xdist_group("pairs")
def test_other_data_without_the_change_is_refused_by_evaluate(cli: Cli, of_shifts: Run) -> None:
    _, directory = of_shifts
    ended = cli("evaluate", f"ckpt={directory}", "data=mnist", "data.source=standin")
    assert "TransformingAutoencoder is told a shift, and the data has none" in ended.err


@pytest.mark.whole
def test_a_monitor_of_poses(tmp_path: Path) -> None:
    result, _ = trained(tmp_path, "callbacks.best.monitor=val/shift_r2", "callbacks.best.mode=max")
    assert result["best"]["val"]["shift_r2"] >= result["val"]["shift_r2"]
    with pytest.raises(ConfigError, match="BestCheckpoint: monitor is val/error; Options: schedule/learning_rate"):
        trained(tmp_path / "other", "callbacks.best.monitor=val/error")


@pytest.mark.whole
def test_other_callbacks_do_nothing_to_pairs(tmp_path: Path) -> None:
    trained(tmp_path / "pairs", "callbacks=default", "callbacks.best.monitor=val/loss")


@pytest.mark.whole
def test_one_image_and_no_shift_leave_out_what_has_no_value(tmp_path: Path) -> None:
    result, _ = trained(tmp_path, "data.shift=0", "data.eval_images=1")
    assert "shift_r2" not in result["val"]
    assert math.isfinite(result["val"]["presence_change"])


@pytest.mark.whole
def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, directory = trained(tmp_path / "whole")
    config = compose("train", [*SMALL, *SHORT])
    with pytest.raises(InterruptError):
        run(config, tmp_path / "parts", monkeypatch, SignalAt(4))
    config.train.resume = True
    parts = train(config, tmp_path / "parts")
    assert parts["test"] == whole["test"]
    torch.testing.assert_close(weights(tmp_path / "parts"), weights(directory), rtol=0, atol=0)


@pytest.mark.xdist_group("pairs")
@pytest.mark.parametrize(
    ("command", "options"),
    [("attack", ["attack=fgsm"]), ("analyse", ["what=couplings"])],
)
def test_commands_for_classes_refuse(command: str, options: list[str], cli: Cli, of_shifts: Run) -> None:
    _, directory = of_shifts
    ended = cli(command, f"ckpt={directory}", *options)
    assert ended.status != 0
    assert "has a TransformingAutoencoder, which draws images and does not classify" in ended.err + ended.out


@pytest.mark.whole
@pytest.mark.xdist_group("pairs")
def test_commands_that_do_not(cli: Cli, of_shifts: Run) -> None:
    _, directory = of_shifts
    ended = cli("evaluate", f"ckpt={directory}", "+data.shift=4")
    assert "test loss" in ended.out
    for question, number in (("poses", "shift_3/shift_r2"), ("few_labels", "asked/error")):
        options = ["what.training_images=60", "what.components=3", "what.draws=1", "what.restarts=1"]
        asked = [f"what={question}", *(options if question == "few_labels" else ["what.shifts=[3]"]), "images=40"]
        ended = cli("analyse", f"ckpt={directory}", *asked, "untrained=false")
        (path,) = (directory / "analyses").glob(f"*-{question}-*.json")
        assert json.loads(path.read_text())["analyse"][number] is not None, ended.out
