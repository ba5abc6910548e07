"""Arguments and results of the fused kernels of EM routing, as records.

Shapes: n rows, j parents, i children, h entries of a pose, k entries of a weight, d components of a vote. The numba
kernels receive the same records with flat numpy arrays instead of tensors.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class FitInputs(NamedTuple):
    """Inputs of a fit; also the gradients of these inputs.

    Attributes:
        poses: poses of the children, ``[n h i]``.
        weight: transformations, ``[j k i]``.
        activations: activations of the children, ``[n i]``.
        couplings: ``[n j i]``.
        previous: poses of the parents in the previous iteration, ``[n j d]``.
    """

    poses: Any
    weight: Any
    activations: Any
    couplings: Any
    previous: Any


class FitOptions(NamedTuple):
    """Options of a fit.

    Attributes:
        inner: columns of a pose, and rows of a weight.
        damping: share of ``previous`` in the poses of the parents.
        min_variance: added to every variance.
        mass_eps: added to every mass.
        measure: whether to compute the distances.
    """

    inner: int
    damping: float
    min_variance: float
    mass_eps: float
    measure: bool


class Parents(NamedTuple):
    """Gaussians fitted to votes: mass ``[n j]``, poses and variances ``[n j d]``."""

    mass: Any
    poses: Any
    variances: Any


class FitOutputs(NamedTuple):
    """Results of a fit, or their gradients: ``Parents`` and distances ``[n j i]``, which are empty if not measured."""

    mass: Any
    poses: Any
    variances: Any
    distances: Any
