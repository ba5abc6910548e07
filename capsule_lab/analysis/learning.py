"""Why does a network not learn? How smooth its gradient is, what its capsules say of images, how far weights move.

All measuring is done on a copy of the network in float32, in the mode (training or not) that the network is in: its
weights, gradients, running statistics and the random state stay as they are. ``docs/guides/not_learning.md`` says what
the numbers mean.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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

_SLOPE = 0.025  # ours: a (1 - a), the slope of the logistic, a tenth of its largest; below 0.026 and above 0.974
_BYTES_OF_VOTES = 2**26  # ours: 64 MiB, of more votes a part is measured
FAR_BELOW, FAR_ABOVE = 0.01, 100.0  # ours: variance floor over variance of the votes; docs/guides/not_learning.md
FAR_BELOW_NORMALISED = 0.1  # ours: normalised evidence amplifies, cosine 0.50 at 1/13 with two iterations

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class GradientMeasurement:
    """The loss, the length of its gradient, and the cosine between the gradients before and after a small change.

    Of all parameters, the mean over changes; NaN if a gradient is 0.
    """

    loss: float
    norm: float
    cosine: float


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
        changes: how many, all of the same weights.
        seed: of the changes and of dropout.
    """
    check_number("relative_change", relative_change, above=0)
    check_number("changes", changes, 1)
    twin = _float32_copy(network)
    parameters = [each for each in twin.parameters() if each.requires_grad]
    if not parameters:
        raise ValueError(f"{type(network).__name__} has no parameter that is trained; expected one with requires_grad")

    def gradient() -> tuple[float, Tensor]:
        with _reproducible(twin, seed), torch.enable_grad():
            value = loss(twin)
            found = torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
        return float(value.detach()), torch.cat([each.flatten() for each in found]).cpu().double()

    value, before = gradient()
    weights = [each.detach().clone() for each in parameters]
    generator = torch.Generator().manual_seed(seed)
    cosines = []
    for _ in range(changes):
        for parameter, weight in zip(parameters, weights, strict=True):
            noise = torch.randn(weight.shape, generator=generator).to(weight)
            parameter.data = weight * (1 + relative_change * noise)
        _, after = gradient()
        cosines.append(float(before @ after / (before.norm() * after.norm())))
    return GradientMeasurement(value, float(before.norm()), sum(cosines) / changes)


def _float32_copy(network: Network) -> Network:
    twin = copy.deepcopy(network)
    return twin.float() if any(each.dtype in HALF for each in twin.parameters()) else twin


