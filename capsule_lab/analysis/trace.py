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
        children: the capsules below, ``(image, child, …)``, or the children that the layer computes from them. If the
            routing ignores their activations, the lengths of their poses are in their place.
        parents: the capsules of the layer, ``(image, parent, …)``; in a convolutional layer ordered (position, type).
        routing: the routing of the layer.
        given: the votes as passed to the routing.
        present: activations of the children of each row, ``(row, child)``, or lengths as in ``children``; ones for
            children without activations.
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
        shape = (windows.child_count, windows.positions)
        sees = torch.zeros(shape, dtype=torch.bool, device=windows.child.device)
        sees.scatter_(0, windows.child.t(), True)
        types = self.iterations[0].couplings.shape[2]
        return sees[self.inner].repeat_interleave(types, 1)

    @property
    def transformations(self) -> Float[Tensor, "child inner parent columns"] | None:
        """The votes' transformations without the rows for coordinates; ``None`` if the routing received dense votes."""
        if not isinstance(self.given, Votes):
            return None
        votes = self.given
        if votes.plain_poses is None:
            return votes.weight
        plain = votes.plain_poses.shape[2]
        # a pose M becomes [M 1], see functional.add_to_votes
        rows = math.isqrt(votes.poses.shape[2] - plain)
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
            every.scatter_(1, child, by_window)
            by_child = every.transpose(0, 1).flatten(1)  # [child parent]
            images.append(by_child[chosen])
        return torch.stack(images)

    def mass(self, iteration: int = -1) -> Float[Tensor, "image parent"]:
        """Return the mass of each parent of the layer, ``sum_i a_i R_ij``."""
        couplings = self.iterations[iteration].couplings
        mass = torch.einsum("bij,bi->bj", couplings, self.present)
        return mass.reshape(self.parents.activations.shape)


