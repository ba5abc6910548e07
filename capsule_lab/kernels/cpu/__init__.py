"""Fused routing on a CPU, compiled by numba: votes are not materialised but computed tile by tile where needed.

``simd`` contains the vector type, ``tiles`` defines tiles and computes votes, ``compiler`` sets options and cache of
numba, ``threads`` runs threads; ``em``, ``em_backward``, ``dynamic`` and ``child_softmax`` contain the kernels.

Arrays are C-contiguous, have one floating dtype, and their last dimension is the children, one per SIMD lane: poses
``(row, rows * inner, child)``, weights ``(parent, inner * columns, child)``, couplings ``(row, parent, child)``, where
a *row* is an image, or one position of an image in a convolutional layer. A vote has ``rows * columns`` components:
with a pose's entry ``[r, q]`` and a weight's ``[q, c]``, ``V[r, c] = sum_q P W``.
"""

from capsule_lab.kernels.cpu.child_softmax import (
    e_step_by_child,
    e_step_by_child_backward,
    softmax_by_child,
    softmax_by_child_backward,
)
from capsule_lab.kernels.cpu.dynamic import agreement, contraction, weighted_sum
from capsule_lab.kernels.cpu.em import distances, fit
from capsule_lab.kernels.cpu.em_backward import fit_backward

__all__ = [
    "agreement", "contraction", "distances", "e_step_by_child", "e_step_by_child_backward", "fit", "fit_backward",
    "softmax_by_child", "softmax_by_child_backward", "weighted_sum",
]  # fmt: skip
