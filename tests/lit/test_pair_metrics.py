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


def numbers(metric: Any) -> dict[str, float]:
    quantities = metric.compute()
    return {name: float(value) for name, value in quantities.items()}


def update_in_parts(metric: Any, images: int, *tensors: Tensor) -> None:
    """In two batches: the first ``images``, then the others."""
    metric.update(*[tensor[:images] for tensor in tensors])
    metric.update(*[tensor[images:] for tensor in tensors])


def shifts() -> Tensor:
    pixels = torch.randint(-2, 3, (PAIRS, 2), generator=GENERATOR)
    return pixels.float()


def test_copying_and_the_mean_image_by_a_loop() -> None:
    first, second = torch.rand(2, 7, 2, 3, 4)
    metric = ImagePairMetrics((2, 3, 4))
    update_in_parts(metric, 3, first, second)
    mean = second.mean(0)
    copying = mean_image = 0.0
    for image, target in zip(first, second, strict=True):
        of_copy = (image - target).square()
        copying += of_copy.sum().item()
        of_mean = (mean - target).square()
        mean_image += of_mean.sum().item()
    found = numbers(metric)
    assert found["copying"] == pytest.approx(copying / 7, rel=1e-6)
    assert found["mean_image"] == pytest.approx(mean_image / 7, rel=1e-6)


def test_presence_change_by_a_loop() -> None:
    one = torch.rand(PAIRS, 2, generator=GENERATOR)
    other = torch.rand(PAIRS, 2, generator=GENERATOR)
    energies = torch.ones(PAIRS, 2)
    metric = PresenceMetrics(2)
    update_in_parts(metric, 100, one, other, energies)
    changes = deviations = 0.0
    for before, after in zip(one.double().T, other.double().T, strict=True):
        change = (after - before).abs()
        changes += change.mean().item()
        deviations += before.std(correction=0).item()
    found = numbers(metric)
    expected = changes / deviations
    assert found["presence_change"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("presence", "energy", "dead"),
    [
        (0.005, 1.0, 50.0),
        (0.5, 1e-4, 50.0),
        (0.5, 1.0, 0.0),
    ],
)
def test_capsules_that_are_nowhere_or_draw_nothing_are_dead(
    presence: float, energy: float, dead: float
) -> None:
    there = torch.tensor([0.9, presence]).expand(5, 2)
    energies = torch.tensor([1.0, energy]).expand(5, 2)
    metric = PresenceMetrics(2)
    metric.update(there, there, energies)
    assert numbers(metric) == {"presence_change": 0.0, "dead_capsules": dead}


def measured(moved: Tensor, change: Tensor, presences: Tensor | None = None) -> dict[str, float]:
    images, capsules, _ = moved.shape
    there = torch.ones(images, capsules) if presences is None else presences
    metric = ShiftMetrics(capsules)
    update_in_parts(metric, 150, moved, change, there, there)
    return numbers(metric)


def test_poses_that_move_as_the_image() -> None:
    change = shifts()
    of_three_capsules = change.unsqueeze(1).expand(-1, 3, -1)
    found = measured(of_three_capsules, change)
    expected = {
        "shift_r2": 1.0,
        "slope_capsules": 3.0,
        "slope_right": 1.0,
        "slope_down": 1.0,
        "slope_error": 0.0,
    }
    assert found == pytest.approx(expected, abs=1e-9)


SHEAR = torch.tensor([[1.0, 0.0], [0.4, 1.0]])


@pytest.mark.parametrize(
    ("mistake", "right", "down", "error"),
    [
        (lambda change: 0.5 * change, 0.5, 0.5, 0.5),
        (lambda change: -change, -1.0, -1.0, 2.0),
        (lambda change: change.flip(-1), 0.0, 0.0, 1.0),
        (lambda change: 0 * change, 0.0, 0.0, 1.0),
        (lambda change: change @ SHEAR, 1.0, 1.0, 0.4),
    ],
)
def test_poses_that_do_not(
    mistake: Callable[[Tensor], Tensor], right: float, down: float, error: float
) -> None:
    change = shifts()
    moved = mistake(change).unsqueeze(1)
    found = measured(moved, change)
    assert found["slope_right"] == pytest.approx(right, abs=1e-6)
    assert found["slope_down"] == pytest.approx(down, abs=1e-6)
    assert found["slope_error"] == pytest.approx(error, abs=1e-6)
    assert found["shift_r2"] < 0.95


def test_capsules_count_where_they_are_present() -> None:
    """One that is wrong and never there changes no slope, nor, in its own share, the estimate."""
    change = shifts()
    moved = torch.stack([change, -3 * change], 1)
    there = torch.tensor([0.9, 0.01]).expand(PAIRS, 2)
    found = measured(moved, change, there)
    assert found["slope_capsules"] == 1
    assert found["slope_error"] == pytest.approx(0, abs=1e-9)
    assert 0.99 < found["shift_r2"] < 1


def test_without_a_present_capsule_or_along_one_line_there_is_no_slope() -> None:
    change = shifts()
    rarely_there = torch.full((PAIRS, 1), 0.2)
    found = measured(change.unsqueeze(1), change, rarely_there)
    assert {*found} == {"shift_r2", "slope_capsules"}
    assert found["slope_capsules"] == 0
    change[:, 1] = 0
    along_one_line = measured(change.unsqueeze(1), change)
    assert along_one_line["slope_capsules"] == 0


def matrix_error(poses: Tensor, told: Tensor, others: Tensor) -> dict[str, float]:
    metric = MatrixMetrics()
    changed = told @ poses
    vectors = [matrices.flatten(2) for matrices in (poses, changed, others)]
    presences = torch.ones(PAIRS, 2)
    metric.update(*vectors, presences)
    return numbers(metric)


def test_matrices_follow_from_the_left() -> None:
    """Also times a constant matrix on the right, which is free; A T in place of T A is the classic mistake."""
    poses = torch.randn(PAIRS, 2, 3, 3, generator=GENERATOR)
    change = torch.randn(PAIRS, 1, 3, 3, generator=GENERATOR)
    found = matrix_error(poses, change, change @ poses)
    assert found["matrix_error"] == pytest.approx(0, abs=1e-6)
    assert found["matrix_error_unchanged"] > 1
    constant = torch.randn(3, 3, generator=GENERATOR)
    free = poses @ constant
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
    images, targets = torch.rand(2, 50, 1, 8, 8)
    with torch.no_grad():
        output = built(images, change)
        pair_metrics.update_pair_metrics(metrics, built, images, change, targets, output)
    for metric in metrics.values():
        found = [*numbers(metric)]
        in_order = [name for name in metric.quantities if name in found]
        assert in_order == found
        missing = {*metric.quantities} - {*found}
        assert missing <= {"slope_right", "slope_down", "slope_error"}
