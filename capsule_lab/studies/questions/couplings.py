"""Do children decide on a parent, does it depend on what is shown, and does it matter for the error?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from capsule_lab.analysis.curves import COLOURS
from capsule_lab.analysis.equal_couplings import equal_couplings
from capsule_lab.analysis.plotting import label_log_axis, name_of_class, sequential_colours
from capsule_lab.analysis.reconstructions import first_of_each_class
from capsule_lab.analysis.trace import LayerTrace
from capsule_lab.errors import check_number
from capsule_lab.routing import AbstractRouting, DynamicRouting
from capsule_lab.studies.measures import couplings as measures
from capsule_lab.studies.subject import Answer, Subject, error_percent, question

_ENTRIES = 2**26  # ours: 256 MiB of couplings; of more, children at equal distances are measured
_BINS = 50  # ours
_NARROWEST = 1e-6  # ours: of float32; couplings closer together than this are equal


@question()
def couplings(subject: Subject, *, iterations: int | None = None, shown: int = 5) -> Answer:
    """Entropy, T-score, D-score, static share, class information, changes, starvation and trees; the routing gain.

    See ``capsule_lab.studies.measures.couplings`` for each. Per layer and iteration; D-scores of hidden layers, whose
    activations no loss drives apart. ``class_information_of_shuffled_labels`` is what chance gives;
    ``<layer>/gradient_norm`` is that of the layer's weights, of the cross-entropy of the first batch. The routing gain
    is the error with equal couplings less that with the network's own. Over all layers that route, after the last
    iteration: the means of ``t_score`` and ``routing_std``; over hidden ones, of ``d_score`` and ``dead_share``.

    Args:
        subject: of capsules.
        iterations: of all routings, in place of those of training; Sabour 2017, appendix A, looks at ten.
        shown: images whose couplings are drawn.
    """
    check_number("shown", shown, 0)
    with _iterations(subject.network, iterations):
        return _answer(replace(subject), shown)  # without what it may have traced before


def _answer(subject: Subject, shown: int) -> Answer:
    numbers: dict[str, float] = {}
    names = [*subject.traces]
    for name, layer in subject.traces.items():
        numbers |= {f"{name}/{key}": value for key, value in of_layer(layer, subject).items()}
        if name == names[-1]:
            numbers.pop(f"{name}/d_score")
    numbers |= {f"{name}/gradient_norm": value for name, value in _gradient_norms(subject).items()}
    numbers |= _over_layers(numbers, {name: len(layer.iterations) for name, layer in subject.traces.items()})
    error = error_percent(subject.outputs(), subject.labels)
    equal = _error_with_equal_couplings(subject)
    numbers |= {"error": error, "error_with_equal_couplings": equal, "routing_gain": equal - error}
    return Answer(numbers, draw=partial(_figures, subject, shown, numbers))


@contextmanager
def _iterations(network: nn.Module, iterations: int | None) -> Iterator[None]:
    """So many iterations in all routings of ``network``."""
    if iterations is None:
        yield
        return
    check_number("iterations", iterations, 1)
    with ExitStack() as stack:
        for routing in (each for each in network.modules() if isinstance(each, AbstractRouting)):
            if "iterations" not in routing.scheduled:
                name = type(routing).__name__
                raise ValueError(f"iterations is {iterations}, and {name} has none; expected null, or another network")
            options = routing.scheduled_options()
            stack.callback(options.update, iterations=options["iterations"])
            options["iterations"] = iterations
        yield


def _gradient_norms(subject: Subject) -> dict[str, float]:
    """By layer of capsules, from the image upwards; NaN for a layer without weights."""
    network, batch = subject.network, subject.batches[0]
    found = {}
    with torch.enable_grad():
        loss = torch.nn.functional.cross_entropy(network.forward(batch.images).ranking, batch.labels)
        for name, layer in network.capsule_layers().items():
            weights = [each for each in layer.parameters() if each.requires_grad]
            found[name] = math.nan
            if weights:
                gradients = torch.autograd.grad(
                    loss, weights, retain_graph=True, allow_unused=True, materialize_grads=True
                )
                found[name] = math.sqrt(sum(float(each.double().square().sum()) for each in gradients))
    return found


def _over_layers(numbers: Mapping[str, float], iterations: Mapping[str, int]) -> dict[str, float]:
    *hidden, _ = iterations
    values = {
        "t_score": [numbers[f"{name}/{last}/t_score"] for name, last in iterations.items()],
        "routing_std": [numbers[f"{name}/{last}/routing_std"] for name, last in iterations.items()],
        "d_score": [numbers[f"{name}/d_score"] for name in hidden],
        "dead_share": [numbers[f"{name}/dead_share"] for name in hidden],
    }
    return {key: sum(each) / len(each) if each else float("nan") for key, each in values.items()}


def _error_with_equal_couplings(subject: Subject) -> float:
    """NaN for a routing that cannot have equal couplings: a leaky one, or one whose children compete."""
    try:
        with equal_couplings(subject.network):
            return error_percent(subject.outputs(), subject.labels)
    except ValueError:
        return float("nan")


def of_layer(layer: LayerTrace, subject: Subject) -> dict[str, float]:
    """All measures of one layer, by ``<quantity>`` or ``<iteration>/<quantity>``."""
    labels, classes = subject.labels, subject.num_classes
    shuffled = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).to(labels.device)]
    chosen = _children(layer)
    activations = layer.children.activations if chosen is None else layer.children.activations[:, chosen]
    within = by_window(layer)
    seen = None if within else layer.seen()
    seen = seen if seen is None or chosen is None else seen[chosen]
    found: dict[str, Tensor | float] = {}
    before: Tensor | None = None
    for number in range(1, len(layer.iterations) + 1):
        shares = _within_windows(layer, number - 1) if within else layer.couplings(number - 1, chosen)
        activations = _present_in_windows(layer) if within else activations
        trees = measures.count_trees(shares, labels)
        found |= {
            f"{number}/entropy": measures.child_entropy(shares, seen).nanmean(),
            f"{number}/weighted_entropy": measures.weighted_entropy(shares, activations, seen),
            f"{number}/t_score": measures.t_score(shares, seen),
            f"{number}/static_share": measures.static_share(shares, seen),
            f"{number}/routing_std": measures.coupling_std(shares, seen),
            f"{number}/class_information": measures.class_information(shares, labels, classes),
            f"{number}/class_information_of_shuffled_labels": measures.class_information(shares, shuffled, classes),
            f"{number}/starved_share": measures.starved_share(layer.mass(number - 1)),
            f"{number}/trees_per_class": trees.distinct,
            f"{number}/entropy_of_trees": trees.entropy,
            f"{number}/images_per_class": trees.images,
        }
        if layer.routing.competing == "children":  # their couplings are no shares of a child
            shared = ("entropy", "weighted_entropy", "t_score")
            found |= {f"{number}/{key}": float("nan") for key in shared}
        if before is not None:
            found[f"{number}/argmax_changes"] = measures.argmax_changes(before, shares)
        adds = isinstance(layer.routing, DynamicRouting) and layer.routing.options["update"] == "add"
        if adds and layer.windows is None:
            found[f"{number}/logit_change"] = measures.logit_change(layer.votes(), layer.iterations[number - 1].poses)
        before = shares
    found["d_score"] = measures.d_score(layer.parents.activations)
    found["dead_share"] = (layer.parents.activations.amax(0) < measures.DEAD).double().mean()
    weight = layer.transformations
    found["distance_from_orthogonal"] = math.nan
    if weight is not None and weight.numel():
        found["distance_from_orthogonal"] = measures.distance_from_orthogonal(weight.detach())
    return {key: float(value) for key, value in found.items()}


def by_window(layer: LayerTrace) -> bool:
    """Whether the parents of each position compete among themselves, so that a child is shared once by each."""
    return layer.windows is not None and layer.routing.normalisation in ("window", "official_legacy")


def _within_windows(layer: LayerTrace, iteration: int) -> Float[Tensor, "image child parent"]:
    """Couplings of a child to the parents of one position, each position's view of it a child of its own."""
    assert layer.windows is not None
    rows = layer.iterations[iteration].couplings  # [row place type]
    return rows.unflatten(0, (-1, layer.windows.positions)).flatten(1, 2)


