"""Transforming auto-encoder (Hinton, Krizhevsky and Wang, ICANN 2011), and a plain auto-encoder as its control.

::

    image x --> recognition --> presence ----------------------------------------+
                            --> pose --> changed from outside --> generation --> drawing, faded --> sum: image y

Each capsule reads an image or a window of it, estimates the probability and the pose of its entity, and draws its part
of a second image, which is the first image after a change. The network receives the change and applies it only to the
poses, so that poses must follow it. There are no classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import fold, pad, unfold

from capsule_lab.errors import check_choice, check_sizes, check_widths
from capsule_lab.networks.base import (
    CHANGES,
    AbstractPairNetwork,
    Pose,
    Poses,
    Presences,
    TransformedImages,
)
from capsule_lab.shapes import checks_shapes
from capsule_lab.types import Change, ImageBatch

Activation = Literal["sigmoid", "relu"]
OutputBias = Literal["shared", "per_capsule"]


class TransformingAutoencoder(AbstractPairNetwork):
    """Capsules that receive the change between the first and the second image.

    The defaults are the network for translations: 709,474 parameters at 28x28, 732,210 with an output bias per capsule.
    The network for affine changes has ``capsules=25, recognition=(40,), generation=40, pose="matrix"`` and 1,608,850
    parameters with an output bias per capsule; for stereo pairs ``capsules=None, window=11, recognition=(32, 64),
    generation=128, pose="matrix", activation="relu", output_bias="per_capsule"`` and 123,021,000 at 2x96x96.

    Args:
        image_shape: ``(channel, height, width)``.
        capsules: number of capsules, which see the whole image; ``None`` with a ``window``: one capsule per window.
        recognition: units of each recognition layer of a capsule.
        generation: units of the generation layer of a capsule.
        pose: ``"translation"``: two numbers, to which a change ``(right, down)`` in pixels is added; ``"matrix"``: 3x3
            numbers, multiplied from the left by a 3x3 change ``T``.
        activation: activation function of recognition and generation units.
        output_bias: ``"shared"``: one for the image; ``"per_capsule"``: one per drawing, multiplied by the presence.
        window: side in pixels of the window of a capsule; windows cover the image, which is padded with zeros.
        stride: pixels between windows.
        patch: side in pixels of the drawing of a capsule with a window, centred on its window; parts outside the
            image are removed.
        shared: one set of weights for all windows; the paper has one set per window.

    >>> network = TransformingAutoencoder((1, 28, 28))
    >>> sum(p.numel() for p in network.parameters())
    709474
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        *,
        capsules: int | None = 30,  # Hinton 2011, from memory
        recognition: Sequence[int] = (10,),  # Hinton 2011, from memory
        generation: int = 20,  # Hinton 2011, from memory
        pose: Pose = "translation",
        activation: Activation = "sigmoid",  # Hinton 2011, from memory
        output_bias: OutputBias = "shared",
        window: int | None = None,
        stride: int = 3,  # Hinton 2011, from memory, of stereo pairs
        patch: int = 22,  # Hinton 2011, from memory, of stereo pairs
        shared: bool = False,
    ) -> None:
        super().__init__()
        name = "TransformingAutoencoder"
        check_choice("pose", pose, get_args(Pose))
        check_choice("activation", activation, get_args(Activation))
        check_choice("output_bias", output_bias, get_args(OutputBias))
        check_sizes(name, generation=generation, stride=stride, patch=patch)
        check_widths(name, recognition=recognition)
        if not recognition:
            raise ValueError(
                "recognition is empty; expected the units of at least one layer, such as (10,)"
            )
        _check_windows(name, capsules, window, patch)
        channel, height, width = self.set_image_shape(image_shape, window or 1)
        self.pose: Pose = pose
        self.window = window
        self.stride = stride
        self.patch = patch
        self.activation = torch.sigmoid if activation == "sigmoid" else torch.relu
        if window is None:
            self.grid = (1, 1)
            inputs = outputs = channel * height * width
            self.capsules = sets = capsules or 0
        else:
            rows = math.ceil((height - window) / stride) + 1
            columns = math.ceil((width - window) / stride) + 1
            self.grid = (rows, columns)
            inputs = channel * window**2
            outputs = channel * patch**2
            self.capsules = rows * columns
            sets = 1 if shared else self.capsules
        widths = [inputs, *recognition]
        components = math.prod(CHANGES[pose])
        self.recognition = nn.ModuleList(_PerCapsule(sets, *sizes) for sizes in pairwise(widths))
        self.presence = _PerCapsule(sets, widths[-1], 1)
        self.where = _PerCapsule(sets, widths[-1], components)
        self.generation = _PerCapsule(sets, components, generation)
        self.drawing = _PerCapsule(sets, generation, outputs, bias=output_bias == "per_capsule")
        self.bias = nn.Parameter(torch.zeros(self.image_shape)) if output_bias == "shared" else None

    @checks_shapes
    def forward(self, images: ImageBatch, change: Change) -> TransformedImages:
        """Compute the images after ``change``."""
        poses, presences = self.recognise(images)
        transformed = self.generate(self.changed(poses, change), presences)
        return TransformedImages(transformed, poses, presences)

    def recognise(self, images: ImageBatch) -> tuple[Poses, Presences]:
        """Compute poses and presences."""
        self.check_images(images)
        # [k b pixel], k is 1 if all see the whole image
        units = self._windows(images).transpose(0, 1)
        for layer in self.recognition:
            units = self.activation(layer(units))
        poses = self.where(units)
        presences = self.presence(units).sigmoid()
        return poses.transpose(0, 1), presences.squeeze(2).t()

    @checks_shapes
    def changed(
        self,
        poses: Float[Tensor, "batch {self.capsules} {self.where.weight.shape[2]}"],
        change: Change,
    ) -> Poses:
        """Return poses after the change: ``c + (right, down)`` or ``T A``."""
        self.check_change(change)
        if self.pose == "translation":
            return poses + change.unsqueeze(1)
        return (change.unsqueeze(1) @ poses.unflatten(2, (3, 3))).flatten(2)

    @checks_shapes
    def generate(
        self,
        poses: Float[Tensor, "batch {self.capsules} {self.where.weight.shape[2]}"],
        presences: Float[Tensor, "batch {self.capsules}"],
    ) -> ImageBatch:
        """Sum the drawings of capsules with these poses; drawings may be negative."""
        units = self.activation(self.generation(poses.transpose(0, 1)))  # [k b g]
        faded = units * presences.t().unsqueeze(2)
        if self.window is None:  # the sum over capsules is part of the product
            total = faded.transpose(0, 1).flatten(1) @ self.drawing.weight.flatten(0, 1)
            if self.drawing.bias is not None:
                total = total + presences @ self.drawing.bias.squeeze(1)
            images = total.unflatten(1, self.image_shape)
        else:
            drawn = faded @ self.drawing.weight  # [k b pixel]
            if self.drawing.bias is not None:
                drawn = drawn + presences.t().unsqueeze(2) * self.drawing.bias
            images = self._placed(drawn.movedim(0, 2))
        return images if self.bias is None else images + self.bias

    @checks_shapes
    def energies(
        self,
        poses: Float[Tensor, "batch {self.capsules} {self.where.weight.shape[2]}"],
        presences: Float[Tensor, "batch {self.capsules}"],
    ) -> Float[Tensor, "batch capsule"]:
        """Compute the sum of squares of each capsule's drawing."""
        units = self.activation(self.generation(poses.transpose(0, 1)))  # [k b g]
        weight: Tensor = self.drawing.weight
        if self.drawing.bias is not None:
            units = torch.cat([units, torch.ones_like(units[..., :1])], 2)
            weight = torch.cat([weight, self.drawing.bias], 1)
        products = weight @ weight.transpose(1, 2)  # [k g g]
        return presences.square() * ((units @ products) * units).sum(2).t()

    @property
    def padding(self) -> tuple[int, int, int, int]:
        """Zeros added left, right, top and bottom of the image, so that windows cover it."""
        assert self.window is not None
        sides = []
        for side, count in zip(self.image_shape[1:], self.grid, strict=True):
            total = (count - 1) * self.stride + self.window - side
            sides.append((total // 2, total - total // 2))
        (top, bottom), (left, right) = sides
        return left, right, top, bottom

    def _windows(self, images: Tensor) -> Float[Tensor, "batch window pixel"]:
        if self.window is None:
            return images.flatten(1).unsqueeze(1)
        padded = pad(images, self.padding)
        return unfold(padded, self.window, stride=self.stride).transpose(1, 2)

    def _placed(self, patches: Float[Tensor, "batch pixel window"]) -> ImageBatch:
        """Add patches around their windows; patches that cannot be centred extend one pixel more right and below."""
        assert self.window is not None
        _, height, width = self.image_shape
        size = tuple((count - 1) * self.stride + self.patch for count in self.grid)
        canvas = fold(patches, size, self.patch, stride=self.stride)
        left, _, top, _ = self.padding
        beyond = (self.patch - self.window) // 2
        first, start = top + beyond, left + beyond
        return canvas[..., first : first + height, start : start + width]


def _check_windows(owner: str, capsules: int | None, window: int | None, patch: int) -> None:
    """Check that capsules see either the whole image or a window of it."""
    if (capsules is None) == (window is None):
        raise ValueError(
            f"capsules is {capsules} and window is {window}; expected one of the two: a number of capsules that "
            "see the whole image or the size of the window of each"
        )
    if capsules is not None:
        check_sizes(owner, capsules=capsules)
    if window is not None:
        check_sizes(owner, window=window)
        if patch < window:
            raise ValueError(
                f"patch is {patch} and window is {window}; expected a patch at least as large"
            )


class _PerCapsule(nn.Module):
    """One linear layer per capsule, ``(capsule, batch, in)`` to ``(capsule, batch, out)``; one set is shared by all."""

    def __init__(self, capsules: int, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        bound = math.sqrt(6 / (inputs + outputs))  # Glorot and Bengio 2010: initial capsules differ
        self.weight = nn.Parameter(torch.empty(capsules, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(capsules, 1, outputs)) if bias else None

    def forward(
        self, units: Float[Tensor, "seen batch inputs"]
    ) -> Float[Tensor, "capsule batch outputs"]:
        if len(units) == 1 < len(self.weight):  # all capsules see the same input: one product
            joined = units[0] @ self.weight.movedim(0, 1).flatten(1)
            outputs = joined.unflatten(1, (len(self.weight), -1)).transpose(0, 1)
        else:
            outputs = units @ self.weight
        return outputs if self.bias is None else outputs + self.bias


class PairAutoencoder(AbstractPairNetwork):
    """Auto-encoder from an image to a code, and from the code concatenated with the change to the second image.

    Unlike poses, the code need not follow the change. The defaults have 710,434 parameters at 28x28, about as many as
    the transforming auto-encoder for translations.

    Args:
        image_shape: ``(channel, height, width)``.
        code: numbers in the code of an image: 90, as in 30 capsules with two coordinates and a presence.
        hidden: units of the layers between image and code and, in reverse order, between code and image.
        pose: kind of change: ``"translation"`` or ``"matrix"``, see ``TransformingAutoencoder``.

    >>> sum(p.numel() for p in PairAutoencoder((1, 28, 28)).parameters())
    710434
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        *,
        code: int = 90,  # ours: as many as 30 capsules of Hinton 2011
        hidden: Sequence[int] = (405,),  # ours: as many parameters as that network
        pose: Pose = "translation",
    ) -> None:
        super().__init__()
        check_choice("pose", pose, get_args(Pose))
        check_sizes("PairAutoencoder", code=code)
        check_widths("PairAutoencoder", hidden=hidden)
        self.set_image_shape(image_shape)
        self.capsules = 0
        self.pose = pose
        pixels = math.prod(self.image_shape)
        self.encoder = _layers([pixels, *hidden, code])
        self.decoder = _layers([code + math.prod(CHANGES[pose]), *reversed(hidden), pixels])

    @checks_shapes
    def forward(self, images: ImageBatch, change: Change) -> TransformedImages:
        self.check_change(change)
        code, there = self.recognise(images)
        drawing = self.decoder(torch.cat([code.flatten(1), change.flatten(1)], 1))
        return TransformedImages(drawing.unflatten(1, self.image_shape), code, there)

    def recognise(
        self, images: ImageBatch
    ) -> tuple[Float[Tensor, "batch 1 code"], Float[Tensor, "batch 1"]]:
        self.check_images(images)
        code = self.encoder(images.flatten(1)).unsqueeze(1)
        return code, torch.ones_like(code[..., 0])


def _layers(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
