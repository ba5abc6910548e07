"""Accuracy and success under attack against the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Of Okabe and Ito 2008, which people with any colour vision tell apart."""


def accuracy_figure(results: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> Figure:
    """Curves of records of ``capsule_lab.attack``: accuracy, or success where attacks have targets.

    Args:
        results: records; all with targets, or none.
        names: of the curves; default: the directory of the run and the attack.
    """
    targeted = bool(results[0]["targeted"])
    figure = Figure(figsize=(6, 4), layout="constrained")  # inches
    axis = figure.add_subplot()
    for number, result in enumerate(results):
        attack = result["attack"]["_target_"].rpartition(".")[2]
        name = names[number] if names else f"{Path(result['checkpoint']).parents[1].name}, {attack}"
        colour = COLOURS[number % len(COLOURS)]
        epsilons = [each["epsilon"] for each in result["budgets"]]
        if targeted:
            axis.plot(epsilons, [each["success"] for each in result["budgets"]], "o-", color=colour, label=name)
            continue
        low, high = zip(*(each["interval"] for each in result["budgets"]), strict=True)
        axis.fill_between(epsilons, low, high, color=colour, alpha=0.15)
        axis.plot([0, *epsilons], [result["accuracy"], *(each["accuracy"] for each in result["budgets"])],
                  "o-", markersize=4, color=colour, label=name)  # fmt: skip
    axis.set(
        xlabel=f"epsilon, {'grey levels' if results[0]['space'] == 'grey_levels' else 'units of the network input'}",
        ylabel="taken for the target, %" if targeted else "accuracy, %",
        ylim=(-2, 102),
    )
    axis.grid(alpha=0.3)
    axis.legend()
    return figure
