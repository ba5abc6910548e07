"""Is there a parse tree: does a class depend on the children that routing assigns to it, and are they the right ones?

In Sabour 2017, couplings carve a tree out of the network. Here the tree is drawn and tested in three ways: by silencing
its branches; by its similarity for images of one class and its movement with the image; and by comparison with the
activations of children and the lengths of their votes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from capsule_lab.analysis.plotting import name_of_class, panels, sequential_colours
from capsule_lab.analysis.trace import ChildGrid, LayerTrace, trace
from capsule_lab.errors import check_number
from capsule_lab.routing import AbstractRouting
from capsule_lab.types import Votes
from capsule_studies.measures.couplings import strongest_parent
from capsule_studies.measures.features import of_label
from capsule_studies.measures.parse_tree import (
    ACTIVE,
    draw_graph,
    draw_on_image,
    parse,
    receptive_centres,
)
from capsule_studies.names import prefixed
from capsule_studies.subject import Answer, Subject, question

_PIXELS = 4.0  # ours: shift of the images


@question()
def tree(subject: Subject, *, silenced: float = 0.1, shown: int = 3) -> Answer:
    """Measure the tree under each image's predicted class.

    Edges connect active children (activation above 0.1) to the parent with the largest coupling; weights: ``a_i R_ij``.
    A child with several largest couplings has no edge. Without any edges, as with equal couplings, all numbers but the
    first two are NaN.

    - ``mass_in_tree``: share of the class capsule's mass on edges of the tree; ``branches``: their number;
    - ``drop_of_tree``: drop of the class's probability, in points, when the heaviest branches, together a share of
      ``silenced`` of its mass, are silenced; ``drop_of_votes``: the same for as many children with the longest votes
      times activation, regardless of routing, NaN without poses; ``drop_of_random``: for random others with the same
      total activation;
    - ``alike_within``, ``alike_between``: cosine between the distributions of the tree's mass over child types, for
      pairs of images of the same class and of two classes;
    - ``follows_shift``: movement of the tree's centre per movement of the image; 1 if they move equally.
    """
    check_number("silenced", silenced, above=0, below=1)
    check_number("shown", shown, 0)
    name, layer = [*subject.traces.items()][-1]
    output = subject.outputs()
    predicted = output.ranking.argmax(1)
    weights, edges = _edges(layer, predicted)
    mass = weights.sum(1)
    in_tree = weights * edges
    share = in_tree.sum(1) / mass
    heavy = _heaviest(in_tree, silenced * mass)
    numbers = {
        "mass_in_tree": float(share.mean()),
        "branches": _mean_count(edges),
        "silenced_children": _mean_count(heavy),
    }
    before = of_label(output.ranking.softmax(1), predicted)
    silenced_children = {
        "drop_of_tree": heavy,
        "drop_of_votes": _longest_votes(layer, predicted, heavy.sum(1, keepdim=True)),
        "drop_of_random": _random_of_same_activation(layer.present, heavy),
    }
    for quantity, children in silenced_children.items():
        with silent(subject, name, children):
            ranking = subject.outputs().ranking
        drop = before - of_label(ranking.softmax(1), predicted)
        numbers[quantity] = 100 * float(drop.mean())
    if not layer.parents.poses.shape[2]:  # votes without components have no length
        numbers["drop_of_votes"] = math.nan
    if layer.child_grid is not None:
        numbers |= _alike(in_tree, layer.child_grid, subject.labels)
        numbers["follows_shift"] = _follows_shift(subject, layer.child_grid, in_tree, predicted)
    if not edges.any():
        numbers = dict.fromkeys(numbers, math.nan) | {"mass_in_tree": 0.0, "branches": 0.0}
    return Answer(prefixed(name, numbers), draw=partial(_figures, subject, shown))


def _mean_count(which: Bool[Tensor, "image child"]) -> float:
    """Return the number of children, a mean over images."""
    counts = which.sum(1).double()
    return float(counts.mean())


def _edges(
    layer: LayerTrace, parents: Int64[Tensor, " image"]
) -> tuple[Tensor, Bool[Tensor, "image child"]]:
    """Return each child's weight for the chosen parent of each image, and whether it is an edge of the tree."""
    couplings = layer.couplings()
    activations = layer.children.activations
    of_parents = of_label(couplings.transpose(1, 2), parents)
    is_largest = strongest_parent(couplings) == parents.unsqueeze(1)
    edges = is_largest & (activations > ACTIVE)
    return activations * of_parents, edges


def _longest_votes(
    layer: LayerTrace, parents: Int64[Tensor, " image"], counts: Int64[Tensor, "image 1"]
) -> Bool[Tensor, "image child"]:
    """Select as many children as counted, with the longest votes for the chosen parent times activation."""
    votes = of_label(layer.votes().transpose(1, 2), parents)
    lengths = layer.present * votes.norm(dim=2)  # [image child]
    order = lengths.argsort(dim=1, descending=True)
    rank = order.argsort(dim=1)
    return rank < counts


def _heaviest(
    weights: Float[Tensor, "image child"], target: Float[Tensor, " image"]
) -> Bool[Tensor, "image child"]:
    """Select the heaviest children until their weights sum to ``target``, or all children with a weight above 0."""
    ordered, order = weights.sort(dim=1, descending=True)
    before = ordered.cumsum(1) - ordered
    chosen = (before < target.unsqueeze(1)) & (ordered > 0)
    return torch.zeros_like(chosen).scatter(1, order, chosen)


