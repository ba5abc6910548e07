"""The input of a question (a network and its images) and its result (an answer)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from capsule_lab.analysis.trace import LayerTrace, concatenate, joined_outputs, trace
from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.types import Batch, CapsuleOutput
from capsule_studies.images import count_images, joined_images, joined_labels, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GIB = 2**30
_MOST_BYTES = 8 * _GIB  # ours: limit for couplings and votes

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
        return joined_labels(self.batches)

    @cached_property
    def images(self) -> Float[Tensor, "image channel height width"]:
        """All images after preprocessing."""
        return joined_images(self.batches)

    @torch.no_grad()
    def outputs(self, batches: Sequence[Batch] | None = None) -> CapsuleOutput:
        """Return the network's output for all images, or for other ``batches``."""
        batches = self.batches if batches is None else batches
        return joined_outputs([self.network.forward(batch.images) for batch in batches])

    def with_images(self, images: Float[Tensor, "image channel height width"]) -> list[Batch]:
        """Return the subject's batches with other images in place of its images."""
        batches = []
        start = 0
        for batch in self.batches:
            end = start + len(batch.labels)
            batches.append(batch._replace(images=images[start:end]))
            start = end
        return batches

    @cached_property
    def traces(self) -> Mapping[str, LayerTrace]:
        """The routing of all images, by layer."""
        self.check_network(AbstractCapsuleNetwork, "has no routing; expected a capsule network")
        parts_of_layer: dict[str, list[LayerTrace]] = {}
        for batch in self.batches:
            _, layers = trace(self.network, batch.images)
            self._check_size([*layers.values()], len(batch.labels))
            for name, layer in layers.items():
                parts_of_layer.setdefault(name, []).append(layer)
        return {name: concatenate(parts) for name, parts in parts_of_layer.items()}

    def _check_size(self, layers: Sequence[LayerTrace], images: int) -> None:
        """Raise a ``ValueError`` if the traces of all images, like these of some, would take too much memory."""
        per_image = sum(_bytes(layer) for layer in layers) / images
        count = count_images(self.batches)
        if per_image * count > _MOST_BYTES:
            size = per_image * count / _GIB
            most = _MOST_BYTES / _GIB
            raise ValueError(
                f"the couplings of {count} images take {size:.0f} GiB, the limit is {most:.0f} GiB; "
                f"expected images={int(_MOST_BYTES / per_image)} or fewer"
            )


def _bytes(layer: LayerTrace) -> int:
    couplings = sum(iteration.couplings.numel() for iteration in layer.iterations)
    votes = 0
    if layer.windows is None:
        votes = layer.iterations[0].couplings.numel() * layer.parents.poses.shape[2]
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


def error_percent(output: CapsuleOutput, labels: Int64[Tensor, " image"]) -> float:
    """Return the percentage of images whose highest score is not that of the label."""
    return percent(output.ranking.argmax(1) != labels)
