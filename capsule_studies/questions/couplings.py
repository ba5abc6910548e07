"""Do children choose a parent, does the choice depend on the image, and does it affect the error?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from capsule_lab.analysis.equal_couplings import equal_couplings
from capsule_lab.analysis.plotting import label_log_axis, panels, sequential_colours
from capsule_lab.analysis.trace import LayerTrace
from capsule_lab.errors import check_number
from capsule_lab.routing import AbstractRouting, DynamicRouting
from capsule_studies.measures import couplings as measures
from capsule_studies.names import prefixed
from capsule_studies.subject import Answer, Subject, error_percent, question

# ours: 256 MiB of couplings; of larger layers, equally spaced children are measured
_ENTRIES = 2**26
_BINS = 50  # ours
_NARROWEST = 1e-6  # ours: couplings in float32 within a smaller range are equal


@question()
def couplings(subject: Subject, *, iterations: int | None = None) -> Answer:
    """Measure couplings (entropy, T-score, D-score, static share, class information, starvation) and the routing gain.

    See ``capsule_studies.measures.couplings`` for definitions. Measures are per layer and iteration; D-scores are
    those of hidden layers, whose activations no loss separates. ``class_information_of_shuffled_labels`` is the level
    of chance; ``<layer>/gradient_norm`` is the norm of the first batch's cross-entropy gradient by the layer's weights.
    The routing gain is the error with equal couplings minus the network's error. Means over all routing layers after
    the last iteration: ``t_score``, ``routing_std``; over hidden layers: ``d_score``, ``dead_share``.

    Args:
        iterations: routing iterations in place of those of training; Sabour 2017, appendix A, uses ten.
    """
    with _iterations(subject.network, iterations):
        subject = replace(subject)  # drops cached traces
        numbers: dict[str, float] = {}
        last_iterations = []
        for name, layer in subject.traces.items():
            numbers |= prefixed(name, of_layer(layer, subject))
            last_iterations.append(f"{name}/{len(layer.iterations)}")
        *hidden_layers, last_layer = subject.traces
        numbers.pop(f"{last_layer}/d_score")
        for name, norm in _gradient_norms(subject).items():
            numbers[f"{name}/gradient_norm"] = norm
        for key in ("t_score", "routing_std"):
            numbers[key] = _mean(numbers, last_iterations, key)
        for key in ("d_score", "dead_share"):
            numbers[key] = _mean(numbers, hidden_layers, key)
        error = error_percent(subject.outputs(), subject.labels)
        equal = math.nan  # of a routing without equal couplings
        with suppress(ValueError), equal_couplings(subject.network):
            equal = error_percent(subject.outputs(), subject.labels)
        numbers["error"] = error
        numbers["error_with_equal_couplings"] = equal
        numbers["routing_gain"] = equal - error
    return Answer(numbers, draw=partial(_figures, subject.traces))


def _mean(numbers: Mapping[str, float], prefixes: Sequence[str], key: str) -> float:
    """Return the mean of ``<prefix>/<key>``; NaN if there are no prefixes."""
    values = [numbers[f"{prefix}/{key}"] for prefix in prefixes]
    return sum(values) / len(values) if values else math.nan


@contextmanager
def _iterations(network: nn.Module, iterations: int | None) -> Iterator[None]:
    if iterations is None:
        yield
        return
    check_number("iterations", iterations, 1)
    with ExitStack() as stack:
        for routing in network.modules():
            if not isinstance(routing, AbstractRouting):
                continue
            if "iterations" not in routing.scheduled:
                name = type(routing).__name__
                raise ValueError(
                    f"iterations is {iterations}, but {name} has none; expected null, or another network"
                )
            options = routing.scheduled_options()
            stack.callback(options.update, iterations=options["iterations"])
            options["iterations"] = iterations
        yield


def _gradient_norms(subject: Subject) -> dict[str, float]:
    """Return gradient norms by capsule layer, from the image upwards; NaN for a layer without weights."""
    network, batch = subject.network, subject.batches[0]
    norms = {}
    with torch.enable_grad():
        ranking = network.forward(batch.images).ranking
        loss = torch.nn.functional.cross_entropy(ranking, batch.labels)
        for name, layer in network.capsule_layers().items():
            weights = [parameter for parameter in layer.parameters() if parameter.requires_grad]
            if not weights:
                norms[name] = math.nan
                continue
            gradients = torch.autograd.grad(
                loss, weights, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            squares = 0.0
            for gradient in gradients:
                squares += float(gradient.double().square().sum())
            norms[name] = math.sqrt(squares)
    return norms


def of_layer(layer: LayerTrace, subject: Subject) -> dict[str, float]:
    """Return all measures of one layer, by ``<quantity>`` or ``<iteration>/<quantity>``."""
    couplings, activations, seen = _measured_children(layer)
    numbers: dict[str, Tensor | float] = {}
    before: Tensor | None = None
    routing = layer.routing
    adds = isinstance(routing, DynamicRouting) and routing.options["update"] == "add"
    numbered = enumerate(zip(layer.iterations, couplings, strict=True), start=1)
    for number, (iteration, shares) in numbered:
        measured = _of_couplings(shares, activations, seen, subject)
        mass = layer.mass(number - 1)
        measured["starved_share"] = measures.starved_share(mass)
        measured |= measures.count_trees(shares, subject.labels)
        if routing.competing == "children":  # their couplings do not sum to one for a child
            measured |= dict.fromkeys(("entropy", "weighted_entropy", "t_score"), math.nan)
        if before is not None:
            measured["argmax_changes"] = measures.parent_changes(before, shares)
        if adds and layer.windows is None:
            measured["logit_change"] = measures.logit_change(layer.votes(), iteration.poses)
        numbers |= prefixed(str(number), measured)
        before = shares
    of_parents = layer.parents.activations
    is_dead = of_parents.amax(0) < measures.DEAD
    numbers["d_score"] = measures.d_score(of_parents)
    numbers["dead_share"] = is_dead.double().mean()
    numbers["distance_from_orthogonal"] = math.nan
    weight = layer.transformations
    if weight is not None and weight.numel():
        numbers["distance_from_orthogonal"] = measures.distance_from_orthogonal(weight.detach())
    return {key: float(value) for key, value in numbers.items()}


def _of_couplings(
    couplings: Tensor, activations: Tensor, seen: Tensor | None, subject: Subject
) -> dict[str, Tensor | float]:
    """Return the measures of the couplings of one iteration."""
    labels, classes = subject.labels, subject.num_classes
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(labels), generator=generator)
    shuffled = labels[order.to(labels.device)]
    std = couplings.std(0, correction=0)
    if seen is not None:  # of connected pairs (Mitterreiter 2023)
        std = std[seen]
    entropy = measures.child_entropy(couplings, seen)
    information = measures.class_information(couplings, labels, classes)
    chance = measures.class_information(couplings, shuffled, classes)
    return {
        "entropy": entropy.nanmean(),
        "weighted_entropy": measures.weighted_entropy(couplings, activations, seen),
        "t_score": measures.t_score(couplings, seen),
        "static_share": measures.static_share(couplings, seen),
        "routing_std": std.mean(),
        "class_information": information,
        "class_information_of_shuffled_labels": chance,
    }


def _measured_children(layer: LayerTrace) -> tuple[Iterator[Tensor], Tensor, Tensor | None]:
    """Return for the measured children: couplings ``(image, child, parent)`` of each iteration, activations, ``seen``.

    If parents compete within each position, a child has one set of couplings per position, and each counts as a child.
    """
    if layer.windows is not None and layer.routing.normalisation in ("window", "official_legacy"):
        of_iterations = (_of_windows(layer, iteration.couplings) for iteration in layer.iterations)
        return of_iterations, _of_windows(layer, layer.present), None
    chosen, seen = _children(layer), layer.seen()
    of_iterations = (layer.couplings(number, chosen) for number in range(len(layer.iterations)))
    activations = layer.children.activations
    if chosen is not None:
        activations = activations[:, chosen]
        seen = None if seen is None else seen[chosen]
    return of_iterations, activations, seen


def _of_windows(layer: LayerTrace, values: Tensor) -> Tensor:
    """Reshape ``(image position, place, …)`` so that each position's view of a child is a separate child."""
    assert layer.windows is not None
    by_image = values.unflatten(0, (-1, layer.windows.positions))
    return by_image.flatten(1, 2)


