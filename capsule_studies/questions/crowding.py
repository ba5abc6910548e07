"""What does a capsule do with two objects of its class in one image, and does a second pass find the second object?

A capsule represents at most one instance of its class ("crowding"). With two equal digits it must choose one or blend
both, whereas two different digits have a capsule each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from capsule_lab.data import transforms
from capsule_lab.errors import check_number
from capsule_lab.networks import AbstractCapsuleNetwork, reconstructs
from capsule_lab.types import CapsuleOutput
from capsule_studies.images import percent
from capsule_studies.measures.features import of_label
from capsule_studies.names import prefixed
from capsule_studies.questions.tree import silent
from capsule_studies.subject import Answer, Subject, question

_PRESENT = 0.5  # ours: activation above which a class counts as present


class Mixtures(NamedTuple):
    """Composite images, each pixel the maximum over all parts; and the parts, each alone in its place."""

    images: Float[Tensor, "image channel height width"]
    parts: Float[Tensor, "image part channel height width"]
    labels: Int64[Tensor, "image part"]


SecondPass = Callable[[Subject, Mixtures], Tensor]
"""Returns ``(image, 2)``: the class that ranks first in each pass; -1 for none in the second."""


@question()
def crowding(subject: Subject, *, shift: int = 4, seed: int = 0) -> Answer:
    """Measure the presence of labels in single images, pairs of one or two classes, and triples; add a second pass.

    For each ``<set>/`` (``single``, ``same_class``, ``two_classes``, ``three_classes``): ``presence``, mean activation
    of the labels' capsules; ``present``, percentage of labels above 0.5; ``found``, percentage of images whose labels
    rank highest. With a decoder, ``one_part``: percentage of images whose reconstruction from a label's capsule is
    nearer to a single part than to the mean and the maximum of the parts.

    Second pass, ``again/``: ``…_by_image`` subtracts the reconstruction of the highest class from the image;
    ``…_by_routing`` scales each child down by its coupling with this class. The class that is then highest counts as
    found if its activation is above 0.5. Percentages: of ``two_classes``, both classes are found; of ``same_class``,
    the class is found twice; of ``single``, a second class is found, which is an error.

    Args:
        subject: a capsule network and images with pixels in [0, 1].
        shift: parts are moved by up to this number of pixels in each direction.
        seed: seed of pairs and shifts.
    """
    check_number("shift", shift, 0, min(subject.images.shape[2:]) - 1)
    present = len(subject.labels.unique())
    if present < 3:
        raise ValueError(
            f"these images are of {present} classes; expected 3 or more, for triples of classes"
        )
    message = "has no capsules; expected a capsule network"
    subject.check_network(AbstractCapsuleNetwork, message)
    if subject.images.min() < 0 or subject.images.max() > 1:
        raise ValueError(
            "pixels are not in [0, 1]; expected images that can be overlaid, such as MNIST's"
        )
    has_decoder = reconstructs(subject.network)
    sets = {
        "single": mixtures(subject, 1, shift, seed, same_class=False),
        "same_class": mixtures(subject, 2, shift, seed, same_class=True),
        "two_classes": mixtures(subject, 2, shift, seed, same_class=False),
        "three_classes": mixtures(subject, 3, shift, seed, same_class=False),
    }
    numbers: dict[str, float] = {}
    for name, mixture in sets.items():
        batches = subject.with_images(mixture.images)
        output = subject.outputs(batches)
        numbers |= prefixed(name, _presence(output, mixture.labels))
        if name != "single" and has_decoder:
            numbers[f"{name}/one_part"] = _one_part(subject, output, mixture)
    passes: dict[str, SecondPass] = {"by_routing": _second_by_routing}
    if has_decoder:
        passes["by_image"] = _second_by_image
    for name, second_pass in passes.items():
        two = second_pass(subject, sets["two_classes"])
        both = _same_sets(two, sets["two_classes"].labels)
        same = second_pass(subject, sets["same_class"])
        twice = (same == sets["same_class"].labels).all(1)
        single = second_pass(subject, sets["single"])
        wrong = single[:, 1] >= 0
        numbers[f"again/two_classes_{name}"] = percent(both)
        numbers[f"again/same_class_{name}"] = percent(twice)
        numbers[f"again/single_{name}"] = percent(wrong)
    return Answer(numbers)


def _same_sets(
    classes: Int64[Tensor, "image part"], others: Int64[Tensor, "image part"]
) -> Bool[Tensor, " image"]:
    """Return which images have the same classes, in any order."""
    in_order = classes.sort(1).values
    others_in_order = others.sort(1).values
    return (in_order == others_in_order).all(1)


def mixtures(subject: Subject, parts: int, shift: int, seed: int, *, same_class: bool) -> Mixtures:
    """Compose each image with others, either of its class or all of different classes, all moved at random.

    If there is no suitable other image, an image is its own partner.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = subject.labels.cpu()
    chosen = []
    for image in range(len(labels)):
        members = [image]
        for _ in range(parts - 1):
            others = _others(labels, members, same_class=same_class)
            pick = int(torch.randint(max(len(others), 1), (1,), generator=generator))
            members.append(int(others[pick]) if len(others) else image)
        chosen.append(members)
    index = torch.tensor(chosen)  # [image part]
    moves = torch.randint(-shift, shift + 1, (*index.shape, 2), generator=generator)
    moves = moves.flatten(0, 1).to(subject.images.device)
    down, right = moves.unbind(1)
    unmoved = subject.images[index.flatten()]
    moved = transforms.shift(unmoved, down, right, shift)
    pictures = moved.unflatten(0, index.shape)
    labels_of_parts = subject.labels[index.to(subject.labels.device)]
    return Mixtures(pictures.amax(1), pictures, labels_of_parts)


