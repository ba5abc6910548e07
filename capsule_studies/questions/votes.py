"""Do the votes for the right class agree, more than the votes for other classes, and more than by chance?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from capsule_lab.analysis.plotting import draw_image, name_of_class, panels
from capsule_lab.analysis.trace import LayerTrace, trace
from capsule_lab.errors import check_number
from capsule_lab.routing import (
    EMRouting,
    HeinsenRouting,
    NormalisedEMRouting,
    VariationalBayesRouting,
)
from capsule_lab.types import RoutingTrace
from capsule_studies.measures import votes as measures
from capsule_studies.measures.features import of_label
from capsule_studies.names import prefixed
from capsule_studies.subject import Answer, Subject, question

_BINS = 12  # Hinton 2018, figure 2
BY_ACTIVATION = (EMRouting, HeinsenRouting, NormalisedEMRouting, VariationalBayesRouting)
"""Routings in which children are weighted by their activations."""
_LARGEST_POINT = 60.0  # ours: points squared


@question()
def votes(
    subject: Subject, *, longest: float | None = None, shown: int = 3, shift: int = 2
) -> Answer:
    """Measure the distances of votes from the poses of the class capsules, per iteration (Hinton 2018, figure 2).

    Where a pose is not a mean of votes, such as the squashed sum of dynamic routing, distances are from the votes'
    mean. Votes are weighted by couplings, and by activations if the routing uses them.

    ``tightness`` is the smallest mean distance of a wrong class over that of the label, the median over images;
    ``rank`` is the label's mean rank among the classes. ``auc`` measures how well the label's mean distance separates
    images from votes shuffled within their class, 0.5 not at all, for classes with several images. ``cosine`` is
    between the label's votes and its pose, for dynamic routing. ``<layer>/moved_together`` is the share of the movement
    of the label's votes under a shift of the image that is common to all votes, the median over images.

    Args:
        longest: distance at which histograms end; by default the 99th percentile of the votes for the predicted class.
            The paper uses 0.05, for its weights; larger distances are not shown.
        shown: number of images with histograms, at equal ranks from the largest to the smallest tightness. Votes of the
            first are also drawn as points, before and after the shift, on their two principal components.
        shift: shift to the right in pixels.
    """
    check_number("shown", shown, 0)
    check_number("shift", shift, 1, subject.images.shape[3] - 1)
    if longest is not None:
        check_number("longest", longest, above=0)
    name, layer = [*subject.traces.items()][-1]
    if not layer.iterations[-1].poses.shape[2]:
        name = type(layer.routing).__name__
        raise ValueError(f"{name} has no votes for the classes; expected class capsules with poses")
    present = layer.present
    if not isinstance(layer.routing, BY_ACTIVATION):
        present = torch.ones_like(layer.present)
    every = layer.votes()
    numbers: dict[str, float] = {}
    distances = []
    for number, iteration in enumerate(layer.iterations, start=1):
        of_votes = _distances(every, iteration, present)
        measured = _of_iteration(every, of_votes, iteration, present, subject.labels)
        numbers |= prefixed(f"{name}/{number}", measured)
        distances.append(of_votes)
    weights = layer.iterations[-1].couplings * present.unsqueeze(2)
    clouds = _Clouds(
        before=of_label(every.transpose(1, 2), subject.labels),
        after=_moved_votes(subject, name, shift),
        weights=of_label(weights.transpose(1, 2), subject.labels),
    )
    together = [measures.common_displacement(*cloud) for cloud in zip(*clouds, strict=True)]
    numbers[f"{name}/moved_together"] = float(torch.tensor(together).nanmedian())
    drawing = _Drawing(subject, layer, distances, present, clouds)
    return Answer(numbers, draw=partial(_figures, drawing, longest, shown, shift))


class _Clouds(NamedTuple):
    """For every image the votes for its label, the same after the shift, and their weights."""

    before: Float[Tensor, "*image child dim"]
    after: Float[Tensor, "*image child dim"]
    weights: Float[Tensor, "*image child"]


class _Drawing(NamedTuple):
    """What is drawn: the last layer, and the distances of its votes, ``(image, child, class)`` by iteration."""

    subject: Subject
    layer: LayerTrace
    distances: Sequence[Tensor]
    present: Float[Tensor, "image child"]
    clouds: _Clouds


def _moved_votes(subject: Subject, name: str, shift: int) -> Float[Tensor, "image child dim"]:
    """Return the votes of a layer for each image's label, after moving the images to the right."""
    votes = []
    # one batch at a time: votes for all parents are large
    for batch in subject.changed(subject.changes["translation"], float(shift)):
        _, layers = trace(subject.network, batch.images)
        votes_of_batch = layers[name].votes()
        votes.append(of_label(votes_of_batch.transpose(1, 2), batch.labels))
    return torch.cat(votes)


