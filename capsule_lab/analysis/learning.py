"""Why does a network not learn? How smooth its gradient is, what its capsules say of images, how far weights move.

All measuring is done on a copy of the network in float32, in the mode (training or not) that the network is in: its
weights, gradients, running statistics and the random state stay as they are. ``docs/guides/not_learning.md`` says what
the numbers mean.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.errors import check_number
from capsule_lab.functional import HALF, dense_votes
from capsule_lab.metrics import CouplingEntropy
from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.routing import AbstractRouting
from capsule_lab.types import Capsules, RoutingTrace, Votes

_SLOPE = (
    0.025  # ours: a (1 - a), the slope of the logistic, a tenth of its largest; activations below 0.026, above 0.974
)
_BYTES_OF_VOTES = 2**26  # ours: 64 MiB, of more votes a part is measured

Network = TypeVar("Network", bound=nn.Module)


# --- the gradient ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GradientMeasurement:
    """A gradient, and how much of it is left after a small change of the weights.

    Attributes:
        loss: the loss.
        norm: length of the gradient of all parameters.
        cosine: between the gradient and that after a change, both of all parameters, the mean over changes; NaN if one
            of them is 0.
        norms: length of the gradient of each parameter.
    """

    loss: float
    norm: float
    cosine: float
    norms: dict[str, float]


def measure_gradient(
    network: Network,
    loss: Callable[[Network], Tensor],
    *,
    relative_change: float = 0.01,  # ours: about what a step of Adam changes
    changes: int = 4,  # ours: where the gradient is chaotic, cosines after single changes were 0.17 to 0.61
    seed: int = 0,
) -> GradientMeasurement:
    """The gradient, and the cosine between it and the gradient after a random relative change of all weights.

    A gradient that points elsewhere after a change as small as a step of the optimizer cannot be followed. Each weight
    ``w`` becomes ``w (1 + relative_change z)``, z from the standard normal. Dropout draws the same in all passes.

    Args:
        network: in training or in evaluation mode.
        loss: of a network, on one batch: ``lambda network: spread_loss(network(images).scores, labels)``. It must call
            the network that it gets, which is a copy.
        relative_change: standard deviation of the change.
        changes: how many, all of the same weights; their cosines are averaged.
        seed: of the changes and of dropout.

    Raises:
        ValueError: if ``relative_change`` is not above 0, ``changes`` is not 1 or more, or no parameter is trained.
    """
    check_number("relative_change", relative_change, above=0)
    check_number("changes", changes, 1)
    twin = float32_copy(network)
    parameters = {name: each for name, each in twin.named_parameters() if each.requires_grad}
    if not parameters:
        raise ValueError(f"{type(network).__name__} has no parameter that is trained; expected one with requires_grad")
    value, gradient = _gradient(twin, loss, parameters, seed)
    weights = {name: each.detach().clone() for name, each in parameters.items()}
    generator = torch.Generator().manual_seed(seed)
    cosines = []
    for _ in range(changes):
        for name, parameter in parameters.items():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            parameter.data = weights[name] * (1 + relative_change * noise)
        cosines.append(_cosine(gradient, _gradient(twin, loss, parameters, seed)[1]))
    norms = {name: float(each.norm()) for name, each in gradient.items()}
    return GradientMeasurement(value, math.hypot(*norms.values()), sum(cosines) / changes, norms)


def _cosine(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """Between all entries; NaN if one of them is 0."""
    one, other = (torch.cat([each.flatten() for each in tensors.values()]).double() for tensors in (first, second))
    return float(one @ other / (one.norm() * other.norm()))


def _gradient(
    network: Network, loss: Callable[[Network], Tensor], parameters: Mapping[str, Tensor], seed: int
) -> tuple[float, dict[str, Tensor]]:
    """The loss and its gradient, on the CPU, by parameter; nothing is written to ``grad``."""
    with _reproducible(network, seed), torch.enable_grad():
        value = loss(network)
        gradients = torch.autograd.grad(value, [*parameters.values()], allow_unused=True, materialize_grads=True)
    return float(value.detach()), {name: each.float().cpu() for name, each in zip(parameters, gradients, strict=True)}


def float32_copy(network: Network) -> Network:
    """A network of its own with the same weights, half precision as float32."""
    twin = copy.deepcopy(network)
    return twin.float() if any(each.dtype in HALF for each in twin.parameters()) else twin


@contextmanager
def _reproducible(network: nn.Module, seed: int) -> Iterator[None]:
    """Full precision, and random numbers from ``seed``; afterwards the random state is what it was."""
    device = next(network.parameters()).device
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.autocast(device.type, enabled=False):
        torch.manual_seed(seed)
        yield


# --- capsules --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IterationMeasurement:
    """The parents of a layer after one routing iteration.

    Attributes:
        pose_std: standard deviation of all components of their poses.
        coupling_entropy: how evenly their children are shared, 1 is uniform, see ``metrics.CouplingEntropy``; in a
            convolutional layer over the types of a position.
        activation: mean of their activations; ``None`` for a routing that does not say.
        activation_std: standard deviation of a parent's activation over images, and in a convolutional layer over
            positions; mean over parents.
    """

    pose_std: float
    coupling_entropy: float
    activation: float | None = None
    activation_std: float | None = None


@dataclass(frozen=True)
class LayerMeasurement:
    """The capsules of a layer, of a batch of images.

    Attributes:
        pose_std: standard deviation of all components of the poses.
        activation: mean of the activations.
        activation_std: standard deviation of a capsule's activation over images, mean over capsules.
        saturated: percent of the activations on which the logistic is nearly flat, below 0.026 or above 0.974.
        iterations: after each routing iteration, of a routing that calls ``on_iteration``.
        votes_variance: see ``votes_variance``; ``None`` for a layer without routing.
        min_variance: what the layer's routing adds to each variance; ``None`` if it adds nothing.
        normalised: whether the layer's routing normalises the evidence for a parent.
    """

    pose_std: float
    activation: float
    activation_std: float
    saturated: float
    iterations: tuple[IterationMeasurement, ...] = ()
    votes_variance: float | None = None
    min_variance: float | None = None
    normalised: bool = False


def measure_layers(network: AbstractCapsuleNetwork, images: Tensor) -> dict[str, LayerMeasurement]:
    """The capsules of every layer, from the image upwards, and their routing.

    Args:
        network: in training or in evaluation mode.
        images: ``(batch, channel, height, width)``, more than one.
    """
    twin = float32_copy(network)
    observers = {name: _LayerObserver(layer) for name, layer in twin.capsule_layers().items()}
    full = torch.float32 if images.dtype in HALF else images.dtype
    with torch.no_grad(), _reproducible(twin, seed=0):
        twin.forward(images.to(full))
    return {name: observer.measurement() for name, observer in observers.items() if observer.capsules is not None}


class _LayerObserver:
    """Listens to a layer, of a network that nobody else uses."""

    def __init__(self, layer: nn.Module) -> None:
        self.capsules: Capsules | None = None
        self.iterations: list[IterationMeasurement] = []
        self.votes_variance: float | None = None
        self.min_variance: float | None = None
        self.routing = next((each for each in layer.modules() if isinstance(each, AbstractRouting)), None)
        layer.register_forward_hook(self._keep_capsules)
        if "on_iteration" in inspect.signature(layer.forward).parameters:
            layer.register_forward_pre_hook(self._listen, with_kwargs=True)
        if self.routing is not None:
            self.routing.register_forward_pre_hook(self._keep_variances)

    def _keep_capsules(self, layer: nn.Module, arguments: Any, output: Capsules) -> None:
        self.capsules = output

    def _listen(self, layer: nn.Module, arguments: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return arguments, {**options, "on_iteration": self._keep_iteration}

    def _keep_iteration(self, trace: RoutingTrace) -> None:
        entropy = CouplingEntropy().to(trace.couplings.device)
        entropy.update(trace.couplings)
        mean, std = (None, None) if trace.activations is None else mean_and_spread(trace.activations)
        self.iterations.append(IterationMeasurement(float(trace.poses.std()), float(entropy.compute()), mean, std))

    def _keep_variances(self, routing: AbstractRouting, arguments: Any) -> None:
        votes, *others = arguments
        self.votes_variance = votes_variance(votes, others[0] if others else None)
        self.min_variance = min_variance(routing)

    def measurement(self) -> LayerMeasurement:
        assert self.capsules is not None, "the layer was not called"
        activations = self.capsules.activations
        mean, std = mean_and_spread(activations)
        return LayerMeasurement(
            pose_std=float(self.capsules.poses.std()),
            activation=mean,
            activation_std=std,
            saturated=100 * float((activations * (1 - activations) < _SLOPE).float().mean()),
            iterations=tuple(self.iterations),
            votes_variance=self.votes_variance,
            min_variance=self.min_variance,
            normalised=normalises_evidence(self.routing),
        )


def mean_and_spread(activations: Float[Tensor, "batch capsule"]) -> tuple[float, float]:
    """The mean, and the standard deviation of a capsule's activation over the batch, of which the mean is taken."""
    return float(activations.mean()), float(activations.std(0).mean())


