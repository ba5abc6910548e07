"""Attention over the children: golden numbers of the formula, and its differences from other routings."""

import math

import torch
from torch import Tensor

from capsule_lab.routing import attention_over_children
from capsule_lab.types import RoutingTrace
from tests.helpers.closeness import assert_close
from tests.helpers.waves import cosine, sine

CHILDREN = sine(1, 6, 4, frequency=0.37, phase=0.1)
# [i c j d]
TRANSFORMATION = cosine(6, 4, 3, 5, scale=0.3, frequency=0.53, phase=0.2)
ADDED = sine(6, 3, 5, scale=0.02, frequency=0.29)
VOTES = ADDED + torch.einsum("bic,icjd->bijd", CHILDREN, TRANSFORMATION)
ATTENTION = sine(3, 5, 6, 6, scale=0.2, frequency=0.31, phase=0.2)  # [j d k i]
WEIGHT = cosine(3, 5, 5, scale=0.4, frequency=0.41)
BIAS = sine(3, 5, scale=0.1, frequency=0.7)
LEARNED = ATTENTION, WEIGHT, BIAS


def golden(values: Tensor, *numbers: float, atol: float = 1e-11) -> None:
    expected = torch.tensor(numbers, dtype=torch.float64)
    assert_close(values, expected, atol=atol)


def test_values_are_the_golden_numbers() -> None:
    traces: list[RoutingTrace] = []
    parents = attention_over_children(VOTES, *LEARNED, on_iteration=traces.append)
    alpha = (
        0.169822401169,
        0.169198709310,
        0.167989163457,
        0.166320077281,
        0.164361727556,
        0.162307921228,
    )
    golden(traces[0].couplings[0, :, 0], *alpha)
    pose = (
        0.002220721173,
        0.066693199382,
        0.100333732393,
        0.087627364917,
        0.034167621771,
    )
    golden(parents.poses[0, 0], *pose)
    lengths = 0.068360447280, 0.067234874286, 0.066795648184
    # a length adds 1e-8 under its root
    golden(parents.activations[0], *lengths, atol=1e-7)


def test_activations_lie_between_0_and_1() -> None:
    parents = attention_over_children(1e3 * VOTES, *LEARNED)
    lengths = parents.poses.norm(dim=2) / math.sqrt(5)
    assert_close(parents.activations, lengths, atol=1e-7)
    assert_close(parents.logits.sigmoid(), parents.activations, atol=2e-6)