def _others(
    labels: Int64[Tensor, " image"], members: list[int], *, same_class: bool
) -> Int64[Tensor, " other"]:
    """Return the images that can join the members: of the first one's class, or of a class that none of them has."""
    first = members[0]
    used = labels[torch.tensor(members)]
    fits = (labels == labels[first]) if same_class else ~torch.isin(labels, used)
    fits[first] = False
    return fits.nonzero().squeeze(1)


def _presence(output: Any, labels: Int64[Tensor, "image part"]) -> dict[str, float]:
    activations = output.capsules.activations.gather(1, labels)
    first_labels = labels[:, :1]
    if (labels == first_labels).all():  # equal labels share one capsule
        labels = first_labels
    best = output.ranking.topk(labels.shape[1]).indices
    return {
        "presence": float(activations.mean()),
        "present": percent(activations > _PRESENT),
        "found": percent(_same_sets(best, labels)),
    }


@torch.no_grad()
def _decoded(subject: Subject, output: CapsuleOutput, classes: Int64[Tensor, " image"]) -> Tensor:
    decoded: Tensor = subject.network.reconstruct(output, classes)
    return decoded


def _one_part(subject: Subject, output: CapsuleOutput, mixture: Mixtures) -> float:
    decoded = _decoded(subject, output, mixture.labels[:, 0])
    decoded = decoded.unsqueeze(1)  # [image 1 c h w]

    def to_nearest(pictures: Tensor) -> Float[Tensor, " image"]:
        distances = (decoded - pictures).square().sum((2, 3, 4))
        return distances.amin(1)

    mean = mixture.parts.mean(1)
    blends = torch.stack([mean, mixture.images], 1)
    return percent(to_nearest(mixture.parts) < to_nearest(blends))


def _second_by_image(subject: Subject, mixture: Mixtures) -> Int64[Tensor, "image 2"]:
    """Return the highest class, and the highest class after subtracting its reconstruction; -1 for none."""
    output = subject.outputs(subject.with_images(mixture.images))
    first = output.ranking.argmax(1)
    decoded = _decoded(subject, output, first)
    remainder = (mixture.images - decoded).clamp_min(0)
    batches = subject.with_images(remainder)
    second = _highest_present(subject.outputs(batches))
    return torch.stack([first, second], 1)


def _highest_present(output: Any) -> Int64[Tensor, " image"]:
    """Return the class that ranks highest if it is present, otherwise -1."""
    best: Tensor = output.ranking.argmax(1)
    activations = of_label(output.capsules.activations, best)
    return torch.where(activations > _PRESENT, best, -1)


def _second_by_routing(subject: Subject, mixture: Mixtures) -> Int64[Tensor, "image 2"]:
    """Return the highest class, and the highest class after removing its share of each child; -1 for none."""
    batches = subject.with_images(mixture.images)
    mixed_subject = replace(subject, batches=batches)
    name, layer = [*mixed_subject.traces.items()][-1]
    first = mixed_subject.outputs().ranking.argmax(1)
    shares = of_label(layer.couplings().transpose(1, 2), first)
    with silent(subject, name, shares.clamp(0, 1)):
        second = _highest_present(subject.outputs(batches))
    return torch.stack([first, second], 1)
