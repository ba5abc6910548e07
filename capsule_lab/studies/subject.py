"""What questions are asked of, a network and its images, and what an answer is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from capsule_lab.analysis.trace import LayerTrace, concatenate, joined_capsules, trace
from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.runs.open_run import Run
from capsule_lab.studies.attacks import shifts
from capsule_lab.studies.attacks.gradient import GREY_LEVELS
from capsule_lab.studies.images import StudyImages
from capsule_lab.types import Batch, CapsuleOutput

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_BYTES = 8 * 2**30  # ours: of couplings and votes

Change = Callable[[Tensor, float], Tensor]
"""Images ``(batch, channel, height, width)`` in grey levels and a strength, to images of the same shape."""


@dataclass(frozen=True)
class Subject:
    """A network in evaluation mode and float32, and held-out images of one label each as it sees them, on its device.

    Attributes:
        network: an ``AbstractNetwork``, or for questions about pairs of images an ``AbstractPairNetwork``.
        changed: the images after a change before preprocessing, so that what comes in at the edges is background.
        changes: what can be done to images, by name: rotation, translation, scaling and shear.
        training: so many of the images of training, not augmented.
        factors, classes: names of the columns of ``Batch.factors`` and of the classes; empty where there are none.
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
        """Check that the network is of a kind; the message says what another has not, and what is expected."""
        if not isinstance(self.network, kind):
            raise ValueError(f"{type(self.network).__name__} {message}")  # noqa: TRY004 - of an option, not of a type

    @cached_property
    def labels(self) -> Int64[Tensor, " image"]:
        """Of all images."""
        return torch.cat([batch.labels for batch in self.batches])

    @cached_property
    def images(self) -> Float[Tensor, "image channel height width"]:
        """All images, as the network sees them."""
        return torch.cat([batch.images for batch in self.batches])

    @torch.no_grad()
    def outputs(self, batches: Sequence[Batch] | None = None) -> CapsuleOutput:
        """The network's output for all images, or for other ``batches``."""
        found = [self.network.forward(batch.images) for batch in (self.batches if batches is None else batches)]
        scores, capsules, logits = zip(*found, strict=True)
        return CapsuleOutput(
            torch.cat(scores),
            None if capsules[0] is None else joined_capsules(capsules),
            None if logits[0] is None else torch.cat(logits),
        )

    def with_images(self, images: Float[Tensor, "image channel height width"]) -> list[Batch]:
        """Other images in place of the subject's, in batches of the same sizes."""
        parts = images.split([len(batch.labels) for batch in self.batches])
        return [batch._replace(images=each) for batch, each in zip(self.batches, parts, strict=True)]

    @cached_property
    def traces(self) -> Mapping[str, LayerTrace]:
        """The routing of all images, by layer."""
        self.check_network(AbstractCapsuleNetwork, "has no routing to look at; expected a network of capsules")
        found = []
        for batch in self.batches:
            found.append(trace(self.network, batch.images)[1])
            per_image = sum(_bytes(each) for each in found[-1].values()) / len(batch.labels)
            if per_image * len(self.labels) > _MOST_BYTES:
                size, most = (each / 2**30 for each in (per_image * len(self.labels), _MOST_BYTES))
                raise ValueError(
                    f"the couplings of {len(self.labels)} images take {size:.0f} GiB, and {most:.0f} are allowed; "
                    f"expected images={int(_MOST_BYTES / per_image)} or fewer"
                )
        return {name: concatenate([each[name] for each in found]) for name in found[0]}


def _bytes(layer: LayerTrace) -> int:
    couplings = sum(each.couplings.numel() for each in layer.iterations)
    votes = layer.iterations[0].couplings.numel() * layer.parents.poses.shape[2] if layer.windows is None else 0
    return 4 * (couplings + 3 * votes)  # 3: distances and weights beside them


class Answer(NamedTuple):
    """What a question finds: numbers by name, rows of a CSV file for what does not fit them, and what draws figures.

    Names are ``<layer>/<quantity>`` of a layer, ``<layer>/<iteration>/<quantity>`` of an iteration, counted from 1.
    """

    numbers: Mapping[str, float]
    rows: Sequence[Mapping[str, object]] = ()
    draw: Callable[[], Mapping[str, Figure]] = dict


Question = Callable[..., Answer]

OF_PAIRS: set[str] = set()
"""Questions to networks that do not classify, by name."""


def question(*, of_pairs: bool = False) -> Callable[[Question], Question]:
    """Make a function an option ``what=<its name>``: it gets a ``Subject`` and gives an ``Answer``.

    Keyword-only arguments are the options of users. ``of_pairs`` is also of networks that are trained on pairs of
    images and do not classify.
    """

    def register(function: Question) -> Question:
        if of_pairs:
            OF_PAIRS.add(function.__name__)
        return function

    return register


def open_subject(run: Run, network: Any, images: StudyImages) -> Subject:
    """A network, that of a run or another, in evaluation mode and float32, and what can be asked about images."""
    images.check_preprocessing("a transformation that takes grey levels of 0 to 255 as either")
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


def set_running_statistics(network: nn.Module, images: Sequence[Float[Tensor, "batch channel height width"]]) -> None:
    """Give the batch normalisation of a network that was never trained the statistics of these images."""
    update_bn(images, network)


def error_percent(output: CapsuleOutput, labels: Int64[Tensor, " image"]) -> float:
    """Share of images whose highest score is another class."""
    return 100 * float((output.ranking.argmax(1) != labels).double().mean())
