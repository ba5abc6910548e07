"""Why does a network not learn? Measures of the smoothness of its gradient, of its capsules, and of its weight updates.

All measurements use a copy of the network in float32, in the mode (training or evaluation) of the network: its weights,
gradients, running statistics and the random state do not change. ``docs/guides/not_learning.md`` explains the numbers.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.errors import check_number
from capsule_lab.functional import HALF, dense_votes
from capsule_lab.metrics import coupling_entropy_of
from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.routing import AbstractRouting
from capsule_lab.types import Capsules, RoutingTrace, Votes

# ours: a (1 - a), the slope of the logistic, a tenth of its largest; below 0.026 and above 0.974
_SLOPE = 0.025
_BYTES_OF_VOTES = 2**26  # ours: 64 MiB; of larger votes, a part is measured

# ours: variance floor over variance of the votes; docs/guides/not_learning.md
FAR_BELOW = 0.01
FAR_ABOVE = 100.0
# ours: normalised evidence amplifies, cosine 0.50 at 1/13 with two iterations
FAR_BELOW_NORMALISED = 0.1

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class GradientMeasurement:
    """The loss, the norm of its gradient, and the cosine between the gradients before and after a small change.

    The gradient is that of all parameters; the cosine is the mean over changes, NaN if a gradient is 0.
    """

    loss: float
    norm: float
    cosine: float


def measure_gradient(
    network: Network,
    loss: Callable[[Network], Tensor],
    *,
    relative_change: float = 0.01,  # ours: about what a step of Adam changes
    changes: int = 4,  # ours: with a chaotic gradient, cosines after single changes were 0.17 to 0.61
    seed: int = 0,
) -> GradientMeasurement:
    """Measure the gradient, and its cosine with the gradient after a random relative change of all weights.

    If the gradient changes its direction after a change as small as an optimizer step, descent fails. Each weight ``w``
    becomes ``w (1 + relative_change z)``, with z from the standard normal. Dropout masks are the same in all passes.

    ``loss`` is that of a network on one batch: ``lambda network: spread_loss(network(images).scores, labels)``. It must
    call its argument, which is a copy of ``network``. All ``changes`` are of the original weights; ``seed`` is that of
    the changes and of dropout.
    """
    check_number("relative_change", relative_change, above=0)
    check_number("changes", changes, 1)
    twin = _float32_copy(network)
    parameters = [parameter for parameter in twin.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError(
            f"{type(network).__name__} has no trainable parameter; expected one with requires_grad"
        )

    def gradient() -> tuple[float, Tensor]:
        with _reproducible(twin, seed), torch.enable_grad():
            value = loss(twin)
            gradients = torch.autograd.grad(
                value, parameters, allow_unused=True, materialize_grads=True
            )
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        return float(value.detach()), flat.cpu().double()

    value, before = gradient()
    weights = [parameter.detach().clone() for parameter in parameters]
    generator = torch.Generator().manual_seed(seed)
    cosines = []
    for _ in range(changes):
        for parameter, weight in zip(parameters, weights, strict=True):
            noise = torch.randn(weight.shape, generator=generator).to(weight)
            parameter.data = weight * (1 + relative_change * noise)
        _, after = gradient()
        norms = before.norm() * after.norm()
        cosines.append(float(before @ after / norms))
    return GradientMeasurement(value, float(before.norm()), sum(cosines) / changes)


def _float32_copy(network: Network) -> Network:
    twin = copy.deepcopy(network)
    half = any(parameter.dtype in HALF for parameter in twin.parameters())
    return twin.float() if half else twin


@contextmanager
def _reproducible(network: nn.Module, seed: int) -> Iterator[None]:
    """Use full precision and random numbers from ``seed``; restore the random state afterwards."""
    device = next(network.parameters()).device
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        torch.autocast(device.type, enabled=False),
    ):
        torch.manual_seed(seed)
        yield


@dataclass(frozen=True)
class LayerMeasurement:
    """Statistics of a layer's capsules for a batch of images.

    Attributes:
        pose_std: standard deviation of all components of the poses; NaN if they have none.
        activation: mean of the activations.
        activation_std: standard deviation of a capsule's activation over images, mean over capsules.
        saturated: percentage of activations where the logistic is nearly flat, below 0.026 or above 0.974.
        iterations: after each routing iteration, if the routing calls ``on_iteration``: ``pose_std`` and
            ``coupling_entropy``, 1 is uniform; if the routing reports them, ``activation`` and ``activation_std``.
        votes_variance: see the function ``votes_variance``; ``None`` for a layer without routing.
        min_variance: the variance floor that the routing adds; ``None`` if there is none.
        normalised: whether the routing normalises the evidence for a parent.
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
    """Measure the capsules of every layer and their routing, from the image upwards, for two or more images."""
    twin = _float32_copy(network)
    measurements: dict[str, LayerMeasurement] = {}
    for name, layer in twin.capsule_layers().items():
        _observe(name, layer, len(images), measurements)
    with torch.no_grad(), _reproducible(twin, seed=0):
        twin.forward(images.to(torch.float32 if images.dtype in HALF else images.dtype))
    return {name: measurements[name] for name in twin.capsule_layers() if name in measurements}


