"""What the contract cannot ask of EM routing with normalised evidence: training mode, temperature."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.layers import ConvCapsules
from capsule_lab.routing import NormalisedEMRouting
from capsule_lab.types import RoutingTrace, Votes

CHILDREN, PARENTS, DIM = 7, 3, 4


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def given(images: int = 6) -> tuple[Votes, Tensor]:
    poses, weight = draw(images, CHILDREN, DIM), draw(CHILDREN, 2, PARENTS, 2, seed=1)
    return Votes(poses, weight), draw(images, CHILDREN, seed=2).sigmoid()


def routing(**options: Any) -> NormalisedEMRouting:
    return NormalisedEMRouting(PARENTS, DIM, **options).double()


def test_logits_of_a_batch_are_normalised_per_parent() -> None:
    logits = routing()(*given()).logits
    torch.testing.assert_close(logits.mean(0), torch.zeros(PARENTS, dtype=torch.float64))
    torch.testing.assert_close(logits.var(0, correction=0), torch.ones(PARENTS, dtype=torch.float64), rtol=1e-2, atol=0)


def test_poses_of_a_batch_are_normalised_per_component() -> None:
    poses = routing()(*given()).poses
    torch.testing.assert_close(poses.mean(0), torch.zeros(PARENTS, DIM, dtype=torch.float64))
    assert routing(pose_norm=False)(*given()).poses.mean(0).abs().min() > 1e-3


def test_evaluation_converges_to_training() -> None:
    """Running statistics become those of the batch if it is always the same one."""
    module = routing()
    for _ in range(300):
        expected = module(*given())
    module.eval()
    torch.testing.assert_close(module(*given()).logits, expected.logits, rtol=0.15, atol=0.01)  # unbiased variance


def test_state_restores_the_running_statistics() -> None:
    module, other = routing(), routing()
    for seed in range(3):
        votes, activations = given()
        module(votes._replace(poses=draw(6, CHILDREN, DIM, seed=seed)), activations)
    other.load_state_dict(deepcopy(module.state_dict()))
    assert torch.equal(module.eval()(*given()).logits, other.eval()(*given()).logits)
    assert torch.equal(module.train()(*given()).logits, other.train()(*given()).logits)


def test_high_temperatures_are_equal_couplings() -> None:
    traces: dict[float, list[RoutingTrace]] = {}
    for temperature in (0.1, 1.0, 1e6):
        traces[temperature] = []
        routing(temperature=temperature, min_variance=0.1)(*given(), on_iteration=traces[temperature].append)
    deviations = [(found[-1].couplings - 1 / PARENTS).abs().mean().item() for found in traces.values()]
    assert deviations[0] > 1.5 * deviations[1] > 1e3 * deviations[2]


def test_types_share_their_statistics_over_positions() -> None:
    def build(**sizes: int) -> NormalisedEMRouting:
        return NormalisedEMRouting(**sizes)

    layer = ConvCapsules((5, 5), 2, DIM, PARENTS, DIM, rows=2, routing=build, weight_std=1.0)
    capsules = layer(torch.randn(4, 50, DIM), torch.rand(4, 50))
    assert layer.routing.evidence_norm.num_features == PARENTS
    assert capsules.logits.view(4, 9, PARENTS).mean((0, 1)).tolist() == pytest.approx([0] * PARENTS, abs=1e-5)
