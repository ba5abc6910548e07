"""What measurements of ``learning`` say: sentences that name the switch to try, and a figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from capsule_lab.analysis.learning import LayerMeasurement, Measurement

# ours, all of these: between networks that learn and networks that do not, docs/guides/not_learning.md has the numbers
SMOOTH = 0.9  # cosine of the gradient; EMCaps trains well at 0.96, slowly below 0.9, hardly at 0.03
SHRINKS = 3.0  # standard deviation of poses over that of the layer above; the slow EMCaps: 4 to 7
SAME_FOR_ALL_IMAGES = 0.05  # standard deviation of activations over images; the slow EMCaps: 0.042 after one layer
SATURATED = 30.0  # percent; the slow EMCaps: 40
STANDS_STILL = 0.002  # relative step; the slow EMCaps: 0.001, its other weights 0.007 to 0.07
FAR_BELOW, FAR_ABOVE = 0.01, 100.0  # variance floor over variance of the votes; see floor_warnings
FAR_BELOW_NORMALISED = 0.1  # with normalised evidence, which amplifies: cosine 0.50 at 1/13 with two iterations


def floor_warnings(layers: Mapping[str, LayerMeasurement]) -> list[str]:
    """A sentence each on variance floors that are so far below, or above, the variance of the votes that it does harm.

    Far below it, with two or more iterations, the E-step divides squared distances by variances that may be as small as
    the floor, and each iteration multiplies the gradient by that. Far above it all variances are nearly the floor, so
    that activations hardly depend on the votes, unless the evidence is normalised.

    Args:
        layers: what was measured of each layer, by name.
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
    found = []
    if below:
        found.append(
            f"routing.min_variance, the variance floor, is far below the variance of the votes: {', '.join(below)}; "
            "with two or more iterations the gradient is then chaotic: raise it to about that variance, or make the "
            "initial transformations smaller (model.conv_weight_std, model.class_weight_std)"
        )
    if above:
        found.append(
            f"routing.min_variance, the variance floor, is far above the variance of the votes: {', '.join(above)}; "
            "whether votes agree then hardly changes an activation: lower it, or normalise the evidence with "
            "routing=em_normalised"
        )
    return found


def diagnosis(measurements: Sequence[Measurement]) -> list[str]:
    """What is wrong, in sentences that name the switch to try; one that nothing is, if nothing was found.

    Floors are judged at the first measurement, the gradient at all of them, and anything else if it is so at every one.

    Args:
        measurements: of a run, the earliest first.

    Raises:
        ValueError: for no measurements.
    """
    if not measurements:
        raise ValueError("there are no measurements; expected one at least")
    found = [*_of_gradient(measurements), *_of_layers(measurements), *_of_steps(measurements)]
    return found or [
        "nothing that was measured is in the way of learning: the gradient is smooth, and what is measured of capsules "
        "and steps is in the range of networks that learn"
    ]


def _of_gradient(measurements: Sequence[Measurement]) -> Iterator[str]:
    rough = [each for each in measurements if each.gradient.cosine < SMOOTH]
    if 2 * len(rough) >= len(measurements) or rough[:1] == [*measurements[:1]]:
        worst = min(rough, key=lambda each: each.gradient.cosine)
        routing = "fewer routing.iterations, a larger routing.min_variance, or routing=em_normalised"
        try_next = routing if worst.layers else "batch normalisation, or smaller initial weights"
        yield (
            f"the gradient is not smooth: after a random change of all weights by 1 % its cosine with the gradient "
            f"before is {worst.gradient.cosine:.2f} at step {worst.step}, and below {SMOOTH} at {len(rough)} of "
            f"{len(measurements)} measurements, so that a step does not go where it should; try {try_next}"
        )
    if names := [name for name in measurements[0].gradient.norms if not any(_norms(measurements, name))]:
        yield f"no gradient reaches {', '.join(names)}: it is exactly 0 at every measurement"


def _norms(measurements: Sequence[Measurement], name: str) -> list[float]:
    return [each.gradient.norms[name] for each in measurements]


def _of_layers(measurements: Sequence[Measurement]) -> Iterator[str]:
    yield from floor_warnings(measurements[0].layers)
    names = [*measurements[0].layers]
    for below, name in pairwise(names):
        shrinks = [each.layers[below].pose_std / max(each.layers[name].pose_std, 1e-30) for each in measurements]
        if min(shrinks) > SHRINKS:
            yield (
                f"{name}: poses are 1/{min(shrinks):.1f} or less of those of {below}, by their standard deviation; a "
                "larger model.conv_weight_std or model.class_weight_std keeps their scale, routing=em_normalised makes "
                "it matter less"
            )
    for name in names[:-1]:  # those of the classes differ once something is learned
        largest = max(each.layers[name].activation_std for each in measurements)
        if largest < SAME_FOR_ALL_IMAGES:
            yield (
                f"{name}: activations hardly depend on the image, standard deviation over images {largest:.2g} at "
                "most; try a larger routing.inverse_temperature, or routing=em_normalised"
            )
        least = min(each.layers[name].saturated for each in measurements)
        if least > SATURATED:
            yield (
                f"{name}: {least:.0f} % or more of the activations are nearly 0 or 1, where they have hardly a "
                "gradient; try model.primary_norm=true or a smaller model.activation_std"
            )


