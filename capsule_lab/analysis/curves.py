"""How did training go? Loss and error over the steps, from a run's ``metrics.csv``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

QUANTITIES = {"loss": "loss", "error": "error in %"}
OWN, AFFINE = "val/error", "affine/error"


def training_curves(metrics: Path) -> Figure:
    """Loss and error of training and validation against the step.

    Args:
        metrics: the ``metrics.csv`` of a run.
    """
    table = pd.read_csv(metrics)
    figure, axes = _loss_and_error()
    for axis, quantity in zip(axes, QUANTITIES, strict=True):
        for split, style in (("train", "C0-"), ("val", "C1o-")):
            _draw(axis, table, f"{split}/{quantity}", style, split)
        axis.legend()
    return figure


def curves_of_runs(metrics: Mapping[str, Path]) -> Figure:
    """Loss and error of several runs against the step: training dashed, validation in full.

    Args:
        metrics: what each run is called, and its ``metrics.csv``.
    """
    figure, axes = _loss_and_error()
    for number, (name, file) in enumerate(metrics.items()):
        table = pd.read_csv(file)
        for axis, quantity in zip(axes, QUANTITIES, strict=True):
            validated = f"val/{quantity}" in table
            _draw(axis, table, f"train/{quantity}", f"C{number % 10}--", "" if validated else name)  # 10 colours
            _draw(axis, table, f"val/{quantity}", f"C{number % 10}o-", name)
    for axis in axes:
        axis.legend()
    return figure


def _loss_and_error() -> tuple[Figure, Iterable[Axes]]:
    figure = Figure(figsize=(9, 3.2), layout="constrained")  # inches
    axes = figure.subplots(1, len(QUANTITIES))
    for axis, label in zip(axes, QUANTITIES.values(), strict=True):
        axis.set(xlabel="step", ylabel=label, yscale="log")
        axis.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))  # ours: labels that keep apart over three decades
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
        axis.grid(alpha=0.3, which="both")
    return figure, axes


def _draw(axis: Axes, table: pd.DataFrame, name: str, style: str, label: str) -> None:
    if name in table:
        rows = table[["step", name]].dropna()
        axis.plot(rows["step"] + 1, rows[name], style, markersize=3, label=label)


def shows_transfer(metrics: Path) -> bool:
    """Whether a run validated on synthetic affNIST too: whether its ``metrics.csv`` has both errors."""
    return {OWN, AFFINE} <= set(pd.read_csv(metrics, nrows=0).columns)


def transfer_curve(metrics: Path) -> Figure:
    """Accuracy on synthetic affNIST against that on the data of training, a point for each validation.

    Sabour 2017, section 5.2, compares networks of the same accuracy on the data of training: here one sees all of them
    on the way.

    Args:
        metrics: the ``metrics.csv`` of a run, of which ``shows_transfer`` is true.
    """
    rows = pd.read_csv(metrics)[["step", OWN, AFFINE]].dropna()
    figure = Figure(figsize=(5.5, 4.2), layout="constrained")  # inches
    axis = figure.add_subplot()
    own, affine = 100 - rows[OWN], 100 - rows[AFFINE]  # 100: percent
    axis.plot(own, affine, color="0.7", zorder=1)
    points = axis.scatter(own, affine, c=rows["step"] + 1, cmap="viridis", zorder=2)
    figure.colorbar(points, label="step")
    axis.set(xlabel="accuracy in % on moved digits, as trained", ylabel="accuracy in % on synthetic affNIST, unseen")
    axis.grid(alpha=0.3)
    return figure
