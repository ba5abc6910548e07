"""Figures of attacks: accuracy or success against epsilon, and images before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.analysis.curves import COLOURS
from capsule_lab.analysis.plotting import Column, Group, name_of_class, picture_grid
from capsule_lab.attacks.of_runs import Examples
from capsule_lab.attacks.records import by_epsilon

_MARKERS = "os^Dv<>P*X"
_LINES = ("-", "--", "-.", ":")
_FEW = 6  # ours: curves whose names fit beside them
_UNITS = {"input": "epsilon, in units of the network's input", "grey_levels": "epsilon, in grey levels of 255"}
_STRENGTHS = {
    "rotation": "degrees counter-clockwise",
    "scaling": "factor less 1",
    "shear": "pixels to the right per pixel up",
    "translation": "pixels",
    "corruption": "severity",
}


def accuracy_figure(
    results: Sequence[Mapping[str, Any]],
    names: Sequence[str] = (),
    published: Mapping[str, Mapping[float, float]] | None = None,
    networks: Sequence[str] = (),
) -> Figure:
    """Curves of records of ``capsule_lab.attack``: accuracy, or success where attacks have targets.

    With 95 % intervals of Wilson, of one choice of images.

    Args:
        results: records in one space; all with targets, or none.
        names: of the curves; default: the run's and the attack's.
        published: by name, percentages by epsilon, drawn as pale points.
        networks: that the curves are of: each gets a colour, and each kind of attack a line and a marker; default: each
            curve has its own.
    """
    targeted = bool(results[0]["targeted"])
    key = "success" if targeted else "accuracy"
    crowded = len(results) > _FEW
    figure = Figure(figsize=(9.6 if crowded else 6.4, 4.4), layout="constrained")  # inches
    axis = figure.add_subplot()
    colours, kinds = [*dict.fromkeys(networks)], [*dict.fromkeys(map(_kind, results))]
    for number, result in enumerate(results):
        name = names[number] if names else _name(result)
        of_colour, style = (
            (colours.index(networks[number]), kinds.index(_kind(result))) if networks else (number, number)
        )
        colour, marker = COLOURS[of_colour % len(COLOURS)], _MARKERS[style % len(_MARKERS)]
        line = _LINES[style % len(_LINES)] if networks else "-"
        curve = pd.DataFrame.from_dict(by_epsilon(result["attack"]), orient="index", dtype=float)
        if not targeted and 0.0 not in curve.index:
            curve.loc[0.0, ["accuracy", "lowest", "highest"]] = 100 - _clean_error(result)
        curve = curve.sort_index()
        axis.plot(curve.index, curve[key], label=name, color=colour, marker=marker, markersize=4, linestyle=line)
        if {"lowest", "highest"} <= {*curve.columns}:
            axis.fill_between(curve.index, curve.lowest, curve.highest, color=colour, alpha=0.15, linewidth=0)
        points = (published or {}).get(name, {})
        axis.plot([*points], [*points.values()], linestyle="", marker=marker, markersize=6, color=colour, alpha=0.3)
    axis.set(
        xlabel=_STRENGTHS.get(_attack(results[0]), _UNITS[results[0]["space"]]),
        ylabel="taken for the target, % of images" if targeted else "accuracy, % of images",
        ylim=(-2, 102),
    )
    axis.grid(alpha=0.3)
    if crowded:
        figure.legend(fontsize=8, loc="outside right upper")
    else:
        axis.legend(fontsize=8)
    return figure


def sheet(examples: Examples, classes: Sequence[str] = ()) -> Figure:
    """Images as they are, and for each epsilon what the attack adds, as large as can be shown, and what comes out.

    Captions say what an image shows, and what the network takes it for under each attack. The images of a stereo pair
    are side by side.

    Args:
        examples: of ``Attacked.examples``.
        classes: their names.
    """
    low, high = examples.box.low, examples.box.high
    if not high < torch.inf:  # standardised
        low, high = examples.images.min().item(), examples.images.max().item()
    rows, pictures = ["as it is"], [(examples.images - low) / (high - low)]
    for epsilon, attacked in examples.attacked.items():
        change = attacked - examples.images
        rows += [f"change, {epsilon:g}", f"attacked, {epsilon:g}"]
        pictures += [change / (2 * change.abs().max().clamp(min=1e-9)) + 0.5, (attacked - low) / (high - low)]
    columns = []
    for number, label in enumerate(examples.labels.tolist()):
        found = ", ".join(name_of_class(classes, int(each[number])) for each in examples.found.values())
        caption = f"{name_of_class(classes, label)}: {found}" if found else name_of_class(classes, label)
        columns.append(Column(caption, [_flat(each[number]) for each in pictures]))
    return picture_grid([Group("what it shows: what the network says when it is attacked", columns)], rows)


def _flat(picture: Tensor) -> Tensor:
    """A stereo pair side by side, as one channel."""
    return torch.cat([*picture], dim=1)[None] if len(picture) == 2 else picture


def _name(result: Mapping[str, Any]) -> str:
    return f"{Path(result['checkpoint']).parents[1].name}, {_attack(result)}"


def _kind(result: Mapping[str, Any]) -> tuple[str, str, bool]:
    """By which attacks on several networks are alike."""
    return _attack(result), str(result["couplings"]), bool(result["source"])


def _attack(result: Mapping[str, Any]) -> str:
    return str(result["options"]["_target_"]).rpartition(".")[2]


def _clean_error(result: Mapping[str, Any]) -> float:
    return float(result[result["split"]]["error"])