def _distances(votes: Tensor, iteration: RoutingTrace, present: Tensor) -> Tensor:
    poses = iteration.poses
    # the pose may be a sum or a squashed sum in place of a mean of votes
    if iteration.variances is None:
        poses = measures.weighted_means(votes, iteration.couplings, present)
    return measures.vote_distances(votes, poses)


def _of_iteration(
    votes: Tensor, distances: Tensor, iteration: RoutingTrace, present: Tensor, labels: Tensor
) -> dict[str, float]:
    """Return the measures of one iteration."""
    means = measures.mean_distances(distances, iteration.couplings, present)
    ratio, rank = measures.tightness(means, labels)
    of_labels = of_label(means, labels)
    weights = iteration.couplings * present.unsqueeze(2)
    agreement = torch.cosine_similarity(votes, iteration.poses.unsqueeze(1), dim=3)
    cosines = (weights * agreement).sum(1) / weights.sum(1)
    cosine = of_label(cosines, labels)
    known_rank = rank[of_labels.isfinite()].double()
    return {
        "mean_distance": float(of_labels.nanmean()),
        "tightness": float(ratio.nanmedian()),
        "rank": float(known_rank.mean()),
        "auc": measures.shuffled_auc(votes, iteration, present, labels),
        "cosine": float(cosine.nanmean()),
    }


def _figures(
    drawing: _Drawing, longest: float | None, shown: int, shift: int
) -> Mapping[str, Figure]:
    if not shown:
        return {}
    layer, distances = drawing.layer, drawing.distances[-1]
    last = layer.iterations[-1]
    means = measures.mean_distances(distances, last.couplings, drawing.present)
    ratio, _ = measures.tightness(means, drawing.subject.labels)
    order = ratio.nan_to_num().argsort(descending=True).cpu()
    ranks = torch.linspace(0, len(order) - 1, shown).long()
    images = order[ranks].tolist()
    if longest is None:
        logits = layer.parents.logits
        predicted = means.argmin(1) if logits is None else logits.argmax(1)
        of_predicted = of_label(distances.transpose(1, 2), predicted)
        longest = _longest(of_predicted.float())
    edges = torch.linspace(0, longest, _BINS + 1)
    figures = {}
    for number, image in enumerate(images, start=1):
        figures[f"histograms_{number}"] = _histograms(drawing, image, edges)
    figures["points"] = _points(drawing, images[0], shift)
    return figures


def _longest(distances: Float[Tensor, "image child"]) -> float:
    """Return the 99th percentile; the maximum of more numbers than ``torch.quantile`` accepts."""
    if distances.numel() < 2**24:
        return float(distances.quantile(0.99))
    return float(distances.max())


