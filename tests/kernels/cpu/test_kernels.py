"""What all kernels of a CPU have in common: any memory order, any number of threads, any thread that calls them.

``NUMBA_BOUNDSCHECK=1`` checks every index that does not belong to a SIMD vector.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.kernels import cpu
from capsule_lab.kernels.em_arguments import FitInputs, FitOptions, FitOutputs, Parents
from tests.helpers.kernels import SIZES, Case, Sizes, assert_exact, draw


def with_gaps(tensor: Tensor) -> Tensor:
    """The same numbers with gaps between them."""
    return tensor.repeat_interleave(2, -1)[..., ::2]


def backwards(tensor: Tensor) -> Tensor:
    """The same numbers, the last dimension outermost."""
    order = tuple(range(tensor.ndim))[::-1]
    return tensor.permute(order).contiguous().permute(order)


def fit(*arguments: Any) -> Any:
    return cpu.fit(FitInputs(*arguments[:5]), FitOptions(*arguments[5:]))


def fit_backward(*arguments: Any) -> Any:
    records = FitInputs(*arguments[:5]), Parents(*arguments[5:8]), FitOutputs(*arguments[8:12])
    return cpu.fit_backward(*records, *arguments[12:])


def contraction(poses: Tensor, weight: Tensor, by_child: Tensor, by_component: Tensor, inner: int) -> Any:
    return cpu.contraction(poses, weight, [by_child], [by_component], inner)


def calls(case: Case) -> dict[str, Callable[[Callable[[Tensor], Tensor]], Any]]:
    """Every kernel as a function of what to do with its tensors."""
    votes = case.poses, case.weight
    inputs = *votes, case.activations, case.couplings, case.parents
    outputs = fit(*inputs, case.inner, 0.1, 0.1, 0.1, True)
    backward = *inputs, *outputs[:3], *(draw(*each.shape, seed=20 + n) for n, each in enumerate(outputs))
    logs, child = draw(6, 3, 4, seed=7), torch.tensor([[0, 1, 2, 3], [2, 3, 4, 6], [4, 6, 0, 1]])
    all_calls: dict[str, tuple[Any, tuple[Tensor, ...], tuple[Any, ...]]] = {
        "fit": (fit, inputs, (case.inner, 0.1, 0.1, 0.1, True)),
        "fit_backward": (fit_backward, backward, (case.inner, 0.1, 0.1)),
        "distances": (cpu.distances, (*votes, case.parents, case.variances), (case.inner,)),
        "weighted_sum": (cpu.weighted_sum, (*votes, case.by_child), (case.inner,)),
        "agreement": (cpu.agreement, (*votes, case.parents), (case.inner,)),
        "contraction": (contraction, (*votes, case.by_child, case.parents), (case.inner,)),
        "softmax_by_child": (cpu.softmax_by_child, (logs,), (child, 7)),
        "softmax_by_child_backward": (cpu.softmax_by_child_backward, (logs, logs.sin()), (child, 7)),
    }
    return {
        name: lambda change, kernel=kernel, tensors=tensors, options=options: kernel(*map(change, tensors), *options)
        for name, (kernel, tensors, options) in all_calls.items()
    }


KERNELS = cpu.__all__


def test_every_kernel_is_called() -> None:
    assert set(calls(Case(SIZES[1]))) == set(KERNELS)


@pytest.mark.parametrize("change", [with_gaps, backwards])
@pytest.mark.parametrize("name", KERNELS)
def test_memory_order_does_not_matter(name: str, change: Callable[[Tensor], Tensor]) -> None:
    call = calls(Case(Sizes(3, 2, 17, 2, 3, 2)))[name]
    assert_exact(call(change), call(torch.clone), rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("name", KERNELS)
def test_any_number_of_threads_gives_the_same(name: str, count: int, many_threads: Callable[[int], None]) -> None:
    """Of images or, in dynamic routing, of 900 children, enough for three parts."""
    case = Case(Sizes(5, 2, 900, 1, 2, 3))
    many_threads(1)
    call = calls(case)[name]
    expected = call(torch.clone)
    many_threads(count)
    assert_exact(call(torch.clone), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_can_be_called_from_threads_of_their_caller(name: str) -> None:
    call = calls(Case(SIZES[1]))[name]
    expected, found = call(torch.clone), []
    callers = [threading.Thread(target=lambda: found.append(call(torch.clone))) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert len(found) == 2
    assert_exact(found, [expected, expected], rtol=0, atol=1e-12)
