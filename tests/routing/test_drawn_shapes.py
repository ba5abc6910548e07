"""Every backend equals the reference backend in float64 for drawn shapes.

Shapes have one child, one parent, one image, sizes around the blocks of the kernels; tensors have strides, and children
no activation. ``tests/reference`` judges the reference backend; see ``test_contract.py``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from capsule_lab.routing import (
    dynamic_routing,
    em_evidence,
    em_routing,
    heinsen_routing,
    inverted_attention,
    scaled_distance_agreement,
    self_attention_routing,
    uniform_routing,
    variational_bayes_routing,
)
from capsule_lab.types import Capsules, Votes

# the CPU kernels compute 16 images or children at a time
BLOCKS = [1, 2, 3, 5, 7, 8, 13, 15, 16, 17, 31, 33]
POSES = ((1, 1, 1), (1, 8, 16), (4, 4, 4), (1, 3, 5), (2, 3, 2))  # rows, inner, columns


class Case(NamedTuple):
    """Sizes of a layer, and the properties of its tensors."""

    batch: int
    child: int
    parent: int
    pose: tuple[int, int, int]
    strided: bool
    absent: int  # every absent-th child has activation 0; 0 for none
    seed: int


cases = st.builds(
    Case,
    batch=st.sampled_from(BLOCKS),
    child=st.sampled_from(BLOCKS),
    parent=st.sampled_from((1, 2, 3, 10)),
    pose=st.sampled_from(POSES),
    strided=st.booleans(),
    absent=st.sampled_from((0, 1, 2)),
    seed=st.integers(0, 9),
)


def drawn(case: Case) -> tuple[Votes, Tensor]:
    """Poses and weight of a layer, and the activations of its children, in float64."""
    generator = torch.Generator().manual_seed(case.seed)
    rows, inner, columns = case.pose
    draw = partial(torch.randn, dtype=torch.float64, generator=generator)
    poses = draw(case.batch, case.child, rows * inner)
    weight = draw(case.child, inner, case.parent, columns) / inner**0.5
    activations = torch.rand(case.batch, case.child, dtype=torch.float64, generator=generator)
    if case.absent:
        activations[:, :: case.absent] = 0
    if case.strided:
        poses = poses.transpose(0, 1).contiguous().transpose(0, 1)
        weight = weight.flip(0).transpose(0, 2).contiguous().transpose(0, 2)
        activations = torch.stack([activations, activations], 2)[..., 0]
    return Votes(poses, weight), activations


def with_betas(votes: Votes, activations: Tensor, **options: Any) -> Capsules:
    betas = torch.full((votes.weight.shape[2],), 0.5, dtype=activations.dtype)
    return em_routing(votes, activations, betas, betas, inverse_temperature=0.5, **options)


def with_uses(votes: Votes, activations: Tensor, **options: Any) -> Capsules:
    uses = torch.full((votes.weight.shape[0], votes.weight.shape[2]), 0.1, dtype=activations.dtype)
    return heinsen_routing(votes, activations, 2 * uses, uses, **options)


def of_votes(routing: Callable[..., Any]) -> Callable[..., Any]:
    return lambda votes, activations, **options: routing(votes, **options)


ROUTINGS: dict[str, Callable[..., Any]] = {
    "dynamic": of_votes(dynamic_routing),
    "em": with_betas,
    "em_normalised": em_evidence,
    "heinsen": with_uses,
    "inverted_attention": of_votes(inverted_attention),
    "scaled_distance": scaled_distance_agreement,
    "self_attention": of_votes(self_attention_routing),
    "uniform": of_votes(uniform_routing),
    "variational_bayes": variational_bayes_routing,
}


@pytest.mark.whole  # twelve shapes of each
@pytest.mark.parametrize("backend", ["matmul", "fused"])
@pytest.mark.parametrize("name", ROUTINGS)
def test_a_backend_equals_the_reference(name: str, backend: str) -> None:
    @settings(max_examples=12, derandomize=True, deadline=None, database=None)
    @given(cases)
    def check(case: Case) -> None:
        votes, activations = drawn(case)
        expected = ROUTINGS[name](votes, activations, backend="reference")
        found = ROUTINGS[name](votes.map(Tensor.float), activations.float(), backend=backend)
        for one, other in zip(found, expected, strict=True):
            assert one.isfinite().all()
            torch.testing.assert_close(one.double(), other, rtol=2e-3, atol=2e-3 * scale(other))

    check()


def scale(expected: Tensor) -> float:
    """Logits and evidence have no natural scale."""
    return max(1.0, expected.abs().max().item())
