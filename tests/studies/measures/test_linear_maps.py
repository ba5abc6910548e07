from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from capsule_lab.studies.measures.linear_maps import group_law, linear_map, principal_components


def poses(images: int = 200, dim: int = 4) -> Tensor:
    return torch.randn(images, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def turned(angle: float) -> Tensor:
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[:2, :2] = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    return matrix


def test_finds_the_map() -> None:
    before = poses()
    found = linear_map(before, before @ turned(0.5) + 3, 1e-9)
    torch.testing.assert_close(found.matrix, turned(0.5), rtol=0, atol=1e-6)
    assert found.error < 1e-12
    assert found.identity_error > 1


def test_error_of_the_mean_is_one() -> None:
    """What has nothing to do with the pose cannot be told better than by its mean."""
    before = poses(4000)
    found = linear_map(before, before.roll(1, 0), 1e-3)
    assert found.error == pytest.approx(1, abs=0.05)


def test_judged_on_images_that_it_was_not_fitted_to() -> None:
    """Of as few images as dimensions, a map that was judged where it was fitted would be perfect."""
    before = poses(10)
    assert linear_map(before, poses(20)[10:], 1e-9).error > 1


def test_penalty_draws_to_the_identity() -> None:
    before = poses()
    found = linear_map(before, before @ turned(0.5), 1e9)
    torch.testing.assert_close(found.matrix, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-6)


def test_turning_twice_is_turning_by_twice_as_much() -> None:
    before = poses()
    one, two = (linear_map(before, before @ turned(angle), 1e-9).matrix for angle in (0.2, 0.4))
    assert group_law(one, one, two) < 1e-6
    assert group_law(one, one, one) > 0.9


def test_principal_components_are_of_the_images_given() -> None:
    features = poses(50, 6) * torch.tensor([10.0, 1, 1, 1, 1, 0.1])
    project = principal_components(features, 2)
    found = project(features)
    assert found.shape == (50, 2)
    assert float(found[:, 0].std() / features[:, 0].std()) == pytest.approx(1, rel=0.01)
    torch.testing.assert_close(found.mean(0), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        project(features[:3] + 1) - found[:3], (project(features[:1] + 1) - found[:1]).expand(3, -1)
    )
