"""Do the votes for the right class agree, more than the votes for other classes, and more than by chance?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
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
from capsule_studies.measures import votes as measures
from capsule_studies.measures.features import of_label
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
    present = (
        layer.present
        if isinstance(layer.routing, BY_ACTIVATION)
        else torch.ones_like(layer.present)
    )
    numbers: dict[str, float] = {}
    every, distances = layer.votes(), []
    for number, iteration in enumerate(layer.iterations, start=1):
        poses = iteration.poses
        if (
            iteration.variances is None
        ):  # the pose is not a mean of votes but a sum or a squashed sum
            poses = measures.weighted_means(every, iteration.couplings, present)
        distances.append(measures.vote_distances(every, poses))
        means = measures.mean_distances(distances[-1], iteration.couplings, present)
        ratio, rank = measures.tightness(means, subject.labels)
        of_labels = of_label(means, subject.labels)
        weights = iteration.couplings * present.unsqueeze(2)
        agreement = torch.cosine_similarity(every, iteration.poses.unsqueeze(1), dim=3)
        cosines = (weights * agreement).sum(1) / weights.sum(1)
        numbers |= {
            f"{name}/{number}/mean_distance": float(of_labels.nanmean()),
            f"{name}/{number}/tightness": float(ratio.nanmedian()),
            f"{name}/{number}/rank": float(rank[of_labels.isfinite()].double().mean()),
            f"{name}/{number}/auc": measures.shuffled_auc(
                every, iteration, present, subject.labels
            ),
            f"{name}/{number}/cosine": float(of_label(cosines, subject.labels).nanmean()),
        }
    moved = []
    for batch in subject.changed(
        subject.changes["translation"], float(shift)
    ):  # votes for all parents are large
        of_batch = trace(subject.network, batch.images)[1][name].votes()
        moved.append(of_label(of_batch.transpose(1, 2), batch.labels))
    clouds = (  # for every image: votes for the label, the same after the shift, and their weights
        of_label(every.transpose(1, 2), subject.labels),
        torch.cat(moved),
        of_label(weights.transpose(1, 2), subject.labels),
    )
    together = [measures.common_displacement(*pair) for pair in zip(*clouds, strict=True)]
    numbers[f"{name}/moved_together"] = float(torch.tensor(together).nanmedian())

    def draw() -> Mapping[str, Figure]:
        if not shown:
            return {}
        order = ratio.nan_to_num().argsort(descending=True)
        images = order[torch.linspace(0, len(order) - 1, shown).long().to(order.device)].tolist()
        predicted = (
            means.argmin(1) if layer.parents.logits is None else layer.parents.logits.argmax(1)
        )
        of_predicted = of_label(distances[-1].transpose(1, 2), predicted).float()
        largest = (
            of_predicted.quantile(0.99) if of_predicted.numel() < 2**24 else of_predicted.max()
        )  # torch's limit
        edges = torch.linspace(0, float(largest) if longest is None else longest, _BINS + 1)
        figures = {
            f"histograms_{number}": _histograms(subject, layer, distances, present, image, edges)
            for number, image in enumerate(images, start=1)
        }
        figures["points"] = _points(
            subject, layer, [cloud[images[0]].cpu() for cloud in clouds], images[0], shift
        )
        return figures

    return Answer(numbers, draw=draw)


def _points(
    subject: Subject, layer: LayerTrace, cloud: Sequence[Tensor], image: int, shift: int
) -> Figure:
    """Draw votes for the label as points with weights as areas, their mean and an ellipse of one standard deviation."""
    before, after, weights = cloud
    share = weights / weights.sum()
    mean = share @ before
    directions = torch.linalg.svd((share.sqrt()[:, None] * (before - mean)), full_matrices=False)[2]
    kinds = torch.zeros(len(share)) if layer.child_grid is None else layer.child_grid.type_of_child
    title = (
        "votes for the class of one image: areas are weights, the cross their mean, "
        "the ellipse one standard deviation"
    )
    figure, ((picture, left, right),) = panels(1, 3, (9.6, 3.9), title, width_ratios=(1, 3, 3))
    right.sharex(left)
    right.sharey(left)
    _draw_image(picture, subject, image)
    titles = ("votes", f"votes after moving the image by {shift} pixels")
    for axis, title, votes in zip((left, right), titles, (before, after), strict=True):
        at = (votes - mean) @ directions[:2].t()  # [child 2]
        areas = _LARGEST_POINT * share / share.max()
        points = axis.scatter(
            at[:, 0], at[:, 1], s=areas, c=kinds, cmap="viridis", alpha=0.6, linewidths=0
        )
        centre = share @ at
        variances, sides = torch.linalg.eigh((share[:, None] * (at - centre)).t() @ (at - centre))
        width, height = (2 * variances.clamp_min(0).sqrt()).tolist()
        angle = float(torch.atan2(sides[1, 0], sides[0, 0]).rad2deg())
        axis.add_patch(Ellipse(centre.tolist(), width, height, angle=angle, fill=False))
        axis.scatter(*centre, marker="+", s=120, color="black", zorder=3)
        axis.set_xlabel("first principal component")
        axis.set_title(title, fontsize=9)
    left.set_ylabel("second principal component")
    if kinds.max() > 0:
        figure.colorbar(points, ax=right, label="type of child", ticks=MaxNLocator(8, integer=True))
    return figure


def _draw_image(axis: Axes, subject: Subject, image: int) -> None:
    title = f"image of {name_of_class(subject.classes, int(subject.labels[image]))}"
    draw_image(axis, subject.images[image], title)


def _histograms(
    subject: Subject,
    layer: LayerTrace,
    distances: Sequence[Tensor],
    present: Tensor,
    image: int,
    edges: Tensor,
) -> Figure:
    """Draw weighted distances of the votes of one image: rows are iterations, columns are classes."""
    rows, classes = len(distances), distances[0].shape[2]
    figure = Figure(
        figsize=(2.4 + 1.25 * classes, 0.9 + 1.3 * max(rows, 2)), layout="constrained"
    )  # inches
    of_image, of_votes = figure.subfigures(
        1, 2, squeeze=False, width_ratios=(1.3, 1.1 + 1.25 * classes)
    )[0]
    _draw_image(of_image.subplots(), subject, image)
    axes = of_votes.subplots(rows, classes, squeeze=False, sharex=True, sharey=True)
    for number, (row, iteration) in enumerate(zip(axes, layer.iterations, strict=True)):
        weights = (
            (iteration.couplings[image] * present[image].unsqueeze(1)).float().cpu()
        )  # [child class]
        for label, axis in enumerate(row):
            of_class = distances[number][image, :, label].float().cpu()
            heights = torch.histogram(
                of_class, edges, weight=weights[:, label]
            ).hist  # not beyond the last edge
            right = label == int(subject.labels[image])
            axis.stairs(
                heights.numpy(), edges.numpy(), fill=True, color="#0072B2" if right else "#999999"
            )
            if number == 0:
                axis.set_title(
                    name_of_class(subject.classes, label),
                    fontsize=8,
                    weight="bold" if right else "normal",
                )
        row[0].set_ylabel(f"iteration {number + 1}", fontsize=8)
    centre_name = (
        "pose of the class" if layer.iterations[-1].variances is not None else "mean of the votes"
    )
    figure.suptitle(
        f"one image: votes for each class, weighted, by their distance from the {centre_name}",
        fontsize=9,
    )
    of_votes.supxlabel(f"distance from the {centre_name}", fontsize=8)
    of_votes.supylabel("weight of the votes", fontsize=8)
    return figure
