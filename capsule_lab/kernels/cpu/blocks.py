"""What all kernels do for one (row, parent): make its votes, and hand their gradient on to poses and weights."""

from __future__ import annotations

from typing import Any

import numba

# sums may be reordered (which vector units need) and products fused; no rule about NaN and infinity is waived
MATHS = {"reassoc", "contract", "nsz"}
jit: Any = numba.njit(nogil=True, fastmath=MATHS, error_model="numpy", cache=True)


@jit
def make_votes(poses: Any, weight: Any, inner: int, votes: Any) -> None:
    """``votes[r c, i] = sum_q poses[r q, i] weight[q c, i]`` of one row and one parent, written to ``votes``."""
    columns = weight.shape[0] // inner
    for h in range(votes.shape[0]):
        first = h // columns * inner
        c = h % columns
        q = inner % 4
        if q == 0:
            q = 4
            _set4(votes[h], poses, first, 1, weight, c, columns)
        else:
            _set1(votes[h], poses[first], weight[c])
            for one in range(1, q):
                _add1(votes[h], poses[first + one], weight[one * columns + c])
        while q < inner:
            _add4(votes[h], poses, first + q, 1, weight, q * columns + c, columns)
            q += 4


@jit
def hand_on(votes: Any, poses: Any, weight: Any, inner: int, to_poses: Any, to_weight: Any) -> None:
    """Add to the gradients of poses and weight what ``votes``, here a gradient of the votes, means for them."""
    columns = weight.shape[0] // inner
    rows = votes.shape[0] // columns
    for r in range(rows):
        for q in range(inner):
            to = to_poses[r * inner + q]
            c = columns % 4
            for one in range(c):
                _add1(to, votes[r * columns + one], weight[q * columns + one])
            while c < columns:
                _add4(to, votes, r * columns + c, 1, weight, q * columns + c, 1)
                c += 4
    for q in range(inner):
        for c in range(columns):
            to = to_weight[q * columns + c]
            r = rows % 4
            for one in range(r):
                _add1(to, votes[one * columns + c], poses[one * inner + q])
            while r < rows:
                _add4(to, votes, r * columns + c, columns, poses, r * inner + q, inner)
                r += 4


@jit
def _set1(to: Any, a: Any, b: Any) -> None:
    for i in range(to.size):
        to[i] = a[i] * b[i]


@jit
def _add1(to: Any, a: Any, b: Any) -> None:
    for i in range(to.size):
        to[i] += a[i] * b[i]


@jit
def _set4(to: Any, a: Any, at: int, step: int, b: Any, bt: int, by: int) -> None:
    """Four products at once: the sum is written once."""
    a0, a1, a2, a3 = a[at], a[at + step], a[at + 2 * step], a[at + 3 * step]
    b0, b1, b2, b3 = b[bt], b[bt + by], b[bt + 2 * by], b[bt + 3 * by]
    for i in range(to.size):
        to[i] = a0[i] * b0[i] + a1[i] * b1[i] + a2[i] * b2[i] + a3[i] * b3[i]


@jit
def _add4(to: Any, a: Any, at: int, step: int, b: Any, bt: int, by: int) -> None:
    a0, a1, a2, a3 = a[at], a[at + step], a[at + 2 * step], a[at + 3 * step]
    b0, b1, b2, b3 = b[bt], b[bt + by], b[bt + 2 * by], b[bt + 3 * by]
    for i in range(to.size):
        to[i] += a0[i] * b0[i] + a1[i] * b1[i] + a2[i] * b2[i] + a3[i] * b3[i]
