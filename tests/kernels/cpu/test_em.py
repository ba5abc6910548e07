"""The kernels of EM routing against the same sums written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from capsule_lab.kernels import cpu
from capsule_lab.kernels.em_arguments import FitInputs, FitOptions, FitOutputs, Parents
from tests.helpers.kernels import Case, Sizes, assert_exact, assert_near, both_types, dense_votes, draw, every_size

FIT_OPTIONS = [
    pytest.param(0.0, 5e-4, 1e-7, id="plain"),
    pytest.param(0.3, 0.1, 0.5, id="all terms"),
]


def slow_fit(
    poses: Tensor,
    weight: Tensor,
    activations: Tensor,
    couplings: Tensor,
    previous: Tensor,
    inner: int,
    damping: float,
    min_variance: float,
    mass_eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    votes = dense_votes(poses, weight, inner)
    assigned = couplings * activations[:, None]
    mass = assigned.sum(2) + mass_eps
    mean = torch.einsum("nji,njid->njd", assigned, votes) / mass[..., None]
    parents = (1 - damping) * mean + damping * previous
    squared = (votes - parents[:, :, None]) ** 2
    variances = min_variance + torch.einsum("nji,njid->njd", assigned, squared) / mass[..., None]
    return mass, parents, variances, torch.einsum("njid,njd->nji", squared, 0.5 / variances)


@both_types
@pytest.mark.parametrize(("damping", "min_variance", "mass_eps"), FIT_OPTIONS)
@every_size
def test_fit(sizes: Sizes, damping: float, min_variance: float, mass_eps: float, dtype: torch.dtype) -> None:
    case = Case(sizes)
    tensors = FitInputs(case.poses, case.weight, case.activations, case.couplings, case.parents)
    options = (
        case.inner,
        damping,
        max(min_variance, 0.01),
        mass_eps,
    )  # of variance zero distances are noise
    expected = slow_fit(*tensors, *options)
    given = FitInputs(*(tensor.to(dtype) for tensor in tensors))
    assert_near(cpu.fit(given, FitOptions(*options, True)), expected, dtype)
    *fitted, distances = cpu.fit(given, FitOptions(*options, False))
    assert_near(fitted, expected[:3], dtype)
    assert distances.shape == (*expected[0].shape, 0)


@both_types
@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize(("damping", "min_variance", "mass_eps"), FIT_OPTIONS)
@every_size
def test_fit_backward(
    sizes: Sizes, damping: float, min_variance: float, mass_eps: float, measured: bool, dtype: torch.dtype
) -> None:
    case = Case(sizes)
    tensors = [
        tensor.requires_grad_()
        for tensor in (case.poses, case.weight, case.activations, case.couplings, case.parents.clone())
    ]
    options = case.inner, damping, max(min_variance, 0.01)
    results = slow_fit(*tensors, *options, mass_eps)
    gradients = [draw(*result.shape, seed=10 + n) for n, result in enumerate(results)]
    asked = slice(4 if measured else 3)
    expected = torch.autograd.grad(results[asked], tensors, gradients[asked], allow_unused=True, materialize_grads=True)
    if not measured:
        gradients[3] = gradients[3][..., :0]
    given, fitted, grad_outputs = (
        [tensor.detach().to(dtype) for tensor in each] for each in (tensors, results[:3], gradients)
    )
    found = cpu.fit_backward(FitInputs(*given), Parents(*fitted), FitOutputs(*grad_outputs), *options)
    assert_near(found, expected, dtype)


@both_types
@every_size
def test_distances(sizes: Sizes, dtype: torch.dtype) -> None:
    case = Case(sizes)
    error = case.votes() - case.parents[:, :, None]
    expected = (error**2 / (2 * case.variances[:, :, None])).sum(3)
    given = [tensor.to(dtype) for tensor in (case.poses, case.weight, case.parents, case.variances)]
    assert_near(cpu.distances(*given, case.inner), expected, dtype)


def test_distances_are_those_of_the_fit() -> None:
    """The backward pass computes again what the forward pass had, and must find the same couplings."""
    case = Case(Sizes(3, 2, 73, 4, 4, 4))
    inputs = FitInputs(case.poses, case.weight, case.activations, case.couplings, case.parents)
    _, parents, variances, distances = cpu.fit(inputs, FitOptions(4, 0.1, 5e-4, 1e-7, True))
    assert_exact(cpu.distances(case.poses, case.weight, parents, variances, 4), distances, rtol=1e-13, atol=1e-13)