def _random_of_same_activation(
    activations: Tensor, chosen: Bool[Tensor, "image child"]
) -> Bool[Tensor, "image child"]:
    """Select other children in random order until their total activation is that of the chosen ones."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(activations.shape, generator=generator).to(activations.device)
    order = drawn.masked_fill(chosen, torch.inf).argsort(dim=1)
    others = activations.masked_fill(chosen, 0).gather(1, order)
    target = (activations * chosen).sum(1, keepdim=True)
    before = others.cumsum(1) - others
    selected = torch.zeros_like(chosen).scatter(1, order, before < target)
    return selected & ~chosen


@contextmanager
def silent(subject: Subject, layer: str, children: Shaped[Tensor, "image child"]) -> Iterator[None]:
    """Set activations and votes of some children to 0 in the routing of one layer.

    ``children`` is a mask, or the share of each child that is silenced, from 0 to 1. Every parent of the layer must see
    every child. Within the context, call the network on batches of the same sizes and order as the subject's.
    """
    sizes = [len(batch.labels) for batch in subject.batches]
    parts = iter(children.split(sizes))
    modules = subject.network.capsule_layers()[layer].modules()
    routing = next(module for module in modules if isinstance(module, AbstractRouting))

    def hook(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        unsilenced = 1 - next(parts).to(torch.float32)
        of_poses = unsilenced.unsqueeze(2)
        votes, *activations = inputs
        if isinstance(votes, Votes):
            plain = votes.plain_poses
            if plain is not None:
                plain = plain * of_poses
            votes = Votes(votes.poses * of_poses, votes.weight, plain)
        else:
            votes = votes * of_poses.unsqueeze(3)
        if activations and activations[0] is not None:
            activations[0] = activations[0] * unsilenced
        return votes, *activations

    with routing.register_forward_pre_hook(hook):
        yield


def _alike(
    weights: Float[Tensor, "image child"], grid: ChildGrid, labels: Int64[Tensor, " image"]
) -> dict[str, float]:
    by_type = grid.at_positions(weights).sum((2, 3))  # [image type]
    directions = torch.nn.functional.normalize(by_type, dim=1)
    cosines = directions @ directions.t()
    same_class = labels.unsqueeze(1) == labels
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    within = cosines[same_class & ~itself]
    between = cosines[~same_class]
    return {"alike_within": float(within.mean()), "alike_between": float(between.mean())}


def _follows_shift(
    subject: Subject, grid: ChildGrid, weights: Tensor, parents: Int64[Tensor, " image"]
) -> float:
    """Return the movement of the centre of the tree's mass, in pixels per pixel that the image moves to the right."""
    if "translation" not in subject.changes or grid.width == 1:
        return float("nan")
    batches = subject.changed(subject.changes["translation"], _PIXELS)
    parents_of_batches = parents.split([len(batch.labels) for batch in batches])
    shifted_weights = []
    for batch, parents_of_batch in zip(batches, parents_of_batches, strict=True):
        _, layers = trace(subject.network, batch.images)
        last_layer = [*layers.values()][-1]
        moved, edges = _edges(last_layer, parents_of_batch)
        shifted_weights.append(moved * edges)
    before = _centre(weights, grid)
    after = _centre(torch.cat(shifted_weights), grid)
    columns = float((after - before).nanmean())
    _, (_, step) = receptive_centres(subject.network, subject.images[:1])
    return columns * step / _PIXELS


def _centre(weights: Float[Tensor, "image child"], grid: ChildGrid) -> Float[Tensor, " image"]:
    """Return the mean column of the mass; NaN for an image without mass."""
    columns = grid.at_positions(weights).sum((1, 2))  # [image width]
    place = torch.arange(grid.width, dtype=columns.dtype, device=columns.device)
    moments = (columns * place).sum(1)
    return moments / columns.sum(1)


def _count_types(layer: LayerTrace) -> int:
    """Return the number of types of a layer's children; without positions, each child is a type."""
    if layer.child_grid is None:
        return layer.children.activations.shape[1]
    return layer.child_grid.types


def _figures(subject: Subject, shown: int) -> Mapping[str, Figure]:
    if not shown:
        return {}
    title = f"parse trees of {shown} images; left: children at their receptive fields, sized by weight; right: branches"
    figure, axes = panels(shown, 2, (8.4, 3.6 * shown), title, width_ratios=(1, 1.6))
    types = max(_count_types(layer) for layer in subject.traces.values())
    images = torch.linspace(0, len(subject.labels) - 1, shown).long()
    for (left, right), image in zip(axes, images, strict=True):
        picture = subject.images[image : image + 1]
        output, traces = trace(subject.network, picture)
        root = int(output.ranking.argmax(1))
        branches = parse(traces, root)
        draw_on_image(left, picture, subject.network, traces, branches, types)
        draw_graph(right, traces, branches, types)
        label = name_of_class(subject.classes, int(subject.labels[image]))
        predicted = name_of_class(subject.classes, root)
        left.set_title(f"image of {label}, predicted {predicted}", fontsize=9)
    if types > 1:
        palette = ListedColormap(sequential_colours(types))
        colours = ScalarMappable(Normalize(-0.5, types - 0.5), palette)
        ticks = MaxNLocator(16, integer=True)
        figure.colorbar(colours, ax=axes, label="type of child", ticks=ticks, shrink=0.5)
    return {"trees": figure}
