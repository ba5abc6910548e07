"""What does the pose of a class capsule tell of an image?

A decoder is fitted to the poses of a network that stays as it is (Sabour 2017, sections 4.1 and 5.1), so that networks
can be compared, and those without a decoder looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from torch import Tensor, nn

from capsule_lab.analysis.perturbation import DEVIATIONS, Steps, change_of_rows, offsets_grid, perturbed_reconstructions
from capsule_lab.analysis.plotting import name_of_class
from capsule_lab.analysis.reconstructions import first_of_each_class, reconstruction_sheet, select_images
from capsule_lab.errors import check_number, check_widths
from capsule_lab.functional import in_unit_range
from capsule_lab.layers import Decoder
from capsule_lab.losses import reconstruction_loss
from capsule_lab.networks.base import decode_one
from capsule_lab.studies.measures.features import of_label
from capsule_lab.studies.subject import Answer, Subject, question
from capsule_lab.types import CapsuleOutput

_BATCH = 128  # Sabour 2017, official code
_PICTURES = 16  # ours: of the sheet of reconstructions


@dataclass
class _Decoding:
    """A decoder of scaled poses, as figures want it."""

    decoder: nn.Module | None

    def reconstruct(self, output: CapsuleOutput, classes: Int64[Tensor, " batch"]) -> Tensor:
        assert output.capsules is not None and self.decoder is not None  # noqa: PT018
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
    """How well images can be decoded from their label's pose, and what each component of the pose changes in them.

    The decoder of Sabour 2017 is fitted to poses of training images, each component in units of its root mean square;
    the capsules stay as they are.

    - ``squared_error``: mean over pixels of held-out images, in [0, 1], decoded from the label's capsule;
    - ``class_mean_squared_error``: of the mean training image of the class, which is what the label alone tells;
    - ``explained``: ``1 - squared_error / class_mean_squared_error``, what the pose tells beside the class.

    The rows are, by class and component, ``change``: mean square of what two standard deviations, added or subtracted,
    change in a pixel.

    Args:
        subject: of class capsules with poses.
        training_images: how many the decoder is fitted to.
        epochs: over these.
        learning_rate: of Adam.
        hidden: widths of the decoder's hidden layers.
        seed: of its weights and of the order of images.
    """
    check_number("training_images", training_images, 1)
    check_number("epochs", epochs, 1)
    check_number("learning_rate", learning_rate, above=0)
    check_widths("what=decoder", hidden=hidden)
    output = subject.outputs()
    if output.capsules is None or not output.capsules.poses.shape[2]:
        name = type(subject.network).__name__
        raise ValueError(f"{name} has no poses to decode; expected a network of class capsules with poses")
    training = list(subject.training(training_images))
    of_training = subject.outputs(training)
    assert of_training.capsules is not None
    labels = torch.cat([batch.labels for batch in training])
    images = in_unit_range(torch.cat([batch.images for batch in training]))
    own = of_label(of_training.capsules.poses, labels)  # [image dim]
    size = own.square().mean(0).sqrt()
    size = size.where(size > 0, 1.0)  # not centred: a pose of 0 would not say of which class it is

    def scaled(found: CapsuleOutput) -> CapsuleOutput:
        assert found.capsules is not None
        return found._replace(capsules=found.capsules._replace(poses=found.capsules.poses / size))

    poses = scaled(of_training)
    assert poses.capsules is not None
    decoding = _Decoding(_fit(poses.capsules.poses, labels, images, hidden, epochs, learning_rate, seed))
    held_out, seen = in_unit_range(subject.images), scaled(output)
    with torch.no_grad():
        decoded = decoding.reconstruct(seen, subject.labels)
    means = torch.stack([each.mean(0) for each in _of_classes(images, labels, subject.num_classes, 1)])
    error = float((decoded - held_out).square().mean())
    of_means = float((means[subject.labels] - held_out).square().mean())
    spread = torch.stack([each.std(0) for each in _of_classes(own / size, labels, subject.num_classes, 2)])
    examples = first_of_each_class(subject.labels, output.ranking.argmax(1) == subject.labels)
    tweaked = {
        int(subject.labels[number]): _tweak(decoding, seen, subject.labels, number, spread) for number in examples
    }
    rows = [
        {"class": name_of_class(subject.classes, label), "component": component, "change": float(change)}
        for label, pictures in tweaked.items()
        for component, change in enumerate(_change(pictures[0]))
    ]
    numbers = {
        "squared_error": error,
        "class_mean_squared_error": of_means,
        "explained": 1 - error / of_means if of_means else float("nan"),
    }
    return Answer(numbers, rows, partial(_figures, subject, decoding, seen, tweaked))


def _of_classes(values: Tensor, labels: Tensor, classes: int, least: int) -> list[Tensor]:
    """The values of each class; those of all for classes with fewer than so many."""
    own = [values[labels == label] for label in range(classes)]
    return [each if len(each) >= least else values for each in own]


def _fit(
    poses: Tensor, labels: Tensor, images: Tensor, hidden: Sequence[int], epochs: int, learning_rate: float, seed: int
) -> Decoder:
    """A decoder trained by Adam on squared errors; the same for the same seed."""
    channel, height, width = images.shape[1:]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fitted = Decoder(poses.shape[1], poses.shape[2], (channel, height, width), hidden=hidden).to(poses.device)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(fitted.parameters(), lr=learning_rate)
    with torch.enable_grad():
        for _ in range(epochs):
            for batch in torch.randperm(len(images), generator=generator).to(poses.device).split(_BATCH):
                optimizer.zero_grad()
                reconstruction_loss(decode_one(fitted, poses[batch], labels[batch]), images[batch]).backward()
                optimizer.step()
    return fitted


def _change(pictures: Float[Tensor, "dim offset channel height width"]) -> Float[Tensor, " dim"]:
    """Mean square of what the smallest and the largest offset change in a pixel."""
    middle = pictures[:, pictures.shape[1] // 2].unsqueeze(1)
    return (pictures[:, [0, -1]] - middle).square().flatten(1).mean(1)


def _tweak(
    decoding: _Decoding, output: CapsuleOutput, labels: Tensor, image: int, spread: Tensor
) -> Float[Tensor, "1 dim offset channel height width"]:
    """One image with each component of its label's pose changed by up to two standard deviations of the class."""
    chosen = labels.new_tensor([image])
    steps = Steps(DEVIATIONS, spread[labels[image]])
    return perturbed_reconstructions(decoding, select_images(output, chosen), labels[chosen], steps)


