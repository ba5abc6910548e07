"""The parse tree of an image, from a class down to the primary capsules by the largest couplings, and its drawing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from matplotlib.axes import Axes
from torch import Tensor, nn

from capsule_lab.analysis.plotting import draw_image, sequential_colours
from capsule_lab.analysis.trace import ChildGrid, LayerTrace, trace
from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.types import Votes
from capsule_studies.measures.couplings import strongest_parent

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
        couplings = layer.couplings()[0]
        activations = layer.children.activations[0]
        best = strongest_parent(couplings)
        active = activations > ACTIVE
        branches[name] = []
        for parent in sorted(parents):
            children = ((best == parent) & active).nonzero().squeeze(1)
            weights = activations[children] * couplings[children, parent]
            for place in _heaviest(weights):
                child, weight = int(children[place]), float(weights[place])
                branches[name].append(Branch(child, parent, weight))
        parents = {branch.child for branch in branches[name]}
    return branches


def _heaviest(weights: Float[Tensor, " child"]) -> Int64[Tensor, " drawn"]:
    """Return the places of the children that carry nine tenths of the mass, the heaviest first."""
    order = weights.argsort(descending=True)[:_DRAWN]
    heaviest = weights[order]
    mass_before = heaviest.cumsum(0) - heaviest
    return order[mass_before < _KEPT * weights.sum()]


def places(grid: ChildGrid | None, capsules: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return row, column (centres, from 0 to 1) and type of each capsule."""
    child = torch.arange(capsules)
    if grid is None:
        return torch.full((capsules,), 0.5), (child + 0.5) / capsules, child
    positions = grid.height * grid.width
    place = child % positions if grid.by_type else child // grid.types
    rows = (place // grid.width + 0.5) / grid.height
    columns = (place % grid.width + 0.5) / grid.width
    return rows, columns, grid.type_of_child


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
    grid = layer.child_grid
    if grid is None or not branches:
        return
    children, _, weights = zip(*branches, strict=True)
    chosen = list(children)
    every = places(grid, layer.children.activations.shape[1])
    rows, columns, kinds = (values[chosen] for values in every)
    beside = _beside(kinds, grid.types)
    column = columns * grid.width - 0.5 + beside
    row = rows * grid.height - 0.5 + beside
    (top, down), (left, right) = receptive_centres(network, picture)
    colours = sequential_colours(types)
    axis.scatter(
        left + right * column,
        top + down * row,
        s=120 * np.array(weights) / max(weights),
        c=[colours[int(kind)] for kind in kinds],
        alpha=0.7,
        linewidths=0,
    )


def _beside(kinds: Tensor, types: int) -> Tensor:
    """Return offsets, in columns, that draw types at the same position side by side."""
    return 0.6 * (kinds / types - 0.5)


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
        if grid is not None:
            columns = columns + _beside(kinds, grid.types) / grid.width
        largest = max((branch.weight for branch in branches), default=1.0)
        for child, parent, weight in branches:
            top = above[numbers[parent]] if depth == 0 else above[parent]
            axis.plot(
                [float(top), float(columns[child])],
                [-depth, -depth - 1],
                color=colours[int(kinds[child])],
                linewidth=0.2 + 2 * weight / largest,
                alpha=0.5,
            )
        above = columns
    labels = [f"{names[-1]}: the class"]
    labels += [f"below {name}" for name in reversed(names)]
    axis.set(xlim=(0, 1), xticks=[], yticks=range(0, -len(labels), -1))
    axis.set_yticklabels(labels, fontsize=8)
    axis.set_xlabel("column in the image", fontsize=8)


def receptive_centres(
    network: AbstractCapsuleNetwork, image: Float[Tensor, "1 channel height width"]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return first position and step, in pixels, of the receptive fields of the last layer's children: rows, columns.

    They are computed from gradients of the poses, for any convolutions: the centre of the pixels to which a position is
    sensitive, away from the edges, and a line through these centres.
    """
    _, layers = trace(network, image)
    *_, layer = layers.values()
    grid = layer.child_grid
    if grid is None:
        raise ValueError(
            "the children of the last layer have no positions; expected a network with child positions"
        )
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(image.shape, generator=generator).to(image).requires_grad_()
    kept: list[Tensor | Votes] = []

    def keep(_: nn.Module, inputs: tuple[Tensor | Votes, ...]) -> None:
        kept.append(inputs[0])

    with torch.enable_grad(), layer.routing.register_forward_pre_hook(keep):
        network.forward(pixels)
        votes = kept[0]
        poses = votes.child_poses if isinstance(votes, Votes) else votes.flatten(2)
        of_children = poses.square().sum(2)
        sizes = grid.at_positions(of_children).sum((0, 1))  # [h w]
        rows = _centres(sizes[:, grid.width // 2], pixels, axis=2)
        columns = _centres(sizes[grid.height // 2], pixels, axis=3)
    return _line(rows), _line(columns)


def _centres(sizes: Float[Tensor, " position"], pixels: Tensor, axis: int) -> list[float]:
    """Return for each position the centre, along an axis of the image, of the pixels to which it is sensitive."""
    centres = []
    for size in sizes:
        (gradient,) = torch.autograd.grad(size, pixels, retain_graph=True)
        profile = gradient.abs().sum((0, 1, 5 - axis))
        place = torch.arange(len(profile)).to(profile)
        centre = (profile * place).sum() / profile.sum()
        centres.append(float(centre))
    return centres


def _line(centres: list[float]) -> tuple[float, float]:
    """Return the first value and the step of a line through the centres."""
    if len(centres) == 1:
        return centres[0], 0.0
    numbers, values = np.arange(len(centres)), np.array(centres)
    if len(centres) > 4:  # first and last may extend beyond the image
        numbers, values = numbers[1:-1], values[1:-1]
    step, first = np.polyfit(numbers, values, 1)
    return float(first), float(step)
