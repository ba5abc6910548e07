"""Inverted dot-product attention: the numbers of the official code, and its mistake."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.functional import dense_votes
from capsule_lab.layers import ClassCapsules, ConvCapsules, Windows
from capsule_lab.routing import InvertedAttention, inverted_attention
from capsule_lab.types import RoutingTrace, Votes
from tests.helpers.waves import cosine, sine
from tests.reference.wrong_attention import scrambled_windows, windows

golden = partial(torch.testing.assert_close, rtol=0, atol=1e-12)
every_backend = pytest.mark.parametrize("backend", ["reference", "matmul", "fused"])


def double(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


# ------------------------------------------------------------------------------------------ golden numbers

POSES = sine(1, 6, 4, 4, frequency=0.37, phase=0.1).flatten(2)
WEIGHT = cosine(6, 4, 4, 3, scale=0.3, frequency=0.53, phase=0.2).permute(0, 1, 3, 2)  # given as [i x d j]

FIRST_POSE = {  # of parent 0, components 0 to 3, after so many iterations
    1: (0.32931677600623, 0.71479958571380, -0.35971937642755, -0.70393530064861),
    2: (0.32351725850799, 0.71346787044731, -0.35387411741148, -0.70283347545974),
    3: (0.32186618972809, 0.71385918294694, -0.35223970104332, -0.70328918175753),
}
LAST_POSE = {  # of parent 2, components 12 to 15
    2: (0.63826681995090, 1.58455756265021, -0.69925483254031, -1.55783579262475),
    3: (0.63985427658264, 1.57909142234928, -0.70062239186474, -1.55230716096071),
}
COUPLINGS = {  # of child 0
    2: (0.33276076363550, 0.33637754871967, 0.33086168764484),
    3: (0.33146251184382, 0.33938068014507, 0.32915680801111),
}


@every_backend
def test_dense_golden_numbers(backend: Any) -> None:
    for iterations in (1, 2, 3):
        traces: list[RoutingTrace] = []
        options: Any = {"iterations": iterations, "backend": backend, "on_iteration": traces.append}
        poses = inverted_attention(Votes(POSES, WEIGHT), **options).poses
        golden(poses[0, 0, :4], double(*FIRST_POSE[iterations]))
        if iterations > 1:
            golden(poses[0, 2, 12:], double(*LAST_POSE[iterations]))
            golden(traces[-1].couplings[0, 0], double(*COUPLINGS[iterations]))


GRID = sine(1, 2, 5, 5, 16, frequency=0.37, phase=0.1).permute(0, 2, 3, 1, 4)  # given as [b type y x d]
KERNEL = cosine(3, 3, 2, 4, 4, 3, scale=0.3, frequency=0.53, phase=0.2)  # [ky kx type x d j]
CONVOLUTIONAL = {
    1: (-0.00149928735592, 1.42837436164249, -0.05594932269180, -1.42881754166572),
    2: (-0.05188538418582, 1.46703966244159, -0.00713319134316, -1.46944265044923),
    3: (-0.18059808884661, 1.55096608706636, 0.11814822928146, -1.55838859714444),
}


@every_backend
def test_convolutional_golden_numbers(backend: Any) -> None:
    for iterations, pose in CONVOLUTIONAL.items():
        routing = partial(InvertedAttention, iterations=iterations, backend=backend)
        layer = ConvCapsules((5, 5), 2, 16, 3, 16, rows=4, stride=2, routing=routing).double()
        layer.weight.data = KERNEL.flatten(0, 2).permute(0, 1, 3, 2).contiguous()
        parents = layer(GRID.flatten(1, 3), torch.ones(1, 50, dtype=torch.float64))
        golden(parents.poses[0, 0, :4], double(*pose))


# ------------------------------------------------------------------------------------ the mistake of official code


def test_windows_are_those_of_the_right_version() -> None:
    """Every number of a pose says which child and component it is."""
    coded = torch.arange(5 * 6 * 2 * 3, dtype=torch.float64).view(1, 5, 6, 2, 3)
    found = Windows((5, 6), 2, kernel_size=3, stride=2).poses(coded.flatten(1, 3))
    assert torch.equal(found, windows(coded, 3, 2).flatten(0, 2).flatten(1, 3))


def test_scrambled_windows_are_caught() -> None:
    right, wrong = windows(GRID, 3, 2), scrambled_windows(GRID, 3, 2)
    assert wrong.shape == right.shape
    assert not torch.equal(wrong, right)
    weight = KERNEL.flatten(0, 2).permute(0, 1, 3, 2)
    poses = [
        inverted_attention(dense_votes(each.flatten(0, 2).flatten(1, 3).contiguous(), weight)).poses
        for each in (right, wrong)
    ]
    golden(poses[0][0, 0, :4], double(*CONVOLUTIONAL[2]))
    assert (poses[1] - poses[0]).abs().max() > 1


# ------------------------------------------------------------------------------------ what the rest does not see


def test_poses_have_the_same_size_whatever_that_of_the_votes() -> None:
    for scale in (0.1, 1.0, 10.0):
        poses = inverted_attention(scale * dense_votes(POSES, WEIGHT)).poses
        torch.testing.assert_close(poses.square().mean(2), torch.ones(1, 3).double(), rtol=0, atol=1e-2)


def test_agreement_is_that_of_couplings_and_votes() -> None:
    votes, traces = dense_votes(POSES, WEIGHT), []
    parents = inverted_attention(votes, on_iteration=traces.append)
    expected = torch.einsum("bij,bijd,bjd->bj", traces[-1].couplings, votes, parents.poses) / 4
    torch.testing.assert_close(parents.logits, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("head", "parameters"), [(False, 32), (True, 49)])
def test_activations_are_the_logistic_of_the_logits(head: bool, parameters: int) -> None:
    layer = ClassCapsules(3, 2, 16, 3, 16, rows=4, routing=partial(InvertedAttention, head=head)).double()
    assert sum(parameter.numel() for parameter in layer.routing.parameters()) == parameters
    parents = layer(POSES, torch.ones(1, 6).double())
    torch.testing.assert_close(parents.activations, parents.logits.sigmoid(), rtol=0, atol=0)
    linear = layer.routing.head(parents.poses).squeeze(2) if head else inverted_attention(votes_of(layer)).logits
    torch.testing.assert_close(parents.logits, linear, rtol=0, atol=1e-12)


def votes_of(layer: ClassCapsules) -> Tensor:
    return dense_votes(POSES, layer.weight.repeat(layer.positions, 1, 1, 1))


def test_activations_of_the_children_do_not_matter() -> None:
    layer = ClassCapsules(3, 2, 16, 3, 16, rows=4, routing=InvertedAttention).double()
    found = [layer(POSES, torch.full((1, 6), value).double()).poses for value in (0.1, 0.9)]
    assert torch.equal(*found)


@pytest.mark.usefixtures("unchecked_types")
def test_poses_of_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="the routing's scale is of shape"):
        InvertedAttention(3, 4)(torch.zeros(2, 6, 3, 5))
    with pytest.raises(ValueError, match="poses have 1 component, which layer normalisation makes 0; expected 2 or"):
        InvertedAttention(3, 1)
