"""What every network offers to the training loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeGuard, cast, runtime_checkable

from jaxtyping import Float, Int64
from torch import Tensor, nn

from capsule_lab.errors import check_widths
from capsule_lab.layers import Decoder
from capsule_lab.routing import AbstractRouting, RoutingFactory
from capsule_lab.types import CapsuleOutput, OnIteration


class AbstractNetwork(nn.Module, ABC):
    """A classifier of images. Built from ``(image_shape, num_classes)`` and options; sizes are derived inside.

    Attributes:
        scores_are: ``"activations"`` in [0, 1], which includes lengths of capsules, or ``"logits"``; decides which
            losses fit and how the crops of an image are combined. Set by the class, or by the network's options.
    """

    scores_are: Literal["logits", "activations"] = "activations"

    @abstractmethod
    def forward(self, images: Float[Tensor, "batch channel height width"]) -> CapsuleOutput:
        """Scores of the classes, and the class capsules where there are any."""


@runtime_checkable
class Reconstructs(Protocol):
    """A network that decodes images from its class capsules; ``reconstructs(network)`` says whether one does.

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
    """Whether ``network``, of any architecture, has a decoder."""
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

        Without ``masked_decoder``, images are decoded from all capsules, and ``classes`` are ignored.

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
    """The output of a network that receives images and changes.

    Attributes:
        images: its estimate of the changed images, sums of what capsules draw; not bounded.
        poses: before the change: right and down in pixels, or matrices row by row; the code of an auto-encoder without
            capsules.
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
        capsules: how many it has; 0 for a network without capsules.
        pose: what is changed: ``"translation"`` receives ``(right, down)`` in pixels, ``"matrix"`` a matrix of 3x3.
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
        """Images after a change, which the network receives."""

    @abstractmethod
    def recognise(
        self, images: Float[Tensor, "batch channel height width"]
    ) -> tuple[Float[Tensor, "batch capsule component"], Float[Tensor, "batch capsule"]]:
        """Poses and presences; without capsules, one code whose presence is 1."""

    @property
    def change_shape(self) -> tuple[int, ...]:
        """Shape of the change that the network receives, without the batch."""
        return CHANGES[self.pose]

    def check_change(self, change: Tensor) -> None:
        """Check that a change is of the kind that this network receives.

        Raises:
            ValueError: if not.
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


def build_decoder(
    decoder: Sequence[int] | None, classes: nn.Module, num_classes: int, dim: int, image_shape: tuple[int, int, int]
) -> Decoder | None:
    """The decoder of class capsules, or ``None``.

    Args:
        decoder: widths of its hidden layers; ``None`` for no decoder.
        classes: the layer of class capsules, whose routing must give poses.
        num_classes, dim, image_shape: see ``Decoder``.

    Raises:
        ValueError: if the class capsules have no poses.
    """
    if decoder is None:
        return None
    if not cast(AbstractRouting, classes.routing).poses:
        raise ValueError("routing.poses is false, and the decoder reads poses; expected true, or model.decoder=null")
    check_widths("the network", decoder=decoder)
    return Decoder(num_classes, dim, image_shape, hidden=decoder)


def with_options(routing: RoutingFactory, options: Mapping[str, Any] | None) -> RoutingFactory:
    """``routing`` with these options in place of its own; ``None`` for no difference."""

    def build(**sizes: int) -> AbstractRouting:
        try:
            return routing(**sizes, **(options or {}))
        except TypeError as error:
            raise ValueError(
                f"class_routing has {', '.join(map(str, options or {}))}: {error}; expected options of the routing, or "
                "None"
            ) from error

    return build


def numbered(name: str, layers: Iterable[nn.Module]) -> dict[str, nn.Module]:
    """Layers under ``<name>_1``, ``<name>_2`` and so on, for ``capsule_layers``."""
    return {f"{name}_{number}": layer for number, layer in enumerate(layers, start=1)}


def check_image_shape(image_shape: tuple[int, int, int], smallest: int, name: str) -> tuple[int, int, int]:
    """``image_shape`` as a tuple of three positive ints.

    Raises:
        ValueError: if it is not ``(channel, height, width)`` or the image is smaller than the network can take.
    """
    is_shape = isinstance(image_shape, Sequence) and len(image_shape) == 3
    if not is_shape or not all(isinstance(size, int) and size > 0 for size in image_shape):
        raise ValueError(f"image_shape is {image_shape!r}; expected (channel, height, width), as in (1, 28, 28)")
    channel, height, width = image_shape
    if min(height, width) < smallest:
        raise ValueError(f"images are {height}x{width}; {name} needs at least {smallest}x{smallest}")
    return channel, height, width


def check_images(images: Tensor, image_shape: tuple[int, int, int], name: str) -> None:
    """Check that a batch of images is one that the network was built for.

    Raises:
        TypeError: if images are not floating-point numbers.
        ValueError: if their shape is another one.
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
