"""What every network offers to the training loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, TypeGuard, runtime_checkable

from jaxtyping import Float, Int64
from torch import Tensor, nn

from capsule_lab.routing import AbstractRouting
from capsule_lab.types import CapsuleOutput, OnIteration


class AbstractNetwork(nn.Module, ABC):
    """A classifier of images. Built from ``(image_shape, num_classes)`` and options; sizes are derived inside.

    Attributes:
        scores_are: ``"activations"`` in [0, 1], which lengths of capsules are too, or ``"logits"``; decides which
            losses fit and how the crops of an image are combined. Of a class, or of a network whose options decide it.
    """

    scores_are: Literal["logits", "activations"] = "activations"

    @abstractmethod
    def forward(self, images: Float[Tensor, "batch channel height width"]) -> CapsuleOutput:
        """Scores of the classes, and the class capsules where there are any."""


@runtime_checkable
class Reconstructs(Protocol):
    """A network that decodes images from its class capsules. Ask ``reconstructs(network)`` whether one does.

    Attributes:
        decoder: ``None`` if the network was built without one.
    """

    decoder: nn.Module | None

    def reconstruct(
        self, output: CapsuleOutput, classes: Int64[Tensor, " batch"]
    ) -> Float[Tensor, "batch channel height width"]:
        """Images decoded from one class capsule each.

        Args:
            output: what ``forward`` returned.
            classes: the capsule to decode from.
        """


def reconstructs(network: object) -> TypeGuard[Reconstructs]:
    """Whether ``network`` has a decoder, of whatever architecture it is."""
    return isinstance(network, Reconstructs) and network.decoder is not None


class AbstractCapsuleNetwork(AbstractNetwork):
    """A network of capsules; its routing can be observed through ``on_iteration``."""

    @abstractmethod
    def forward(
        self, images: Float[Tensor, "batch channel height width"], *, on_iteration: OnIteration | None = None
    ) -> CapsuleOutput:
        """Scores and class capsules; ``on_iteration`` sees the routing of the class capsules."""

    @abstractmethod
    def capsule_layers(self) -> dict[str, nn.Module]:
        """The layers whose output is ``Capsules``, by name, from the image upwards."""


class AbstractReconstructingNetwork(AbstractCapsuleNetwork):
    """A network of capsules with a decoder, or built without one.

    Attributes:
        decoder: see ``capsule_lab.layers.Decoder``; ``None`` if the network was built without one.
        masked_decoder: whether it sees one class capsule, all others zeroed, or all of them.
    """

    decoder: nn.Module | None
    masked_decoder: bool = True

    def reconstruct(
        self, output: CapsuleOutput, classes: Int64[Tensor, " batch"]
    ) -> Float[Tensor, "batch channel height width"]:
        """Images decoded from one class capsule each, all others zeroed (Sabour 2017, section 4.1).

        Without ``masked_decoder``, images are decoded from all capsules, whatever the classes.

        Args:
            output: what ``forward`` returned.
            classes: the capsule to decode from: the label in training, the prediction or the label at test.

        Raises:
            ValueError: if the network was built without a decoder.
        """
        if self.decoder is None or output.capsules is None:
            raise ValueError(
                f"this {type(self).__name__} has no decoder; build it with decoder=(512, 1024) to reconstruct"
            )
        poses = output.capsules.poses
        if not self.masked_decoder:
            return self.decoder(poses, poses.new_ones(poses.shape[:2]))
        return decode_one(self.decoder, poses, classes)


Pose = Literal["translation", "matrix"]

CHANGES: dict[Pose, tuple[int, ...]] = {"translation": (2,), "matrix": (3, 3)}
"""The shape of a change, by what poses are."""


class TransformedImages(NamedTuple):
    """What the network makes of images and changes.

    Attributes:
        images: what it takes the changed images for, sums of what capsules draw; not bounded.
        poses: before the change: right and down in pixels, or matrices row by row; of an auto-encoder without
            capsules, its code.
        presences: probability that the entity of each capsule is there, in [0, 1].
    """

    images: Float[Tensor, "batch channel height width"]
    poses: Float[Tensor, "batch capsule component"]
    presences: Float[Tensor, "batch capsule"]


class AbstractPairNetwork(nn.Module, ABC):
    """Draws the second image of a pair from the first and the change between them.

    One with capsules also has ``changed`` and ``energies``, see ``TransformingAutoencoder``.

    Attributes:
        image_shape: ``(channel, height, width)``.
        capsules: how many it has; 0 without.
        pose: what is changed: ``"translation"`` is told ``(right, down)`` in pixels, ``"matrix"`` a matrix of 3x3.
    """

    image_shape: tuple[int, int, int]
    capsules: int
    pose: Pose

    @abstractmethod
    def forward(
        self,
        images: Float[Tensor, "batch channel height width"],
        change: Float[Tensor, "batch 2"] | Float[Tensor, "batch 3 3"],
    ) -> TransformedImages:
        """What images look like after a change."""

    @abstractmethod
    def recognise(
        self, images: Float[Tensor, "batch channel height width"]
    ) -> tuple[Float[Tensor, "batch capsule component"], Float[Tensor, "batch capsule"]]:
        """Poses and presences; without capsules, one code that is always there."""

    @property
    def change_shape(self) -> tuple[int, ...]:
        """Of the change that it is told, without the batch."""
        return CHANGES[self.pose]

    def check_change(self, change: Tensor) -> None:
        """Check that a change is of the kind that this network is told.

        Raises:
            ValueError: for another one.
        """
        if tuple(change.shape[1:]) != self.change_shape:
            raise ValueError(
                f"the change is of shape {tuple(change.shape)}; expected {('batch', *self.change_shape)} for a network "
                f"whose pose is {self.pose!r}".replace("'batch'", "batch")
            )


def decode_one(
    decoder: nn.Module, poses: Float[Tensor, "batch capsule dim"], classes: Int64[Tensor, " batch"]
) -> Float[Tensor, "batch channel height width"]:
    """Images decoded from one capsule each, all others zeroed (Sabour 2017, section 4.1)."""
    mask = poses.new_zeros(poses.shape[:2]).scatter(1, classes[:, None], 1.0)
    images: Tensor = decoder(poses, mask)
    return images


def check_decodable(decoder: Sequence[int] | None, routing: AbstractRouting) -> None:
    """A decoder has poses to read.

    Raises:
        ValueError: if the class capsules have none.
    """
    if decoder is not None and not routing.poses:
        raise ValueError("routing.poses is false, and the decoder reads poses; expected true, or model.decoder=null")


def check_sizes(name: str, **sizes: int) -> None:
    """Sizes of a network's parts are positive whole numbers.

    Raises:
        ValueError: for one that is not.
    """
    for size, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            expected = "1 or more" if isinstance(value, int) else "a whole number"
            raise ValueError(f"{name} has {size} {value!r}; expected {expected}")


def check_widths(name: str, **widths: Sequence[int]) -> None:
    """Widths of layers, kernels and the like are lists of positive whole numbers; an empty list is one.

    Raises:
        ValueError: for one that is not.
    """
    for option, values in widths.items():
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise ValueError(f"{name} has {option} {values!r}; expected a list of whole numbers, such as [64]")  # noqa: TRY004
        for value in values:
            check_sizes(name, **{option: value})


def check_image_shape(image_shape: tuple[int, int, int], smallest: int, name: str) -> tuple[int, int, int]:
    """``image_shape`` as a tuple of three positive ints.

    Raises:
        ValueError: if it is no ``(channel, height, width)`` or the image is smaller than the network can take.
    """
    is_shape = isinstance(image_shape, Sequence) and len(image_shape) == 3
    if not is_shape or not all(isinstance(size, int) and size > 0 for size in image_shape):
        raise ValueError(f"image_shape is {image_shape!r}; expected (channel, height, width), as in (1, 28, 28)")
    channel, height, width = image_shape
    if min(height, width) < smallest:
        raise ValueError(f"images are {height}x{width}; {name} needs at least {smallest}x{smallest}")
    return channel, height, width


def check_images(images: Tensor, image_shape: tuple[int, int, int], name: str) -> None:
    """A batch of images is one that the network was built for.

    Args:
        images: what ``forward`` got.
        image_shape: ``(channel, height, width)`` that the network was built with.
        name: of the network.

    Raises:
        TypeError: for images that are no floating-point numbers.
        ValueError: for another shape.
    """
    if not images.is_floating_point():
        raise TypeError(
            f"{name} got images of {images.dtype}; expected floating-point numbers in [0, 1]: images.float() / 255, "
            "or batches of runs.open(…).batches()"
        )
    if images.shape[1:] != image_shape:
        raise ValueError(
            f"{name} got images of shape {tuple(images.shape)}; expected (batch, {', '.join(map(str, image_shape))})"
        )
