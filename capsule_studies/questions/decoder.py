"""Which information about an image does the pose of a class capsule contain?

A decoder is fitted to the poses of a frozen network (Sabour 2017, sections 4.1 and 5.1), so that networks can be
compared, including networks without a decoder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from torch import Tensor, nn

from capsule_lab.analysis.perturbation import (
    DEVIATIONS,
    Steps,
    change_of_rows,
    offsets_grid,
    perturbed_reconstructions,
)
from capsule_lab.analysis.plotting import name_of_class
from capsule_lab.analysis.reconstructions import (
    first_of_each_class,
    reconstruction_sheet,
    select_images,
)
from capsule_lab.errors import check_number, check_widths
from capsule_lab.functional import in_unit_range
from capsule_lab.layers import Decoder
from capsule_lab.losses import reconstruction_loss
from capsule_lab.networks.base import decode_one
from capsule_lab.types import Batch, CapsuleOutput
from capsule_studies.images import joined_images, joined_labels
from capsule_studies.measures.features import check_poses, of_label
from capsule_studies.subject import Answer, Subject, question

_BATCH = 128  # Sabour 2017, official code
_PICTURES = 16  # ours: images of the sheet of reconstructions


@dataclass
class _Decoding:
    """A decoder of scaled poses, with the interface that figures need."""

    decoder: nn.Module | None

    def reconstruct(self, output: Any, classes: Int64[Tensor, " batch"]) -> Tensor:
        assert self.decoder is not None
        return decode_one(self.decoder, output.capsules.poses, classes)


@question()
def decoder(
    subject: Subject,
    *,
    training_images: int = 10_000,
    epochs: int = 20,
    learning_rate: float = 0.001,
    hidden: Sequence[int] = (512, 1024),  # Sabour 2017, figure 2
    seed: int = 0,
) -> Answer:
    """Measure how well images can be decoded from their label's pose, and what each pose component changes in them.

    The decoder of Sabour 2017 is fitted by Adam to poses of training images, each component in units of its root mean
    square; the capsules are frozen. ``squared_error``: mean over pixels of held-out images, in [0, 1];
    ``class_mean_squared_error``: error of the mean training image of the class, which uses the label alone;
    ``explained``: ``1 - squared_error / class_mean_squared_error``, the information of the pose beyond the class.

    The rows contain, by class and component, ``change``: mean squared change of a pixel when two standard deviations
    are added or subtracted.

    Args:
        training_images, epochs, learning_rate: options of the fit.
        hidden: widths of the decoder's hidden layers.
        seed: seed of its weights and of the order of images.
    """
    check_number("training_images", training_images, 1)
    check_number("epochs", epochs, 1)
    check_number("learning_rate", learning_rate, above=0)
    check_widths("what=decoder", hidden=hidden)
    output: Any = subject.outputs()
    check_poses(subject, output)
    training = subject.training(training_images)
    fitted_on = _examples(training, subject.outputs(training))
    poses = of_label(fitted_on.poses, fitted_on.labels)  # [image dim]
    size = poses.square().mean(0).sqrt()
    size = size.where(size > 0, 1.0)  # not centred: the decoder masks other classes with 0
    fitted_on = fitted_on._replace(poses=fitted_on.poses / size)
    fitted = _fit(fitted_on, hidden, epochs, learning_rate, seed)
    decoding = _Decoding(fitted)
    capsules = output.capsules._replace(poses=output.capsules.poses / size)
    output = output._replace(capsules=capsules)
    tweaked = _tweaked(subject, decoding, output, poses / size, fitted_on.labels)
    rows = []
    for label, pictures in tweaked.items():
        name = name_of_class(subject.classes, label)
        for component, change in enumerate(_change(pictures)):
            rows.append({"class": name, "component": component, "change": float(change)})
    numbers = _errors(subject, decoding, output, fitted_on)
    return Answer(numbers, rows, partial(_figures, subject, decoding, output, tweaked))


class _Examples(NamedTuple):
    """Training images in [0, 1], with the poses of all class capsules and the labels."""

    images: Float[Tensor, "image channel height width"]
    poses: Float[Tensor, "image class dim"]
    labels: Int64[Tensor, " image"]


def _examples(batches: Sequence[Batch], output: Any) -> _Examples:
    images = in_unit_range(joined_images(batches))
    return _Examples(images, output.capsules.poses, joined_labels(batches))


def _errors(
    subject: Subject, decoding: _Decoding, output: CapsuleOutput, fitted_on: _Examples
) -> dict[str, float]:
    held_out = in_unit_range(subject.images)
    with torch.no_grad():
        decoded = decoding.reconstruct(output, subject.labels)
    by_class = _of_classes(fitted_on.images, fitted_on.labels, subject.num_classes, 1)
    means = torch.stack([pictures.mean(0) for pictures in by_class])
    error = _squared_error(decoded, held_out)
    of_means = _squared_error(means[subject.labels], held_out)
    return {
        "squared_error": error,
        "class_mean_squared_error": of_means,
        "explained": 1 - error / of_means if of_means else float("nan"),
    }


def _squared_error(pictures: Tensor, images: Tensor) -> float:
    """Return the mean over images and pixels."""
    differences = pictures - images
    return float(differences.square().mean())


def _tweaked(
    subject: Subject, decoding: _Decoding, output: CapsuleOutput, poses: Tensor, labels: Tensor
) -> dict[int, Float[Tensor, "dim offset channel height width"]]:
    """Return by class the reconstructions of its first image with each pose component changed.

    Changes are in standard deviations of the class over ``poses``, of training images with these ``labels``.
    """
    by_class = _of_classes(poses, labels, subject.num_classes, 2)
    spread = torch.stack([poses_of_class.std(0) for poses_of_class in by_class])
    is_right = output.ranking.argmax(1) == subject.labels
    tweaked = {}
    for number in first_of_each_class(subject.labels, is_right):
        chosen = subject.labels.new_tensor([number])
        label = int(subject.labels[number])
        steps = Steps(DEVIATIONS, spread[label])
        example = select_images(output, chosen)
        (tweaked[label],) = perturbed_reconstructions(
            decoding, example, subject.labels[chosen], steps
        )
    return tweaked


def _of_classes(values: Tensor, labels: Tensor, classes: int, least: int) -> list[Tensor]:
    """Return the values of each class; for classes with fewer than ``least`` images, all values."""
    by_class = []
    for label in range(classes):
        of_class = values[labels == label]
        by_class.append(of_class if len(of_class) >= least else values)
    return by_class


def _fit(
    examples: _Examples, hidden: Sequence[int], epochs: int, learning_rate: float, seed: int
) -> Decoder:
    images, poses, labels = examples
    _, classes, dim = poses.shape
    channel, height, width = images.shape[1:]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fitted = Decoder(classes, dim, (channel, height, width), hidden=hidden).to(poses.device)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(fitted.parameters(), lr=learning_rate)
    with torch.enable_grad():
        for _ in range(epochs):
            order = torch.randperm(len(images), generator=generator).to(poses.device)
            for batch in order.split(_BATCH):
                optimizer.zero_grad()
                decoded = decode_one(fitted, poses[batch], labels[batch])
                reconstruction_loss(decoded, images[batch]).backward()
                optimizer.step()
    return fitted


def _change(pictures: Float[Tensor, "dim offset channel height width"]) -> Float[Tensor, " dim"]:
    """Return the mean squared change of a pixel by the smallest and the largest offset."""
    _, offsets, *_ = pictures.shape
    middle = pictures[:, offsets // 2].unsqueeze(1)
    changes = pictures[:, [0, -1]] - middle
    return changes.square().flatten(1).mean(1)


def _figures(
    subject: Subject, decoding: _Decoding, output: CapsuleOutput, tweaked: Mapping[int, Tensor]
) -> Mapping[str, Figure]:
    images, labels = subject.images[:_PICTURES], subject.labels[:_PICTURES]
    shown = select_images(output, torch.arange(len(labels)))
    sheet = reconstruction_sheet(decoding, shown, images, labels, names=subject.classes)
    figures = {"reconstructions": sheet()}
    if not tweaked:
        return figures
    label, pictures = next(iter(tweaked.items()))
    name = name_of_class(subject.classes, label)
    title = f"class {name}: in each row, one component of the pose changed, in standard deviations of the class"
    components = [f"component {number}" for number in range(len(pictures))]
    figures["components"] = offsets_grid(pictures, components, title, Steps(DEVIATIONS))

    strongest, rows = [], []
    for label, pictures in tweaked.items():
        component = int(change_of_rows(pictures[None]).argmax())
        strongest.append(pictures[component])
        name = name_of_class(subject.classes, label)
        rows.append(f"class {name}, component {component}")
    title = "of each class, the component of the pose that changes the image most, in standard deviations"
    figures["strongest"] = offsets_grid(torch.stack(strongest), rows, title, Steps(DEVIATIONS))
    return figures
