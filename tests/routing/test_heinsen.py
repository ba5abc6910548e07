"""Heinsen's routing (2019): golden numbers and initial gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.functional import dense_votes
from capsule_lab.layers import ClassCapsules
from capsule_lab.routing import HeinsenRouting, heinsen_routing
from capsule_lab.types import RoutingTrace, Votes
from tests.helpers.waves import cosine, sine

VOTES = Votes(
    sine(1, 6, 16, frequency=0.37, phase=0.1),
    cosine(6, 3, 4, 4, scale=0.3, frequency=0.53, phase=0.2).transpose(1, 2),
)
ACTIVATIONS = sine(1, 6, frequency=0.91).sigmoid()
BETA_USE = cosine(6, 3, scale=0.5, frequency=0.61)
BETA_IGNORE = sine(6, 3, scale=0.4, frequency=0.43, phase=0.2)
BIAS = sine(6, 3, 16, scale=0.1, frequency=0.29)

COUPLINGS = [
    [1 / 3, 1 / 3, 1 / 3],
    [0.897020862832, 0.001341106905, 0.101638030263],
    [0.999999999887, 3.63e-23, 1.128e-10],
]
SCORES = [
    [-0.086498850676, -0.105497198511, -0.101637175461],
    [0.032151228180, -0.179460656900, -0.299534195689],
    [0.145080618152, -0.123444575300, -0.434069099028],
]
POSES = [
    [0.084392674463, 0.118599939593, 0.122398412946, 0.094681475643],
    [0.125315036218, 0.140485085220, 0.121518711630, 0.074386931272],
    [0.145668741441, 0.170274025045, 0.153566678685, 0.104913029473],
]
VARIANCES = [
    [0.008318071321, 0.006472120844, 0.005888811541, 0.006154209915],
    [0.000937273575, 0.001600172458, 0.001830934013, 0.001744687083],
    [0.000065350148, 0.000133464409, 0.000157985937, 0.000148586167],
]


def golden(found: Tensor, expected: list[float]) -> None:
    """Values equal the official module's numbers to their printed digits."""
    assert found.flatten().tolist() == pytest.approx(expected, rel=1e-3, abs=6e-13)


@pytest.mark.parametrize("backend", ["reference", "matmul", "fused", "dense"])
def test_values_are_the_golden_numbers(backend: Any) -> None:
    votes = dense_votes(VOTES.poses, VOTES.weight) if backend == "dense" else VOTES
    for iterations in (1, 2, 3):
        traces: list[RoutingTrace] = []
        parents = heinsen_routing(
            votes,
            ACTIVATIONS,
            BETA_USE,
            BETA_IGNORE,
            bias=BIAS,
            iterations=iterations,
            on_iteration=traces.append,
            backend="auto" if backend == "dense" else backend,
        )
        golden(parents.logits, SCORES[iterations - 1])
        golden(parents.poses[0, 0, :4], POSES[iterations - 1])
        for trace in traces:
            golden(trace.couplings[0, 0], COUPLINGS[trace.iteration])
            golden(trace.variances[0, 0, :4], VARIANCES[trace.iteration])


def test_initial_scores_are_zero_and_only_betas_learn() -> None:
    torch.manual_seed(0)
    layer = ClassCapsules(3, 2, 4, 5, 4, routing=HeinsenRouting, rows=2)
    parents = layer(torch.randn(2, 6, 4), torch.rand(2, 6))
    assert torch.equal(parents.logits, torch.zeros(2, 5))
    parents.logits[:, 1].sum().backward()
    moved = []
    for name, parameter in layer.named_parameters():
        if parameter.grad is not None and parameter.grad.any():
            moved.append(name)
    assert moved == ["routing.beta_use", "routing.beta_ignore"]