def _present_in_windows(layer: LayerTrace) -> Float[Tensor, "image child"]:
    assert layer.windows is not None
    return layer.present.unflatten(0, (-1, layer.windows.positions)).flatten(1)


def _children(layer: LayerTrace) -> Int64[Tensor, " chosen"] | None:
    """Those that are measured: all, where their couplings fit."""
    images, children = layer.children.activations.shape
    room = max(_ENTRIES // (images * layer.parents.activations.shape[1]), 1)
    if children <= room:
        return None
    return torch.linspace(0, children - 1, room, device=layer.present.device).long()


def _figures(subject: Subject, shown: int, numbers: Mapping[str, float]) -> Mapping[str, Figure]:
    found = {"histograms": _histograms(subject.traces)}
    changes: dict[str, list[float]] = {}
    for key, value in numbers.items():
        if key.endswith("/logit_change"):
            changes.setdefault(key.partition("/")[0], []).append(value)
    if changes:
        found["logit_changes"] = _logit_changes(changes)
    layer = [*subject.traces.values()][-1]
    if shown and layer.child_grid is not None and layer.windows is None:
        found["maps"] = _maps(subject, layer, shown)
    return found


def _logit_changes(changes: Mapping[str, Sequence[float]]) -> Figure:
    """Mean change of the logits by iteration (Sabour 2017, appendix A)."""
    figure = Figure(figsize=(6.0, 3.2), layout="constrained")  # inches
    axis = figure.subplots()
    for number, (name, values) in enumerate(changes.items()):
        axis.plot(range(1, len(values) + 1), values, marker="o", color=COLOURS[number % len(COLOURS)], label=name)
    axis.set(xlabel="iteration", ylabel="mean change of the logits")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    label_log_axis(axis)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.suptitle("how much each iteration changes the logits, mean over images and capsules", size=9)
    return figure


def _histograms(layers: Mapping[str, LayerTrace]) -> Figure:
    """All couplings of each layer, one line for each iteration, on a logarithmic axis over what there is of them."""
    figure = Figure(figsize=(max(4.2 * len(layers), 6.0), 3.6), layout="constrained")  # inches
    axes = figure.subplots(1, len(layers), squeeze=False)[0]
    for axis, (name, layer) in zip(axes, layers.items(), strict=True):
        chosen, seen, every = _children(layer), layer.seen(), []
        for number in range(len(layer.iterations)):
            couplings = layer.couplings(number, chosen).detach().float().cpu()
            if seen is not None:  # others are 0 in any case
                couplings = couplings[:, (seen if chosen is None else seen[chosen]).cpu()]
            every.append(couplings.flatten())
        low, high = min(float(each.min()) for each in every), max(float(each.max()) for each in every)
        low, high = (low, high) if high - low > _NARROWEST else (0, 1)
        edges = torch.linspace(low, high, _BINS + 1).numpy()
        for number, (each, colour) in enumerate(zip(every, sequential_colours(len(every)), strict=True), start=1):
            shares = torch.histc(each, _BINS, low, high) / len(each)
            axis.stairs(shares.numpy(), edges, label=f"iteration {number}", color=colour, linewidth=1.5)
        axis.set(title=name, xlabel="coupling", ylabel="share of all couplings")
        label_log_axis(axis)
        axis.ticklabel_format(axis="x", useOffset=False)
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.suptitle("all couplings of the images, over the range that they have", size=9)
    return figure


def _maps(subject: Subject, layer: LayerTrace, shown: int) -> Figure:
    """What each position gives each class more or less than equal couplings would, summed over types.

    Differences, as the couplings themselves are all one grey.
    """
    grid = layer.child_grid
    assert grid is not None
    shares = layer.couplings()
    differences = grid.at_positions((shares - 1 / shares.shape[2]).transpose(1, 2)).sum(2)  # [image class h w]
    chosen = _one_of_each_class(subject.labels, shown)
    pictures = subject.images[chosen, 0].float().cpu().numpy()
    classes = differences.shape[1]
    figure = Figure(figsize=(1 + 0.95 * (classes + 1), 0.6 + 0.95 * len(chosen)), layout="constrained")  # inches
    axes = figure.subplots(len(chosen), classes + 1, squeeze=False)
    largest = float(differences[chosen].abs().max())
    for number, (row, image) in enumerate(zip(axes, chosen, strict=True)):
        row[0].imshow(-pictures[number], cmap="gray")
        row[0].set_ylabel(name_of_class(subject.classes, int(subject.labels[image])), fontsize=8)
        for label, axis in enumerate(row[1:]):
            limits = {"vmin": -largest, "vmax": largest}
            drawn = axis.imshow(differences[image, label].float().cpu().numpy(), cmap="PuOr_r", **limits)
            if number == 0:
                axis.set_title(name_of_class(subject.classes, label), fontsize=8)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    figure.colorbar(drawn, ax=axes, label="coupling less an equal share, sum over types", shrink=0.8)
    figure.suptitle("left, images, one of each class; right, what each place of them gives each class", size=9)
    return figure


def _one_of_each_class(labels: Int64[Tensor, " image"], shown: int) -> list[int]:
    return first_of_each_class(labels, torch.ones_like(labels, dtype=torch.bool))[:shown]