def _figures(
    subject: Subject, decoding: _Decoding, output: CapsuleOutput, tweaked: Mapping[int, Tensor]
) -> Mapping[str, Figure]:
    first = subject.labels.new_tensor(range(min(_PICTURES, len(subject.labels))))
    sheet = reconstruction_sheet(
        decoding, select_images(output, first), subject.images[first], subject.labels[first], names=subject.classes
    )
    figures = {"reconstructions": sheet}
    if tweaked:
        label, pictures = next(iter(tweaked.items()))
        name = name_of_class(subject.classes, label)
        title = f"class {name}: in each row, one component of the pose changed, in standard deviations of the class"
        components = [f"component {number}" for number in range(pictures.shape[1])]
        figures["components"] = offsets_grid(pictures[0], components, title, Steps(DEVIATIONS))
        strongest = {label: int(change_of_rows(pictures)[0].argmax()) for label, pictures in tweaked.items()}
        shown = torch.stack([tweaked[label][0, component] for label, component in strongest.items()])
        rows = [f"class {name_of_class(subject.classes, label)}, component {n}" for label, n in strongest.items()]
        title = "of each class, the component of the pose that changes the image most, in standard deviations"
        figures["strongest"] = offsets_grid(shown, rows, title, Steps(DEVIATIONS))
    return figures
