"""The input of a question (a network and its images) and its result (an answer)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from capsule_lab.analysis.trace import LayerTrace, concatenate, joined_outputs, trace
from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.runs.open_run import Run
from capsule_lab.types import Batch, CapsuleOutput
from capsule_studies.attacks import shifts
from capsule_studies.attacks.gradient import GREY_LEVELS
from capsule_studies.images import StudyImages

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_BYTES = 8 * 2**30  # ours: limit for couplings and votes

Change = Callable[[Tensor, float], Tensor]
"""Maps images ``(batch, channel, height, width)`` in grey levels and a strength to images of the same shape."""


@dataclass(frozen=True)
class Subject:
    """A network in evaluation mode and float32, with preprocessed held-out images of one label each on its device.

    Attributes:
        network: an ``AbstractNetwork``, or for questions about pairs of images an ``AbstractPairNetwork``.
        changed: returns the images after a change and preprocessing, so that pixels from outside are background.
        changes: the available changes of images by name: rotation, translation, scaling and shear.
        training: returns the given number of training images, not augmented.
        factors, classes: names of the columns of ``Batch.factors`` and of the classes; empty if there are none.
    """

    network: Any
    batches: Sequence[Batch]
    changed: Callable[[Change, float], Sequence[Batch]]
    changes: Mapping[str, Change]
    training: Callable[[int], Sequence[Batch]]
    factors: Sequence[str]
    classes: Sequence[str]
    num_classes: int

    def check_network(self, kind: type[nn.Module], message: str) -> None:
        """Raise a ``ValueError`` if the network is not a ``kind``: the name of its class, followed by ``message``."""
        if not isinstance(self.network, kind):
            raise ValueError(f"{type(self.network).__name__} {message}")  # noqa: TRY004 - an option is wrong

    @cached_property
    def labels(self) -> Int64[Tensor, " image"]:
        """The labels of all images."""
        return torch.cat([batch.labels for batch in self.batches])

    @cached_property
    def images(self) -> Float[Tensor, "image channel height width"]:
        """All images after preprocessing."""
        return torch.cat([batch.images for batch in self.batches])

    @torch.no_grad()
    def outputs(self, batches: Sequence[Batch] | None = None) -> CapsuleOutput:
        """Return the network's output for all images, or for other ``batches``."""
        batches = self.batches if batches is None else batches
        return joined_outputs([self.network.forward(batch.images) for batch in batches])

    def with_images(self, images: Float[Tensor, "image channel height width"]) -> list[Batch]:
        """Return the subject's batches with other images in place of its images."""
        parts = images.split([len(batch.labels) for batch in self.batches])
        return [
            batch._replace(images=part) for batch, part in zip(self.batches, parts, strict=True)
        ]

    @cached_property
    def traces(self) -> Mapping[str, LayerTrace]:
        """The routing of all images, by layer."""
        self.check_network(AbstractCapsuleNetwork, "has no routing; expected a capsule network")
        batch_traces = []
        for batch in self.batches:
            batch_traces.append(trace(self.network, batch.images)[1])
            per_image = sum(_bytes(layer) for layer in batch_traces[-1].values()) / len(
                batch.labels
            )
            if per_image * len(self.labels) > _MOST_BYTES:
                size, most = (
                    number / 2**30 for number in (per_image * len(self.labels), _MOST_BYTES)
                )
                raise ValueError(
                    f"the couplings of {len(self.labels)} images take {size:.0f} GiB, the limit is {most:.0f} GiB; "
                    f"expected images={int(_MOST_BYTES / per_image)} or fewer"
                )
        return {
            name: concatenate([traces[name] for traces in batch_traces]) for name in batch_traces[0]
        }


def _bytes(layer: LayerTrace) -> int:
    couplings = sum(iteration.couplings.numel() for iteration in layer.iterations)
    votes = (
        layer.iterations[0].couplings.numel() * layer.parents.poses.shape[2]
        if layer.windows is None
        else 0
    )
    return 4 * (couplings + 3 * votes)  # 3: votes, their distances and their weights


class Answer(NamedTuple):
    """The result of a question: numbers by name, rows of a CSV file for all other results, and a function for figures.

    Names are ``<layer>/<quantity>``, or ``<layer>/<iteration>/<quantity>`` with iterations counted from 1.
    """

    numbers: Mapping[str, float]
    rows: Sequence[Mapping[str, object]] = ()
    draw: Callable[[], Mapping[str, Figure]] = dict


Question = Callable[..., Answer]

OF_PAIRS: set[str] = set()
"""Names of the questions about networks that do not classify."""


def question(*, of_pairs: bool = False) -> Callable[[Question], Question]:
    """Make a function the option ``what=<its name>``: it takes a ``Subject`` and returns an ``Answer``.

    Its keyword-only arguments become configuration keys. With ``of_pairs``, the question also accepts networks that are
    trained on pairs of images and do not classify.
    """

    def register(function: Question) -> Question:
        if of_pairs:
            OF_PAIRS.add(function.__name__)
        return function

    return register


def open_subject(run: Run, network: Any, images: StudyImages) -> Subject:
    """Return the subject of a question: a network, in evaluation mode and float32, with a run's images."""
    images.check_preprocessing(
        "a transformation that treats integer and floating-point grey levels of 0 to 255 alike"
    )
    fill = "black" if images.has_black_background else "border"

    def change(shift: Callable[..., Tensor], pixels: Tensor, strength: float) -> Tensor:
        return shift(None, pixels, strength, box=GREY_LEVELS, fill=fill)

    functions = (shifts.rotation, shifts.translation, shifts.scaling, shifts.shear)
    return Subject(
        network=network.float().eval().to(images.device),
        batches=images.seen,
        changed=lambda change, strength: images.changed(lambda pixels: change(pixels, strength)),
        changes={shift.__name__: partial(change, shift) for shift in functions},
        training=images.of_training,
        factors=images.data.spec.factors,
        classes=images.data.spec.classes,
        num_classes=run.spec.num_classes,
    )


def error_percent(output: CapsuleOutput, labels: Int64[Tensor, " image"]) -> float:
    """Return the percentage of images whose highest score is not that of the label."""
    return 100 * float((output.ranking.argmax(1) != labels).double().mean())
