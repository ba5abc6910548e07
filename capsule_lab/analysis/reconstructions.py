"""Reconstructions from class capsules, drawn below the inputs (Sabour 2017, figure 3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from jaxtyping import Bool, Float, Int64
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.analysis.plotting import (
    Column,
    Group,
    folded_grid,
    names_of_classes,
    note_on_decoder,
    picture_grid,
)
from capsule_lab.functional import in_unit_range, predictions_by_label
from capsule_lab.networks import Reconstructs
from capsule_lab.types import CapsuleOutput, Capsules

_ROWS = ("input", "output")
_WIDE = 1.6  # ours: width in inches of a picture with labels and predictions below it

Images = Float[Tensor, "batch channel height width"]
Labels = Int64[Tensor, " batch"]


@torch.no_grad()
def reconstruction_sheet(
    network: Reconstructs,
    output: CapsuleOutput,
    images: Images,
    labels: Labels,
    *,
    names: Sequence[str] = (),
) -> Callable[[], Figure]:
    """Decode the capsule of each predicted class; the returned function draws the images above them, in blocks.

    Captions contain label and prediction, with the ``names`` of classes, if any; wrong predictions are red. Images are
    in [0, 1], or standardised and drawn from their darkest to their brightest pixel; ``output`` is the network's.
    """
    predictions = output.ranking.argmax(1)
    decoded = network.reconstruct(output, predictions)
    pairs = torch.stack([labels, predictions], 1).tolist()
    between = "\n→ " if names else " → "  # names are long
    columns = []
    for pair, *pictures in zip(pairs, in_unit_range(images), decoded, strict=True):
        colour = "black" if pair[0] == pair[1] else "red"
        columns.append(Column(names_of_classes(names, pair, between), pictures, colour))
    return partial(folded_grid, columns, _ROWS, note=note_on_decoder(decoded))


@torch.no_grad()
def reconstruction_figure(
    network: Reconstructs,
    output: CapsuleOutput,
    images: Images,
    labels: Labels,
    *,
    names: Sequence[str] = (),
    correct: int = 4,  # Sabour 2017, figure 3
    failures: int = 3,  # ours: figure 3 has one
) -> Figure:
    """Draw figure 3 of Sabour 2017: images above reconstructions, captioned (label, prediction, capsule decoded).

    Recognised images, each of another class, come first, then failures, each of them twice: decoded from the capsule of
    the label and from that of the prediction. All are the first in the batch; a note states the number of failures.
    """
    predictions = output.ranking.argmax(1)
    right = predictions == labels
    examples = first_of_each_class(labels, right)[:correct]
    good = sorted(examples, key=lambda number: int(labels[number]))
    bad = (~right).nonzero().flatten()[:failures]
    both = torch.stack([labels[bad], predictions[bad]], 1).flatten()
    numbers = torch.cat([bad.new_tensor(good), bad.repeat_interleave(2)])
    targets = torch.cat([labels[good], both])

    decoded = network.reconstruct(select_images(output, numbers), targets)
    classes = torch.stack([labels[numbers], predictions[numbers], targets], 1).tolist()
    between = ",\n" if names else ", "  # names are long
    columns = []
    pairs = zip(in_unit_range(images[numbers]), decoded, strict=True)
    for position, (image, picture) in enumerate(pairs):
        caption = names_of_classes(names, classes[position], between)
        colour = "black" if position < len(good) else "red"
        columns.append(Column(f"({caption})", [image, picture], colour))
    groups = [
        Group("recognised", columns[: len(good)]),
        Group("not recognised", columns[len(good) :]),
    ]
    failed = int((~right).sum()) or "none"
    note = (
        f"{note_on_decoder(decoded)}\n(label, prediction, capsule decoded)\n"
        f"not recognised: {failed} of the {len(labels)} images looked at"
    )
    return picture_grid(groups, _ROWS, note=note.lstrip())


def prediction_figure(
    ranking: Float[Tensor, "batch classes"],
    images: Images,
    labels: Int64[Tensor, " batch"] | Int64[Tensor, "batch label"],
    *,
    names: Sequence[str] = (),
    side: int = 3,  # a tutorial's grid of overlapping digits
) -> Figure:
    """Draw a square of images with labels and predictions, red if they differ; no decoder is needed.

    With several labels per image, as many classes as labels are predicted, those that rank highest. Recognised images
    come first, then at least a row of others, if there are enough; a note states their number.
    """
    labels = labels.reshape(len(labels), -1)
    predictions = predictions_by_label(ranking, labels)
    wrong = (predictions != labels).any(1)
    good = (~wrong).nonzero().flatten().tolist()
    bad = wrong.nonzero().flatten().tolist()
    good = good[: side**2 - min(side, len(bad))]
    chosen = good + bad[: side**2 - len(good)]
    below = []
    for number in chosen:
        true = names_of_classes(names, labels[number].tolist())
        predicted = names_of_classes(names, predictions[number].tolist())
        colour = "red" if wrong[number] else "black"
        below.append((f"true {true}\npredicted {predicted}", colour))
    pictures = in_unit_range(images[chosen])
    starts = range(min(side, len(chosen)))
    columns = [Column("", [*pictures[first::side]], below=below[first::side]) for first in starts]
    rows = [""] * math.ceil(len(chosen) / side)
    note = f"not recognised: {len(bad) or 'none'} of the {len(labels)} images looked at"
    return picture_grid([Group("", columns)], rows, note=note, cell=_WIDE)


def first_of_each_class(classes: Labels, wanted: Bool[Tensor, " batch"]) -> list[int]:
    """Return the ascending indices of the first wanted image of each class that has one."""
    first: dict[int, int] = {}
    for number in wanted.nonzero().flatten().tolist():
        first.setdefault(int(classes[number]), number)
    return list(first.values())


def select_images(output: CapsuleOutput, index: Int64[Tensor, " chosen"]) -> CapsuleOutput:
    """Select the part of ``output`` that belongs to some of the images."""
    if output.capsules is None:
        raise ValueError("this output has no capsules to decode; expected the output of a CapsNet")
    poses, activations, capsule_logits = output.capsules
    if capsule_logits is not None:
        capsule_logits = capsule_logits[index]
    capsules = Capsules(poses[index], activations[index], capsule_logits)
    logits = None if output.logits is None else output.logits[index]
    return CapsuleOutput(output.scores[index], capsules, logits)
