"""The kernels of dynamic routing against the same sums written out."""

from __future__ import annotations

import pytest
import torch

from capsule_lab.kernels import cpu
from tests.helpers.kernels import Case, Sizes, assert_exact, assert_near, both_types, every_size


@both_types
@every_size
def test_weighted_sum(sizes: Sizes, dtype: torch.dtype) -> None:
    case = Case(sizes)
    expected = torch.einsum("nji,njid->njd", case.by_child, case.votes())
    given = [tensor.to(dtype) for tensor in (case.poses, case.weight, case.by_child)]
    assert_near(cpu.weighted_sum(*given, case.inner), expected, dtype)


@both_types
@every_size
def test_agreement(sizes: Sizes, dtype: torch.dtype) -> None:
    case = Case(sizes)
    expected = torch.einsum("njd,njid->nji", case.parents, case.votes())
    given = [tensor.to(dtype) for tensor in (case.poses, case.weight, case.parents)]
    assert_near(cpu.agreement(*given, case.inner), expected, dtype)


@both_types
@every_size
def test_contraction(sizes: Sizes, dtype: torch.dtype) -> None:
    """Poses and weight have the gradient of votes that are summed, each times numbers of its child and component."""
    case = Case(sizes)
    poses, weight = case.poses.requires_grad_(), case.weight.requires_grad_()
    products = [
        (case.by_child, case.parents),
        (case.couplings, case.variances),
        (case.by_child.sin(), case.parents.cos()),
    ]
    given = [tensor.detach().to(dtype) for tensor in (poses, weight)]
    for terms in (products[:1], products):
        whole = sum(torch.einsum("nji,njid,njd->", child, case.votes(), component) for child, component in terms)
        expected = torch.autograd.grad(whole, (poses, weight))
        by_child, by_component = ([tensor.to(dtype) for tensor in each] for each in zip(*terms, strict=True))
        assert_near(cpu.contraction(*given, by_child, by_component, case.inner), expected, dtype)


@pytest.mark.parametrize("children", [1, 63, 143, 144, 145, 287, 288, 289, 577])
def test_every_child_is_in_one_block(children: int) -> None:
    case = Case(Sizes(2, 2, children, 1, 3, 2))
    votes = case.votes()
    given = case.poses, case.weight
    assert_exact(cpu.weighted_sum(*given, case.by_child, 3), torch.einsum("nji,njid->njd", case.by_child, votes))
    assert_exact(cpu.agreement(*given, case.parents, 3), torch.einsum("njd,njid->nji", case.parents, votes))
    grad_poses, grad_weight = cpu.contraction(*given, [case.by_child], [case.parents], 3)
    by_pose = torch.einsum("nji,njc,jqci->nqi", case.by_child, case.parents, case.weight.unflatten(1, (3, 2)))
    assert_exact(grad_poses, by_pose)
    by_weight = torch.einsum("nji,njc,nqi->jqci", case.by_child, case.parents, case.poses).flatten(1, 2)
    assert_exact(grad_weight, by_weight)
