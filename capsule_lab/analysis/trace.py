"""Records of the routing of a batch of images, layer by layer.

Forward hooks record it and are removed afterwards: without a trace, a network has no additional cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from capsule_lab.layers import DenseCapsules, PrimaryCapsules
from capsule_lab.layers.primary import DepthwisePrimaryCapsules
from capsule_lab.layers.windows import Windows
from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.routing import AbstractRouting
from capsule_lab.types import CapsuleOutput, Capsules, RoutingTrace, Votes


class ChildGrid(NamedTuple):
    """The layout of a layer's children: a grid of positions, and the number of capsule types at each.

    With ``by_type``, capsules are ordered (type, y, x); otherwise (y, x, type).
    """

    height: int
    width: int
    types: int
    by_type: bool

    @property
    def type_of_child(self) -> Int64[Tensor, " child"]:
        """The type of each child, from 0."""
        child = torch.arange(self.types * self.height * self.width)
        return child // (self.height * self.width) if self.by_type else child % self.types

    def at_positions(
        self, values: Float[Tensor, "*shape child"]
    ) -> Float[Tensor, "*shape type height width"]:
        """Arrange values of the children on a grid for each type."""
        if self.by_type:
            return values.unflatten(-1, (self.types, self.height, self.width))
        return values.unflatten(-1, (self.height, self.width, self.types)).movedim(-1, -3)


@dataclass(frozen=True)
class LayerTrace:
    """The routing of one layer, for a batch of images.

    A row is an image or, in a convolutional layer, a window, ordered (image, position), as in the routing's input.

    Attributes:
        iterations: the trace of each iteration; the last always has activations and logits.
        children: the capsules below, ``(image, child, …)``, or the children that the layer computes from them.
        parents: the capsules of the layer, ``(image, parent, …)``; in a convolutional layer ordered (position, type).
        routing: the routing of the layer.
        given: the votes as passed to the routing.
        present: activations of the children of each row, ``(row, child)``; ones for children without activations.
        windows: which children each position sees; ``None`` if every parent sees every child.
        ring: number of rings of padding (children with activation 0), which ``windows`` includes.
        child_grid: the layout of the children; ``None`` if the layer below has no positions.
    """

    iterations: tuple[RoutingTrace, ...]
    children: Capsules
    parents: Capsules
    routing: AbstractRouting
    given: Tensor | Votes
    present: Float[Tensor, "row child"]
    windows: Windows | None
    ring: int
    child_grid: ChildGrid | None

    @property
    def inner(self) -> Int64[Tensor, " child"] | None:
        """The children of ``windows`` that are not padding; ``None`` if every parent sees every child."""
        if self.windows is None:
            return None
        height, width = self.windows.size
        every = torch.arange(self.windows.child_count, device=self.windows.child.device)
        grid = every.view(height, width, self.windows.types)
        return grid[self.ring : height - self.ring, self.ring : width - self.ring].flatten()

    def seen(self) -> Bool[Tensor, "child parent"] | None:
        """Return which parents see a child and compete for it; ``None`` if all do."""
        if self.windows is None:
            return None
        windows = self.windows
        sees = torch.zeros(
            windows.child_count, windows.positions, dtype=torch.bool, device=windows.child.device
        )
        sees.scatter_(0, windows.child.t(), True)
        return sees[self.inner].repeat_interleave(self.iterations[0].couplings.shape[2], 1)

    @property
    def transformations(self) -> Float[Tensor, "child inner parent columns"] | None:
        """The votes' transformations without the rows for coordinates; ``None`` if the routing received dense votes."""
        if not isinstance(self.given, Votes):
            return None
        votes = self.given
        if votes.plain_poses is None:
            return votes.weight
        plain = votes.plain_poses.shape[2]
        rows = math.isqrt(
            votes.poses.shape[2] - plain
        )  # see functional.add_to_votes: a pose M becomes [M 1]
        return votes.weight[:, : plain // rows]

    @torch.no_grad()
    def votes(self) -> Float[Tensor, "row child parent dim"]:
        """Compute the votes, coordinates and biases included."""
        return self.routing.counted_votes(self.given, self.present)

    def couplings(
        self, iteration: int = -1, children: Int64[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "image chosen parent"]:
        """Return the couplings of each child of the layer below with the layer's parents at all positions.

        They are 0 for parents whose window does not contain the child. ``children`` selects some of a large layer's.
        """
        couplings = self.iterations[iteration].couplings  # [row place type]
        if self.windows is None:
            return couplings if children is None else couplings[:, children]
        windows, inner = self.windows, self.inner
        types = couplings.shape[2]
        chosen = inner if children is None or inner is None else inner[children]
        child = windows.child.unsqueeze(2).expand(-1, -1, types)  # [position place type]
        images = []
        for by_window in couplings.split(windows.positions):
            every = couplings.new_zeros(windows.positions, windows.child_count, types)
            by_child = (
                every.scatter_(1, child, by_window).transpose(0, 1).flatten(1)
            )  # [child parent]
            images.append(by_child[chosen])
        return torch.stack(images)

    def mass(self, iteration: int = -1) -> Float[Tensor, "image parent"]:
        """Return the mass of each parent of the layer, ``sum_i a_i R_ij``."""
        couplings = self.iterations[iteration].couplings
        return torch.einsum("bij,bi->bj", couplings, self.present).reshape(
            self.parents.activations.shape
        )


def concatenate(traces: Sequence[LayerTrace]) -> LayerTrace:
    """Concatenate the traces of several batches."""
    first = traces[0]
    votes: list[Any] = [trace.given for trace in traces]
    inputs = (
        Votes(*joined(*votes))._replace(weight=votes[0].weight)
        if isinstance(first.given, Votes)
        else torch.cat(votes)
    )
    numbered = zip(*(trace.iterations for trace in traces), strict=True)
    iterations = (
        RoutingTrace(same[0].iteration, *joined(*(record[1:] for record in same)))
        for same in numbered
    )
    return replace(
        first,
        iterations=tuple(iterations),
        children=Capsules(*joined(*(trace.children for trace in traces))),
        parents=Capsules(*joined(*(trace.parents for trace in traces))),
        given=inputs,
        present=torch.cat([trace.present for trace in traces]),
    )


def joined_outputs(outputs: Sequence[CapsuleOutput]) -> CapsuleOutput:
    """Concatenate a network's outputs for several batches."""
    scores, capsules, logits = zip(*outputs, strict=True)
    return CapsuleOutput(
        torch.cat(scores),
        None if capsules[0] is None else Capsules(*joined(*capsules)),
        None if logits[0] is None else torch.cat(logits),
    )


def joined(*records: Sequence[Tensor | None]) -> Any:
    """Concatenate each field of several records; ``None`` for a field that they do not have."""
    return [
        None if column[0] is None else torch.cat(column) for column in zip(*records, strict=True)
    ]


class _LayerHooks:
    """Hooks that record inputs and outputs of a layer and its routing during one call of the network."""

    def __init__(self, layer: nn.Module, routing: AbstractRouting, stack: ExitStack) -> None:
        self.layer, self.routing = layer, routing
        self.windows = next(
            (module for module in layer.children() if isinstance(module, Windows)), None
        )
        self.iterations: list[RoutingTrace] = []
        self.kept: dict[str, Any] = {}
        stack.callback(
            routing.register_forward_pre_hook(self._keep_inputs, with_kwargs=True).remove
        )
        stack.callback(
            layer.register_forward_pre_hook(
                lambda _, inputs: self.kept.update(children=inputs)
            ).remove
        )
        stack.callback(
            layer.register_forward_hook(
                lambda _, __, output: self.kept.update(parents=output)
            ).remove
        )

    def _keep_inputs(self, _: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self.kept["inputs"] = inputs
        callback = options.get("on_iteration")

        def on_iteration(trace: RoutingTrace) -> None:
            self.iterations.append(trace)
            if callback is not None:
                callback(trace)

        return inputs, {**options, "on_iteration": on_iteration}

    def trace(self, below: tuple[tuple[int, int], bool]) -> LayerTrace:
        """Return the trace; ``below`` is the layer below: its grid size, and whether it is ordered by type."""
        if not self.iterations:
            name = type(self.routing).__name__
            raise ValueError(
                f"{name} does not call on_iteration; expected a routing that does after each iteration"
            )
        votes, *others = self.kept["inputs"]
        poses, *activations = self.kept["children"]
        parents: Capsules = self.kept["parents"]
        poses_or_votes = votes.poses if isinstance(votes, Votes) else votes
        (height, width), by_type = below
        children = poses_or_votes.shape[1] if self.windows is None else poses.shape[1]
        child_grid = None
        if (height, width) != (1, 1) and children % (height * width) == 0:
            by_type = by_type and isinstance(
                self.layer, DenseCapsules
            )  # other layers receive them by position
            child_grid = ChildGrid(height, width, children // (height * width), by_type)
        present = (
            others[0]
            if others and others[0] is not None
            else poses_or_votes.new_ones(poses_or_votes.shape[:2])
        )
        of_children = activations[0] if activations and activations[0] is not None else present
        if (
            self.windows is None and present.shape[1] != of_children.shape[1]
        ):  # computed from several capsules
            poses, of_children = (
                votes.child_poses if isinstance(votes, Votes) else votes.flatten(2),
                present,
            )
        *before, last = self.iterations
        rows = last.couplings.shape[0], last.couplings.shape[2]
        logits = None if parents.logits is None else parents.logits.reshape(rows)
        last = last._replace(activations=parents.activations.reshape(rows), logits=logits)
        return LayerTrace(
            iterations=(*before, last),
            children=Capsules(poses, of_children),
            parents=parents,
            routing=self.routing,
            given=votes,
            present=present,
            windows=self.windows,
            ring=getattr(self.layer, "padding", 0),
            child_grid=child_grid,
        )


@torch.no_grad()
def trace(
    network: AbstractCapsuleNetwork, images: Float[Tensor, "batch channel height width"]
) -> tuple[CapsuleOutput, Mapping[str, LayerTrace]]:
    """Return the output for images, and the trace of every layer with routing, by name, from the image upwards.

    The mode of the network does not change; use evaluation mode for analyses.
    """
    hooks: dict[str, _LayerHooks] = {}
    sizes, by_type = [(1, 1)], False
    with ExitStack() as stack:
        for name, layer in network.capsule_layers().items():
            routing = next(
                (module for module in layer.modules() if isinstance(module, AbstractRouting)), None
            )
            if routing is not None:
                hooks[name] = _LayerHooks(layer, routing, stack)
                continue
            sizes, by_type = [(1, 1)], isinstance(layer, PrimaryCapsules | DepthwisePrimaryCapsules)
            for conv in (module for module in layer.modules() if isinstance(module, nn.Conv2d)):
                keep = partial(
                    lambda sizes, _, __, features: sizes.append((*features.shape[2:],)), sizes
                )
                stack.callback(conv.register_forward_hook(keep).remove)
        output = network.forward(images)  # not the compiled call, which runs no hooks
    traces, below = {}, (sizes[-1], by_type)
    for name, hook in hooks.items():
        traces[name] = hook.trace(below)
        below = ((1, 1) if hook.windows is None else hook.windows.grid, False)
    return output, traces
