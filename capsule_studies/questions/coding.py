"""Is the position of an object encoded by the choice of the active capsule, or by its pose? (Sabour 2017, section 1)

Place-coding: as an image moves, another capsule of the same type becomes active. Rate-coding: the same capsule stays
active, and its pose changes. In higher layers, domains are larger, and place-coding should turn into rate-coding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
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
from capsule_lab.types import Batch
from capsule_studies.names import prefixed
from capsule_studies.subject import Answer, Subject, question

_ACTIVE = 0.5  # ours: share of a type's largest activation above which it counts as active
_TYPES = 6  # ours: number of types drawn
_KEPT = 0.5  # ours: share of its activation that a capsule keeps within its domain


class _Layer(NamedTuple):
    """The capsules of one layer; positions are ordered row by row."""

    activations: Float[Tensor, "image type position"]
    poses: Float[Tensor, "image type position dim"]
    width: int


class _Moved(NamedTuple):
    """The most active capsule of each type, and the activation of the capsule that was the most active before."""

    place: Int64[Tensor, "*shift image type"]
    column: Float[Tensor, "*shift image type"]
    poses: Float[Tensor, "*shift image type dim"]
    kept: Float[Tensor, "*shift image type"]


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
    translation = subject.changes["translation"]
    before = _layers(subject, subject.batches)
    places = {name: layer.activations.argmax(2) for name, layer in before.items()}
    moved: dict[str, list[_Moved]] = {name: [] for name in before}
    for pixels in shifts:
        layers = before
        if pixels:
            batches = subject.changed(translation, float(pixels))
            layers = _layers(subject, batches)
        for name, layer in layers.items():
            moved[name].append(_moved(layer, places[name]))
    numbers: dict[str, float] = {}
    rows = []
    for name, layer in before.items():
        types, positions = layer.activations.shape[1:]
        active = _active(layer)
        if positions == 1:
            active = torch.nn.functional.one_hot(subject.labels, types).bool()
        measured = _numbers(moved[name], active, torch.tensor(shifts).to(layer.activations))
        if positions == 1:
            del measured["place_slope"]
        numbers |= prefixed(name, measured)
        rows.append({"layer": name, "types": types, "positions": positions, **measured})
    first = next(iter(before.values()))
    return Answer(numbers, rows, partial(_figures, subject, rows, shift, first))


def _active(layer: _Layer) -> Bool[Tensor, "image type"]:
    """Return the images in which a type is active: half of its maximum or more."""
    peaks = layer.activations.amax(2)
    least = _ACTIVE * peaks.amax(0)
    return (peaks >= least) & (peaks > 0)


def _layers(subject: Subject, batches: Sequence[Batch]) -> Mapping[str, _Layer]:
    """Return every layer with capsules on a grid, and the classes, by name, from the image upwards."""
    names = [*subject.network.capsule_layers()]
    below = dict(pairwise(reversed(names)))
    parts_of_layer: dict[str, list[_Layer]] = {}
    for batch in batches:  # one trace at a time: couplings are large
        _, traces = trace(subject.network, batch.images)
        for name, layer in traces.items():
            if layer.child_grid is not None and name in below:
                children = _on_grid(layer, layer.child_grid)
                parts_of_layer.setdefault(below[name], []).append(children)
        poses, activations, _ = layer.parents
        classes = _Layer(activations.unsqueeze(2), poses.unsqueeze(2), 1)
        parts_of_layer.setdefault(name, []).append(classes)
    return {name: _joined(parts) for name, parts in parts_of_layer.items()}


def _joined(parts: Sequence[_Layer]) -> _Layer:
    activations, poses, widths = zip(*parts, strict=True)
    return _Layer(torch.cat(activations), torch.cat(poses), widths[0])


def _on_grid(layer: LayerTrace, grid: ChildGrid) -> _Layer:
    """Return a layer's children."""
    poses = grid.at_positions(layer.children.poses.transpose(1, 2))
    poses = poses.flatten(3)  # [image dim type position]
    activations = grid.at_positions(layer.children.activations).flatten(2)  # [image type position]
    return _Layer(activations, poses.movedim(1, -1), grid.width)


def _moved(layer: _Layer, before: Int64[Tensor, "image type"]) -> _Moved:
    """Return the most active capsule of each type, and the activation of the one at the place of ``before``."""
    place = layer.activations.argmax(2)
    dim = layer.poses.shape[3]
    index = place[:, :, None, None].expand(-1, -1, 1, dim)
    poses = layer.poses.gather(2, index)
    column = place % layer.width
    kept = layer.activations.gather(2, before.unsqueeze(2))
    return _Moved(place, column.to(kept), poses.squeeze(2), kept.squeeze(2))


