"""Is the position of an object encoded by the choice of the active capsule, or by its pose? (Sabour 2017, section 1)

Place-coding: as an image moves, another capsule of the same type becomes active. Rate-coding: the same capsule stays
active, and its pose changes. In higher layers, domains are larger, and place-coding should turn into rate-coding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.analysis.curves import COLOURS
from capsule_lab.analysis.plotting import draw_image, name_of_class, panels
from capsule_lab.analysis.trace import ChildGrid, LayerTrace, trace
from capsule_lab.errors import check_number
from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.routing import DynamicRouting, UniformRouting
from capsule_lab.types import Batch
from capsule_studies.subject import Answer, Subject, question

_ACTIVE = 0.5  # ours: share of a type's largest activation above which it counts as active
_TYPES = 6  # ours: number of types drawn
_KEPT = 0.5  # ours: share of its activation that a capsule keeps within its domain


class _Layer(NamedTuple):
    """The capsules of one layer; positions are ordered row by row."""

    activations: Float[Tensor, "image type position"]
    poses: Float[Tensor, "image type position dim"]
    width: int


@question()
def coding(subject: Subject, *, shift: int = 4) -> Answer:
    """Measure how the capsules of each layer encode image shifts of up to ``shift`` pixels to the left and right.

    For each ``<layer>/``, means over types and the images in which a type is active (half of its maximum or more); for
    classes, which have one position and no ``place_slope``, the label's capsule:

    - ``place_slope``: columns by which the most active capsule of a type moves per pixel;
    - ``rate_share``: R² of its pose on the shift, while it stays the most active, one direction for all images;
    - ``domain``: pixels over which a capsule keeps half of its activation, at most ``2 shift + 1``; ``at_limit``: share
      of the domains that reach the largest shift. If it is above 0, ``domain`` is a lower bound.
    """
    check_number("shift", shift, 1, min(subject.images.shape[2:]) - 1)
    subject.check_network(AbstractCapsuleNetwork, "has no capsules; expected a capsule network")
    shifts = range(-shift, shift + 1)
    before = _layers(subject, subject.batches)
    places = {name: layer.activations.argmax(2) for name, layer in before.items()}
    moved: dict[str, list[Mapping[str, Tensor]]] = {name: [] for name in before}
    for pixels in shifts:
        change = subject.changes["translation"]
        layers = _layers(subject, subject.changed(change, float(pixels))) if pixels else before
        for name, layer in layers.items():
            moved[name].append(_moved(layer, places[name]))
    numbers: dict[str, float] = {}
    rows = []
    for name, layer in before.items():
        peaks, positions = layer.activations.amax(2), layer.activations.shape[2]
        active = (peaks >= _ACTIVE * peaks.amax(0)) & (peaks > 0)
        if positions == 1:
            active = torch.nn.functional.one_hot(subject.labels, peaks.shape[1]).bool()
        measured = _numbers(moved[name], active, torch.tensor(shifts).to(peaks))
        if positions == 1:
            del measured["place_slope"]
        numbers |= {f"{name}/{key}": value for key, value in measured.items()}
        rows.append({"layer": name, "types": peaks.shape[1], "positions": positions, **measured})
    return Answer(
        numbers, rows, partial(_figures, subject, rows, shift, next(iter(before.values())))
    )


def _layers(subject: Subject, batches: Sequence[Batch]) -> Mapping[str, _Layer]:
    """Return every layer with capsules on a grid, and the classes, by name, from the image upwards."""
    names = [*subject.network.capsule_layers()]
    parts_of_layer: dict[str, list[_Layer]] = {}
    for batch in batches:  # one trace at a time: couplings are large
        traces = trace(subject.network, batch.images)[1]
        for name, layer in traces.items():
            if layer.child_grid is not None and name != names[0]:
                parts_of_layer.setdefault(names[names.index(name) - 1], []).append(
                    _on_grid(layer, layer.child_grid)
                )
        poses, activations, _ = layer.parents
        parts_of_layer.setdefault(name, []).append(
            _Layer(activations.unsqueeze(2), poses.unsqueeze(2), 1)
        )
    return {
        name: _Layer(
            torch.cat([part[0] for part in parts]),
            torch.cat([part[1] for part in parts]),
            parts[0].width,
        )
        for name, parts in parts_of_layer.items()
    }


def _on_grid(layer: LayerTrace, grid: ChildGrid) -> _Layer:
    """Return a layer's children; if its routing takes poses only, their lengths are their activations."""
    poses = grid.at_positions(layer.children.poses.transpose(1, 2)).flatten(
        3
    )  # [image dim type position]
    given_poses_only = isinstance(layer.routing, DynamicRouting | UniformRouting)
    activations = (
        layer.children.poses.norm(dim=2) if given_poses_only else layer.children.activations
    )
    return _Layer(grid.at_positions(activations).flatten(2), poses.movedim(1, -1), grid.width)


