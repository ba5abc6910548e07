"""Figures of attacks: accuracy or success against epsilon, and images before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import pandas as pd
import torch
from jaxtyping import Float, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.analysis.curves import legend_below, look
from capsule_lab.analysis.plotting import Column, Group, add_heading, name_of_class, picture_grid
from capsule_lab.runs.results import short_name
from capsule_studies.attacks.evaluation import Measured
from capsule_studies.attacks.gradient import Box
from capsule_studies.attacks.kind import kind_of
from capsule_studies.attacks.record import by_epsilon, epsilon_text

_ACROSS = 3  # ours: panels side by side
_TITLE = 36  # ours: characters per line of a panel's title
_UNITS = {"input": "in units of the network's input", "grey_levels": "in grey levels of 255"}


def accuracy_figure(
    results: Sequence[Mapping[str, Any]],
    networks: Sequence[str] = (),
    attacks: Sequence[str] = (),
    published: Sequence[Mapping[float, float]] = (),
    numbered: Sequence[str] = (),
) -> Figure:
    """Draw records of the command ``attack`` as curves of accuracy, or of success for targeted attacks.

    Each attack has a panel, and each network a curve of the same style in all panels. Bands are the intervals in the
    records: Wilson's interval of one run, or minimum and maximum of several seeds.

    Args:
        results: records in one space; all with targets, or none.
        networks, attacks: names for each record; default: its run and weights, and ``attack_of``.
        published: for each record, percentages by epsilon, drawn as pale points.
        numbered: networks in the order of their styles, to share styles between figures; default: ``networks``.
    """
    networks = networks or [weights_of(result) for result in results]
    attacks = attacks or [attack_of(result) for result in results]
    in_order = dict.fromkeys([*numbered, *networks])
    looks = {network: look(number) for number, network in enumerate(in_order)}
    titles = [*dict.fromkeys(attacks)]
    labels = [_strength_of(result) for result in results]
    across = min(_ACROSS, len(titles))
    down = -(-len(titles) // _ACROSS)
    size = (6.4, 4.4) if len(titles) == 1 else (3.4 * across, 2.8 * down)  # inches
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharey=True, sharex=len({*labels}) == 1)
    panels = dict(zip(titles, axes.flat, strict=False))
    for axis in axes.flat[len(titles) :]:
        axis.remove()
    for number, result in enumerate(results):
        network, attack = networks[number], attacks[number]
        points = published[number] if published else {}
        title = fill(attack, _TITLE) if across > 1 else attack
        axis = panels[attack]
        _draw(axis, result, network, looks[network], points)
        axis.set_title(title, fontsize="medium")
        axis.set_xlabel(labels[number], fontsize="small")
        axis.tick_params(labelbottom=True, labelsize="small")
    quantity = "classified as the target" if results[0]["targeted"] else "accuracy"
    for axis in axes[:, 0]:
        axis.set(ylabel=f"{quantity}, % of images", ylim=(-2, 102))
    legend_below(figure)
    data = "; ".join(dict.fromkeys(map(images_of, results)))
    add_heading(figure, f"{data}. Bands: 95 % intervals, or minimum and maximum of several seeds")
    return figure


def _draw(
    axis: Axes,
    result: Mapping[str, Any],
    network: str,
    style: dict[str, Any],
    published: Mapping[float, float],
) -> None:
    key = "success" if result["targeted"] else "accuracy"
    records = by_epsilon(result["attack"])
    curve = pd.DataFrame.from_dict(records, orient="index", dtype=float)
    if not result["targeted"] and 0.0 not in curve.index:
        clean = result[result["split"]]
        curve.loc[0.0, ["accuracy", "lowest", "highest"]] = 100 - clean["error"]
    curve = curve.sort_index()
    axis.plot(curve.index, curve[key], label=network, markersize=5, fillstyle="none", **style)
    if {"lowest", "highest"} <= {*curve.columns}:
        band = curve.index, curve.lowest, curve.highest
        axis.fill_between(*band, color=style["color"], alpha=0.15, linewidth=0)
        if len(curve) == 1:  # which has no band
            axis.vlines(*band, color=style["color"], linewidth=1)
    axis.update_datalim([(0, 50)])
    points = {**style, "linestyle": "", "markersize": 6, "alpha": 0.3}
    axis.plot([*published], [*published.values()], **points)
    axis.grid(alpha=0.3)


class _Row(NamedTuple):
    """A row of the sheet; ``predicted`` contains the classes under the pictures, ``None`` for none."""

    name: str
    pictures: Float[Tensor, "image channel height width"]
    predicted: Int64[Tensor, " images"] | None


def sheet(
    measured: Measured,
    target: int | None,
    box: Box,
    result: Mapping[str, Any],
    classes: Sequence[str] = (),
) -> Figure:
    """Draw the original images and, for each epsilon, the change, scaled to the full range, and the attacked images.

    The predicted class is written under each image.
    """
    images = measured.clean.pictures
    low, high = box if box.high < torch.inf else (images.min().item(), images.max().item())
    original = (images - low) / (high - low)
    rows = [_Row("original", original, measured.clean.found)]
    for (epsilon, other), answers in measured.attacked.items():
        if epsilon and other == target:
            change = answers.pictures - images
            largest = change.abs().max().clamp(min=1e-9)
            scaled = change / (2 * largest) + 0.5
            attacked = (answers.pictures - low) / (high - low)
            rows.append(_Row(f"change, {epsilon_text(epsilon)}", scaled, None))
            rows.append(_Row(f"attacked, {epsilon_text(epsilon)}", attacked, answers.found))
    columns = []
    for number, image in enumerate(measured.shown.tolist()):
        name = name_of_class(classes, int(measured.labels[image]))
        pictures, below = [], []
        for row in rows:
            pictures.append(_beside(row.pictures[number]))
            text = ""
            if row.predicted is not None:
                text = name_of_class(classes, int(row.predicted[image]))
            below.append((text, "black" if text in ("", name) else "red"))
        columns.append(Column(f"label {name}", pictures, below=below))
    note = (
        "Under each image: the predicted class, red if it is wrong. "
        f"Numbers are {_strength_of(result)}. In the changes, grey is no change."
    )
    return picture_grid([Group("", columns)], [row.name for row in rows], note=note)


def _beside(picture: Tensor) -> Tensor:
    """Return the two images of a stereo pair side by side, and other pictures as they are."""
    if len(picture) != 2:
        return picture
    left, right = picture.split(1)
    return torch.cat([left, right], 2)


def weights_of(result: Mapping[str, Any], key: str = "checkpoint") -> str:
    """Name run and file of a record's ``checkpoint``, ``source`` or ``baseline``: ``capsnet-mnist-2f4c, best.ckpt``."""
    path = Path(result[key])
    run = path.parts[-3:-2]  # empty for a path that is not of a run
    return ", ".join([*run, path.name])


def images_of(result: Mapping[str, Any]) -> str:
    """Describe the attacked images: ``1,000 test images of stand-in for MNIST``."""
    return f"{result['images']:,} {result['split']} images of {short_name(result['provenance'])}"


def attack_of(result: Mapping[str, Any], source: str = "") -> str:
    """Describe the attack: ``PGD in L2``, ``BIM against equal couplings``.

    ``source`` is the name of the network of a transfer attack; default: its run and weights.
    """
    options = result["options"]
    parts = [kind_of(options).label]
    if "kind" in options:
        parts.append(options["kind"])
    if options.get("norm") == "l2":
        parts.append("in L2")
    if result["couplings"] == "equal":
        parts.append("against equal couplings")
    if result["source"]:
        parts.append(f"against {source or weights_of(result, 'source')}")
    return " ".join(parts)


def _strength_of(result: Mapping[str, Any]) -> str:
    """Describe what the strength of an attack is."""
    options = result["options"]
    unit = kind_of(options).unit
    if unit:
        return unit
    name = "epsilon, the length of the change" if options.get("norm") == "l2" else "epsilon"
    return f"{name}, {_UNITS[result['space']]}"