@contextmanager
def _reproducible(network: nn.Module, seed: int) -> Iterator[None]:
    """Full precision, and random numbers from ``seed``; afterwards the random state is what it was."""
    device = next(network.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.autocast(device.type, enabled=False):
        torch.manual_seed(seed)
        yield


@dataclass(frozen=True)
class LayerMeasurement:
    """The capsules of a layer, of a batch of images.

    Attributes:
        pose_std: standard deviation of all components of the poses.
        activation: mean of the activations.
        activation_std: standard deviation of a capsule's activation over images, mean over capsules.
        saturated: percent of the activations on which the logistic is nearly flat, below 0.026 or above 0.974.
        iterations: after each routing iteration, for a routing that calls ``on_iteration``: ``pose_std`` and
            ``coupling_entropy``, 1 is uniform; if the routing reports them, ``activation`` and ``activation_std``.
        votes_variance: see there; ``None`` for a layer without routing.
        min_variance: what the routing adds to each variance; ``None`` if it adds nothing.
        normalised: whether it normalises the evidence for a parent.
    """

    pose_std: float
    activation: float
    activation_std: float
    saturated: float
    iterations: tuple[dict[str, float], ...] = ()
    votes_variance: float | None = None
    min_variance: float | None = None
    normalised: bool = False


def measure_layers(network: AbstractCapsuleNetwork, images: Tensor) -> dict[str, LayerMeasurement]:
    """The capsules of every layer, from the image upwards, and their routing, of more than one image."""
    twin = _float32_copy(network)
    found: dict[str, LayerMeasurement] = {}
    for name, layer in twin.capsule_layers().items():
        _observe(name, layer, found)
    with torch.no_grad(), _reproducible(twin, seed=0):
        twin.forward(images.to(torch.float32 if images.dtype in HALF else images.dtype))
    return {name: found[name] for name in twin.capsule_layers() if name in found}


def _observe(name: str, layer: nn.Module, found: dict[str, LayerMeasurement]) -> None:
    """Let a layer, of a copy of a network, measure itself into ``found`` when it is called."""
    iterations: list[dict[str, float]] = []
    variances: dict[str, Any] = {}
    routing = next((each for each in layer.modules() if isinstance(each, AbstractRouting)), None)

    def measure(_: nn.Module, _arguments: Any, output: Capsules) -> None:
        activations = output.activations
        found[name] = LayerMeasurement(
            pose_std=float(output.poses.std()),
            **_mean_and_spread(activations),
            saturated=100 * float((activations * (1 - activations) < _SLOPE).float().mean()),
            iterations=tuple(iterations),
            **variances,
            normalised=any(isinstance(each, nn.BatchNorm1d) for each in routing.children()) if routing else False,
        )

    def keep_iteration(trace: RoutingTrace) -> None:
        entropy = CouplingEntropy().to(trace.couplings.device)
        entropy.update(trace.couplings)
        found = {} if trace.activations is None else _mean_and_spread(trace.activations)
        iterations.append({"pose_std": float(trace.poses.std()), "coupling_entropy": float(entropy.compute()), **found})

    def keep_variances(_: nn.Module, arguments: Any) -> None:
        votes, *others = arguments
        variances["votes_variance"] = votes_variance(votes, others[0] if others else None)
        variances["min_variance"] = min_variance(routing)  # before this call changes it

    layer.register_forward_hook(measure)
    if "on_iteration" in inspect.signature(layer.forward).parameters:
        layer.register_forward_pre_hook(
            lambda _, arguments, options: (arguments, {**options, "on_iteration": keep_iteration}), with_kwargs=True
        )
    if routing is not None:
        routing.register_forward_pre_hook(keep_variances)


def _mean_and_spread(activations: Float[Tensor, "batch capsule"]) -> dict[str, float]:
    return {"activation": float(activations.mean()), "activation_std": float(activations.std(0).mean())}


def votes_variance(
    votes: Float[Tensor, "batch child parent dim"] | Votes, activations: Float[Tensor, "batch child"] | None = None
) -> float:
    """Median of the variances of the votes for a parent: what EM routing's first M-step finds, without its floor.

    The variance is that of a component over the children, weighted by their activations. The median over images,
    parents and components, as the coordinates that class capsules add are in two components alone. Of more than 64 MiB
    of votes, rows of the batch at equal distances. Without activations, children weigh the same.

    >>> votes = torch.tensor([1.0, 2.0, 3.0, 10.0]).reshape(1, 4, 1, 1)
    >>> round(votes_variance(votes, torch.tensor([[1.0, 1.0, 1.0, 0.0]])), 4)
    0.6667
    """
    given = votes.poses if isinstance(votes, Votes) else votes

    def dense(poses: Tensor) -> Tensor:
        return dense_votes(poses, votes.weight) if isinstance(votes, Votes) else poses

    most = max(1, _BYTES_OF_VOTES // (4 * dense(given[:1]).numel()))
    rows = torch.linspace(0, len(given) - 1, min(most, len(given))).long().to(given.device)
    sample = dense(given[rows])
    present = given.new_ones(sample.shape[:2]) if activations is None else activations[rows].to(sample.dtype)
    weights = present / present.sum(1, keepdim=True).clamp_min(torch.finfo(present.dtype).tiny)  # [b i]
    mean = torch.einsum("bi,bijd->bjd", weights, sample)
    return float(torch.einsum("bi,bijd->bjd", weights, (sample - mean.unsqueeze(1)).square()).median())


def min_variance(routing: AbstractRouting | None) -> float | None:
    """What a routing adds to the variances of votes; ``None`` if it is none with such a floor."""
    return None if routing is None else routing.options.get("min_variance")


def floor_warnings(layers: Mapping[str, LayerMeasurement]) -> list[str]:
    """A message for variance floors far below, and one for those far above, the variance of the votes.

    Far below it, with two or more iterations, the E-step divides squared distances by variances that may be as small as
    the floor, and each iteration multiplies the gradient by that. Far above it all variances are nearly the floor, so
    that activations hardly depend on the votes, unless the evidence is normalised.
    """
    below, above = [], []
    for name, layer in layers.items():
        if layer.votes_variance and layer.min_variance:
            ratio = layer.min_variance / layer.votes_variance
            text = f"{name} ({layer.min_variance:.2g} beside {layer.votes_variance:.2g})"
            if ratio < (FAR_BELOW_NORMALISED if layer.normalised else FAR_BELOW) and len(layer.iterations) > 1:
                below.append(text)
            elif ratio > FAR_ABOVE and not layer.normalised:
                above.append(text)
    floor = "routing.min_variance, the variance floor, is far"
    found = []
    if below:
        found.append(
            f"{floor} below the variance of the votes: {', '.join(below)}; with two or more iterations the gradient is "
            "then chaotic: raise it to about that variance, or make the initial transformations smaller "
            "(model.conv.weight_std, model.classes.weight_std)"
        )
    if above:
        found.append(
            f"{floor} above the variance of the votes: {', '.join(above)}; whether votes agree then hardly changes an "
            "activation: lower it, or normalise the evidence with routing=em_normalised"
        )
    return found


@torch.no_grad()
def relative_steps(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, float]:
    """``|after - before| / |before|`` of each parameter, by the Euclidean norm of all its entries.

    Parameters that are all zero, as biases are at first, are left out.

    >>> before = {"weight": torch.tensor([3.0, 4.0]), "bias": torch.zeros(1)}
    >>> relative_steps(before, {"weight": torch.tensor([3.0, 4.5]), "bias": torch.ones(1)})
    {'weight': 0.1}
    """
    steps = {name: float((after[name].float() - each.float()).norm()) for name, each in before.items()}
    return {name: step / norm for name, step in steps.items() if (norm := float(before[name].float().norm()))}


def quantities(gradient: GradientMeasurement, layers: Mapping[str, LayerMeasurement]) -> dict[str, float]:
    """All numbers by name: ``<quantity>_<layer>``, of an iteration with ``_iteration_<number>``."""
    found = {"loss": gradient.loss, "gradient_norm": gradient.norm, "gradient_cosine": gradient.cosine}
    for name, layer in layers.items():
        found |= {f"{key}_{name}": value for key, value in vars(layer).items() if type(value) is float}
        for number, iteration in enumerate(layer.iterations, start=1):
            found |= {f"{key}_{name}_iteration_{number}": value for key, value in iteration.items()}
    return found
