"""One linear map for all images: how much of the change of a pose it explains, and whether such maps form a group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

_COMPONENTS = 16  # ours: as many as a pose has


@dataclass(frozen=True)
class LinearMap:
    """``after ~ before @ matrix + shift``, fitted to one half of the images and judged on the other.

    Attributes:
        matrix: of poses as rows, ``(dim, dim)``.
        error: squared distance of the prediction over that of the mean.
        identity_error: of ``before`` itself over that of the mean.
    """

    matrix: Float[Tensor, "dim dim"]
    error: float
    identity_error: float


def linear_map(before: Float[Tensor, "image dim"], after: Float[Tensor, "image dim"], ridge: float) -> LinearMap:
    """Ridge regression, of poses in float64, on every second image; the penalty draws to the identity, not to 0.

    It is in units of the mean variance of ``before``.
    """
    fitted, judged = slice(0, None, 2), slice(1, None, 2)
    mean = before[fitted].mean(0)
    centred, change = before[fitted] - mean, after[fitted] - before[fitted]
    shift = change.mean(0)
    size = centred.square().sum(0).mean().clamp_min(torch.finfo(before.dtype).tiny)
    gram = centred.t() @ centred + ridge * size * torch.eye(before.shape[1]).to(before)
    matrix = torch.linalg.solve(gram, centred.t() @ (change - shift))
    predicted = before[judged] + (before[judged] - mean) @ matrix + shift
    target = after[judged]
    spread = (target - target.mean(0)).square().sum()
    return LinearMap(
        matrix + torch.eye(len(matrix)).to(matrix),
        float((predicted - target).square().sum() / spread),
        float((before[judged] - target).square().sum() / spread),
    )


def group_law(
    first: Float[Tensor, "dim dim"],
    second: Float[Tensor, "dim dim"],
    both: Float[Tensor, "dim dim"],
    *,
    unit: Float[Tensor, "dim dim"] | None = None,
) -> float:
    """How far ``first`` and then ``second`` are from ``both``, over how far that is from the identity.

    Args:
        first, second, both: matrices of ``linear_map``.
        unit: in place of ``both`` where that is the identity.

    >>> turn = torch.linalg.matrix_exp(torch.tensor([[0.0, 0.1], [-0.1, 0.0]]))
    >>> round(group_law(turn, turn, turn @ turn), 4)
    0.0
    """
    identity = torch.eye(len(both)).to(both)
    return float((first @ second - both).norm() / ((both if unit is None else unit) - identity).norm())


def principal_components(
    features: Float[Tensor, "image feature"], components: int = _COMPONENTS
) -> Callable[[Float[Tensor, "other feature"]], Float[Tensor, "other component"]]:
    """A function to the first principal components of these features, in float64."""
    mean = features.double().mean(0)
    _, _, directions = torch.linalg.svd(features.double() - mean, full_matrices=False)
    kept = directions[:components]

    def project(others: Tensor) -> Tensor:
        return (others.double() - mean) @ kept.t()

    return project
