"""What does a capsule do with two objects of its class in one image, and does a second pass find the second object?

A capsule represents at most one instance of its class ("crowding"). With two equal digits it must choose one or blend
both, whereas two different digits have a capsule each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from capsule_lab.data import transforms
from capsule_lab.errors import check_number
from capsule_lab.networks import AbstractCapsuleNetwork, reconstructs
from capsule_lab.types import CapsuleOutput
from capsule_studies.measures.features import of_label
from capsule_studies.questions.tree import silent
from capsule_studies.subject import Answer, Subject, question

_PRESENT = 0.5  # ours: activation above which a class counts as present


class Mixtures(NamedTuple):
    """Composite images, each pixel the maximum over all parts; and the parts, each alone in its place."""

    images: Float[Tensor, "image channel height width"]
    parts: Float[Tensor, "image part channel height width"]
    labels: Int64[Tensor, "image part"]


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
    parts = {"single": 1, "same_class": 2, "two_classes": 2, "three_classes": 3}
    sets = {
        name: mixtures(subject, count, shift, seed, same_class=name == "same_class")
        for name, count in parts.items()
    }
    numbers: dict[str, float] = {}
    for name, mixture in sets.items():
        output = subject.outputs(subject.with_images(mixture.images))
        numbers |= {
            f"{name}/{key}": value for key, value in _presence(output, mixture.labels).items()
        }
        if name != "single" and reconstructs(subject.network):
            numbers[f"{name}/one_part"] = _one_part(subject, output, mixture)
    passes: dict[str, Callable[[Subject, Mixtures], Tensor]] = {"by_routing": _second_by_routing}
    if reconstructs(subject.network):
        passes["by_image"] = _second_by_image
    for name, second_pass in passes.items():
        two, same, single = (
            second_pass(subject, sets[kind]) for kind in ("two_classes", "same_class", "single")
        )
        solved = {  # from [image 2]: the class that ranks first in each pass
            "two_classes": (two.sort(1)[0] == sets["two_classes"].labels.sort(1)[0]).all(1),
            "same_class": (same == sets["same_class"].labels).all(1),
            "single": single[:, 1] >= 0,
        }
        numbers |= {
            f"again/{kind}_{name}": 100 * float(which.double().mean())
            for kind, which in solved.items()
        }
    return Answer(numbers)


def mixtures(subject: Subject, parts: int, shift: int, seed: int, *, same_class: bool) -> Mixtures:
    """Compose each image with others, either of its class or all of different classes, all moved at random.

    If there is no suitable other image, an image is its own partner.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = subject.labels.cpu()
    chosen = []
    for image, label in enumerate(labels.tolist()):
        members = [image]
        for _ in range(parts - 1):
            used = labels[torch.tensor(members)]
            fits = (labels == label) if same_class else ~torch.isin(labels, used)
            fits[image] = False
            others = fits.nonzero().squeeze(1)
            pick = int(torch.randint(max(len(others), 1), (1,), generator=generator))
            members.append(int(others[pick]) if len(others) else image)
        chosen.append(members)
    index = torch.tensor(chosen)  # [image part]
    moves = torch.randint(-shift, shift + 1, (*index.shape, 2), generator=generator)
    down, right = moves.flatten(0, 1).to(subject.images.device).unbind(1)
    pictures = transforms.shift(subject.images[index.flatten()], down, right, shift).unflatten(
        0, index.shape
    )
    return Mixtures(pictures.amax(1), pictures, subject.labels[index.to(subject.labels.device)])


def _presence(output: Any, labels: Int64[Tensor, "image part"]) -> dict[str, float]:
    activations = output.capsules.activations.gather(1, labels)
    several = (
        labels[:, :1] if (labels == labels[:, :1]).all() else labels
    )  # equal labels share one capsule
    best = output.ranking.topk(several.shape[1]).indices
    correct = (best.sort(1)[0] == several.sort(1)[0]).all(1)
    return {
        "presence": float(activations.mean()),
        "present": 100 * float((activations > _PRESENT).double().mean()),
        "found": 100 * float(correct.double().mean()),
    }


@torch.no_grad()
def _decoded(subject: Subject, output: CapsuleOutput, classes: Int64[Tensor, " image"]) -> Tensor:
    decoded: Tensor = subject.network.reconstruct(output, classes)
    return decoded


def _one_part(subject: Subject, output: CapsuleOutput, mixture: Mixtures) -> float:
    decoded = _decoded(subject, output, mixture.labels[:, 0]).unsqueeze(1)  # [image 1 c h w]
    blends = torch.stack([mixture.parts.mean(1), mixture.images], 1)
    to_parts, to_blends = (
        (decoded - picture).square().sum((2, 3, 4)).amin(1) for picture in (mixture.parts, blends)
    )
    return 100 * float((to_parts < to_blends).double().mean())


def _second_by_image(subject: Subject, mixture: Mixtures) -> Int64[Tensor, "image 2"]:
    """Return the highest class, and the highest class after subtracting its reconstruction; -1 for none."""
    output = subject.outputs(subject.with_images(mixture.images))
    first = output.ranking.argmax(1)
    remainder = (mixture.images - _decoded(subject, output, first)).clamp_min(0)
    return torch.stack(
        [first, _highest_present(subject.outputs(subject.with_images(remainder)))], 1
    )


def _highest_present(output: Any) -> Int64[Tensor, " image"]:
    """Return the class that ranks highest if it is present, otherwise -1."""
    best: Tensor = output.ranking.argmax(1)
    return torch.where(of_label(output.capsules.activations, best) > _PRESENT, best, -1)


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