def _observe(
    name: str, layer: nn.Module, image_count: int, measurements: dict[str, LayerMeasurement]
) -> None:
    """Register hooks that write a layer's measurement to ``measurements`` when the layer is called."""
    iterations: list[dict[str, float]] = []
    variances: dict[str, Any] = {}
    routings = [module for module in layer.modules() if isinstance(module, AbstractRouting)]
    routing = routings[0] if routings else None
    modules = [] if routing is None else routing.children()
    normalised = any(isinstance(module, nn.BatchNorm1d) for module in modules)

    def measure(_: nn.Module, _arguments: Any, output: Capsules) -> None:
        activations = output.activations
        slopes = activations * (1 - activations)
        measurements[name] = LayerMeasurement(
            pose_std=_pose_std(output.poses),
            **_mean_and_spread(activations),
            saturated=100 * float((slopes < _SLOPE).float().mean()),
            iterations=tuple(iterations),
            **variances,
            normalised=normalised,
        )

    def keep_iteration(trace: RoutingTrace) -> None:
        found = {
            "pose_std": _pose_std(trace.poses),
            "coupling_entropy": float(coupling_entropy_of(trace)),
        }
        if trace.activations is not None:
            # the batch of a convolutional layer's trace is (image, position)
            found |= _mean_and_spread(trace.activations.reshape(image_count, -1))
        iterations.append(found)

    def keep_variances(_: nn.Module, arguments: Any) -> None:
        votes, *others = arguments
        variances["votes_variance"] = votes_variance(votes, others[0] if others else None)
        variances["min_variance"] = min_variance(routing)  # before this call changes it

    def with_on_iteration(_: nn.Module, arguments: Any, options: dict[str, Any]) -> Any:
        return arguments, {**options, "on_iteration": keep_iteration}

    layer.register_forward_hook(measure)
    if "on_iteration" in inspect.signature(layer.forward).parameters:
        layer.register_forward_pre_hook(with_on_iteration, with_kwargs=True)
    if routing is not None:
        routing.register_forward_pre_hook(keep_variances)


def _pose_std(poses: Tensor) -> float:
    """Return the standard deviation of all components; NaN if capsules have no pose."""
    return float(poses.std()) if poses.numel() > 0 else math.nan


def _mean_and_spread(activations: Float[Tensor, "batch capsule"]) -> dict[str, float]:
    return {
        "activation": float(activations.mean()),
        "activation_std": float(activations.std(0).mean()),
    }


