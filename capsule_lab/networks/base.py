"""What every network offers to the training loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, Protocol, TypeGuard, runtime_checkable

from jaxtyping import Float, Int64
from torch import Tensor, nn

from capsule_lab.types import CapsuleOutput, OnIteration


class AbstractNetwork(nn.Module, ABC):
    """A classifier of images. Built from ``(image_shape, num_classes)`` and options; sizes are derived inside.

    Attributes:
        scores_are: ``"activations"`` in [0, 1], which lengths of capsules are too, or ``"logits"``; decides which
            losses fit and how the crops of an image are combined.
    """

    scores_are: ClassVar[Literal["logits", "activations"]] = "activations"

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


def check_sizes(name: str, **sizes: int) -> None:
    """Sizes of a network's parts are positive.

    Raises:
        ValueError: for one that is not.
    """
    for size, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} has {size} {value}; expected 1 or more")


def check_image_shape(image_shape: tuple[int, int, int], smallest: int, name: str) -> tuple[int, int, int]:
    """``image_shape`` as a tuple of three positive ints.

    Raises:
        ValueError: if it is no ``(channel, height, width)`` or the image is smaller than the network can take.
    """
    if len(image_shape) != 3 or min(image_shape) < 1:
        raise ValueError(f"image_shape is {image_shape}; expected (channel, height, width), as in (1, 28, 28)")
    channel, height, width = image_shape
    if min(height, width) < smallest:
        raise ValueError(f"images are {height}x{width}; {name} needs at least {smallest}x{smallest}")
    return channel, height, width
