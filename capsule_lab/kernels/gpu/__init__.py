"""Fused routing on a GPU, compiled by Triton: votes are not materialised but computed in registers where needed.

``blocks`` and ``tiles`` contain shared functions, ``votes`` sums over vote components and the gradient of votes;
``em``, ``em_backward``, ``dynamic`` and ``child_softmax`` contain the operators; ``warm_up`` compiles the kernels of a
step before the step. Block sizes are fixed and not tuned: they are chosen so that the compiler spills no registers in
the layers of the papers.

Arrays are as in ``capsule_lab.kernels.cpu``: poses ``(row, rows * inner, child)``, weights
``(parent, inner * columns, child)``, couplings ``(row, parent, child)``. A thread holds all components of its children,
so that computing votes needs no exchange between threads, and loads are contiguous. Kernels read half precision and
compute in float32. Sums do not depend on the order of programs: results are the same in every run.
"""

from capsule_lab.kernels.gpu.child_softmax import (
    e_step_by_child,
    e_step_by_child_backward,
    softmax_by_child,
    softmax_by_child_backward,
)
from capsule_lab.kernels.gpu.dynamic import agreement, contraction, weighted_sum
from capsule_lab.kernels.gpu.em import distances, fit
from capsule_lab.kernels.gpu.em_backward import fit_backward

__all__ = [
    "agreement", "contraction", "distances", "e_step_by_child", "e_step_by_child_backward", "fit", "fit_backward",
    "softmax_by_child", "softmax_by_child_backward", "weighted_sum",
]  # fmt: skip
