"""The loop on pairs: what is logged, saved and refused."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from capsule_lab import runs
from capsule_lab.commands import compose, proposals
from capsule_lab.commands.train import summary, train
from capsule_lab.config.declaration import FinishedRun
from capsule_lab.errors import ConfigError
from tests.helpers.commands import Cli
from tests.helpers.extensions import HAS_STUDIES
from tests.helpers.training import interrupted_and_resumed, weights

ON_PAIRS = ["data=mnist_pairs", "data.source=standin", "trainer.accelerator=cpu"]
SMALL = ["model=transforming_autoencoder", "model.capsules=4", *ON_PAIRS]
SHORT = [
    "data.train_images=96",
    "data.batch_size=32",
    "data.eval_images=40",
    "trainer.max_epochs=2",
    "trainer.limit_test_batches=1",
]
AFFINE = [
    "model.pose=matrix",
    "model.output_bias=per_capsule",
    "data.change=affine",
    "model.recognition=[5]",
]
OF_SHIFTS = {
    "loss",
    "reconstruction",
    "copying",
    "mean_image",
    "presence_change",
    "dead_capsules",
    "shift_r2",
}


def trained(
    tmp_path: Path, *overrides: str, model: list[str] = SMALL
) -> tuple[dict[str, Any], Path]:
    directory = tmp_path / "run"
    return train(compose("train", [*model, *SHORT, *overrides]), directory), directory


Run = tuple[dict[str, Any], Path]


@pytest.fixture(scope="module")
def of_shifts(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of a transforming auto-encoder, and its result."""
    return trained(tmp_path_factory.mktemp("pairs"))


def test_a_run_has_quantities_in_place_of_errors(of_shifts: Run) -> None:
    result, directory = of_shifts
    for split in ("val", "test"):
        assert {*result[split]} >= OF_SHIFTS
        assert "error" not in result[split]
    assert result["best"]["val"]["loss"] <= result["val"]["loss"]
    assert (directory / "figures" / "val_pairs.png").is_file()
    chosen = {"model": "transforming_autoencoder", "routing": "none", "data": "mnist_pairs"}
    proposed = proposals(FinishedRun(result, directory, True, chosen, []))
    lines = summary(result, directory, chosen, proposed)
    assert f"test loss {result['test']['loss']:.4g}" in lines
    assert "test error" not in lines
    assert "routing=uniform" not in lines, "it has no routing"
    assert ("capsule-lab analyse" in lines) is HAS_STUDIES
    assert runs.open(directory).network.capsules == 4  # type: ignore[attr-defined]


@pytest.mark.whole
@pytest.mark.parametrize(
    ("model", "quantity"),
    [
        ([*SMALL, *AFFINE], "matrix_error_unchanged"),
        (["model=pair_autoencoder", *ON_PAIRS], "mean_image"),
    ],
)
def test_other_networks_on_pairs(model: list[str], quantity: str, tmp_path: Path) -> None:
    assert quantity in trained(tmp_path, model=model)[0]["test"]


@pytest.mark.whole
def test_stereo_pairs(toynorb: Path, tmp_path: Path) -> None:
    overrides = [
        "experiment=hinton2011/stereo",
        "data.source=standin",
        f"data.directory={toynorb}",
        "model.recognition=[4]",
        "model.generation=4",
        "model.shared=true",
        "data.batch_size=2",
        "data.eval_images=4",
        "trainer.max_epochs=1",
        "trainer.accelerator=cpu",
    ]
    result = train(compose("train", overrides), tmp_path / "run")
    assert {"matrix_error", "matrix_error_unchanged", "copying"} <= {*result["test"]}
    assert "pairs of" in result["provenance"]["test_images"]


@pytest.mark.whole
def test_a_classifier_is_trained_on_the_first_images(tmp_path: Path) -> None:
    assert "error" in trained(tmp_path, model=["model=cnn_small", *ON_PAIRS])[0]["test"]


@pytest.mark.whole
def test_a_monitor_of_poses_and_callbacks_for_classes(tmp_path: Path) -> None:
    result, _ = trained(tmp_path, "callbacks.best.monitor=val/shift_r2", "callbacks.best.mode=max")
    assert result["best"]["val"]["shift_r2"] >= result["val"]["shift_r2"]
    message = "BestCheckpoint: monitor is val/error; Options: schedule/learning_rate"
    with pytest.raises(ConfigError, match=message):
        trained(tmp_path / "other", "callbacks.best.monitor=val/error")
    trained(tmp_path / "default", "callbacks=default", "callbacks.best.monitor=val/loss")


@pytest.mark.whole
def test_one_image_and_no_shift_leave_out_what_has_no_value(tmp_path: Path) -> None:
    result, _ = trained(tmp_path, "data.shift=0", "data.eval_images=1")
    assert "shift_r2" not in result["val"]
    assert math.isfinite(result["val"]["presence_change"])


@pytest.mark.whole
def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, directory = trained(tmp_path / "whole")
    parts = interrupted_and_resumed(compose("train", [*SMALL, *SHORT]), tmp_path / "parts", 4)
    assert parts["test"] == whole["test"]
    torch.testing.assert_close(weights(tmp_path / "parts"), weights(directory), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        (
            "attack",
            ["attack=fgsm"],
            "has a TransformingAutoencoder, which draws images and does not classify",
        ),
        (
            "analyse",
            ["what=couplings"],
            "has a TransformingAutoencoder, which draws images and does not classify",
        ),
        (
            "evaluate",
            ["data=mnist", "data.source=standin"],
            "expects a shift, but the data provides none",
        ),
    ],
)
def test_commands_for_classes_refuse(
    command: str, options: list[str], message: str, cli: Cli, of_shifts: Run
) -> None:
    _, directory = of_shifts
    ended = cli(command, f"ckpt={directory}", *options)
    assert ended.status != 0
    assert message in ended.err


def test_evaluation_at_another_shift(cli: Cli, of_shifts: Run) -> None:
    assert "test loss" in cli("evaluate", f"ckpt={of_shifts[1]}", "+data.shift=4").out
