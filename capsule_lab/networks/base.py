"""Interface between networks and the training loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, Literal, NamedTuple, Protocol, TypeGuard, cast, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from capsule_lab.errors import check_widths, size_option
from capsule_lab.functional import he_std, truncated_normal_
from capsule_lab.layers import Decoder
from capsule_lab.routing import AbstractRouting, RoutingFactory
from capsule_lab.shapes import check_pixels, check_range, checks_shapes
from capsule_lab.types import CapsuleOutput, Change, ImageBatch, OnIteration


def _is_size(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0


class AbstractImageNetwork(nn.Module, ABC):
    """A network for images of one shape, ``(channel, height, width)``."""

    image_shape: tuple[int, int, int]

    def set_image_shape(
        self, image_shape: tuple[int, int, int], smallest: int = 1
    ) -> tuple[int, int, int]:
        """Check, store and return ``image_shape``; ``smallest`` is the minimum height and width."""
        is_shape = isinstance(image_shape, Sequence) and len(image_shape) == 3
        if not is_shape or not all(_is_size(size) for size in image_shape):
            raise ValueError(
                f"image_shape is {image_shape!r}; expected (channel, height, width), such as (1, 28, 28)"
            )
        channel, height, width = image_shape
        if min(height, width) < smallest:
            name = type(self).__name__
            enough = size_option(max(height, smallest), max(width, smallest))
            raise ValueError(
                f"images are {height}x{width}; {name} needs at least {smallest}x{smallest}: use larger images (with "
                f"data=folder in a command, {enough}) or smaller kernels"
            )
        self.image_shape = (int(channel), int(height), int(width))
        return self.image_shape

    def check_images(self, images: Tensor) -> None:
        """Check that images are floating-point and have the shape that the network was built for."""
        name = type(self).__name__
        if not isinstance(images, Tensor) or not images.is_floating_point():
            kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
            raise TypeError(
                f"{name} received images of {kind}; expected floats in [0, 1]: images.float() / 255,"
                " or batches of runs.open(…).batches()"
            )
        if images.shape[1:] != self.image_shape:
            shape = ", ".join(map(str, self.image_shape))
            raise ValueError(
                f"{name} received images of shape {tuple(images.shape)}; expected (batch, {shape})"
            )
        weights = next(self.parameters(), images)
        if images.dtype != weights.dtype and not torch.is_autocast_enabled(images.device.type):
            raise TypeError(
                f"{name} received images of {images.dtype}, but its weights are {weights.dtype}; expected one type, "
                "such as images.to(next(network.parameters()).dtype)"
            )
        check_pixels(name, "images", images)


class AbstractNetwork(AbstractImageNetwork):
    """Base of image classifiers, constructed from ``(image_shape, num_classes)`` and options; other sizes are derived.

    Args:
        image_shape: ``(channel, height, width)``; a stereo pair has two channels.
        num_classes: number of classes.

    Attributes:
        scores_are: ``"activations"`` in [0, 1], including lengths of capsules, or ``"logits"``. It determines which
            losses fit and how crops of an image are combined. The class or options of the network set it.
    """

    scores_are: Literal["logits", "activations"] = "activations"

    @abstractmethod
    def forward(self, images: ImageBatch) -> CapsuleOutput:
        """Compute the scores of the classes and, if the network has any, the class capsules."""


@runtime_checkable
class Reconstructs(Protocol):
    """A network that decodes images from its class capsules; ``reconstructs(network)`` tests for it."""

    decoder: nn.Module | None

    def reconstruct(self, output: CapsuleOutput, classes: Int64[Tensor, " batch"]) -> ImageBatch:
        """Decode each image from one class capsule, see ``AbstractReconstructingNetwork``."""


def reconstructs(network: object) -> TypeGuard[Reconstructs]:
    """Return whether ``network`` has a decoder."""
    return isinstance(network, Reconstructs) and network.decoder is not None


class AbstractCapsuleNetwork(AbstractNetwork):
    """Base of capsule networks; ``on_iteration`` observes their routing.

    Args:
        image_shape, num_classes: see ``AbstractNetwork``.
        routing: builds the routing of each layer; called with ``(parents=…, dim=…)``.
        class_routing: options of ``routing`` that differ in the class layer, for networks with this argument; ``None``
            for no difference.
        decoder: widths of the hidden layers of the decoder (Sabour 2017, section 4.1), for networks with this argument;
            ``None`` for no decoder.
    """

    @abstractmethod
    def forward(
        self, images: ImageBatch, *, on_iteration: OnIteration | None = None
    ) -> CapsuleOutput:
        """Compute scores and class capsules; ``on_iteration`` observes the routing of the class capsules."""

    @abstractmethod
    def capsule_layers(self) -> dict[str, nn.Module]:
        """Return the layers whose output is ``Capsules`` by name, from the image upwards."""


class AbstractReconstructingNetwork(AbstractCapsuleNetwork):
    """Base of capsule networks with an optional decoder.

    Attributes:
        decoder: see ``capsule_lab.layers.Decoder``; ``None`` if the network was built without one.
        masked_decoder: whether the decoder sees one class capsule, with all others zeroed, or all of them.
    """

    decoder: nn.Module | None
    masked_decoder: bool = True

    def reconstruct(self, output: CapsuleOutput, classes: Int64[Tensor, " batch"]) -> ImageBatch:
        """Decode each image from one class capsule, with all others zeroed (Sabour 2017, section 4.1).

        ``output`` is the result of ``forward``; ``classes`` are labels in training, and predictions or labels in a
        test. Without ``masked_decoder``, images are decoded from all capsules and ``classes`` is ignored.
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
"""Shape of a change for each kind of pose."""