def _numbers(
    moved: Sequence[_Moved], active: Bool[Tensor, "image type"], shifts: Tensor
) -> dict[str, float]:
    middle = len(moved) // 2
    every = _Moved(*map(torch.stack, zip(*moved, strict=True)))
    columns = every.column[:, active]  # [shift pair]
    centred = columns - columns.mean(0)
    products = (shifts[:, None] * centred).sum(0)
    slope = products / shifts.square().sum()
    keeps = every.kept > _KEPT * every.kept[middle]
    keeps = keeps[:, active]  # [shift pair]
    left = _count_until_false(keeps[:middle].flip(0))
    right = _count_until_false(keeps[middle + 1 :])
    reached = (left + right).double()
    at_limit = (left == middle) | (right == middle)
    stays = every.place == every.place[middle]
    return {
        "place_slope": float(slope.mean()),
        "rate_share": _rate_share(every.poses, stays, active, shifts),
        "domain": 1 + float(reached.mean()),
        "at_limit": float(at_limit.double().mean()),
    }


def _count_until_false(keeps: Bool[Tensor, "shift pair"]) -> Int64[Tensor, " pair"]:
    return keeps.long().cumprod(0).sum(0)


def _rate_share(poses: Tensor, stays: Tensor, active: Tensor, shifts: Tensor) -> float:
    """Return R² of the centred poses of each image on the centred shift, with one direction for each type."""
    weights = (stays & active).to(poses.dtype)  # [shift image type]
    count = weights.sum(0).clamp_min(1)
    shift = shifts[:, None, None]
    mean_shift = (weights * shift).sum(0) / count
    along = weights * (shift - mean_shift)
    of_poses = weights.unsqueeze(3)
    mean = (of_poses * poses).sum(0) / count.unsqueeze(2)
    centred = of_poses * (poses - mean)
    size = along.square().sum((0, 1)).clamp_min(1e-12)
    direction = torch.einsum("sit,sitd->td", along, centred) / size[:, None]
    predicted = along.unsqueeze(3) * direction
    residual = (centred - predicted).square().sum()
    total = centred.square().sum()
    if total == 0:
        return float("nan")
    return float(1 - residual / total)


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
    names = [str(row["layer"]) for row in rows]
    for axis, (key, label), colour in zip(axes[0], quantities.items(), COLOURS, strict=False):
        values = [row.get(key, float("nan")) for row in rows]
        bars = axis.bar(names, values, color=colour)
        if key == "domain":
            limits = [_limit(row) for row in rows]
            axis.bar_label(bars, limits, fontsize=7)
            axis.margins(y=0.25)
        axis.set_ylabel(label, fontsize=8)
        axis.tick_params(axis="x", labelrotation=20, labelsize=8)
        axis.grid(axis="y", alpha=0.3)
    return {"layers": figure, "first_layer": _maps(subject, first)}


def _limit(row: Mapping[str, object]) -> str:
    """Return the label of a bar that is a lower bound."""
    share = 100 * float(str(row["at_limit"]))
    return f"at least:\n{share:.0f} % at limit" if share else ""


def _maps(subject: Subject, layer: _Layer) -> Figure:
    """Draw the first image and where its most active types are; arrows are two components of their poses."""
    activations = layer.activations[0]  # [type position]
    poses = layer.poses[0]  # [type position dim]
    peaks = activations.amax(1)
    order = peaks.argsort(descending=True)[:_TYPES]
    shown = order[peaks[order] > 0].tolist()
    centred = poses - poses.mean((0, 1))
    _, _, directions = torch.linalg.svd(centred.flatten(0, 1), full_matrices=False)
    arrows = centred @ directions[:2].t()  # [type position 2]
    title = (
        "one image and its lowest capsules: dark where active, arrows are two components of poses"
    )
    across = len(shown) + 1
    figure, axes = panels(1, across, (1.5 * across, 1.9), title)
    name = name_of_class(subject.classes, int(subject.labels[0]))
    draw_image(axes[0, 0], subject.images[0], f"image of {name}")
    for axis, kind in zip(axes[0, 1:], shown, strict=True):
        grid = activations[kind].view(-1, layer.width).cpu()
        largest = float(activations.max())
        axis.imshow(grid.numpy(), cmap="Greys", vmin=0, vmax=largest, alpha=0.6)
        is_active = grid > _ACTIVE * grid.max()
        row, column = is_active.nonzero(as_tuple=True)
        on_grid = arrows[kind].view(-1, layer.width, 2).cpu()
        down, right = on_grid[row, column].numpy().T
        axis.quiver(
            column.numpy(), row.numpy(), right, down, color=COLOURS[0], angles="xy", width=0.02
        )
        axis.set(xticks=[], yticks=[])
        axis.set_title(f"type {kind}", fontsize=8)
    return figure
