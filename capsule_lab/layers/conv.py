"""Convolutional capsules: every position sees a window of children, with the same transformations everywhere."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.errors import check_number
from capsule_lab.functional import truncated_normal_
from capsule_lab.layers.normalisers import build_normaliser
from capsule_lab.layers.windows import Windows
from capsule_lab.routing.base import LayerInfo, RoutingFactory, build_routing
from capsule_lab.types import Capsules, OnIteration, Votes


class ConvCapsules(nn.Module):
    """Capsules that route from a window below (Hinton 2018, section 4).

    One transformation per (place in the window, child type, parent type), shared by all positions. Capsules are
    ordered ``(y, x, type)``.

    Args:
        size: ``(height, width)`` of the grid of children.
        child_types: kinds of child per position.
        child_dim: components of their poses.
        parent_types: kinds of capsule per position of this layer.
        parent_dim: components of their poses.
        rows: rows of a pose, when it is a matrix; 1 for a vector.
        kernel_size, stride: of the window.
        padding: rings of children of pose 0 and activation 0 around the grid.
        routing: called with ``(parents=…, dim=…)``, gives the routing of this layer.
        weight_std: standard deviation of the truncated normal that initialises the transformations.

    Attributes:
        windows: the geometry; ``windows.grid`` is the size of this layer.

    Shapes:
        poses ``(batch, h * w * child_types, child_dim)``, activations without the last one ->
        poses ``(batch, h' * w' * parent_types, parent_dim)``, activations.

    Raises:
        ValueError: if the window does not fit into the grid, ``rows`` does not divide the poses, or the routing is
            leaky or without poses.
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
            raise ValueError(f"poses have {child_dim} and {parent_dim} components; expected a multiple of {rows} rows")
        self.size, self.padding = size, padding
        height, width = (n + 2 * padding for n in size)
        self.windows = Windows((height, width), child_types, kernel_size=kernel_size, stride=stride)
        shape = (self.windows.places, child_dim // rows, parent_types, parent_dim // rows)
        self.weight = nn.Parameter(truncated_normal_(torch.empty(shape), weight_std))
        places = self.windows.places
        layer = LayerInfo(parent_types, parent_dim, places, child_dim, shared=True, child_types=places)
        self.routing = build_routing(routing, layer)
        if self.routing.leaky:
            raise ValueError("routing.leaky is true; expected false: convolutional capsules have no leaky softmax")
        if not self.routing.poses:
            raise ValueError(
                "routing.poses is false; expected true, since capsules above read the poses of convolutional ones; "
                "class capsules may go without: class_routing.poses=false"
            )

    def forward(
        self,
        poses: Float[Tensor, "batch child dim"],
        activations: Float[Tensor, "batch child"],
        *,
        on_iteration: OnIteration | None = None,
    ) -> Capsules:
        """Capsules of this layer; ``on_iteration`` sees windows as its batch, ordered (image, position)."""
        if self.padding:
            poses, activations = self._padded(poses), self._padded(activations.unsqueeze(2)).squeeze(2)
        parents = self.routing(
            Votes(self.windows.poses(poses), self.weight),
            self.windows.activations(activations),
            normalise=build_normaliser(self.routing.normalisation, self.windows),
            on_iteration=on_iteration,
        )
        by_image = len(poses), self.windows.positions * parents.poses.shape[1]
        poses = parents.poses.reshape(*by_image, parents.poses.shape[2])
        logits = None if parents.logits is None else parents.logits.reshape(by_image)
        return Capsules(poses, parents.activations.reshape(by_image), logits)

    def _padded(self, values: Float[Tensor, "batch child dim"]) -> Float[Tensor, "batch padded dim"]:
        ring = self.padding
        grid = values.unflatten(1, (*self.size, self.windows.types))  # [b h w type dim]
        return nn.functional.pad(grid, (0, 0, 0, 0, ring, ring, ring, ring)).flatten(1, 3)
