"""The parse tree of an image: children that routing gives to a class, down to the primary capsules; its drawing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from torch import Tensor

from capsule_lab.analysis.plotting import sequential_colours
from capsule_lab.analysis.trace import ChildGrid, LayerTrace
from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.studies.measures.receptive_fields import receptive_centres

ACTIVE = 0.1  # ours: activation above which a capsule is a node
_DRAWN = 60  # ours: branches of a node at most, for a drawing that can be read
_KEPT = 0.9  # ours: share of a node's mass that the drawn branches carry


class Branch(NamedTuple):
    """An edge of a tree, by numbers of the capsules in their layers; the weight is ``a_i R_ij``."""

    child: int
    parent: int
    weight: float


def parse(layers: Mapping[str, LayerTrace], root: int) -> dict[str, list[Branch]]:
    """The tree of one image below a class capsule: of each layer, the branches that carry nine tenths of its nodes."""
    found: dict[str, list[Branch]] = {}
    parents = {root}
    for name, layer in reversed([*layers.items()]):
        couplings, activations = layer.couplings()[0], layer.children.activations[0]
        best = couplings.argmax(1)
        branches: list[Branch] = []
        for parent in sorted(parents):
            children = ((best == parent) & (activations > ACTIVE)).nonzero().squeeze(1)
            weights = activations[children] * couplings[children, parent]
            order = weights.argsort(descending=True)[:_DRAWN]
            before = weights[order].cumsum(0) - weights[order]
            kept = order[before < _KEPT * weights.sum()]
            branches += [Branch(int(children[each]), parent, float(weights[each])) for each in kept]
        found[name] = branches
        parents = {branch.child for branch in branches}
    return found


def places(grid: ChildGrid | None, capsules: int) -> tuple[Tensor, Tensor, Tensor]:
    """Row, column (middles, from 0 to 1) and type of each capsule."""
    if grid is None:
        types = torch.arange(capsules)
        return torch.full((capsules,), 0.5), (types + 0.5) / capsules, types
    rows, columns = ((torch.arange(n) + 0.5) / n for n in (grid.height, grid.width))
    if grid.by_type:
        shape = (grid.types, grid.height, grid.width)
        parts = rows.view(1, -1, 1), columns.view(1, 1, -1), torch.arange(grid.types).view(-1, 1, 1)
    else:
        shape = (grid.height, grid.width, grid.types)
        parts = rows.view(-1, 1, 1), columns.view(1, -1, 1), torch.arange(grid.types).view(1, 1, -1)
    row, column, kind = (each.expand(shape).flatten() for each in parts)
    return row, column, kind


def draw_on_image(
    axis: Axes,
    picture: Tensor,
    network: AbstractCapsuleNetwork,
    layers: Mapping[str, LayerTrace],
    found: Mapping[str, list[Branch]],
    types: int,
) -> None:
    """The children of the class capsule where they look, as large as what they give, in colours of ``types``."""
    axis.imshow(-picture[0, 0].float().cpu().numpy(), cmap="gray", alpha=0.5)
    axis.set(xticks=[], yticks=[])
    name, layer = [*layers.items()][-1]
    branches = found[name]
    if layer.child_grid is None or not branches:
        return
    rows, columns, kinds = places(layer.child_grid, layer.children.activations.shape[1])
    chosen = [branch.child for branch in branches]
    largest = max(branch.weight for branch in branches)
    spread = 0.6 * (kinds[chosen] / layer.child_grid.types - 0.5)  # so that types at one place are beside each other
    (top, down), (left, right) = receptive_centres(network, picture)
    axis.scatter(
        left + right * (columns[chosen] * layer.child_grid.width - 0.5 + spread),
        top + down * (rows[chosen] * layer.child_grid.height - 0.5 + spread),
        s=[120 * branch.weight / largest for branch in branches],
        c=[sequential_colours(types)[int(kind)] for kind in kinds[chosen]],
        alpha=0.7,
        linewidths=0,
    )


def draw_graph(axis: Axes, layers: Mapping[str, LayerTrace], found: Mapping[str, list[Branch]], types: int) -> None:
    """Layers from the class at the top to the primary capsules, capsules by their column in the image.

    A branch has the colour of its child's type, of so many ``types``.
    """
    colours = sequential_colours(types)
    names = [*layers]
    above = torch.tensor([0.5])  # the class
    numbers: dict[int, int] = {branch.parent: 0 for branch in found[names[-1]]}
    for depth, name in enumerate(reversed(names)):
        layer, branches = layers[name], found[name]
        grid = layer.child_grid
        _, columns, kinds = places(grid, layer.children.activations.shape[1])
        if grid is not None:  # types at one place beside each other
            columns = columns + 0.6 * (kinds / grid.types - 0.5) / grid.width
        largest = max((branch.weight for branch in branches), default=1.0)
        for child, parent, weight in branches:
            top = float(above[numbers[parent]] if depth == 0 else above[parent])
            colour, width = colours[int(kinds[child])], 0.2 + 2 * weight / largest
            axis.plot([top, float(columns[child])], [-depth, -depth - 1], color=colour, linewidth=width, alpha=0.5)
        above = columns
    axis.set(xlim=(0, 1), xticks=[], yticks=[-depth for depth in range(len(names) + 1)])
    axis.set_yticklabels([f"{names[-1]}: the class", *(f"below {name}" for name in reversed(names))], fontsize=8)
    axis.set_xlabel("column in the image", fontsize=8)
