"""Convolutional capsules: every position sees a window of children; positions share the transformations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.errors import check_number, check_widths
from capsule_lab.functional import truncated_normal_
from capsule_lab.layers.normalisers import build_normaliser
from capsule_lab.layers.windows import Windows
from capsule_lab.routing.base import LayerInfo, RoutingFactory, build_routing
from capsule_lab.shapes import checks_shapes
from capsule_lab.types import Capsules, ChildActivations, ChildPoses, OnIteration, Votes


class ConvCapsules(nn.Module):
    """Capsules that route from windows of the layer below (Hinton 2018, section 4).

    All positions share one transformation per (place in the window, child type, parent type). Capsules are ordered
    ``(y, x, type)``.

    Args:
        size: ``(height, width)`` of the grid of children.
        child_types, parent_types: kinds of capsule per position in the layer below and in this layer.
        child_dim, parent_dim: components of their poses.
        rows: rows of a pose if it is a matrix; 1 for a vector.
        kernel_size, stride: size and stride of the window.
        padding: number of rings of children with pose 0 and activation 0 around the grid.
        routing: builds the routing of this layer; called with ``(parents=…, dim=…)``.
        weight_std: standard deviation of the truncated normal that initialises the transformations.

    Attributes:
        windows: geometry of the layer; ``windows.grid`` is its size.

    Shapes:
        poses ``(batch, h * w * child_types, child_dim)``, activations without the last dimension ->
        poses ``(batch, h' * w' * parent_types, parent_dim)``, activations.
    """

    def __init__(
        self,
        size: tuple[int, int],
        child_types: int,
        child_dim: int,
        parent_types: int,
        parent_dim: int,
        *,
        routing: RoutingFactory,
        rows: int = 1,
        kernel_size: int = 3,  # Hinton 2018, figure 1
        stride: int = 1,
        padding: int = 0,
        weight_std: float = 0.1,  # official code, fast
    ) -> None:
        super().__init__()
        check_number("padding", padding, 0)
        if child_dim % rows or parent_dim % rows:
            raise ValueError(
                f"poses have {child_dim} and {parent_dim} components; expected a multiple of {rows} rows"
            )
        height, width = size
        self.size = size
        self.padding = padding
        self.child_count = height * width * child_types
        self.child_dim = child_dim
        padded = (height + 2 * padding, width + 2 * padding)
        self.windows = Windows(padded, child_types, kernel_size=kernel_size, stride=stride)
        places = self.windows.places
        shape = (places, child_dim // rows, parent_types, parent_dim // rows)
        self.weight = nn.Parameter(truncated_normal_(torch.empty(shape), weight_std))
        layer = LayerInfo(
            parent_types, parent_dim, places, child_dim, shared=True, child_types=places
        )
        self.routing = build_routing(routing, layer)
        if self.routing.leaky:
            raise ValueError(
                "routing.leaky is true; expected false: convolutional capsules have no leaky softmax"
            )
        if not self.routing.poses:
            raise ValueError(
                "routing.poses is false; expected true, since the next layer reads poses of convolutional capsules; "
                "only class capsules may have no poses: class_routing.poses=false"
            )

    @checks_shapes
    def forward(
        self,
        poses: Float[Tensor, "batch {self.child_count} {self.child_dim}"],
        activations: Float[Tensor, "batch {self.child_count}"],
        *,
        on_iteration: OnIteration | None = None,
    ) -> Capsules:
        """Compute the capsules of this layer; the batch of ``on_iteration`` is windows, ordered (image, position)."""
        if self.padding:
            poses = self._padded(poses)
            activations = self._padded(activations.unsqueeze(2)).squeeze(2)
        parents = self.routing(
            Votes(self.windows.poses(poses), self.weight),
            self.windows.activations(activations),
            normalise=build_normaliser(self.routing.normalisation, self.windows),
            on_iteration=on_iteration,
        )
        by_image = poses.shape[0], self.windows.positions * parents.poses.shape[1]
        poses = parents.poses.reshape(*by_image, parents.poses.shape[2])
        logits = None if parents.logits is None else parents.logits.reshape(by_image)
        return Capsules(poses, parents.activations.reshape(by_image), logits)

    def _padded(self, values: ChildPoses) -> Float[Tensor, "batch padded dim"]:
        ring = self.padding
        grid = values.unflatten(1, (*self.size, self.windows.types))  # [b h w type dim]
        return nn.functional.pad(grid, (0, 0, 0, 0, ring, ring, ring, ring)).flatten(1, 3)


class ConvStack(nn.ModuleList):
    """Stack of ``ConvCapsules`` layers with poses of one size.

    Args:
        grid: ``(height, width)`` of the children of the first layer.
        child_types: kinds of these children per position.
        dim: components of all poses.
        types: kinds of capsule per position of each layer; empty for no layers.
        strides: stride of the windows of each layer.
        kernel_size: width of all windows.
        rows, routing: see ``ConvCapsules``.
        weight_std: see ``ConvCapsules``; for vectors (one row) it is divided by the fourth root of ``dim``, so that
            votes are as large as with matrices.
        initialise: called with the transformations of each layer to initialise them differently.

    Attributes:
        grid: ``(height, width)`` of the last layer.
        types: kinds of capsule per position in the last layer.
        kernels: kernel and stride of each layer.
    """

    def __init__(
        self,
        grid: tuple[int, int],
        child_types: int,
        dim: int,
        *,
        routing: RoutingFactory,
        rows: int = 1,
        types: Sequence[int] = (32, 32),  # Hinton 2018, section 4
        strides: Sequence[int] = (2, 1),  # Hinton 2018, section 4
        kernel_size: int = 3,  # Hinton 2018, section 4
        weight_std: float = 0.1,  # official code, fast
        initialise: Callable[[nn.Parameter], None] | None = None,
    ) -> None:
        super().__init__()
        check_widths(
            "the stack of convolutional capsules",
            types=types,
            strides=strides,
            kernel_size=[kernel_size],
        )
        check_number("weight_std", weight_std, above=0)
        if len(types) != len(strides):
            raise ValueError(
                f"there are {len(types)} types and {len(strides)} strides; expected equal numbers"
            )
        if rows == 1:
            weight_std = weight_std * dim**-0.25
        self.grid = grid
        self.types = child_types
        self.kernels = tuple((kernel_size, stride) for stride in strides)
        for parent_types, stride in zip(types, strides, strict=True):
            layer = ConvCapsules(
                self.grid,
                self.types,
                dim,
                parent_types,
                dim,
                routing=routing,
                rows=rows,
                kernel_size=kernel_size,
                stride=stride,
                weight_std=weight_std,
            )
            if initialise is not None:
                initialise(layer.weight)
            self.append(layer)
            self.grid = layer.windows.grid
            self.types = parent_types

    @checks_shapes
    def forward(self, poses: ChildPoses, activations: ChildActivations) -> Capsules:
        capsules = Capsules(poses, activations)
        for layer in self:
            capsules = layer(capsules.poses, capsules.activations)
        return capsules
