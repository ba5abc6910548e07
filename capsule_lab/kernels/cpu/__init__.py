"""Fused routing on a CPU, compiled by numba: a few votes at a time, in cache, made again wherever they are needed.

Arrays are C-contiguous, of one floating dtype, and end with the children, along which the processor's vector units
work: poses ``(row, rows * inner, child)``, weights ``(parent, inner * columns, child)``, couplings
``(row, parent, child)``, where a *row* is an image, or one position of an image in a convolutional layer. A vote has
``rows * columns`` components: with a pose's entry ``[r, q]`` and a weight's ``[q, c]``, ``V[r, c] = sum_q P W``.
"""

from capsule_lab.kernels.cpu.child_softmax import shares, shares_backward
from capsule_lab.kernels.cpu.dynamic import agreement, contraction, weighted_sum
from capsule_lab.kernels.cpu.em import distances, fit
from capsule_lab.kernels.cpu.em_backward import fit_backward

__all__ = [
    "agreement",
    "contraction",
    "distances",
    "fit",
    "fit_backward",
    "shares",
    "shares_backward",
    "weighted_sum",
]