def _moved(layer: _Layer, before: Int64[Tensor, "image type"]) -> Mapping[str, Tensor]:
    """Return place, column and pose of each type's most active capsule, and the activation of the one of ``before``."""
    place = layer.activations.argmax(2)
    index = place[:, :, None, None].expand(-1, -1, 1, layer.poses.shape[3])
    return {
        "place": place,
        "column": (place % layer.width).to(layer.activations),
        "poses": layer.poses.gather(2, index).squeeze(2),
        "kept": layer.activations.gather(2, before.unsqueeze(2)).squeeze(2),
    }


def _numbers(
    moved: Sequence[Mapping[str, Tensor]], active: Bool[Tensor, "image type"], shifts: Tensor
) -> dict[str, float]:
    middle = len(moved) // 2
    place, column, poses, kept = (
        torch.stack([record[key] for record in moved]) for key in moved[0]
    )
    columns = column[:, active]  # [shift pair]
    slope = (shifts[:, None] * (columns - columns.mean(0))).sum(0) / shifts.square().sum()
    keeps = (kept > _KEPT * kept[middle])[:, active]
    left, right = (
        side.long().cumprod(0).sum(0) for side in (keeps[:middle].flip(0), keeps[middle + 1 :])
    )
    return {
        "place_slope": float(slope.mean()),
        "rate_share": _rate_share(poses, place == place[middle], active, shifts),
        "domain": 1 + float((left + right).double().mean()),
        "at_limit": float(((left == middle) | (right == middle)).double().mean()),
    }


def _rate_share(poses: Tensor, stays: Tensor, active: Tensor, shifts: Tensor) -> float:
    """Return R² of the centred poses of each image on the centred shift, with one direction for each type."""
    weights = (stays & active).to(poses.dtype)  # [shift image type]
    count = weights.sum(0).clamp_min(1)
    along = weights * (shifts[:, None, None] - (weights * shifts[:, None, None]).sum(0) / count)
    centred = weights.unsqueeze(3) * (
        poses - (weights.unsqueeze(3) * poses).sum(0) / count.unsqueeze(2)
    )
    direction = (
        torch.einsum("sit,sitd->td", along, centred)
        / along.square().sum((0, 1)).clamp_min(1e-12)[:, None]
    )
    residual = (centred - along.unsqueeze(3) * direction).square().sum()
    total = centred.square().sum()
    return float(1 - residual / total) if total > 0 else float("nan")


def _figures(
    subject: Subject, rows: Sequence[Mapping[str, object]], shift: int, first: _Layer
) -> Mapping[str, Figure]:
    title = f"how capsules encode shifts of up to {shift} pixels, means over images; classes have no place"
    figure, axes = panels(1, 3, (9.0, 2.8), title)
    quantities = {
        "place_slope": "place: columns per pixel",
        "rate_share": "rate: R² of the pose on the shift",
        "domain": f"domain: pixels, of {2 * shift + 1}",
    }
    for axis, (key, label), colour in zip(axes[0], quantities.items(), COLOURS, strict=False):
        values = [row.get(key, float("nan")) for row in rows]
        bars = axis.bar([str(row["layer"]) for row in rows], values, color=colour)
        if key == "domain":
            limits = [100 * float(str(row["at_limit"])) for row in rows]
            axis.bar_label(
                bars,
                [f"at least:\n{share:.0f} % at limit" if share else "" for share in limits],
                fontsize=7,
            )
            axis.margins(y=0.25)
        axis.set_ylabel(label, fontsize=8)
        axis.tick_params(axis="x", labelrotation=20, labelsize=8)
        axis.grid(axis="y", alpha=0.3)
    return {"layers": figure, "first_layer": _maps(subject, first)}


def _maps(subject: Subject, layer: _Layer) -> Figure:
    """Draw the first image and where its most active types are; arrows are two components of their poses."""
    activations, poses = (
        layer.activations[0],
        layer.poses[0],
    )  # [type position], [type position dim]
    order = activations.amax(1).argsort(descending=True)[:_TYPES]
    shown = order[activations.amax(1)[order] > 0].tolist()
    centred = poses - poses.mean((0, 1))
    arrows = (
        centred @ torch.linalg.svd(centred.flatten(0, 1), full_matrices=False)[2][:2].t()
    )  # [type position 2]
    title = (
        "one image and its lowest capsules: dark where active, arrows are two components of poses"
    )
    figure, axes = panels(1, len(shown) + 1, (1.5 * (len(shown) + 1), 1.9), title)
    draw_image(
        axes[0, 0],
        subject.images[0],
        f"image of {name_of_class(subject.classes, int(subject.labels[0]))}",
    )
    for axis, kind in zip(axes[0, 1:], shown, strict=True):
        grid = activations[kind].view(-1, layer.width).cpu()
        axis.imshow(grid.numpy(), cmap="Greys", vmin=0, vmax=float(activations.max()), alpha=0.6)
        rows, columns = (grid > _ACTIVE * grid.max()).nonzero(as_tuple=True)
        down, right = arrows[kind].view(-1, layer.width, 2).cpu()[rows, columns].numpy().T
        axis.quiver(
            columns.numpy(), rows.numpy(), right, down, color=COLOURS[0], angles="xy", width=0.02
        )
        axis.set(xticks=[], yticks=[])
        axis.set_title(f"type {kind}", fontsize=8)
    return figure
