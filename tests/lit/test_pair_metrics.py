"""Metrics of poses that follow a change: perfect and wrong capsules, and loops over pairs."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.lit import pair_metrics
from capsule_lab.lit.pair_metrics import (
    ImagePairMetrics,
    MatrixMetrics,
    PresenceMetrics,
    ShiftMetrics,
)
from capsule_lab.networks import PairAutoencoder, TransformingAutoencoder

GENERATOR = torch.Generator().manual_seed(0)
PAIRS = 400


def numbers(metric: object) -> dict[str, float]:
    return {name: float(value) for name, value in metric.compute().items()}  # type: ignore[attr-defined]


def shifts() -> Tensor:
    return torch.randint(-2, 3, (PAIRS, 2), generator=GENERATOR).float()


def test_copying_and_the_mean_image_by_a_loop() -> None:
    first, second = torch.rand(7, 2, 3, 4), torch.rand(7, 2, 3, 4)
    metric = ImagePairMetrics((2, 3, 4))
    metric.update(first[:3], second[:3])
    metric.update(first[3:], second[3:])
    copying = mean_image = 0.0
    for image, target in zip(first, second, strict=True):
        copying += float((image - target).square().sum())
        mean_image += float((second.mean(0) - target).square().sum())
    found = numbers(metric)
    assert found["copying"] == pytest.approx(copying / 7, rel=1e-6)
    assert found["mean_image"] == pytest.approx(mean_image / 7, rel=1e-6)


def test_presence_change_by_a_loop() -> None:
    one = torch.rand(PAIRS, 2, generator=GENERATOR)
    other = torch.rand(PAIRS, 2, generator=GENERATOR)
    metric = PresenceMetrics(2)
    metric.update(one[:100], other[:100], torch.ones(100, 2))
    metric.update(one[100:], other[100:], torch.ones(PAIRS - 100, 2))
    changes = deviations = 0.0
    for capsule in range(2):
        changes += float((other[:, capsule] - one[:, capsule]).abs().mean())
        deviations += float(one[:, capsule].double().std(correction=0))
    assert numbers(metric)["presence_change"] == pytest.approx(changes / deviations, rel=1e-6)


@pytest.mark.parametrize(
    ("presence", "energy", "dead"), [(0.005, 1.0, 50.0), (0.5, 1e-4, 50.0), (0.5, 1.0, 0.0)]
)
def test_capsules_that_are_nowhere_or_draw_nothing_are_dead(
    presence: float, energy: float, dead: float
) -> None:
    there = torch.tensor([[0.9, presence]]).expand(5, 2)
    metric = PresenceMetrics(2)
    metric.update(there, there, torch.tensor([[1.0, energy]]).expand(5, 2))
    assert numbers(metric) == {"presence_change": 0.0, "dead_capsules": dead}


def measured(moved: Tensor, change: Tensor, presences: Tensor | None = None) -> dict[str, float]:
    there = torch.ones(moved.shape[:2]) if presences is None else presences
    metric = ShiftMetrics(moved.shape[1])
    metric.update(moved[:150], change[:150], there[:150], there[:150])
    metric.update(moved[150:], change[150:], there[150:], there[150:])
    return numbers(metric)


def test_poses_that_move_as_the_image() -> None:
    change = shifts()
    found = measured(change.unsqueeze(1).expand(-1, 3, -1), change)
    assert found == pytest.approx(
        {
            "shift_r2": 1.0,
            "slope_capsules": 3.0,
            "slope_right": 1.0,
            "slope_down": 1.0,
            "slope_error": 0.0,
        },
        abs=1e-9,
    )


@pytest.mark.parametrize(
    ("mistake", "right", "down", "error"),
    [
        (lambda change: 0.5 * change, 0.5, 0.5, 0.5),
        (lambda change: -change, -1.0, -1.0, 2.0),
        (lambda change: change.flip(-1), 0.0, 0.0, 1.0),
        (lambda change: 0 * change, 0.0, 0.0, 1.0),
        (lambda change: change @ torch.tensor([[1.0, 0.0], [0.4, 1.0]]), 1.0, 1.0, 0.4),
    ],
)
def test_poses_that_do_not(
    mistake: Callable[[Tensor], Tensor], right: float, down: float, error: float
) -> None:
    change = shifts()
    found = measured(mistake(change).unsqueeze(1), change)
    assert found["slope_right"] == pytest.approx(right, abs=1e-6)
    assert found["slope_down"] == pytest.approx(down, abs=1e-6)
    assert found["slope_error"] == pytest.approx(error, abs=1e-6)
    assert found["shift_r2"] < 0.95


def test_capsules_count_where_they_are_present() -> None:
    """One that is wrong and never there changes no slope, nor, in its own share, the estimate."""
    change = shifts()
    moved = torch.stack([change, -3 * change], 1)
    there = torch.tensor([[0.9, 0.01]]).expand(PAIRS, 2)
    found = measured(moved, change, there)
    assert found["slope_capsules"] == 1
    assert found["slope_error"] == pytest.approx(0, abs=1e-9)
    assert 0.99 < found["shift_r2"] < 1


def test_without_a_present_capsule_or_along_one_line_there_is_no_slope() -> None:
    change = shifts()
    found = measured(change.unsqueeze(1), change, torch.full((PAIRS, 1), 0.2))
    assert {*found} == {"shift_r2", "slope_capsules"}
    assert found["slope_capsules"] == 0
    change = change * torch.tensor([1.0, 0.0])
    assert measured(change.unsqueeze(1), change)["slope_capsules"] == 0


def matrix_error(poses: Tensor, told: Tensor, others: Tensor) -> dict[str, float]:
    metric = MatrixMetrics()
    changed = (told @ poses).flatten(2)
    metric.update(poses.flatten(2), changed, others.flatten(2), torch.ones(PAIRS, 2))
    return numbers(metric)


def test_matrices_follow_from_the_left() -> None:
    """Also times a constant matrix on the right, which is free; A T in place of T A is the classic mistake."""
    poses = torch.randn(PAIRS, 2, 3, 3, generator=GENERATOR)
    change = torch.randn(PAIRS, 1, 3, 3, generator=GENERATOR)
    found = matrix_error(poses, change, change @ poses)
    assert found["matrix_error"] == pytest.approx(0, abs=1e-6)
    assert found["matrix_error_unchanged"] > 1
    free = poses @ torch.randn(3, 3, generator=GENERATOR)
    found = matrix_error(free, change, change @ free)
    assert found["matrix_error"] == pytest.approx(0, abs=1e-6)
    found = matrix_error(poses, change, poses @ change)
    assert found["matrix_error"] > 1


@pytest.mark.parametrize(
    ("build_network", "kinds"),
    [
        (
            TransformingAutoencoder,
            {"images": ImagePairMetrics, "presences": PresenceMetrics, "poses": ShiftMetrics},
        ),
        (
            functools.partial(TransformingAutoencoder, pose="matrix"),
            {"images": ImagePairMetrics, "presences": PresenceMetrics, "poses": MatrixMetrics},
        ),
        (PairAutoencoder, {"images": ImagePairMetrics}),
    ],
)
def test_quantities_of_a_network(build_network: Callable[..., Any], kinds: dict[str, type]) -> None:
    torch.manual_seed(0)
    built = build_network((1, 8, 8)).eval()
    metrics = pair_metrics.pair_metrics(built)
    assert {name: type(metric) for name, metric in metrics.items()} == kinds
    change = torch.randn(50, *built.change_shape)
    images, targets = torch.rand(50, 1, 8, 8), torch.rand(50, 1, 8, 8)
    with torch.no_grad():
        output = built(images, change)
        pair_metrics.update_pair_metrics(metrics, built, images, change, targets, output)
    for metric in metrics.values():
        found = [*numbers(metric)]
        assert [name for name in metric.quantities if name in found] == found
        missing = {*metric.quantities} - {*found}
        assert missing <= {"slope_right", "slope_down", "slope_error"}
