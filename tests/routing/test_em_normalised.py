"""EM routing with normalised evidence in training mode, which the contract does not cover."""

from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.layers import ConvCapsules
from capsule_lab.routing import NormalisedEMRouting
from capsule_lab.routing.em_normalised import em_evidence
from capsule_lab.types import Votes
from tests.reference.em_bridge import random

CHILDREN, PARENTS, DIM = 7, 3, 4


def given() -> tuple[Votes, Tensor]:
    poses = random(6, CHILDREN, DIM)
    weight = random(CHILDREN, 2, PARENTS, 2, seed=1)
    activations = random(6, CHILDREN, seed=2).sigmoid()
    return Votes(poses, weight), activations


def routing(**options: Any) -> NormalisedEMRouting:
    return NormalisedEMRouting(PARENTS, DIM, **options).double()


def test_logits_are_normalised_per_parent_and_poses_per_component() -> None:
    parents = routing()(*given())
    no_logits = torch.zeros(PARENTS).double()
    no_poses = torch.zeros(PARENTS, DIM).double()
    torch.testing.assert_close(parents.logits.mean(0), no_logits)
    variances = parents.logits.var(0, correction=0)
    assert variances.tolist() == pytest.approx([1] * PARENTS, rel=1e-2)
    torch.testing.assert_close(parents.poses.mean(0), no_poses)
    without_norm = routing(pose_norm=False)(*given())
    means = without_norm.poses.mean(0)
    assert means.abs().min() > 1e-3


def test_positions_of_a_type_share_statistics() -> None:
    options: Any = {"routing": NormalisedEMRouting, "rows": 2, "weight_std": 1.0}
    layer = ConvCapsules((5, 5), 2, DIM, PARENTS, DIM, **options)
    poses = torch.randn(4, 50, DIM)
    activations = torch.rand(4, 50)
    capsules = layer(poses, activations)
    assert layer.routing.evidence_norm.num_features == PARENTS
    means = capsules.logits.view(4, 9, PARENTS).mean((0, 1))
    assert means.tolist() == pytest.approx([0] * PARENTS, abs=1e-5)


@pytest.mark.parametrize("name", ["temperature", "min_variance"])
def test_numbers_of_the_function_are_checked_as_those_of_the_module(name: str) -> None:
    wrong: dict[str, Any] = {name: 0.0}
    with pytest.raises(ValueError, match=f"routing {name} is 0.0; expected"):
        em_evidence(*given(), **wrong)
    with pytest.raises(ValueError, match=f"routing {name} is 0.0; expected"):
        routing(**wrong)
