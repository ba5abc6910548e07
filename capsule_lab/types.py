"""The few records that travel between layers, data, losses and commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float, Int64, UInt8
from torch import Tensor

ImageBatch = Float[Tensor, "batch channel height width"]
ChildPoses = Float[Tensor, "batch child dim"]
ChildActivations = Float[Tensor, "batch child"]
Change = Float[Tensor, "batch 2"] | Float[Tensor, "batch 3 3"]
"""Of pairs of images: ``(right, down)`` in pixels, or a matrix."""


def _shapes(record: NamedTuple) -> str:
    """A record of tensors by their shapes: a cell of a notebook is not filled by their numbers."""
    shown = {name: tuple(each.shape) if isinstance(each, Tensor) else each for name, each in record._asdict().items()}
    return f"{type(record).__name__}({', '.join(f'{name}={each}' for name, each in shown.items())})"


class Capsules(NamedTuple):
    """The capsules of one layer.

    Attributes:
        poses: instantiation parameters, ``(batch, capsule, dim)``.
        activations: probability that the entity is there, ``(batch, capsule)``, in [0, 1].
            Under dynamic routing this is the length of the pose; without a squash it has no bound.
        logits: any real numbers of which the activations are a rising function, ``(batch, capsule)``: what a softmax
            cross-entropy of the classes is computed from. ``None`` for a routing that has none.
    """

    poses: Float[Tensor, "batch capsule dim"]
    activations: Float[Tensor, "batch capsule"]
    logits: Float[Tensor, "batch capsule"] | None = None

    def __repr__(self) -> str:
        return _shapes(self)


class Votes(NamedTuple):
    """What children predict for their parents, as poses and transformations (Hinton 2018, section 2).

    A vote is a pose times a transformation, ``V[b i j] = M[b i] W[i j]``; see ``capsule_lab.functional.dense_votes``,
    which computes them. They are 16 times as large as the couplings, and a routing that gets this record need not store
    them.

    Attributes:
        poses: of the children, ``(batch, child, rows * inner)``, a matrix stored row by row.
        weight: transformations, ``(child, inner, parent, columns)``; a vote has ``rows * columns`` components.
        plain_poses: the poses that the layer was given, where ``poses`` have more entries: those of class capsules,
            which add coordinates to the votes.
    """

    poses: Float[Tensor, "batch child child_dim"]
    weight: Float[Tensor, "child inner parent columns"]
    plain_poses: Float[Tensor, "batch child plain_dim"] | None = None

    @property
    def child_poses(self) -> Float[Tensor, "batch child plain_dim"]:
        """The children's own poses, for routings that decide by them."""
        return self.poses if self.plain_poses is None else self.plain_poses

    def map(self, function: Callable[[Tensor], Tensor]) -> Votes:
        """The same record of ``function`` of each tensor."""
        plain = None if self.plain_poses is None else function(self.plain_poses)
        return Votes(function(self.poses), function(self.weight), plain)


class CapsuleOutput(NamedTuple):
    """What every network returns.

    Attributes:
        scores: one number per class, ``(batch, class)``. Lengths in [0, 1) for a CapsNet, activations in (0, 1) for
            EMCaps, logits for a CNN.
        capsules: the class capsules, or ``None`` for a network without capsules.
        logits: any real numbers of which the scores are a rising function, ``(batch, class)``: those of the class
            capsules; the scores of a CNN. ``None`` where the routing has none.
    """

    scores: Float[Tensor, "batch classes"]
    capsules: Capsules | None = None
    logits: Float[Tensor, "batch classes"] | None = None

    def __repr__(self) -> str:
        return _shapes(self)

    @property
    def ranking(self) -> Float[Tensor, "batch classes"]:
        """By what the classes are ranked, the largest is the prediction: logits, without any the scores.

        Lengths and activations of several classes may round to 1, which softmax cross-entropy, blind to what logits
        have in common, does nothing against; the first of them would then be the prediction.
        """
        return self.scores if self.logits is None else self.logits


