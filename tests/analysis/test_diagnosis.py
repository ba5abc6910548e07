"""What is said of measurements, and drawn of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from capsule_lab.analysis.diagnosis import diagnosis, floor_warnings, learning_figure
from capsule_lab.analysis.learning import GradientMeasurement, IterationMeasurement, LayerMeasurement, Measurement

ITERATIONS = (IterationMeasurement(0.5, 1.0, 0.5, 0.2), IterationMeasurement(0.6, 0.8, 0.5, 0.2))
PRIMARY = LayerMeasurement(1.0, 0.5, 0.3, 10.0)
CLASSES = LayerMeasurement(0.6, 0.5, 0.2, 10.0, ITERATIONS, votes_variance=0.1, min_variance=0.1)
GRADIENT = GradientMeasurement(1.0, 0.5, 0.99, {"weight": 0.3, "bias": 0.4})
HEALTHY = Measurement(0, GRADIENT, {"primary": PRIMARY, "classes": CLASSES}, {"conv.weight": 0.01, "weight": 0.02})
NOTHING = "nothing that was measured is in the way of learning"


def layered(**layers: Any) -> Measurement:
    """``HEALTHY`` with other numbers in its layers."""
    changed = {name: replace(layer, **layers.get(name, {})) for name, layer in HEALTHY.layers.items()}
    return replace(HEALTHY, layers=changed)


def with_cosine(cosine: float, step: int = 0) -> Measurement:
    return replace(HEALTHY, step=step, gradient=replace(GRADIENT, cosine=cosine))


def test_of_a_healthy_network_nothing_is_said() -> None:
    (sentence,) = diagnosis([HEALTHY, HEALTHY])
    assert sentence.startswith(NOTHING)
    assert floor_warnings(HEALTHY.layers) == []


UNHEALTHY = {
    "chaotic": (
        [with_cosine(0.03), with_cosine(0.2, step=20), with_cosine(0.95, step=40)],
        "its cosine with the gradient before is 0.03 at step 0, and below 0.9 at 2 of 3 measurements",
    ),
    "chaotic later": ([with_cosine(0.99), with_cosine(0.5, step=20)], "0.50 at step 20, and below 0.9 at 1 of 2"),
    "no gradient": (
        [replace(HEALTHY, gradient=replace(GRADIENT, norms={"weight": 0.3, "bias": 0.0}))] * 2,
        "no gradient reaches bias:",
    ),
    "floor far below": (
        [layered(classes={"min_variance": 5e-4})],
        "far below the variance of the votes: classes (0.0005 beside 0.1); with two or more iterations",
    ),
    "floor below, with normalised evidence": (
        [layered(classes={"min_variance": 0.008, "normalised": True})],
        "far below the variance of the votes: classes (0.008 beside 0.1);",
    ),
    "floor far above": (
        [layered(classes={"min_variance": 20.0})],
        "far above the variance of the votes: classes (20 beside 0.1);",
    ),
    "poses shrink": ([layered(classes={"pose_std": 0.2})], "classes: poses are 1/5.0 or less of those of primary"),
    "same for all images": (
        [layered(primary={"activation_std": each}) for each in (0.03, 0.04)],
        "primary: activations hardly depend on the image, standard deviation over images 0.04 at most",
    ),
    "saturated": (
        [layered(primary={"saturated": each}) for each in (44.0, 41.0)],
        "primary: 41 % or more of the activations are nearly 0 or 1",
    ),
    "one stands still": (
        [replace(HEALTHY, relative_steps={"conv.weight": each, "bias": 0.0, "b.weight": 0.03}) for each in (0.0, 1e-3)],
        "nearly stand still, while other weights move by up to 3 % per step: conv.weight (0.1 %);",
    ),
    "all stand still": (
        [replace(HEALTHY, relative_steps={"conv.weight": 1e-4, "bias": 1e-5})],
        "all weights stand still: no step is more than 0.01 % of a weight; raise schedule.learning_rate",
    ),
}


@pytest.mark.parametrize("name", UNHEALTHY)
def test_what_is_wrong_is_said_once(name: str) -> None:
    measurements, expected = UNHEALTHY[name]
    (sentence,) = diagnosis(measurements)
    assert expected in sentence


def test_what_is_over_is_not_said() -> None:
    over = [
        [layered(primary={"activation_std": each}) for each in (0.03, 0.2)],
        [layered(primary={"saturated": each}) for each in (44.0, 20.0)],
        [layered(classes={"pose_std": each}) for each in (0.2, 0.5)],
        [replace(HEALTHY, relative_steps={"conv.weight": each}) for each in (0.0, 0.01)],
        [with_cosine(0.99), with_cosine(0.99), with_cosine(0.5)],
        [with_cosine(float("nan"))],
    ]
    assert [len(each) for each in map(diagnosis, over)] == [1] * len(over)
    assert all(diagnosis(each)[0].startswith(NOTHING) for each in over)


@pytest.mark.parametrize(
    "harmless",
    [
        {"min_variance": 5e-4, "iterations": ITERATIONS[:1]},
        {"min_variance": 20.0, "normalised": True},
        {"min_variance": None},
        {"min_variance": 0.0},
        {"votes_variance": 0.0},
        {"min_variance": 0.0011},
        {"min_variance": 0.011, "normalised": True},
        {"min_variance": 9.0},
    ],
    ids=str,
)
def test_floor_that_does_no_harm(harmless: dict[str, Any]) -> None:
    assert floor_warnings({"classes": replace(CLASSES, **harmless)}) == []


def test_floors_of_several_layers_are_one_sentence() -> None:
    low = replace(CLASSES, min_variance=5e-4)
    below, above = floor_warnings({"a": low, "b": replace(CLASSES, min_variance=20.0), "c": low})
    assert "a (0.0005 beside 0.1), c (0.0005 beside 0.1);" in below
    assert "b (20 beside 0.1);" in above


def test_no_measurements_are_refused() -> None:
    with pytest.raises(ValueError, match="there are no measurements; expected one at least"):
        diagnosis([])


# --- the figure ------------------------------------------------------------------------------------------------------


def test_figure_of_capsules_and_without() -> None:
    later = replace(with_cosine(float("nan"), step=20), relative_steps={"weight": 0.02})
    figure = learning_figure([HEALTHY, later])
    lines = [len(axes.get_lines()) for axes in figure.axes]
    assert lines == [2, 1, 1, 2, 2, 2, 2, 2, 2]
    assert [*figure.axes[3].get_lines()[1].get_ydata()] == [0.6, 0.6]
    assert [*figure.axes[6].get_lines()[1].get_ydata()] == [0.5, 0.6]
    assert learning_figure([HEALTHY, with_cosine(-0.5, step=20)]).axes[0].get_ylim()[0] < -0.5
    assert len(learning_figure([replace(HEALTHY, layers={})]).axes) == 3
