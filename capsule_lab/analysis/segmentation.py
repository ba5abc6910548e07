"""Which pixels belong to which digit? Composites above two reconstructions, red and green (Sabour 2017, figure 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.analysis.plotting import Column, Group, folded_grid, picture_grid
from capsule_lab.analysis.reconstructions import select_images
from capsule_lab.functional import predictions_by_label
from capsule_lab.networks import Reconstructs
from capsule_lab.types import CapsuleOutput

_ROWS = ("input", "output")
_COLOURS = "decoded, the first in red, the second in green; pixels of both are yellow"

Kind = Literal["", "*", "(P)"]
Images = Float[Tensor, "batch channel height width"]
Pairs = Int64[Tensor, "batch 2"]
Scores = Float[Tensor, "batch classes"]
Overlaps = Float[Tensor, " batch"]


class Case(NamedTuple):
    """A column of the figure: the image's index in the batch, and the decoded capsules, first in red, second in green.

    ``kind`` is ``""`` for the labels, ``"(P)"`` for wrong predictions, ``"*"`` for a deliberately wrong class.
    """

    image: int
    classes: tuple[int, int]
    kind: Kind = ""


@torch.no_grad()
def overlaid_reconstructions(
    network: Reconstructs, output: CapsuleOutput, classes: Pairs
) -> Float[Tensor, "batch 3 height width"]:
    """Decode two classes of each image on black, the first in red and the second in green; their overlap is yellow."""
    red, green = (network.reconstruct(output, label).mean(1) for label in classes.unbind(1))
    return torch.stack([red, green, torch.zeros_like(red)], 1)


@torch.no_grad()
def segmentation_sheet(
    network: Reconstructs, output: CapsuleOutput, images: Images, labels: Pairs
) -> Callable[[], Figure]:
    """Decode the two predicted classes; the returned function draws the composites, in [0, 1], above them, in blocks.

    Captions are ``L:`` the labels and ``R:`` the decoded classes, blue if they differ.
    """
    predictions = _pairs(predictions_by_label(output.ranking, labels))
    cases = _cases(range(len(predictions)), predictions)
    columns = _columns(network, output, images, labels, cases)
    note = f"L: labels; R: predictions, {_COLOURS}; blue: wrong"
    return partial(folded_grid, columns, _ROWS, note=note)


@torch.no_grad()
def segmentation_figure(
    network: Reconstructs,
    output: CapsuleOutput,
    images: Images,
    labels: Pairs,
    parts: Float[Tensor, "batch 2 channel height width"],
    *,
    correct: int = 3,  # ours
    overlapping: int = 3,  # ours
    controls: int = 2,  # Sabour 2017, figure 5
    failures: int = 2,  # Sabour 2017, figure 5
) -> Figure:
    """Draw figure 5 of Sabour 2017: composites above two reconstructions, captioned ``L:`` labels, ``R:`` decoded.

    ``parts`` are the two digits alone, in their places; see ``choose_cases`` for the numbers of images.
    """
    chosen = choose_cases(
        output.ranking,
        labels,
        overlap(parts),
        correct=correct,
        overlapping=overlapping,
        controls=controls,
        failures=failures,
    )
    groups = []
    for name, cases in chosen.items():
        groups.append(Group(name, _columns(network, output, images, labels, cases)))
    failed = int((predictions_by_label(output.ranking, labels) != labels).any(1).sum()) or "none"
    note = (
        f"L: labels; R: what is {_COLOURS}\n"
        "*: with a class that is neither label nor prediction; (P): as predicted\n"
        f"not recognised: {failed} of the {len(labels)} images looked at"
    )
    return picture_grid(groups, _ROWS, note=note)


def choose_cases(
    scores: Scores,
    labels: Pairs,
    overlaps: Overlaps,
    *,
    correct: int,
    overlapping: int,
    controls: int,
    failures: int,
) -> dict[str, list[Case]]:
    """Return the columns of figure 5 in groups; no image is in two groups.

    Args:
        scores, labels, overlaps: scores of the classes; the two labels of each image; see ``overlap``.
        correct: number of images whose two classes are both predicted, the first in the batch.
        overlapping: number of other such images, those that overlap most.
        controls: number of further such images, the first in the batch, with the second class replaced by the class
            with the third score, the highest that is neither label nor prediction.
        failures: number of images with a wrong prediction, the first in the batch; each is decoded twice, from its
            labels and from its predictions.
    """
    predictions = predictions_by_label(scores, labels)
    right = (predictions == labels).all(1)
    true, predicted = _pairs(labels), _pairs(predictions)
    third = scores.scatter(1, labels, -torch.inf).argmax(1)
    wrong_class = _pairs(torch.stack([labels[:, 0], third], 1))

    recognised = right.nonzero().flatten().tolist()
    by_overlap = sorted(recognised, key=lambda number: -float(overlaps[number]))
    hardest = by_overlap[:overlapping]
    others = [number for number in recognised if number not in hardest]
    controlled = others[correct : correct + controls]
    not_recognised = (~right).nonzero().flatten()[:failures].tolist()

    failed = []
    for number in not_recognised:
        failed += [Case(number, true[number]), Case(number, predicted[number], "(P)")]
    return {
        "recognised": _cases(others[:correct], true),
        "overlapping most": _cases(hardest, true),
        "wrong class *": _cases(controlled, wrong_class, "*"),
        "not recognised": failed,
    }


def _cases(
    images: Sequence[int], classes: Sequence[tuple[int, int]], kind: Kind = ""
) -> list[Case]:
    return [Case(image, classes[image], kind) for image in images]


def overlap(parts: Float[Tensor, "batch 2 channel height width"]) -> Float[Tensor, " batch"]:
    """Return the ink that two digits share, relative to the ink of the smaller digit, in [0, 1]."""
    ink = parts.flatten(2)
    return ink.amin(1).sum(1) / ink.sum(2).amin(1).clamp_min(torch.finfo(ink.dtype).tiny)


def _pairs(classes: Pairs) -> list[tuple[int, int]]:
    return [(first, second) for first, second in classes.tolist()]


def _columns(
    network: Reconstructs, output: CapsuleOutput, images: Images, labels: Pairs, cases: list[Case]
) -> list[Column]:
    numbers = labels.new_tensor([case.image for case in cases])
    classes = labels.new_tensor([case.classes for case in cases]).reshape(-1, 2)
    decoded = overlaid_reconstructions(network, select_images(output, numbers), classes)
    composites = images[numbers].mean(1, keepdim=True).expand_as(decoded)
    columns = []
    true = _pairs(labels)
    for case, *pictures in zip(cases, composites, decoded, strict=True):
        first, second = case.classes
        left, right = true[case.image]
        mistaken = case.classes != true[case.image] and case.kind != "*"
        caption = f"L:({left},{right})\nR:({first},{second}){case.kind}"
        columns.append(Column(caption, pictures, "tab:blue" if mistaken else "black"))
    return columns
