"""Fused routing on a GPU, compiled by Triton: votes are never materialised, but computed in registers where needed.

``blocks`` has what kernels share, ``votes`` what each vote of a child comes to and the gradient of votes; ``em``,
``em_backward``, ``dynamic`` and ``child_softmax`` are the operators. Sizes of blocks are fixed and have not been tuned:
they are those for which the compiler spills no registers in the layers of the papers.

Arrays are those of ``capsule_lab.kernels.cpu``: poses ``(row, rows * inner, child)``, weights
``(parent, inner * columns, child)``, couplings ``(row, parent, child)``. A thread holds all components of its children,
so that computing votes needs no exchange between threads, and loads are contiguous. Half precision is read as it is and
computed in float32. No sum depends on the order in which programs run: results are the same in every run.
"""

from capsule_lab.kernels.gpu.child_softmax import softmax_by_child, softmax_by_child_backward
from capsule_lab.kernels.gpu.dynamic import agreement, contraction, weighted_sum
from capsule_lab.kernels.gpu.em import distances, fit
from capsule_lab.kernels.gpu.em_backward import fit_backward

__all__ = [
    "agreement",
    "contraction",
    "distances",
    "fit",
    "fit_backward",
    "softmax_by_child",
    "softmax_by_child_backward",
    "weighted_sum",
]