def _points(drawing: _Drawing, image: int, shift: int) -> Figure:
    """Draw votes for the label as points with weights as areas, their mean and an ellipse of one standard deviation."""
    subject, grid = drawing.subject, drawing.layer.child_grid
    before, after, weights = (values[image].cpu() for values in drawing.clouds)
    share = weights / weights.sum()
    mean = share @ before
    deviations = share.sqrt()[:, None] * (before - mean)
    _, _, directions = torch.linalg.svd(deviations, full_matrices=False)
    kinds = torch.zeros(len(share)) if grid is None else grid.type_of_child
    title = (
        "votes for the class of one image: areas are weights, the cross their mean, "
        "the ellipse one standard deviation"
    )
    figure, ((picture, left, right),) = panels(1, 3, (9.6, 3.9), title, width_ratios=(1, 3, 3))
    right.sharex(left)
    right.sharey(left)
    _draw_image(picture, subject, image)
    titles = ("votes", f"votes after moving the image by {shift} pixels")
    areas = _LARGEST_POINT * share / share.max()
    for axis, title, votes in zip((left, right), titles, (before, after), strict=True):
        at = (votes - mean) @ directions[:2].t()  # [child 2]
        points = axis.scatter(
            at[:, 0], at[:, 1], s=areas, c=kinds, cmap="viridis", alpha=0.6, linewidths=0
        )
        centre = share @ at
        axis.add_patch(_ellipse(at - centre, share, centre))
        axis.scatter(*centre, marker="+", s=120, color="black", zorder=3)
        axis.set_xlabel("first principal component")
        axis.set_title(title, fontsize=9)
    left.set_ylabel("second principal component")
    if kinds.max() > 0:
        figure.colorbar(points, ax=right, label="type of child", ticks=MaxNLocator(8, integer=True))
    return figure


def _ellipse(
    deviations: Float[Tensor, "child 2"],
    share: Float[Tensor, " child"],
    centre: Float[Tensor, " 2"],
) -> Ellipse:
    """Return the ellipse of one standard deviation around a centre."""
    covariance = (share[:, None] * deviations).t() @ deviations
    variances, sides = torch.linalg.eigh(covariance)
    diameters = 2 * variances.clamp_min(0).sqrt()
    width, height = diameters.tolist()
    angle = torch.atan2(sides[1, 0], sides[0, 0]).rad2deg()
    x, y = centre.tolist()
    return Ellipse((x, y), width, height, angle=float(angle), fill=False)


def _draw_image(axis: Axes, subject: Subject, image: int) -> None:
    title = f"image of {name_of_class(subject.classes, int(subject.labels[image]))}"
    draw_image(axis, subject.images[image], title)


def _histograms(drawing: _Drawing, image: int, edges: Tensor) -> Figure:
    """Draw weighted distances of the votes of one image: rows are iterations, columns are classes."""
    subject, iterations = drawing.subject, drawing.layer.iterations
    rows, classes = len(iterations), drawing.distances[0].shape[2]
    size = (2.4 + 1.25 * classes, 0.9 + 1.3 * max(rows, 2))  # inches
    figure = Figure(figsize=size, layout="constrained")
    widths = (1.3, 1.1 + 1.25 * classes)
    ((of_image, of_votes),) = figure.subfigures(1, 2, squeeze=False, width_ratios=widths)
    _draw_image(of_image.subplots(), subject, image)
    axes = of_votes.subplots(rows, classes, squeeze=False, sharex=True, sharey=True)
    for number, (row, iteration) in enumerate(zip(axes, iterations, strict=True)):
        present = drawing.present[image].unsqueeze(1)
        weights = iteration.couplings[image] * present  # [child class]
        distances = drawing.distances[number][image].float().cpu()  # [child class]
        for label, axis in enumerate(row):
            # votes beyond the last edge are left out
            weight = weights[:, label].float().cpu()
            of_class = distances[:, label].contiguous()
            heights, _ = torch.histogram(of_class, edges, weight=weight)
            is_label = label == int(subject.labels[image])
            colour = "#0072B2" if is_label else "#999999"
            axis.stairs(heights.numpy(), edges.numpy(), fill=True, color=colour)
            if number == 0:
                name = name_of_class(subject.classes, label)
                axis.set_title(name, fontsize=8, weight="bold" if is_label else "normal")
        row[0].set_ylabel(f"iteration {number + 1}", fontsize=8)
    is_pose = iterations[-1].variances is not None
    centre_name = "pose of the class" if is_pose else "mean of the votes"
    figure.suptitle(
        f"one image: votes for each class, weighted, by their distance from the {centre_name}",
        fontsize=9,
    )
    of_votes.supxlabel(f"distance from the {centre_name}", fontsize=8)
    of_votes.supylabel("weight of the votes", fontsize=8)
    return figure
