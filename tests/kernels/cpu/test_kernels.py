"""The kernels of a CPU against the same sums written out; any memory order, threads and callers.

``NUMBA_BOUNDSCHECK=1`` checks every index that does not belong to a SIMD vector.
"""

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from capsule_lab.kernels import cpu
from capsule_lab.kernels.em_arguments import FitInputs, FitOptions
from tests.helpers.kernels import (
    SIZES,
    Sizes,
    assert_exact,
    assert_near,
    backwards,
    kernels_of,
    with_gaps,
)

NAMES = list(kernels_of(cpu, SIZES[1]))
every_kernel = pytest.mark.parametrize("name", NAMES)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"damping": 0.0, "min_variance": 0.01, "mass_eps": 1e-7},
    {"measure": False},
]


def test_every_kernel_is_called() -> None:
    assert {name.split(",")[0] for name in NAMES} == set(cpu.__all__)


@every_kernel
def test_kernel_is_the_sums_written_out(name: str) -> None:
    """In both precisions; those of a fit with every option."""
    of_kernel = OPTIONS if name.startswith("fit") else OPTIONS[:1]
    for sizes, options in itertools.product(SIZES, of_kernel):
        kernel = kernels_of(cpu, sizes, **options)[name]
        expected = kernel.slow(*kernel.arguments)
        for dtype in (torch.float64, torch.float32):
            found = kernel.call(*[each.to(dtype) for each in kernel.arguments])
            assert_near(found, expected, dtype, f"{sizes}, {options}")


def test_every_child_is_in_one_block() -> None:
    for children in (1, 63, 143, 144, 145, 287, 288, 289, 577):
        for name in ("weighted_sum", "agreement", "contraction"):
            kernel = kernels_of(cpu, Sizes(2, 2, children, 1, 3, 2))[name]
            found = kernel.call(*kernel.arguments)
            expected = kernel.slow(*kernel.arguments)
            assert_near(found, expected, torch.float64, f"{name}, {children}")


def test_distances_are_those_of_the_fit() -> None:
    """The backward pass computes again what the forward pass had, and must find the same couplings."""
    inputs = FitInputs(*kernels_of(cpu, Sizes(3, 2, 73, 4, 4, 4))["fit"].arguments)
    _, parents, variances, distances = cpu.fit(inputs, FitOptions(4, 0.1, 5e-4, 1e-7, True))
    again = cpu.distances(inputs.poses, inputs.weight, parents, variances, 4)
    assert_exact(again, distances, rtol=1e-13, atol=1e-13)


def test_softmax_of_extreme_logs_is_finite() -> None:
    for scale, dtype in itertools.product((0.0, 30.0, 1e6), (torch.float64, torch.float32)):
        kernels = kernels_of(cpu, SIZES[1], scale=scale)
        softmax = kernels["softmax_by_child"]
        logs = softmax.arguments[0].to(dtype)
        shares = softmax.call(logs)
        assert_near(shares, softmax.slow(logs.double()), dtype, "shares")
        gradient = kernels["softmax_by_child_backward"].call(shares, torch.ones_like(shares))
        assert gradient.isfinite().all()


@every_kernel
def test_memory_order_and_threads_do_not_matter(
    name: str, many_threads: Callable[[int], None]
) -> None:
    """Threads share images or, in dynamic routing, 900 children, enough for three parts."""
    kernel = kernels_of(cpu, Sizes(5, 2, 900, 1, 2, 3))[name]
    many_threads(1)
    expected = kernel.call(*kernel.arguments)
    for change in (with_gaps, backwards):
        assert_exact(kernel.call(*map(change, kernel.arguments)), expected, rtol=0, atol=1e-12)
    for count in (2, 3, 5):
        many_threads(count)
        assert_exact(kernel.call(*kernel.arguments), expected, rtol=1e-12, atol=1e-12)


def test_kernels_can_be_called_from_threads_of_their_caller() -> None:
    kernels = kernels_of(cpu, SIZES[1]).values()

    def call_all() -> list[Any]:
        return [kernel.call(*kernel.arguments) for kernel in kernels]

    expected = call_all()
    found: list[Any] = []
    callers = [threading.Thread(target=lambda: found.append(call_all())) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert len(found) == 2
    for several in found:
        for one, other in zip(several, expected, strict=True):
            assert_exact(one, other, rtol=0, atol=1e-12)