def votes_variance(
    votes: Float[Tensor, "batch child parent dim"] | Votes,
    activations: Float[Tensor, "batch child"] | None = None,
) -> float:
    """Return the median variance of the votes for a parent, as in EM routing's first M-step without its floor.

    The variance is that of a component over the children, weighted by their activations (equally without activations).
    It is NaN for votes without components. It is a median over images, parents and components because class capsules
    add coordinates to two components only. If votes exceed 64 MiB, equally spaced rows of the batch are used.

    >>> votes = torch.tensor([1.0, 2.0, 3.0, 10.0]).reshape(1, 4, 1, 1)
    >>> round(votes_variance(votes, torch.tensor([[1.0, 1.0, 1.0, 0.0]])), 4)
    0.6667
    """
    poses = votes.poses if isinstance(votes, Votes) else votes

    def dense(poses: Tensor) -> Tensor:
        return dense_votes(poses, votes.weight) if isinstance(votes, Votes) else poses

    bytes_per_row = 4 * dense(poses[:1]).numel()
    if bytes_per_row == 0:  # self-routing of classes without poses
        return math.nan
    row_count = min(max(1, _BYTES_OF_VOTES // bytes_per_row), len(poses))
    rows = torch.linspace(0, len(poses) - 1, row_count).long().to(poses.device)
    sample = dense(poses[rows])
    present = poses.new_ones(sample.shape[:2])
    if activations is not None:
        present = activations[rows].to(sample.dtype)
    mass = present.sum(1, keepdim=True).clamp_min(torch.finfo(present.dtype).tiny)
    weights = present / mass  # [b i]
    mean = torch.einsum("bi,bijd->bjd", weights, sample)
    squared = (sample - mean.unsqueeze(1)).square()
    variances = torch.einsum("bi,bijd->bjd", weights, squared)
    return float(variances.median())


def min_variance(routing: AbstractRouting | None) -> float | None:
    """Return the variance floor that a routing adds to the variances of votes; ``None`` if there is none."""
    return None if routing is None else routing.options.get("min_variance")


def floor_warnings(layers: Mapping[str, LayerMeasurement]) -> list[str]:
    """Return warnings about variance floors far below or far above the variance of the votes.

    If the floor is far below it, with two or more iterations, the E-step divides squared distances by variances that
    may be as small as the floor, which amplifies the gradient in each iteration. If the floor is far above it, all
    variances are nearly the floor: activations hardly depend on the votes, unless the evidence is normalised.
    """
    below, above = [], []
    for name, layer in layers.items():
        if not layer.votes_variance or not layer.min_variance:
            continue
        ratio = layer.min_variance / layer.votes_variance
        text = f"{name} ({layer.min_variance:.2g} beside {layer.votes_variance:.2g})"
        far_below = FAR_BELOW_NORMALISED if layer.normalised else FAR_BELOW
        if ratio < far_below and len(layer.iterations) > 1:
            below.append(text)
        elif ratio > FAR_ABOVE and not layer.normalised:
            above.append(text)
    floor = "routing.min_variance, the variance floor, is far"
    warnings = []
    if below:
        warnings.append(
            f"{floor} below the variance of the votes: {', '.join(below)}; with two or more iterations the gradient is "
            "then chaotic: raise it to about that variance, or make the initial transformations smaller "
            "(model.conv.weight_std, model.classes.weight_std)"
        )
    if above:
        warnings.append(
            f"{floor} above the variance of the votes: {', '.join(above)}; activations then hardly depend on the "
            "agreement of votes: lower it, or normalise the evidence with routing=em_normalised"
        )
    return warnings


@torch.no_grad()
def relative_steps(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, float]:
    """Return ``|after - before| / |before|`` of each parameter, with the Euclidean norm over all its entries.

    Parameters that are all zero before, such as initial biases, are left out.

    >>> before = {"weight": torch.tensor([3.0, 4.0]), "bias": torch.zeros(1)}
    >>> relative_steps(before, {"weight": torch.tensor([3.0, 4.5]), "bias": torch.ones(1)})
    {'weight': 0.1}
    """
    steps = {}
    for name, value in before.items():
        norm = float(value.float().norm())
        if norm:
            steps[name] = float((after[name].float() - value.float()).norm()) / norm
    return steps


def quantities(
    gradient: GradientMeasurement, layers: Mapping[str, LayerMeasurement]
) -> dict[str, float]:
    """Return all numbers by name: ``<quantity>_<layer>``, for an iteration with the suffix ``_iteration_<number>``."""
    numbers = {
        "loss": gradient.loss,
        "gradient_norm": gradient.norm,
        "gradient_cosine": gradient.cosine,
    }
    for name, layer in layers.items():
        for key, value in vars(layer).items():
            if type(value) is float:
                numbers[f"{key}_{name}"] = value
        for number, iteration in enumerate(layer.iterations, start=1):
            for key, value in iteration.items():
                numbers[f"{key}_{name}_iteration_{number}"] = value
    return numbers
