"""How did training go? Loss and error over the steps, from a run's ``metrics.csv``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

OWN, AFFINE = "val/error", "affine/error"


def training_curves(metrics: Path) -> Figure:
    """Loss and error of training and validation against the step.

    Args:
        metrics: the ``metrics.csv`` of a run.
    """
    table = pd.read_csv(metrics)
    figure = Figure(figsize=(9, 3.2), layout="constrained")  # inches
    axes = figure.subplots(1, 2)
    for axis, quantity, label in zip(axes, ("loss", "error"), ("loss", "error in %"), strict=True):
        for split, style in (("train", "C0-"), ("val", "C1o-")):
            name = f"{split}/{quantity}"
            if name in table:
                rows = table[["step", name]].dropna()
                axis.plot(rows["step"] + 1, rows[name], style, markersize=3, label=split)
        axis.set(xlabel="step", ylabel=label, yscale="log")
        axis.yaxis.set_major_formatter(LogFormatter())  # plain numbers
        axis.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.5)))  # on short axes only
        axis.grid(alpha=0.3, which="both")
        axis.legend()
    return figure


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