def _children(layer: LayerTrace) -> Int64[Tensor, " chosen"] | None:
    """Return the children that are measured; ``None`` for all, if their couplings fit the limit."""
    images, children = layer.children.activations.shape
    parents = layer.parents.activations.shape[1]
    room = max(_ENTRIES // (images * parents), 1)
    if children <= room:
        return None
    return torch.linspace(0, children - 1, room, device=layer.present.device).long()


def _figures(layers: Mapping[str, LayerTrace]) -> Mapping[str, Figure]:
    """Draw the histogram of all couplings of each layer over their range, with one line for each iteration."""
    size = (max(4.2 * len(layers), 6.0), 3.6)
    title = "all couplings of the images, over the range that they have"
    figure, (axes,) = panels(1, len(layers), size, title)
    for axis, (name, layer) in zip(axes, layers.items(), strict=True):
        _histogram(axis, _all_couplings(layer))
        axis.set(title=name, xlabel="coupling", ylabel="share of all couplings")
        label_log_axis(axis)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
        axis.ticklabel_format(axis="x", useOffset=False)
        axis.xaxis.set_major_locator(MaxNLocator(5))
    return {"histograms": figure}


def _all_couplings(layer: LayerTrace) -> list[Tensor]:
    """Return the couplings of each iteration in one row, of children with parents that see them."""
    chosen, seen = _children(layer), layer.seen()
    if seen is not None and chosen is not None:
        seen = seen[chosen]
    every = []
    for number in range(len(layer.iterations)):
        couplings = layer.couplings(number, chosen).detach().float().cpu()
        if seen is not None:  # all others are 0
            couplings = couplings[:, seen.cpu()]
        every.append(couplings.flatten())
    return every


def _histogram(axis: Axes, every: Sequence[Tensor]) -> None:
    low = min(float(values.min()) for values in every)
    high = max(float(values.max()) for values in every)
    if high - low <= _NARROWEST:
        low, high = 0, 1
    edges = torch.linspace(low, high, _BINS + 1).numpy()
    colours = sequential_colours(len(every))
    for number, values in enumerate(every):
        shares = torch.histc(values, _BINS, low, high) / len(values)
        axis.stairs(
            shares.numpy(),
            edges,
            label=f"iteration {number + 1}",
            color=colours[number],
            linewidth=1.5,
        )