class RoutingTrace(NamedTuple):
    """One iteration of a routing algorithm, as passed to ``on_iteration``.

    Attributes:
        iteration: counted from 0.
        couplings: share of each child that goes to each parent, ``(batch, child, parent)``.
        poses: the parents' poses after this iteration, ``(batch, parent, dim)``.
        activations: theirs, ``(batch, parent)``; ``None`` for a routing that has them after the last iteration only.
        logits: of which the activations are the logistic, or a rising function; ``None`` where activations are.
        variances: of the parents' Gaussians, for a routing that fits some, ``(batch, parent, dim)``.
    """

    iteration: int
    couplings: Float[Tensor, "batch child parent"]
    poses: Float[Tensor, "batch parent dim"]
    activations: Float[Tensor, "batch parent"] | None = None
    logits: Float[Tensor, "batch parent"] | None = None
    variances: Float[Tensor, "batch parent dim"] | None = None


OnIteration = Callable[[RoutingTrace], None]


class Batch(NamedTuple):
    """A batch of labelled images.

    Attributes:
        images: ``(batch, channel, height, width)``; uint8 as stored until the DataModule has moved the
            batch to its device and transformed it, then float32, in [0, 1] or standardised.
        labels: class of each image, ``(batch,)``; where ``DataSpec.labels_per_image`` is more than 1,
            ``(batch, label)``; of images that are mixtures, the share of each class, ``(batch, class)``.
        key: one number per sample and epoch, ``(batch,)``, from which every random draw for that sample
            derives; so augmentation depends neither on the batch size nor on the number of processes.
        factors: how each image was taken, ``(batch, factor)``, in the order of ``DataSpec.factors``; ``None``
            for data sets that do not say.
        parts: of an image that is composed of several, each alone in its place, ``(batch, label, channel, height,
            width)``, in the order of the labels; ``None`` otherwise.
        targets: of pairs, the second image, ``(batch, channel, height, width)``; ``None`` for data without.
        change: of pairs, by how much the second image differs from the first: ``(right, down)`` in pixels,
            ``(batch, 2)``, or a matrix ``T``, ``(batch, 3, 3)``.

    At test the DataModule may look at each image through several crops: images are then
    ``(batch, crop, channel, height, width)``, everything else stays one per image.
    """

    images: (
        Float[Tensor, "batch channel height width"]
        | Float[Tensor, "batch crop channel height width"]
        | UInt8[Tensor, "batch channel height width"]
    )
    labels: Int64[Tensor, " batch"] | Int64[Tensor, "batch label"] | Float[Tensor, "batch class"]
    key: Int64[Tensor, " batch"]
    factors: Int64[Tensor, "batch factor"] | Float[Tensor, "batch factor"] | None = None
    parts: Float[Tensor, "batch label channel height width"] | None = None
    targets: Float[Tensor, "batch channel height width"] | None = None
    change: Change | None = None

    @property
    def classes(self) -> Int64[Tensor, " batch"] | Int64[Tensor, "batch label"]:
        """The labels, of mixtures the class with the largest share: what an error can be counted by."""
        return self.labels.argmax(1) if self.labels.is_floating_point() else self.labels


@dataclass(frozen=True)
class DataSpec:
    """The facts of a data set that networks need; no options of a configuration.

    Attributes:
        image_shape: ``(channel, height, width)`` of an image as it reaches the network.
        num_classes: number of classes.
        classes: their names, where they have any beside their number.
        factors: names of the columns of ``Batch.factors``.
        labels_per_image: how many classes every image shows, different ones if the data does not say otherwise.
        change: of pairs, the shape of what is known of their difference, ``(2,)`` or ``(3, 3)``; empty for other data.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    classes: tuple[str, ...] = ()
    factors: tuple[str, ...] = ()
    labels_per_image: int = 1
    change: tuple[int, ...] = ()
