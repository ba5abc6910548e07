"""The SIMD vector type against numpy.

It uses internals of numba and llvmlite, read from numba 0.68 and llvmlite 0.50: if only these tests and those of the
kernels fail after an upgrade, ``capsule_lab/kernels/cpu/simd.py`` is the file to look at.
"""

from typing import Any

import numba
import numpy as np
import pytest

from capsule_lab.kernels.cpu.simd import LANES, broadcast, extract, insert, load, reduce_add, store


@numba.njit
def _arithmetic(a: Any, b: Any, at: int, out: Any) -> None:
    one = load(a, at)
    other = load(b, at)
    store(out, at, one * other + one - other)


@numba.njit
def _lanes(a: Any, lane: int, number: Any, out: Any) -> Any:
    vector = insert(load(a, 0), lane, number)
    store(out, 0, vector)
    store(out, LANES, broadcast(number))
    return extract(vector, lane), reduce_add(vector)


def draw(count: int, dtype: Any, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(count).astype(dtype)


@pytest.mark.parametrize(("dtype", "at"), [(np.float32, 3), (np.float64, 0)])
def test_arithmetic_is_elementwise(dtype: Any, at: int) -> None:
    a = draw(LANES + 5, dtype, 0)
    b = draw(LANES + 5, dtype, 1)
    out = np.zeros(LANES + 5, dtype)
    _arithmetic(a, b, at, out)
    written = slice(at, at + LANES)
    expected = np.zeros_like(out)
    expected[written] = (a * b + a - b)[written]
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "lane"), [(np.float32, 0), (np.float32, LANES - 1), (np.float64, 7)]
)
def test_insert_extract_broadcast_and_sum(dtype: Any, lane: int) -> None:
    a = draw(LANES, dtype, 0)
    out = np.zeros(2 * LANES, dtype)
    extracted, total = _lanes(a, lane, dtype(3), out)
    expected = a.copy()
    expected[lane] = 3
    threes = np.full(LANES, 3)
    np.testing.assert_array_equal(out, [*expected, *threes])
    assert extracted == 3
    np.testing.assert_allclose(total, expected.sum(), rtol=1e-5)


def test_vectors_stay_vectors() -> None:
    """LLVM has not taken them apart into numbers."""
    a = draw(LANES, np.float32, 0)
    out = np.zeros(LANES, np.float32)
    _arithmetic(a, a, 0, out)
    intermediate = "\n".join(_arithmetic.inspect_llvm().values())
    assert f"fmul reassoc nsz contract <{LANES} x float>" in intermediate
