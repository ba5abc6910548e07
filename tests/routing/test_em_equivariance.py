"""What EM routing does to its poses when all votes are changed in one way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.routing import em_routing
from capsule_lab.types import RoutingTrace
from tests.helpers.changes_of_votes import CHANGES, example


def routed(votes: Tensor, iterations: int = 3, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Poses, activations, couplings."""
    traces: list[RoutingTrace] = []
    beta = votes.new_zeros(3)
    found = em_routing(votes, example()[1], beta, beta, iterations=iterations, on_iteration=traces.append, **options)
    return found.poses, found.activations, traces[-1].couplings


@pytest.mark.parametrize("name", ["shift", "signed permutation"])
def test_exact(name: str) -> None:
    change, votes = CHANGES[name], example()[0]
    before, after = (routed(each, mass_eps=0.0) for each in (votes, change(votes)))
    torch.testing.assert_close(after[0], change(before[0]), rtol=0, atol=1e-12)
    torch.testing.assert_close(after[1:], before[1:], rtol=0, atol=1e-12)


def test_mass_that_is_added_breaks_shifts_by_as_little() -> None:
    change, votes = CHANGES["shift"], example()[0]
    before, after = routed(votes), routed(change(votes))  # 1e-7
    difference = (after[0] - change(before[0])).abs().max()
    assert 1e-9 < difference < 1e-5


def test_damping_breaks_shifts() -> None:
    """The official code moves poses by nine tenths of the way, at first from zero."""
    change, votes = CHANGES["shift"], example()[0]
    before, after = routed(votes, damping=0.1), routed(change(votes), damping=0.1)
    assert (after[0] - change(before[0])).abs().max() > 0.05
    assert (after[2] - before[2]).abs().max() > 0.02


@pytest.mark.parametrize("name", ["rotation of 16 components", "turned frame of 4x4 poses"])
def test_turning_is_exact_for_means_only(name: str) -> None:
    """Means are linear; variances are of components, which turning mixes."""
    change, votes = CHANGES[name], example()[0]
    once = routed(votes, 1)[0], routed(change(votes), 1)[0]
    torch.testing.assert_close(once[1], change(once[0]), rtol=0, atol=1e-13)
    before, after = routed(votes), routed(change(votes))
    assert (after[2] - before[2]).abs().max() > 0.3


def test_scaling_keeps_couplings_nearly() -> None:
    votes = example()[0]
    before, after = routed(votes), routed(2 * votes)
    assert (after[2] - before[2]).abs().max() < 0.02
    assert (after[1] < before[1]).all()  # it costs more to describe wider votes


def test_negated_votes_look_the_same() -> None:
    """Peer 2021. Betas do not help: Gaussians are symmetric."""
    votes = example()[0]
    before, after = routed(votes), routed(-votes)
    torch.testing.assert_close(after[0], -before[0], rtol=0, atol=1e-14)
    torch.testing.assert_close(after[1:], before[1:], rtol=0, atol=1e-14)