def votes_variance(
    votes: Float[Tensor, "batch child parent dim"] | Votes, activations: Float[Tensor, "batch child"] | None = None
) -> float:
    """Median of the variances of the votes for a parent: what EM routing's first M-step finds, without its floor.

    The variance is that of a component over the children, weighted by their activations. The median over images,
    parents and components, as the coordinates that class capsules add are in two components alone. Of more than 64 MiB
    of votes, rows of the batch at equal distances.

    Args:
        votes: the tensor, or poses and weight.
        activations: of the children; ``None`` weighs them equally.

    >>> votes = torch.tensor([1.0, 2.0, 3.0, 10.0]).reshape(1, 4, 1, 1)
    >>> round(votes_variance(votes, torch.tensor([[1.0, 1.0, 1.0, 0.0]])), 4)
    0.6667
    """
    given = votes.poses if isinstance(votes, Votes) else votes
    rows = torch.linspace(0, len(given) - 1, _rows_of_votes(votes)).long().to(given.device)
    sample = dense_votes(given[rows], votes.weight) if isinstance(votes, Votes) else given[rows]
    present = given.new_ones(sample.shape[:2]) if activations is None else activations[rows].to(sample.dtype)
    weights = present / present.sum(1, keepdim=True).clamp_min(torch.finfo(present.dtype).tiny)  # [b i]
    mean = torch.einsum("bi,bijd->bjd", weights, sample)
    return float(torch.einsum("bi,bijd->bjd", weights, (sample - mean.unsqueeze(1)).square()).median())


