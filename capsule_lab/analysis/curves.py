"""How did training go? Loss and error over the steps, from a run's ``metrics.csv``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter


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
