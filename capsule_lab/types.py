"""Records that layers, data, losses and commands exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

ImageBatch = Float[Tensor, "batch channel height width"]
ChildPoses = Float[Tensor, "batch child dim"]
ChildActivations = Float[Tensor, "batch child"]
Change = Float[Tensor, "batch 2"] | Float[Tensor, "batch 3 3"]
"""Difference of the images of a pair: ``(right, down)`` in pixels, or a matrix."""


def _shapes(record: NamedTuple) -> str:
    """Return a record as text with the shapes of its tensors, because their values would fill a notebook cell."""
    fields = []
    for name, value in record._asdict().items():
        shown = tuple(value.shape) if isinstance(value, Tensor) else value
        fields.append(f"{name}={shown}")
    return f"{type(record).__name__}({', '.join(fields)})"


class Capsules(NamedTuple):
    """The capsules of one layer.

    Attributes:
        poses: instantiation parameters, ``(batch, capsule, dim)``.
        activations: probability that the entity is present, ``(batch, capsule)``, in [0, 1].
            In dynamic routing it is the length of the pose, which is unbounded without a squash.
        logits: real numbers, ``(batch, capsule)``, from which a softmax cross-entropy is computed; the activations are
            an increasing function of them. ``None`` if the routing has no logits.
    """

    poses: Float[Tensor, "batch capsule dim"]
    activations: Float[Tensor, "batch capsule"]
    logits: Float[Tensor, "batch capsule"] | None = None

    def __repr__(self) -> str:
        return _shapes(self)


class Votes(NamedTuple):
    """Votes of children for their parents, stored as poses and transformations (Hinton 2018, section 2).

    A vote is a pose times a transformation, ``V[b i j] = M[b i] W[i j]``; ``capsule_lab.functional.dense_votes``
    computes the votes. They are 16 times as large as the couplings. A routing that receives this record does not have
    to store them.

    Attributes:
        poses: poses of the children, ``(batch, child, rows * inner)``; matrices are stored row by row.
        weight: transformations, ``(child, inner, parent, columns)``; a vote has ``rows * columns`` components.
        plain_poses: the poses that the layer received, if ``poses`` has additional components: class capsules use them
            to add coordinates to the votes.
    """

    poses: Float[Tensor, "batch child child_dim"]
    weight: Float[Tensor, "child inner parent columns"]
    plain_poses: Float[Tensor, "batch child plain_dim"] | None = None

    @property
    def child_poses(self) -> Float[Tensor, "batch child plain_dim"]:
        """The poses that the layer received, for routings that compute couplings from them."""
        return self.poses if self.plain_poses is None else self.plain_poses

    def map(self, function: Callable[[Tensor], Tensor]) -> Votes:
        """Apply ``function`` to each tensor of the record."""
        plain = None if self.plain_poses is None else function(self.plain_poses)
        return Votes(function(self.poses), function(self.weight), plain)


class CapsuleOutput(NamedTuple):
    """Output of every network.

    Attributes:
        scores: one number per class, ``(batch, class)``. Lengths in [0, 1) for a CapsNet, activations in (0, 1) for
            EMCaps, logits for a CNN.
        capsules: the class capsules, or ``None`` for a network without capsules.
        logits: real numbers, ``(batch, class)``; the scores are an increasing function of them. They are the logits of
            the class capsules, or the scores of a CNN. ``None`` if the routing has no logits.
    """

    scores: Float[Tensor, "batch classes"]
    capsules: Capsules | None = None
    logits: Float[Tensor, "batch classes"] | None = None

    def __repr__(self) -> str:
        return _shapes(self)

    @property
    def ranking(self) -> Float[Tensor, "batch classes"]:
        """Numbers that rank the classes, the largest is the prediction: the logits or, without logits, the scores.

        Lengths and activations of several classes may round to 1, and the first of these classes would then be the
        prediction. Softmax cross-entropy does not prevent this, because it ignores a constant added to all logits.
        """
        return self.scores if self.logits is None else self.logits


class RoutingTrace(NamedTuple):
    """One iteration of a routing algorithm; ``on_iteration`` receives it.

    Attributes:
        iteration: counted from 0.
        couplings: share of each child that goes to each parent, ``(batch, child, parent)``.
        poses: poses of the parents after this iteration, ``(batch, parent, dim)``.
        activations: activations of the parents, ``(batch, parent)``; ``None`` if routing computes them only at the end.
        logits: the activations are their logistic or another increasing function; ``None`` if ``activations`` is.
        variances: variances of the parents' Gaussians, ``(batch, parent, dim)``, if the routing fits Gaussians.
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
        labels: class of each image, ``(batch,)``; ``(batch, label)`` if ``DataSpec.labels_per_image`` is more
            than 1; whether the image has each class, ``(batch, class)`` of bool, if it is 0; for mixtures of images,
            the share of each class, ``(batch, class)``.
        key: one number per sample and epoch, ``(batch,)``. It seeds every random draw for that sample, so
            augmentation depends neither on the batch size nor on the number of processes.
        factors: how each image was taken, ``(batch, factor)``, in the order of ``DataSpec.factors``; ``None``
            if the data set does not contain them.
        parts: for an image composed of several, each of these alone in its place, ``(batch, label, channel, height,
            width)``, in the order of the labels; ``None`` otherwise.
        targets: for pairs, the second image, ``(batch, channel, height, width)``; ``None`` otherwise.
        change: for pairs, how the second image differs from the first: ``(right, down)`` in pixels,
            ``(batch, 2)``, or a matrix ``T``, ``(batch, 3, 3)``.

    For a test with several crops per image, images are ``(batch, crop, channel, height, width)``; all other
    attributes still have one entry per image.
    """

    images: (
        Float[Tensor, "batch channel height width"]
        | Float[Tensor, "batch crop channel height width"]
        | UInt8[Tensor, "batch channel height width"]
    )
    labels: (
        Int64[Tensor, " batch"]
        | Int64[Tensor, "batch label"]
        | Bool[Tensor, "batch class"]
        | Float[Tensor, "batch class"]
    )
    key: Int64[Tensor, " batch"]
    factors: Int64[Tensor, "batch factor"] | Float[Tensor, "batch factor"] | None = None
    parts: Float[Tensor, "batch label channel height width"] | None = None
    targets: Float[Tensor, "batch channel height width"] | None = None
    change: Change | None = None

    @property
    def classes(
        self,
    ) -> Int64[Tensor, " batch"] | Int64[Tensor, "batch label"] | Bool[Tensor, "batch class"]:
        """The labels or, for mixtures, the class with the largest share, so that errors can be counted."""
        return self.labels.argmax(1) if self.labels.is_floating_point() else self.labels


class TrainingData(NamedTuple):
    """The data that a network was trained on, for evaluations of it.

    Attributes:
        options: options of its DataModule.
        provenance: its provenance.
        now: options of the evaluation.
        is_elsewhere: whether the evaluation names other data, or another path, which may have the same data.
    """

    options: Mapping[str, Any]
    provenance: Mapping[str, Any]
    now: Mapping[str, Any]
    is_elsewhere: bool


@dataclass(frozen=True)
class DataSpec:
    """Properties of a data set that networks need; they are not options of a configuration.

    Attributes:
        image_shape: ``(channel, height, width)`` of an image when it reaches the network.
        num_classes: number of classes.
        classes: names of the classes, if they have names.
        factors: names of the columns of ``Batch.factors``.
        labels_per_image: how many classes every image shows, all different unless the data set states otherwise; 0 if
            images have any number of labels, also none.
        change: for pairs, the shape of ``Batch.change`` without the batch, ``(2,)`` or ``(3, 3)``; empty otherwise.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    classes: tuple[str, ...] = ()
    factors: tuple[str, ...] = ()
    labels_per_image: int = 1
    change: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check exact types, because a record may come from a file: ``True`` is an ``int`` for Python, too."""
        sizes = (*self.image_shape, self.num_classes, self.labels_per_image, *self.change)
        are_int = all(type(size) is int for size in sizes)
        positive = (*self.image_shape, self.num_classes, *self.change)
        if (
            len(self.image_shape) != 3
            or not are_int
            or min(positive) < 1
            or self.labels_per_image < 0
        ):
            raise ValueError(
                f"image_shape, num_classes, labels_per_image and change are {sizes}; expected positive int"
            )
        if not all(type(name) is str for name in (*self.classes, *self.factors)):
            raise ValueError("classes or factors have names that are not text; expected str")

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; their numbers, ``"0"`` and so on, if they have no names."""
        return self.classes or tuple(map(str, range(self.num_classes)))