def _of_steps(measurements: Sequence[Measurement]) -> Iterator[str]:
    names = measurements[0].relative_steps
    fastest = {name: max(each.relative_steps.get(name, 0.0) for each in measurements) for name in names}
    slow = {name: step for name, step in fastest.items() if step < STANDS_STILL and name.endswith("weight")}
    if fastest and max(fastest.values()) < STANDS_STILL:
        yield (
            f"all weights stand still: no step is more than {100 * max(fastest.values()):.2g} % of a weight; raise "
            "schedule.learning_rate"
        )
    elif slow:
        listed = ", ".join(f"{name} ({100 * step:.2g} %)" for name, step in slow.items())
        yield (
            f"nearly stand still, while other weights move by up to {100 * max(fastest.values()):.2g} % per step: "
            f"{listed}; a step of Adam does not grow with the weight: make the initial ones smaller (model.pose_std, "
            "model.activation_std, model.conv_weight_std, model.class_weight_std)"
        )


# --- the figure ------------------------------------------------------------------------------------------------------


class Curve(NamedTuple):
    """A line, and the number of its colour."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int
    style: str = ".-"


class Panel(NamedTuple):
    """Curves in one coordinate system."""

    title: str
    curves: Sequence[Curve]
    x: str = "step"
    logarithmic: bool = True


def learning_figure(measurements: Sequence[Measurement]) -> Figure:
    """Gradient and steps over training; of a network with capsules a row on its layers, and one on their iterations.

    Args:
        measurements: of a run, the earliest first, one at least.
    """
    panels = [*_general_panels(measurements)]
    if measurements[0].layers:
        panels += [*_layer_panels(measurements), *_iteration_panels(measurements)]
    figure = Figure(figsize=(15, 3.6 * len(panels) / 3), layout="constrained")  # inches
    for axes, panel in zip(figure.subplots(len(panels) // 3, 3, squeeze=False).flat, panels, strict=True):
        _draw(axes, panel)
    return figure


def _general_panels(measurements: Sequence[Measurement]) -> Iterator[Panel]:
    steps = [each.step for each in measurements]
    gradients = [each.gradient for each in measurements]
    smooth = Curve(f"{SMOOTH}, smooth enough", [steps[0], steps[-1]], [SMOOTH, SMOOTH], _GREY, ":")
    cosine = Curve("", steps, [each.cosine for each in gradients], 0)
    yield Panel("cosine of the gradient, weights changed by 1 %", [cosine, smooth], logarithmic=False)
    yield Panel("length of the gradient", [Curve("", steps, [each.norm for each in gradients], 0)])
    relative = [
        Curve(name, steps, [each.relative_steps.get(name, math.nan) for each in measurements], number)
        for number, name in enumerate(measurements[-1].relative_steps)
    ]
    yield Panel("relative step |update| / |weight|", relative)


def _layer_panels(measurements: Sequence[Measurement]) -> Iterator[Panel]:
    steps = [each.step for each in measurements]

    def curves(quantity: str, style: str = ".-", prefix: str = "") -> list[Curve]:
        return [
            Curve(prefix + name, steps, [getattr(each.layers[name], quantity) for each in measurements], number, style)
            for number, name in enumerate(measurements[0].layers)
            if getattr(measurements[0].layers[name], quantity) is not None
        ]

    yield Panel("standard deviation of poses", curves("pose_std"))
    yield Panel("standard deviation of activations over images", curves("activation_std"))
    votes, floors = curves("votes_variance"), curves("min_variance", "--", "floor, ")
    yield Panel("variance of votes", [*votes, *floors])


def _iteration_panels(measurements: Sequence[Measurement]) -> Iterator[Panel]:
    first, last = measurements[0], measurements[-1]

    def curves(quantity: str) -> list[Curve]:
        return [
            Curve(f"{name}, step {each.step}", range(1, len(values) + 1), values, number, style)
            for each, style in ((first, ".--"), (last, ".-"))
            for number, (name, layer) in enumerate(each.layers.items())
            if (values := [value for one in layer.iterations if (value := getattr(one, quantity)) is not None])
        ]

    for quantity, title in (
        ("pose_std", "standard deviation of poses"),
        ("activation_std", "standard deviation of activations over images"),
        ("coupling_entropy", "entropy of couplings, 1 is uniform"),
    ):
        yield Panel(title, curves(quantity), "routing iteration", quantity != "coupling_entropy")


_GREY = -1


def _draw(axes: Axes, panel: Panel) -> None:
    for curve in panel.curves:
        colour, style = f"C{curve.colour % 10}", curve.style if curve.colour < 10 else "x--"  # there are ten colours
        axes.plot(curve.x, curve.y, style, color="grey" if curve.colour == _GREY else colour, label=curve.label)
    axes.set_title(panel.title, size=9)  # ours: points
    axes.set_xlabel(panel.x)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.logarithmic and any(value > 0 for curve in panel.curves for value in curve.y):
        axes.set_yscale("log")
    elif not panel.logarithmic:
        lowest = min((value for curve in panel.curves for value in curve.y if value < 0), default=0.0)
        axes.set_ylim(lowest - 0.05, 1.05)
    if any(curve.label for curve in panel.curves):
        axes.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1, 1))  # ours: points