def concatenate(traces: Sequence[LayerTrace]) -> LayerTrace:
    """Concatenate the traces of several batches."""
    first = traces[0]
    votes: list[Any] = [trace.given for trace in traces]
    given: Tensor | Votes
    if isinstance(first.given, Votes):
        given = Votes(*joined(*votes))._replace(weight=first.given.weight)
    else:
        given = torch.cat(votes)

    iterations = []
    for records in zip(*[trace.iterations for trace in traces], strict=True):
        fields = joined(*[record[1:] for record in records])
        iterations.append(RoutingTrace(records[0].iteration, *fields))
    return replace(
        first,
        iterations=tuple(iterations),
        children=Capsules(*joined(*[trace.children for trace in traces])),
        parents=Capsules(*joined(*[trace.parents for trace in traces])),
        given=given,
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


def joined(*records: Sequence[Tensor | None]) -> list[Any]:
    """Concatenate each field of several records; ``None`` for a field that they do not have."""
    fields = zip(*records, strict=True)
    return [None if values[0] is None else torch.cat(values) for values in fields]


class _Below(NamedTuple):
    """The layout of the layer below: the size of its grid, and whether its capsules are ordered by type."""

    height: int = 1
    width: int = 1
    by_type: bool = False


class _LayerHooks:
    """Hooks that record inputs and outputs of a layer and its routing during one call of the network."""

    def __init__(self, layer: nn.Module, routing: AbstractRouting, stack: ExitStack) -> None:
        self.layer = layer
        self.routing = routing
        self.windows = _windows_of(layer)
        self.iterations: list[RoutingTrace] = []
        self.children: tuple[Any, ...] = ()
        self.inputs: tuple[Any, ...] = ()
        self.parents: Capsules
        for hook in (
            layer.register_forward_pre_hook(self._keep_children),
            routing.register_forward_pre_hook(self._keep_inputs, with_kwargs=True),
            layer.register_forward_hook(self._keep_parents),
        ):
            stack.callback(hook.remove)

    def _keep_children(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.children = inputs

    def _keep_parents(self, _: nn.Module, _inputs: tuple[Any, ...], output: Capsules) -> None:
        self.parents = output

    def _keep_inputs(self, _: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self.inputs = inputs
        callback = options.get("on_iteration")

        def on_iteration(trace: RoutingTrace) -> None:
            self.iterations.append(trace)
            if callback is not None:
                callback(trace)

        return inputs, {**options, "on_iteration": on_iteration}

    def trace(self, below: _Below) -> LayerTrace:
        """Return the trace; ``below`` is the layout of the layer below."""
        if not self.iterations:
            raise ValueError(
                f"{type(self.routing).__name__} does not call on_iteration; expected a routing that does after each "
                "iteration"
            )
        votes = self.inputs[0]
        poses_or_votes = votes.poses if isinstance(votes, Votes) else votes
        present = _second(self.inputs)
        poses, activations = self.children[0], _second(self.children)
        if not self.routing.uses_activations and isinstance(votes, Votes):
            # such a network may have activations that nothing uses or trains
            present = votes.child_poses.norm(dim=2)
            activations = poses.norm(dim=2)
        if present is None:
            present = poses_or_votes.new_ones(poses_or_votes.shape[:2])

        child_count = poses_or_votes.shape[1] if self.windows is None else poses.shape[1]
        if activations is None:
            activations = present
        if self.windows is None and present.shape[1] != activations.shape[1]:
            # each child of the routing is computed from several capsules
            poses = votes.child_poses if isinstance(votes, Votes) else votes.flatten(2)
            activations = present
        return LayerTrace(
            iterations=self._completed_iterations(),
            children=Capsules(poses, activations),
            parents=self.parents,
            routing=self.routing,
            given=votes,
            present=present,
            windows=self.windows,
            ring=getattr(self.layer, "padding", 0),
            child_grid=self._child_grid(below, child_count),
        )

    def _completed_iterations(self) -> tuple[RoutingTrace, ...]:
        """The last iteration receives the activations and logits of the layer's output."""
        *before, last = self.iterations
        activations, logits = self.parents.activations, self.parents.logits
        shape = (last.couplings.shape[0], last.couplings.shape[2])
        if logits is not None:
            logits = logits.reshape(shape)
        last = last._replace(activations=activations.reshape(shape), logits=logits)
        return (*before, last)

    def _child_grid(self, below: _Below, child_count: int) -> ChildGrid | None:
        positions = below.height * below.width
        if positions == 1 or child_count % positions:
            return None
        # only dense layers receive capsules by type; other layers reorder them by position
        by_type = below.by_type and isinstance(self.layer, DenseCapsules)
        return ChildGrid(below.height, below.width, child_count // positions, by_type)


def _second(values: tuple[Any, ...]) -> Any:
    return values[1] if len(values) > 1 else None


def _routing_of(layer: nn.Module) -> AbstractRouting | None:
    routings = [module for module in layer.modules() if isinstance(module, AbstractRouting)]
    return routings[0] if routings else None


def _windows_of(layer: nn.Module) -> Windows | None:
    windows = [module for module in layer.children() if isinstance(module, Windows)]
    return windows[0] if windows else None


def _append_size(
    sizes: list[tuple[int, int]], _: nn.Module, _inputs: Any, features: Tensor
) -> None:
    sizes.append((features.shape[2], features.shape[3]))


@torch.no_grad()
def trace(
    network: AbstractCapsuleNetwork, images: Float[Tensor, "batch channel height width"]
) -> tuple[CapsuleOutput, Mapping[str, LayerTrace]]:
    """Return the output for images, and the trace of every layer with routing, by name, from the image upwards.

    The mode of the network does not change; use evaluation mode for analyses.
    """
    hooks: dict[str, _LayerHooks] = {}
    sizes: list[tuple[int, int]] = []
    by_type = False
    with ExitStack() as stack:
        for name, layer in network.capsule_layers().items():
            routing = _routing_of(layer)
            if routing is not None:
                hooks[name] = _LayerHooks(layer, routing, stack)
                continue
            by_type = isinstance(layer, PrimaryCapsules | DepthwisePrimaryCapsules)
            sizes = []  # of the features after each convolution of the last layer without routing
            for module in layer.modules():
                if isinstance(module, nn.Conv2d):
                    hook = module.register_forward_hook(partial(_append_size, sizes))
                    stack.callback(hook.remove)
        output = network.forward(images)  # not the compiled call, which runs no hooks

    below = _Below(*sizes[-1], by_type) if sizes else _Below(by_type=by_type)
    traces = {}
    for name, layer_hooks in hooks.items():
        traces[name] = layer_hooks.trace(below)
        windows = layer_hooks.windows
        below = _Below() if windows is None else _Below(*windows.grid)
    return output, traces