Poses = Float[Tensor, "batch capsule component"]
Presences = Float[Tensor, "batch capsule"]


class TransformedImages(NamedTuple):
    """The output of a network that receives images and changes.

    Attributes:
        images: estimates of the changed images, sums of the drawings of the capsules; not bounded.
        poses: poses before the change, right and down in pixels or matrices row by row; without capsules, the code of
            the auto-encoder.
        presences: probability that the entity of each capsule is present, in [0, 1].
    """

    images: ImageBatch
    poses: Poses
    presences: Presences


class AbstractPairNetwork(AbstractImageNetwork):
    """Base of networks that draw the second image of a pair from the first and the change between them.

    Networks with capsules also have ``changed`` and ``energies``, see ``TransformingAutoencoder``.

    Attributes:
        capsules: number of capsules; 0 for a network without capsules.
        pose: kind of pose and change: ``"translation"``, ``(right, down)`` in pixels, or ``"matrix"``, a 3x3 matrix.
    """

    capsules: int
    pose: Pose

    @abstractmethod
    def forward(self, images: ImageBatch, change: Change) -> TransformedImages:
        """Compute the images after ``change``."""

    @abstractmethod
    def recognise(self, images: ImageBatch) -> tuple[Poses, Presences]:
        """Compute poses and presences; without capsules, one code with presence 1."""

    @property
    def change_shape(self) -> tuple[int, ...]:
        """Shape of the change that the network receives, without the batch."""
        return CHANGES[self.pose]

    def check_change(self, change: Tensor) -> None:
        """Check that a change has the shape that this network expects."""
        if tuple(change.shape[1:]) != self.change_shape:
            expected = ", ".join(map(str, self.change_shape))
            raise ValueError(
                f"the change has shape {tuple(change.shape)}; expected (batch, {expected}) for a network whose pose is "
                f"{self.pose!r}"
            )


@checks_shapes
def decode_one(
    decoder: nn.Module, poses: Float[Tensor, "batch capsule dim"], classes: Int64[Tensor, " batch"]
) -> ImageBatch:
    """Decode each image from one capsule, with all others zeroed (Sabour 2017, section 4.1)."""
    last = poses.shape[1] - 1
    check_range("reconstruct", "classes", classes, 0, last, f"class numbers, 0 to {last}")
    mask = poses.new_zeros(poses.shape[:2]).scatter(1, classes[:, None], 1.0)
    images: Tensor = decoder(poses, mask)
    return images


def build_decoder(
    decoder: Sequence[int] | None,
    classes: nn.Module,
    num_classes: int,
    dim: int,
    image_shape: tuple[int, int, int],
) -> Decoder | None:
    """Build the decoder of class capsules with hidden layers of these widths; ``None`` for no decoder."""
    if decoder is None:
        return None
    if not cast(AbstractRouting, classes.routing).poses:
        raise ValueError(
            "routing.poses is false; expected true or model.decoder=null, since the decoder reads poses"
        )
    check_widths("the network", decoder=decoder)
    return Decoder(num_classes, dim, image_shape, hidden=decoder)


def with_options(routing: RoutingFactory, options: Mapping[str, Any] | None) -> RoutingFactory:
    """Return ``routing`` with these options overriding its options; ``None`` for no difference."""
    different = options or {}

    def build(**sizes: int) -> AbstractRouting:
        try:
            return routing(**sizes, **different)
        except TypeError as error:
            names = ", ".join(map(str, different))
            raise ValueError(
                f"class_routing has {names}: {error}; expected options of the routing, or None"
            ) from error

    return build


def numbered(name: str, layers: Iterable[nn.Module]) -> dict[str, nn.Module]:
    """Name layers ``<name>_1``, ``<name>_2`` and so on, for ``capsule_layers``."""
    return {f"{name}_{number}": layer for number, layer in enumerate(layers, start=1)}


def check_equal_lengths(owner: str, **options: Sequence[int]) -> None:
    """Check that options with one number for each convolution have equally many numbers, at least one."""
    lengths = {len(option) for option in options.values()}
    if len(lengths) > 1 or lengths == {0}:
        counts = ", ".join(f"{len(option)} {name}" for name, option in options.items())
        raise ValueError(f"{owner} has {counts}; expected equal numbers, at least one")


def smallest_side(kernel_sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Return the side of an image that convolutions without padding reduce to one pixel."""
    smallest = 1
    for size, stride in zip(reversed(kernel_sizes), reversed(strides), strict=True):
        smallest = (smallest - 1) * stride + size
    return smallest


def he_conv(inputs: int, outputs: int, kernel_size: int, stride: int, groups: int = 1) -> nn.Conv2d:
    """Build a convolution with the initial weights of He 2015, a truncated normal, and without initial bias."""
    conv = nn.Conv2d(inputs, outputs, kernel_size, stride, groups=groups)
    truncated_normal_(conv.weight, he_std(inputs // groups * kernel_size**2))
    nn.init.zeros_(cast(Tensor, conv.bias))
    return conv
