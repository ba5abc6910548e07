"""The parse tree of an image, from a class down to the primary capsules by the largest couplings, and its drawing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor

from capsule_lab.analysis.plotting import draw_image, sequential_colours
from capsule_lab.analysis.trace import ChildGrid, LayerTrace, trace
from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.types import Votes

ACTIVE = 0.1  # ours: activation above which a capsule is a node
_DRAWN = 60  # ours: most branches of a node, for a readable drawing
_KEPT = 0.9  # ours: share of a node's mass that the drawn branches carry


class Branch(NamedTuple):
    """An edge of a tree, with indices of the capsules in their layers and the weight ``a_i R_ij``."""

    child: int
    parent: int
    weight: float


Layers = Mapping[str, LayerTrace]
Tree = Mapping[str, list[Branch]]


def parse(layers: Layers, root: int) -> Tree:
    """Return the tree of one image below a class capsule: for each node, the branches with nine tenths of its mass."""
    branches: dict[str, list[Branch]] = {}
    parents = {root}
    for name, layer in reversed([*layers.items()]):
        couplings, activations = layer.couplings()[0], layer.children.activations[0]
        best = couplings.argmax(1)
        branches[name] = []
        for parent in sorted(parents):
            children = ((best == parent) & (activations > ACTIVE)).nonzero().squeeze(1)
            weights = activations[children] * couplings[children, parent]
            order = weights.argsort(descending=True)[:_DRAWN]
            before = weights[order].cumsum(0) - weights[order]
            heaviest = order[before < _KEPT * weights.sum()]
            branches[name] += [
                Branch(int(children[child]), parent, float(weights[child])) for child in heaviest
            ]
        parents = {branch.child for branch in branches[name]}
    return branches


def places(grid: ChildGrid | None, capsules: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return row, column (centres, from 0 to 1) and type of each capsule."""
    child = torch.arange(capsules)
    if grid is None:
        return torch.full((capsules,), 0.5), (child + 0.5) / capsules, child
    place = child % (grid.height * grid.width) if grid.by_type else child // grid.types
    return (
        (place // grid.width + 0.5) / grid.height,
        (place % grid.width + 0.5) / grid.width,
        grid.type_of_child,
    )


def draw_on_image(
    axis: Axes,
    picture: Tensor,
    network: AbstractCapsuleNetwork,
    layers: Layers,
    parsed: Tree,
    types: int,
) -> None:
    """Draw the class capsule's children at their receptive fields, sized by weight, in colours of ``types``."""
    draw_image(axis, picture[0], alpha=0.5)
    name, layer = [*layers.items()][-1]
    branches = parsed[name]
    if layer.child_grid is None or not branches:
        return
    rows, columns, kinds = places(layer.child_grid, layer.children.activations.shape[1])
    chosen = [branch.child for branch in branches]
    largest = max(branch.weight for branch in branches)
    spread = 0.6 * (
        kinds[chosen] / layer.child_grid.types - 0.5
    )  # types at the same position side by side
    (top, down), (left, right) = receptive_centres(network, picture)
    axis.scatter(
        left + right * (columns[chosen] * layer.child_grid.width - 0.5 + spread),
        top + down * (rows[chosen] * layer.child_grid.height - 0.5 + spread),
        s=[120 * branch.weight / largest for branch in branches],
        c=[sequential_colours(types)[int(kind)] for kind in kinds[chosen]],
        alpha=0.7,
        linewidths=0,
    )


def draw_graph(axis: Axes, layers: Layers, parsed: Tree, types: int) -> None:
    """Draw layers from the class at the top to the primary capsules; capsules by column, coloured by type."""
    colours = sequential_colours(types)
    names = [*layers]
    above = torch.tensor([0.5])  # the class
    numbers: dict[int, int] = {branch.parent: 0 for branch in parsed[names[-1]]}
    for depth, name in enumerate(reversed(names)):
        layer, branches = layers[name], parsed[name]
        grid = layer.child_grid
        _, columns, kinds = places(grid, layer.children.activations.shape[1])
        if grid is not None:  # types at the same position side by side
            columns = columns + 0.6 * (kinds / grid.types - 0.5) / grid.width
        largest = max((branch.weight for branch in branches), default=1.0)
        for child, parent, weight in branches:
            top = float(above[numbers[parent]] if depth == 0 else above[parent])
            colour, width = colours[int(kinds[child])], 0.2 + 2 * weight / largest
            axis.plot(
                [top, float(columns[child])],
                [-depth, -depth - 1],
                color=colour,
                linewidth=width,
                alpha=0.5,
            )
        above = columns
    axis.set(xlim=(0, 1), xticks=[], yticks=[-depth for depth in range(len(names) + 1)])
    axis.set_yticklabels(
        [f"{names[-1]}: the class", *(f"below {name}" for name in reversed(names))], fontsize=8
    )
    axis.set_xlabel("column in the image", fontsize=8)


def receptive_centres(
    network: AbstractCapsuleNetwork, image: Float[Tensor, "1 channel height width"]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return first position and step, in pixels, of the receptive fields of the last layer's children: rows, columns.

    They are computed from gradients of the poses, for any convolutions: the centre of the pixels to which a position is
    sensitive, away from the edges, and a line through these centres.
    """
    layer = [*trace(network, image)[1].values()][-1]
    grid = layer.child_grid
    if grid is None:
        raise ValueError(
            "the children of the last layer have no positions; expected a network with child positions"
        )
    pixels = (
        torch.rand(image.shape, generator=torch.Generator().manual_seed(0)).to(image)
    ).requires_grad_()
    kept: list[Tensor] = []
    with (
        torch.enable_grad(),
        layer.routing.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0])),
    ):
        network.forward(pixels)
        votes = kept[0].child_poses if isinstance(kept[0], Votes) else kept[0].flatten(2)
        sizes = grid.at_positions(votes.square().sum(2)).sum((0, 1))  # [h w]
        axes = []
        for axis, along in enumerate((sizes[:, grid.width // 2], sizes[grid.height // 2])):
            centres = []
            for at in along:
                (gradient,) = torch.autograd.grad(at, pixels, retain_graph=True)
                profile = gradient.abs().sum((0, 1, 3 - axis))
                centres.append(
                    float((profile * torch.arange(len(profile)).to(profile)).sum() / profile.sum())
                )
            inside = (
                slice(1, -1) if len(centres) > 4 else slice(None)
            )  # first and last may extend beyond the image
            at_places = np.arange(len(centres))[inside], np.array(centres)[inside]
            step, first = np.polyfit(*at_places, 1) if len(centres) > 1 else (0, centres[0])
            axes.append((float(first), float(step)))
    return axes[0], axes[1]
