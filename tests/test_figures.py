"""Figures of a run, drawn once more from what it left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import pandas as pd
import pytest

from capsule_lab.analysis.curves import training_curves
from capsule_lab.analysis.layers import layer_curves, layers_in
from capsule_lab.figures import draw
from tests.conftest import NO_PICTURES, TINY_CNN, Ended, Trained

Cli = Callable[..., Ended]


def test_figures_of_a_capsnet(trained: Trained) -> None:
    assert [name for name, _ in draw(trained.directory, 4)] == ["curves", "layers", "reconstructions"]


@pytest.mark.parametrize("images", [1, 5])
def test_reconstructions_are_as_many_as_asked_for(trained: Trained, images: int) -> None:
    figure = dict(draw(trained.directory, images))["reconstructions"]
    assert len(figure.axes) == 2 * images
    assert [len(axis.images) for axis in figure.axes] == [1] * 2 * images
    assert "→" in figure.axes[0].get_title()


@pytest.mark.parametrize(("axis", "label"), [(0, "loss"), (1, "error in %")])
def test_curves_of_training_and_validation(trained: Trained, axis: int, label: str) -> None:
    drawn = training_curves(trained.directory / "metrics.csv").axes[axis]
    assert drawn.get_ylabel() == label
    assert [line.get_label() for line in drawn.lines] == ["train", "val"]
    assert [line.get_xdata().tolist() for line in drawn.lines] == [[4, 8], [4, 8]]


@pytest.mark.parametrize("error", [0.0, 12.5])
def test_curves_of_a_run_without_validation(tmp_path: Path, error: float) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text(f"step,train/loss,train/error\n3,0.5,50\n7,0.25,{error}\n")
    figure = training_curves(file)
    figure.savefig(tmp_path / "curves.png")
    assert [line.get_label() for axis in figure.axes for line in axis.lines] == ["train", "train"]


def test_layers_are_drawn_from_the_image_upwards(trained: Trained) -> None:
    assert layers_in(trained.directory / "metrics.csv") == ["primary", "digits"]
    activation, dead = layer_curves(trained.directory / "metrics.csv").axes
    for axis, quantity in ((activation, "activation_digits"), (dead, "dead_digits")):
        assert [line.get_label() for line in axis.lines] == ["primary", "digits"]
        table = pd.read_csv(trained.directory / "metrics.csv")[["step", f"val/{quantity}"]].dropna()
        assert axis.lines[1].get_xdata().tolist() == [4, 8]
        assert axis.lines[1].get_ydata().tolist() == table[f"val/{quantity}"].tolist()


def test_command_draws_into_the_run(cli: Cli, a_copy: Path) -> None:
    ended = cli("figures", f"run={a_copy}", "images=2")
    assert (ended.status, ended.err) == (0, "")
    assert [line for line in ended.out.splitlines() if line.endswith(".png")] == [
        str(a_copy / "figures" / f"{name}.png") for name in ("curves", "layers", "reconstructions")
    ]
    picture = matplotlib.image.imread(a_copy / "figures" / "curves.png")
    assert picture[..., :3].std() > 0


def test_command_draws_what_applies_to_another_network(cli: Cli, tmp_path: Path) -> None:
    smoke = ["debug=smoke", "trainer.accelerator=cpu", "train.directory=run", *NO_PICTURES]
    assert cli("train", *TINY_CNN, *smoke).status == 0
    ended = cli("figures", "run=run")
    assert (ended.status, ended.err) == (0, "")
    assert [path.name for path in (tmp_path / "run" / "figures").iterdir()] == ["curves.png"]
