"""Figures of attacks: accuracy or success against epsilon, and images before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import pandas as pd
import torch
from jaxtyping import Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.analysis.curves import legend_below, look
from capsule_lab.analysis.plotting import Column, Group, add_heading, name_of_class, picture_grid
from capsule_lab.runs.results import short_name
from capsule_lab.studies.attacks.evaluation import Examples
from capsule_lab.studies.attacks.kind import kind_of
from capsule_lab.studies.attacks.summary import by_epsilon

_ACROSS = 3  # ours: panels side by side
_TITLE = 36  # ours: letters above one of them
_UNITS = {"input": "in units of the network's input", "grey_levels": "in grey levels of 255"}


def accuracy_figure(
    results: Sequence[Mapping[str, Any]],
    networks: Sequence[str] = (),
    attacks: Sequence[str] = (),
    published: Sequence[Mapping[float, float]] = (),
    numbered: Sequence[str] = (),
) -> Figure:
    """Curves of records of ``capsule_lab.attack``: accuracy, or success where attacks have targets.

    A panel for each attack, in which each network has a curve; the same network looks the same in all. Bands are the
    intervals of the records: those of Wilson, of one choice of images, or the extremes of several seeds.

    Args:
        results: records in one space; all with targets, or none.
        networks: that each record is of; default: its run and weights.
        attacks: that each record is of; default: ``attack_of``.
        published: of each record, percentages by epsilon, drawn as pale points.
        numbered: networks in the order of their looks, so that they look the same in several figures; default: as here.
    """
    networks = networks or [weights_of(result) for result in results]
    attacks = attacks or [attack_of(result) for result in results]
    looks = {network: look(number) for number, network in enumerate(dict.fromkeys([*numbered, *networks]))}
    titles = [*dict.fromkeys(attacks)]
    labels = [_strength_of(result) for result in results]
    across, down = min(_ACROSS, len(titles)), -(-len(titles) // _ACROSS)
    size = (6.4, 4.4) if len(titles) == 1 else (3.4 * across, 2.8 * down)  # inches
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharey=True, sharex=len({*labels}) == 1)
    panels = dict(zip(titles, axes.flat, strict=False))
    for axis in axes.flat[len(titles) :]:
        axis.remove()
    for number, (result, network, attack) in enumerate(zip(results, networks, attacks, strict=True)):
        _draw(panels[attack], result, network, looks[network], published[number] if published else {})
        panels[attack].set_title(fill(attack, _TITLE) if across > 1 else attack, fontsize="medium")
        panels[attack].set_xlabel(labels[number], fontsize="small")
        panels[attack].tick_params(labelbottom=True, labelsize="small")
    targeted = bool(results[0]["targeted"])
    for axis in axes[:, 0]:
        axis.set(ylabel="taken for the target, % of images" if targeted else "accuracy, % of images", ylim=(-2, 102))
    legend_below(figure)
    data = "; ".join(dict.fromkeys(map(images_of, results)))
    add_heading(figure, f"{data}. Bands: 95 % intervals, or of several seeds the smallest and the largest")
    return figure


def _draw(
    axis: Axes, result: Mapping[str, Any], network: str, style: dict[str, Any], published: Mapping[float, float]
) -> None:
    key = "success" if result["targeted"] else "accuracy"
    curve = pd.DataFrame.from_dict(by_epsilon(result["attack"]), orient="index", dtype=float)
    if not result["targeted"] and 0.0 not in curve.index:
        curve.loc[0.0, ["accuracy", "lowest", "highest"]] = 100 - _clean_error(result)
    curve = curve.sort_index()
    axis.plot(curve.index, curve[key], label=network, markersize=5, fillstyle="none", **style)
    if {"lowest", "highest"} <= {*curve.columns}:
        axis.fill_between(curve.index, curve.lowest, curve.highest, color=style["color"], alpha=0.15, linewidth=0)
        if len(curve) == 1:  # which has no band
            axis.vlines(curve.index, curve.lowest, curve.highest, color=style["color"], linewidth=1)
    axis.update_datalim([(0, 50)])
    points = style | {"linestyle": ""}
    axis.plot([*published], [*published.values()], markersize=6, alpha=0.3, **points)
    axis.grid(alpha=0.3)


def sheet(
    examples: Examples, clean: Int64[Tensor, " images"], result: Mapping[str, Any], classes: Sequence[str] = ()
) -> Figure:
    """Images as they are, and for each epsilon what the attack adds, as large as can be shown, and what comes out.

    Under each image stands what the network takes it for. The images of a stereo pair are side by side.

    Args:
        examples: of ``Attacked.examples``.
        clean: what the network takes at least these images for when nothing attacks them.
        result: the record of the attack.
        classes: their names.
    """
    low, high = examples.box.low, examples.box.high
    if not high < torch.inf:  # standardised
        low, high = examples.images.min().item(), examples.images.max().item()
    rows, pictures = ["as it is"], [(examples.images - low) / (high - low)]
    found: list[Tensor | None] = [clean]
    for epsilon, attacked in examples.attacked.items():
        change = attacked - examples.images
        rows += [f"change, {epsilon:g}", f"attacked, {epsilon:g}"]
        pictures += [change / (2 * change.abs().max().clamp(min=1e-9)) + 0.5, (attacked - low) / (high - low)]
        found += [None, examples.found[epsilon]]
    columns = []
    for number, label in enumerate(examples.labels.tolist()):
        answers = [None if each is None else int(each[number]) for each in found]
        below = [
            ("", "black") if each is None else (name_of_class(classes, each), "black" if each == label else "red")
            for each in answers
        ]
        caption = f"label {name_of_class(classes, label)}"
        columns.append(Column(caption, [_flat(each[number]) for each in pictures], below=below))
    note = (
        "Under an image: what the network takes it for, red where that is wrong. "
        f"Numbers are {_strength_of(result)}. In a change, grey is none."
    )
    return picture_grid([Group("", columns)], rows, note=note)


def _flat(picture: Tensor) -> Tensor:
    """A stereo pair side by side, as one channel."""
    return torch.cat([*picture], dim=1)[None] if len(picture) == 2 else picture


def weights_of(result: Mapping[str, Any], key: str = "checkpoint") -> str:
    """Run and file of a record's ``checkpoint``, ``source`` or ``baseline``: ``capsnet-mnist-2f4c01ab, best.ckpt``."""
    path = Path(result[key])
    return f"{path.parents[1].name}, {path.name}"


def images_of(result: Mapping[str, Any]) -> str:
    """What was attacked: ``1,000 test images of stand-in for MNIST``."""
    return f"{result['images']:,} {result['split']} images of {short_name(result['provenance'])}"


def attack_of(result: Mapping[str, Any], source: str = "") -> str:
    """What a network was attacked with: ``PGD in L2``, ``BIM against equal couplings``.

    Args:
        result: the record.
        source: a name of the network that images were made against, if it was another; default: its run and weights.
    """
    options = result["options"]
    parts = [kind_of(options).label, *([options["kind"]] if "kind" in options else [])]
    parts += ["in L2"] if options.get("norm") == "l2" else []
    parts += ["against equal couplings"] if result["couplings"] == "equal" else []
    parts += [f"against {source or weights_of(result, 'source')}"] if result["source"] else []
    return " ".join(parts)


def _strength_of(result: Mapping[str, Any]) -> str:
    """What the numbers of an attack are."""
    of_change = "epsilon, the length of the change" if result["options"].get("norm") == "l2" else "epsilon"
    return kind_of(result["options"]).unit or f"{of_change}, {_UNITS[result['space']]}"


def _clean_error(result: Mapping[str, Any]) -> float:
    return float(result[result["split"]]["error"])
