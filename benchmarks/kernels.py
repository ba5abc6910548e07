"""Single fused kernels to time, at the sizes of the layers ``em_all_parents`` and ``dynamic``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import KERNELS
from benchmarks.layers import MIN_VARIANCE, POSE
from benchmarks.textbook_em_caps import window_index
from capsule_lab.kernels.backends import fused_kernels
from capsule_lab.kernels.em_arguments import FitInputs, FitOptions, FitOutputs, Parents

MASS_EPS = 1e-7  # official code of Hinton 2018
Kernels = dict[str, tuple[Callable[[], Any], list[Tensor]]]
"""A call of each kernel, and its inputs."""


def build_kernel(
    name: str, device: torch.device, sizes: Mapping[str, int]
) -> tuple[Callable[[], Any], list[Tensor]]:
    """Return a call of a kernel, and its inputs, for the sizes of its layer."""
    torch.manual_seed(0)
    builders: dict[str, Callable[..., Kernels]] = {"em_all_parents": _of_em, "dynamic": _of_dynamic}
    return builders[KERNELS[name]](fused_kernels(device.type), device, sizes)[name]


def _of_em(kernels: Any, device: torch.device, sizes: Mapping[str, int]) -> Kernels:
    """A call is a part of one iteration."""
    normal = partial(torch.randn, device=device)
    grid, child_types, parents = sizes["grid"], sizes["child_types"], sizes["parents"]
    children = grid * grid * child_types
    window = window_index((grid, grid), child_types, sizes["kernel_size"], sizes["stride"]).to(
        device
    )
    positions, child = window.shape
    row = sizes["batch_size"] * positions
    dim = POSE * POSE
    poses = normal(row, dim, child)
    weight = normal(parents, dim, child)
    activations = torch.rand(row, child, device=device)
    couplings = normal(row, parents, child).softmax(1)
    means = normal(row, parents, dim)
    variances = torch.ones_like(means)
    gradient = normal(row, parents, child)
    inputs = FitInputs(poses, weight, activations, couplings, means)
    fitted = Parents(couplings.sum(2), means, variances)
    gradients = FitOutputs(*fitted, gradient)
    options = FitOptions(POSE, 0.0, MIN_VARIANCE, MASS_EPS, measure=True)
    backward = partial(kernels.fit_backward, inputs, fitted, gradients, POSE, 0.0, MIN_VARIANCE)
    distances = partial(kernels.distances, poses, weight, means, variances, POSE)
    softmax = partial(kernels.softmax_by_child, gradient, window, children)
    softmax_backward = partial(
        kernels.softmax_by_child_backward, couplings, gradient, window, children
    )
    return {
        "fit": (partial(kernels.fit, inputs, options), [*inputs]),
        "fit_backward": (backward, [*inputs, *fitted, *gradients]),
        "distances": (distances, [poses, weight, means, variances]),
        "softmax_by_child": (softmax, [gradient]),
        "softmax_by_child_backward": (softmax_backward, [couplings, gradient]),
    }


def _of_dynamic(kernels: Any, device: torch.device, sizes: Mapping[str, int]) -> Kernels:
    """A call is a part of one iteration, of ``contraction`` the whole backward pass."""
    normal = partial(torch.randn, device=device)
    batch_size, children, parents = sizes["batch_size"], sizes["children"], sizes["parents"]
    child_dim, parent_dim = sizes["child_dim"], sizes["parent_dim"]
    poses = normal(batch_size, child_dim, children)
    weight = normal(parents, child_dim * parent_dim, children)
    couplings = normal(batch_size, parents, children).softmax(1)
    above = normal(batch_size, parents, parent_dim)
    by_child = [couplings] * terms(sizes["iterations"])
    by_parent = [above] * terms(sizes["iterations"])
    weighted_sum = partial(kernels.weighted_sum, poses, weight, couplings, child_dim)
    agreement = partial(kernels.agreement, poses, weight, above, child_dim)
    contraction = partial(kernels.contraction, poses, weight, by_child, by_parent, child_dim)
    return {
        "weighted_sum": (weighted_sum, [poses, weight, couplings]),
        "agreement": (agreement, [poses, weight, above]),
        "contraction": (contraction, [poses, weight, *by_child, *by_parent]),
    }


def terms(iterations: int) -> int:
    """Return the number of terms of the gradient of a vote: a sum in each iteration, an agreement between two."""
    return 2 * iterations - 1


def multiply_adds(name: str, votes: int, sizes: Mapping[str, int]) -> int:
    """Return the multiply-adds of a call for ``votes`` votes; exponentials are not counted.

    Of a vote of d components, computed from rows of q: ``d q`` for the vote, d each for its share of a mean and of a
    variance, 2 d for its distance, d for a sum or an agreement. A backward pass takes twice as many, once per factor.
    """
    if KERNELS[name] == "dynamic":
        dim = sizes["parent_dim"]
        vote = dim * sizes["child_dim"]
        of_vote = {
            "weighted_sum": vote + dim,
            "agreement": vote + dim,
            "contraction": terms(sizes["iterations"]) * dim + 2 * vote,
        }
    else:
        dim = POSE * POSE
        vote = dim * POSE
        of_vote = {
            "fit": vote + 4 * dim,
            "fit_backward": 2 * (vote + 4 * dim),
            "distances": vote + 2 * dim,
        }
    return votes * of_vote.get(name, 0)