def _rows_of_votes(votes: Tensor | Votes) -> int:
    """As many rows of the batch as have 64 MiB of votes, one at least."""
    if isinstance(votes, Votes):
        (batch, _, child_dim), (children, inner, parents, columns) = votes.poses.shape, votes.weight.shape
        numbers = children * parents * child_dim // inner * columns
    else:
        batch, numbers = len(votes), votes[0].numel()
    return max(1, min(batch, _BYTES_OF_VOTES // (4 * numbers)))


def min_variance(routing: AbstractRouting | None) -> float | None:
    """What a routing adds to the variances of votes; ``None`` if it is none with such a floor."""
    return None if routing is None else routing.options.get("min_variance")


def normalises_evidence(routing: AbstractRouting | None) -> bool:
    """Whether a routing normalises the evidence for its parents over the batch, before the logistic."""
    return routing is not None and any(isinstance(each, nn.BatchNorm1d) for each in routing.children())


# --- steps of the optimizer ------------------------------------------------------------------------------------------


@torch.no_grad()
def relative_steps(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, float]:
    """``|after - before| / |before|`` of each parameter, by the Euclidean norm of all its entries.

    Parameters that are all zero, as biases are at first, are left out.

    >>> before = {"weight": torch.tensor([3.0, 4.0]), "bias": torch.zeros(1)}
    >>> relative_steps(before, {"weight": torch.tensor([3.0, 4.5]), "bias": torch.ones(1)})
    {'weight': 0.1}
    """
    norms = {name: float(each.float().norm()) for name, each in before.items()}
    return {
        name: float((after[name].float() - before[name].float()).norm()) / norm for name, norm in norms.items() if norm
    }


@dataclass(frozen=True)
class Measurement:
    """Everything that is measured at one training step.

    Attributes:
        step: how many steps the optimizer has made before.
        gradient: see ``measure_gradient``.
        layers: see ``measure_layers``; empty for a network without capsules.
        relative_steps: of the optimizer's next step, see ``relative_steps``.
    """

    step: int
    gradient: GradientMeasurement
    layers: dict[str, LayerMeasurement] = field(default_factory=dict)
    relative_steps: dict[str, float] = field(default_factory=dict)

    def quantities(self) -> dict[str, float]:
        """All numbers by name: ``<quantity>_<layer or parameter>``, of an iteration with ``_iteration_<number>``."""
        found = {
            "loss": self.gradient.loss, "gradient_norm": self.gradient.norm, "gradient_cosine": self.gradient.cosine
        }  # fmt: skip
        for name, layer in self.layers.items():
            found |= _numbers(layer, name)
            for number, iteration in enumerate(layer.iterations, start=1):
                found |= _numbers(iteration, f"{name}_iteration_{number}")
        return found | {f"relative_step_{name}": value for name, value in self.relative_steps.items()}


def _numbers(measurement: LayerMeasurement | IterationMeasurement, name: str) -> dict[str, float]:
    return {f"{key}_{name}": value for key, value in vars(measurement).items() if type(value) is float}
