"""Are the capsules alive? Activations and dead capsules of every layer over the steps, from a run's ``metrics.csv``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

MEAN, STD, DEAD = "val/activation_", "val/activation_std_", "val/dead_"


def layers_in(metrics: Path) -> list[str]:
    """Names of the layers that ``RoutingStats`` logged, from the image upwards."""
    columns = pd.read_csv(metrics, nrows=0).columns  # in the order of the alphabet
    names = [name.removeprefix(STD) for name in columns if name.startswith(STD)]
    return sorted(names, key=lambda name: (name != "primary", not name.startswith("conv")))


def layer_curves(metrics: Path) -> Figure:
    """Mean activation of each layer, within one standard deviation, and its share of dead capsules, against the step.

    Args:
        metrics: the ``metrics.csv`` of a run.
    """
    table = pd.read_csv(metrics)
    figure = Figure(figsize=(9, 3.2), layout="constrained")  # inches
    activation, dead = figure.subplots(1, 2)
    for number, layer in enumerate(layers_in(metrics)):
        rows = table[["step", MEAN + layer, STD + layer, DEAD + layer]].dropna()
        steps, mean, std = rows["step"] + 1, rows[MEAN + layer], rows[STD + layer]
        colour, label = f"C{number}", layer.replace("_", " ")
        activation.plot(steps, mean, "o-", color=colour, markersize=3, label=label)
        activation.fill_between(steps, (mean - std).clip(0), (mean + std).clip(upper=1), color=colour, alpha=0.12)
        dead.plot(steps, rows[DEAD + layer], "o-", color=colour, markersize=3, label=label)
    activation.set(xlabel="step", ylabel="activation, mean and spread", ylim=(0, 1))
    dead.set(xlabel="step", ylabel="dead capsules in %", ylim=(-3, 103))  # a margin, to see lines at 0 and 100
    for axis in (activation, dead):
        axis.grid(alpha=0.3)
        axis.legend()
    return figure
