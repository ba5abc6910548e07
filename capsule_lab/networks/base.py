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
from capsule_lab.types import CapsuleOutput, Change, ImageBatch, OnIteration


class AbstractImageNetwork(nn.Module, ABC):
    """A network of images of one shape, ``(channel, height, width)``."""

    image_shape: tuple[int, int, int]

    def set_image_shape(self, image_shape: tuple[int, int, int], smallest: int = 1) -> tuple[int, int, int]:
        """Keep and return ``image_shape``; ``smallest`` is the side of the smallest image that the network can take."""
        is_shape = isinstance(image_shape, Sequence) and len(image_shape) == 3
        if not is_shape or not all(isinstance(size, int) and size > 0 for size in image_shape):
            raise ValueError(f"image_shape is {image_shape!r}; expected (channel, height, width), as in (1, 28, 28)")
        channel, height, width = image_shape
        if min(height, width) < smallest:
            name = type(self).__name__
            raise ValueError(f"images are {height}x{width}; {name} needs at least {smallest}x{smallest}")
        self.image_shape = (channel, height, width)
        return self.image_shape

    def check_images(self, images: Tensor) -> None:
        """Check that a batch of images is one of numbers that the network was built for."""
        name = type(self).__name__
        if not images.is_floating_point():
            raise TypeError(
                f"{name} got images of {images.dtype}; expected floating-point numbers in [0, 1]: images.float() / 255,"
                " or batches of runs.open(…).batches()"
            )
        if images.shape[1:] != self.image_shape:
            shape = ", ".join(map(str, self.image_shape))
            raise ValueError(f"{name} got images of shape {tuple(images.shape)}; expected (batch, {shape})")


class AbstractNetwork(AbstractImageNetwork):
    """A classifier of images. Built from ``(image_shape, num_classes)`` and options; sizes are derived inside.

    Args:
        image_shape: ``(channel, height, width)``; a stereo pair has two channels.
        num_classes: number of classes.

    Attributes:
        scores_are: ``"activations"`` in [0, 1], which includes lengths of capsules, or ``"logits"``; decides which
            losses fit and how the crops of an image are combined. Set by the class, or by the network's options.
    """

    scores_are: Literal["logits", "activations"] = "activations"

    @abstractmethod
    def forward(self, images: ImageBatch) -> CapsuleOutput:
        """Scores of the classes, and the class capsules where there are any."""


@runtime_checkable
class Reconstructs(Protocol):
    """A network that decodes images from its class capsules; ``reconstructs(network)`` says whether one does."""

    decoder: nn.Module | None

    def reconstruct(self, output: CapsuleOutput, classes: Int64[Tensor, " batch"]) -> ImageBatch:
        """Images decoded from one class capsule each, see ``AbstractReconstructingNetwork``."""


def reconstructs(network: object) -> TypeGuard[Reconstructs]:
    """Whether ``network``, of any architecture, has a decoder."""
    return isinstance(network, Reconstructs) and network.decoder is not None


class AbstractCapsuleNetwork(AbstractNetwork):
    """A network of capsules; its routing can be observed through ``on_iteration``.

    Args:
        image_shape, num_classes: see ``AbstractNetwork``.
        routing: called with ``(parents=…, dim=…)`` in all layers that route.
        class_routing: of networks that have it, options of ``routing`` that are different in the class layer; ``None``
            for no difference.
        decoder: of networks that have it, widths of the decoder's hidden layers (Sabour 2017, section 4.1); ``None``
            for no decoder.
    """

    @abstractmethod
    def forward(self, images: ImageBatch, *, on_iteration: OnIteration | None = None) -> CapsuleOutput:
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

    def reconstruct(self, output: CapsuleOutput, classes: Int64[Tensor, " batch"]) -> ImageBatch:
        """Images decoded from one class capsule each, all others zeroed (Sabour 2017, section 4.1).

        ``output`` is what ``forward`` returned, ``classes`` are the label in training, the prediction or the label at
        test. Without ``masked_decoder``, images are decoded from all capsules, and ``classes`` are ignored.
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


Poses = Float[Tensor, "batch capsule component"]
Presences = Float[Tensor, "batch capsule"]


class TransformedImages(NamedTuple):
    """The output of a network that receives images and changes.

    Attributes:
        images: its estimate of the changed images, sums of what capsules draw; not bounded.
        poses: before the change: right and down in pixels, or matrices row by row; the code of an auto-encoder without
            capsules.
        presences: probability that the entity of each capsule is there, in [0, 1].
    """

    images: ImageBatch
    poses: Poses
    presences: Presences


class AbstractPairNetwork(AbstractImageNetwork):
    """Draws the second image of a pair from the first and the change between them.

    One with capsules also has ``changed`` and ``energies``, see ``TransformingAutoencoder``.

    Attributes:
        capsules: how many it has; 0 for a network without capsules.
        pose: what is changed: ``"translation"`` receives ``(right, down)`` in pixels, ``"matrix"`` a matrix of 3x3.
    """

    capsules: int
    pose: Pose

    @abstractmethod
    def forward(self, images: ImageBatch, change: Change) -> TransformedImages:
        """Images after a change, which the network receives."""

    @abstractmethod
    def recognise(self, images: ImageBatch) -> tuple[Poses, Presences]:
        """Poses and presences; without capsules, one code whose presence is 1."""

    @property
    def change_shape(self) -> tuple[int, ...]:
        """Shape of the change that the network receives, without the batch."""
        return CHANGES[self.pose]

    def check_change(self, change: Tensor) -> None:
        """Check that a change is of the kind that this network receives."""
        if tuple(change.shape[1:]) != self.change_shape:
            raise ValueError(
                f"the change is of shape {tuple(change.shape)}; expected (batch, "
                f"{', '.join(map(str, self.change_shape))}) for a network whose pose is {self.pose!r}"
            )


def decode_one(
    decoder: nn.Module, poses: Float[Tensor, "batch capsule dim"], classes: Int64[Tensor, " batch"]
) -> ImageBatch:
    """Images decoded from one capsule each, all others zeroed (Sabour 2017, section 4.1)."""
    mask = poses.new_zeros(poses.shape[:2]).scatter(1, classes[:, None], 1.0)
    images: Tensor = decoder(poses, mask)
    return images


def build_decoder(
    decoder: Sequence[int] | None, classes: nn.Module, num_classes: int, dim: int, image_shape: tuple[int, int, int]
) -> Decoder | None:
    """The decoder of class capsules, whose routing must give poses, with hidden layers of these widths; or ``None``."""
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
