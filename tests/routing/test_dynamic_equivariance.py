"""What dynamic routing does to its poses when all votes are changed in one way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from capsule_lab.routing import dynamic_routing
from capsule_lab.types import RoutingTrace
from tests.helpers.changes_of_votes import CHANGES, example

ITERATIONS = 3


def routed(votes: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Poses, activations, couplings."""
    traces: list[RoutingTrace] = []
    found = dynamic_routing(votes, iterations=ITERATIONS, bias=bias, on_iteration=traces.append)
    return found.poses, found.activations, traces[-1].couplings


EXACT = ["rotation of 16 components", "signed permutation", "turned frame of 4x4 poses"]


@pytest.mark.parametrize("name", EXACT)
def test_exact_without_bias(name: str) -> None:
    change, votes = CHANGES[name], example()[0]
    before, after = routed(votes), routed(change(votes))
    torch.testing.assert_close(after[0], change(before[0]), rtol=0, atol=1e-13)
    torch.testing.assert_close(after[1:], before[1:], rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", EXACT)
def test_broken_by_a_bias(name: str) -> None:
    change, votes = CHANGES[name], example()[0]
    bias = votes.new_full((3, 16), 0.1)  # Sabour 2017, official code
    before, after = routed(votes, bias), routed(change(votes), bias)
    assert (after[0] - change(before[0])).abs().max() > 0.05


def test_not_under_shifts() -> None:
    change, votes = CHANGES["shift"], example()[0]
    before, after = routed(votes), routed(change(votes))
    assert (after[2] - before[2]).abs().max() > 0.01


def test_scaling_keeps_directions_only_nearly() -> None:
    """Longer votes agree more, so that couplings change, and with them directions a little."""
    votes = example()[0]
    before, after = routed(votes), routed(2 * votes)
    assert torch.cosine_similarity(before[0], after[0], dim=2).min() > 0.9
    assert (after[1] > before[1]).all()


def test_same_lengths_of_negated_votes_without_bias() -> None:
    """Peer 2021: x and -x look the same."""
    votes = example()[0]
    before, after = routed(votes), routed(-votes)
    torch.testing.assert_close(after[1:], before[1:], rtol=0, atol=1e-14)


def test_bias_tells_negated_votes() -> None:
    votes = example()[0]
    bias = votes.new_full((3, 16), 0.1)
    assert (routed(votes, bias)[1] - routed(-votes, bias)[1]).abs().max() > 1e-3
