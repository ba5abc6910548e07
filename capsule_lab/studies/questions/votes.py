"""Do the votes for the right class agree, more than those for others, and more than chance would make them?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from capsule_lab.analysis.plotting import name_of_class
from capsule_lab.analysis.trace import LayerTrace, trace
from capsule_lab.errors import check_number
from capsule_lab.routing import EMRouting, HeinsenRouting, NormalisedEMRouting, VariationalBayesRouting
from capsule_lab.studies.measures import votes as measures
from capsule_lab.studies.measures.features import of_label
from capsule_lab.studies.subject import Answer, Subject, question
from capsule_lab.types import Batch, RoutingTrace

_BINS = 12  # Hinton 2018, figure 2
BY_ACTIVATION = (EMRouting, HeinsenRouting, NormalisedEMRouting, VariationalBayesRouting)
"""Routings in which children count as much as they are active."""
_LARGEST_POINT = 60.0  # ours: points squared


class _Clouds(NamedTuple):
    """Votes for the label, of every image: as it is, and after it has been moved by so many pixels."""

    before: Float[Tensor, "image child dim"]
    after: Float[Tensor, "image child dim"]
    weights: Float[Tensor, "image child"]
    shift: int


@question()
def votes(subject: Subject, *, longest: float | None = None, shown: int = 3, shift: int = 2) -> Answer:
    """Distances of votes from the class capsules that they make, per iteration (Hinton 2018, figure 2).

    Where a pose is no mean of votes, as the squashed sum of dynamic routing, distances are from their mean. Votes are
    weighted by couplings, and by activations where the routing does.

    ``tightness`` is the smallest mean distance of a wrong class over that of the label, the median over images: above
    1, the label's votes are the closest. ``rank`` is the mean place of the label's among the classes. ``auc`` is how
    well the label's mean distance tells an image from votes shuffled over images of its class, 0.5 not at all; images
    that are the only one of their class are left out. ``cosine``, of dynamic routing, between the label's votes and its
    pose. ``<layer>/moved_together``: the share of what the label's votes move by when the image is moved by ``shift``
    pixels that is one movement of all of them, the median over images.

    Args:
        subject: of capsules.
        longest: distance at which histograms end; by default the 99th percentile of the votes for the predicted class.
            The paper's is 0.05, of its own weights, and what is beyond is not shown.
        shown: images whose histograms are drawn: those of the largest, median and smallest tightness first. The votes
            of the first are drawn as points, too, before and after the shift, on their two principal components.
        shift: pixels to the right.
    """
    check_number("shown", shown, 0)
    check_number("shift", shift, 1, subject.images.shape[3] - 1)
    if longest is not None:
        check_number("longest", longest, above=0)
    name, layer = [*subject.traces.items()][-1]
    if not layer.iterations[-1].poses.shape[2]:
        raise ValueError(
            f"{type(layer.routing).__name__} has no votes for the classes; expected class capsules with poses"
        )
    present = layer.present if isinstance(layer.routing, BY_ACTIVATION) else torch.ones_like(layer.present)
    numbers: dict[str, float] = {}
    every = layer.votes()
    distances = [_distances(every, iteration, present) for iteration in layer.iterations]
    for number, (found, iteration) in enumerate(zip(distances, layer.iterations, strict=True), start=1):
        means = measures.mean_distances(found, iteration.couplings, present)
        tight = measures.tightness(means, subject.labels)
        own = means.gather(1, subject.labels.unsqueeze(1)).squeeze(1)
        numbers |= {
            f"{name}/{number}/mean_distance": float(own.nanmean()),
            f"{name}/{number}/tightness": float(tight.ratio.nanmedian()),
            f"{name}/{number}/rank": float(tight.rank[own.isfinite()].double().mean()),
            f"{name}/{number}/auc": measures.shuffled_auc(every, iteration, present, subject.labels),
        }
        weights = iteration.couplings * present.unsqueeze(2)
        cosines = (weights * measures.vote_cosines(every, iteration.poses)).sum(1) / weights.sum(1)
        numbers[f"{name}/{number}/cosine"] = float(cosines.gather(1, subject.labels.unsqueeze(1)).nanmean())
    own_votes = of_label(every.transpose(1, 2), subject.labels)  # [image child dim]
    changed = subject.changed(subject.changes["translation"], float(shift))
    moved_votes = torch.cat([_votes_for_labels(subject, batch, name) for batch in changed])
    weights = of_label((layer.iterations[-1].couplings * present.unsqueeze(2)).transpose(1, 2), subject.labels)
    together = [measures.common_displacement(*each) for each in zip(own_votes, moved_votes, weights, strict=True)]
    numbers[f"{name}/moved_together"] = float(torch.tensor(together).nanmedian())
    clouds = _Clouds(own_votes, moved_votes, weights, shift)
    return Answer(numbers, draw=partial(_figures, subject, layer, distances, present, longest, shown, clouds))


def _votes_for_labels(subject: Subject, batch: Batch, name: str) -> Float[Tensor, "image child dim"]:
    """Of one batch, as votes for all parents are large."""
    return of_label(trace(subject.network, batch.images)[1][name].votes().transpose(1, 2), batch.labels)


def _distances(votes: Tensor, iteration: RoutingTrace, present: Tensor) -> Tensor:
    """From the pose where that is a mean of votes, else from their mean: sums and squashed sums are elsewhere."""
    if iteration.variances is not None:
        return measures.vote_distances(votes, iteration.poses)
    return measures.vote_distances(votes, measures.weighted_means(votes, iteration.couplings, present))


def _figures(
    subject: Subject,
    layer: LayerTrace,
    distances: list[Tensor],
    present: Tensor,
    longest: float | None,
    shown: int,
    clouds: _Clouds,
) -> Mapping[str, Figure]:
    means = measures.mean_distances(distances[-1], layer.iterations[-1].couplings, present)
    order = measures.tightness(means, subject.labels).ratio.nan_to_num().argsort(descending=True)
    places = torch.linspace(0, len(order) - 1, max(shown, 1)).long()
    images = order[places.to(order.device)].tolist()[:shown]
    if longest is None:
        predicted = means.argmin(1) if layer.parents.logits is None else layer.parents.logits.argmax(1)
        own = distances[-1].gather(2, predicted.view(-1, 1, 1).expand(-1, distances[-1].shape[1], 1))
        longest = float(own.float().quantile(0.99)) if own.numel() < 2**24 else float(own.max())
    edges = torch.linspace(0, longest, _BINS + 1)
    figures = {
        f"histograms_{number}": _histograms(subject, layer, distances, present, image, edges)
        for number, image in enumerate(images, start=1)
    }
    if images:
        figures["points"] = _points(subject, layer, clouds, images[0])
    return figures


def _points(subject: Subject, layer: LayerTrace, clouds: _Clouds, image: int) -> Figure:
    """Votes for the label as points, their areas the weights, their mean and the ellipse of one standard deviation."""
    before, after, weights = clouds.before[image], clouds.after[image], clouds.weights[image]
    share = weights / weights.sum()
    mean = share @ before
    _, _, directions = torch.linalg.svd((share.sqrt()[:, None] * (before - mean)), full_matrices=False)
    grid = layer.child_grid
    kinds = torch.zeros(len(share)) if grid is None else grid.type_of_child
    figure = Figure(figsize=(9.6, 3.9), layout="constrained")  # inches
    titles = ("votes for it", f"the same, image moved by {clouds.shift} pixels")
    picture, left, right = figure.subplots(1, 3, width_ratios=(1, 3, 3))
    right.sharex(left)
    right.sharey(left)
    _draw_image(picture, subject, image)
    for axis, title, cloud in zip((left, right), titles, (before, after), strict=True):
        at = ((cloud - mean) @ directions[:2].t()).cpu()  # [child 2]
        areas = (_LARGEST_POINT * share / share.max()).cpu()
        points = axis.scatter(at[:, 0], at[:, 1], s=areas, c=kinds, cmap="viridis", alpha=0.6, linewidths=0)
        centre = share.cpu() @ at
        spread = (share.cpu()[:, None] * (at - centre)).t() @ (at - centre)
        variances, sides = torch.linalg.eigh(spread)
        width, height = (2 * variances.clamp_min(0).sqrt()).tolist()
        angle = float(torch.atan2(sides[1, 0], sides[0, 0]).rad2deg())
        axis.add_patch(Ellipse((float(centre[0]), float(centre[1])), width, height, angle=angle, fill=False))
        axis.scatter(*centre, marker="+", s=120, color="black", zorder=3)
        axis.set(title=title, xlabel="first principal component")
        axis.title.set_fontsize(9)
    left.set_ylabel("second principal component")
    if kinds.max() > 0:
        figure.colorbar(points, ax=right, label="type of child", ticks=MaxNLocator(8, integer=True))
    figure.suptitle(
        "votes for the class of one image: areas are weights, the cross their mean, the ellipse one standard deviation",
        fontsize=9,
    )
    return figure


def _draw_image(axis: Axes, subject: Subject, image: int) -> None:
    axis.imshow(-subject.images[image, 0].float().cpu().numpy(), cmap="gray")
    axis.set(xticks=[], yticks=[])
    axis.set_title(f"image of {name_of_class(subject.classes, int(subject.labels[image]))}", fontsize=9)


def _histograms(
    subject: Subject, layer: LayerTrace, distances: list[Tensor], present: Tensor, image: int, edges: Tensor
) -> Figure:
    """Weighted distances of the votes of one image: rows are iterations, columns classes."""
    classes = distances[0].shape[2]
    rows = len(distances)
    figure = Figure(figsize=(2.4 + 1.25 * classes, 0.9 + 1.3 * max(rows, 2)), layout="constrained")  # inches
    of_image, of_votes = figure.subfigures(1, 2, squeeze=False, width_ratios=(1.3, 1.1 + 1.25 * classes))[0]
    _draw_image(of_image.subplots(), subject, image)
    axes = of_votes.subplots(rows, classes, squeeze=False, sharex=True, sharey=True)
    for number, (row, iteration) in enumerate(zip(axes, layer.iterations, strict=True)):
        for label, axis in enumerate(row):
            weights = iteration.couplings[image, :, label] * present[image]
            found = measures.distance_histogram(
                distances[number][image, :, label].float().cpu(), weights.float().cpu(), edges
            )
            own = label == int(subject.labels[image])
            axis.stairs(found.numpy(), edges.numpy(), fill=True, color="#0072B2" if own else "#999999")
            if number == 0:
                axis.set_title(name_of_class(subject.classes, label), fontsize=8, weight="bold" if own else "normal")
        row[0].set_ylabel(f"iteration {number + 1}", fontsize=8)
    made = "pose that they make" if layer.iterations[-1].variances is not None else "mean of the votes"
    figure.suptitle(f"one image: votes for each class, weighted, by their distance from the {made}", fontsize=9)
    of_votes.supxlabel(f"distance from the {made}", fontsize=8)
    of_votes.supylabel("weight of the votes", fontsize=8)
    return figure
