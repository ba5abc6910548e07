"""Everything that routing did with a batch of images, layer by layer, on request only.

A network is watched from outside, by hooks that are removed afterwards: what nobody asks for costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.layers.windows import Windows
from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.routing import AbstractRouting
from capsule_lab.types import CapsuleOutput, Capsules, RoutingTrace, Votes


@dataclass(frozen=True)
class LayerTrace:
    """The routing of one layer, for a batch of images.

    A row is an image; in a convolutional layer a window, ordered (image, position), as routing sees them.

    Attributes:
        iterations: what the routing said after each iteration; the last has activations and logits in any case.
        children: the capsules below, ``(image, child, …)``.
        parents: the capsules of the layer, ``(image, parent, …)``; of a convolutional layer ordered (position, type).
        routing: of the layer.
        given: votes as the routing got them.
        present: activations of the children of each row, ``(row, child)``; ones for children without any.
        windows: which children each position sees; ``None`` where every parent sees every child.
    """

    iterations: tuple[RoutingTrace, ...]
    children: Capsules
    parents: Capsules
    routing: AbstractRouting
    given: Tensor | Votes
    present: Float[Tensor, "row child"]
    windows: Windows | None

    @torch.no_grad()
    def votes(self) -> Float[Tensor, "row child parent dim"]:
        """The votes, coordinates and biases included, computed at every call."""
        return self.routing.counted_votes(self.given, self.present)

    def couplings(self, iteration: int = -1) -> Float[Tensor, "image child parent"]:
        """Share of each child of the layer below that goes to each parent of the layer, of all positions.

        0 for the parents whose window a child is not in.

        Args:
            iteration: index into ``iterations``.
        """
        found = self.iterations[iteration].couplings  # [row place type]
        if self.windows is None:
            return found
        windows = self.windows
        by_window = found.unflatten(0, (-1, windows.positions))  # [image position place type]
        images, positions, _, types = by_window.shape
        every = found.new_zeros(images, positions, windows.child_count, types)
        child = windows.child.unsqueeze(2).expand(images, -1, -1, types)  # [image position place type]
        return every.scatter_(2, child, by_window).transpose(1, 2).flatten(2)


class _Listener:
    """Hears one layer and its routing in one call of the network."""

    def __init__(self, layer: nn.Module, routing: AbstractRouting, stack: ExitStack) -> None:
        self.routing = routing
        self.windows = next((each for each in layer.children() if isinstance(each, Windows)), None)
        self.iterations: list[RoutingTrace] = []
        self.inputs: tuple[Any, ...] = ()
        self.children: tuple[Any, ...] = ()
        self.parents: Capsules | None = None
        stack.callback(routing.register_forward_pre_hook(self._hear_routing, with_kwargs=True).remove)
        stack.callback(layer.register_forward_pre_hook(self._hear_children).remove)
        stack.callback(layer.register_forward_hook(self._hear_parents).remove)

    def _hear_routing(self, _: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self.inputs = inputs
        asked = options.get("on_iteration")

        def on_iteration(trace: RoutingTrace) -> None:
            self.iterations.append(trace)
            if asked is not None:
                asked(trace)

        return inputs, {**options, "on_iteration": on_iteration}

    def _hear_children(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.children = inputs

    def _hear_parents(self, _: nn.Module, __: tuple[Any, ...], output: Capsules) -> None:
        self.parents = output

    def trace(self) -> LayerTrace:
        assert self.parents is not None
        if not self.iterations:
            name = type(self.routing).__name__
            raise ValueError(f"{name} does not call on_iteration; expected a routing that does after each iteration")
        votes, *others = self.inputs
        poses, *activations = self.children
        given = votes.poses if isinstance(votes, Votes) else votes
        present = others[0] if others and others[0] is not None else given.new_ones(given.shape[:2])
        of_children = activations[0] if activations and activations[0] is not None else present
        *before, last = self.iterations
        if last.activations is None:
            rows = last.couplings.shape[0], last.couplings.shape[2]
            logits = None if self.parents.logits is None else self.parents.logits.view(rows)
            last = last._replace(activations=self.parents.activations.view(rows), logits=logits)
        return LayerTrace(
            iterations=(*before, last),
            children=Capsules(poses, of_children),
            parents=self.parents,
            routing=self.routing,
            given=votes,
            present=present,
            windows=self.windows,
        )


@torch.no_grad()
def trace(
    network: AbstractCapsuleNetwork, images: Float[Tensor, "batch channel height width"]
) -> tuple[CapsuleOutput, Mapping[str, LayerTrace]]:
    """What the network says of images, and what every layer that routes did, by name, from the image upwards.

    Args:
        network: in the mode that it is in; analyses are made in evaluation mode.
        images: as the network expects them.

    Raises:
        ValueError: for a routing that does not call ``on_iteration``.
    """
    with ExitStack() as stack:
        listeners = {
            name: _Listener(layer, routing, stack)
            for name, layer in network.capsule_layers().items()
            for routing in layer.modules()
            if isinstance(routing, AbstractRouting)
        }
        output = network.forward(images)  # not the compiled call, which runs no hooks
    return output, {name: listener.trace() for name, listener in listeners.items()}
