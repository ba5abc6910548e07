"""A mixture of factor analysers, fitted by EM (Ghahramani and Hinton 1996, "The EM algorithm for mixtures of factor
analyzers", technical report CRG-TR-96-1).

It is a model of the poses of a class: a change of viewpoint moves all poses of an object linearly, so that a class seen
from all viewpoints is near a linear subspace. Shapes are ``(point, dim)``, ``(component, dim, factor)``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from capsule_lab.errors import check_number

_CHUNK = 4096  # ours: points at a time, to limit memory
_FLOOR = 1e-3  # ours: smallest variance of the noise, for standardised points
_LOADINGS = 0.1  # ours: standard deviation of the initial loadings, for standardised points


class FactorAnalysers(NamedTuple):
    """Components ``y = mean + loadings z + noise`` with ``z ~ N(0, I)`` and independent noise with variances ``noise``.

    Proportions sum to 1. Loadings are directions in which points of a component vary together; without factors, each
    component is a Gaussian with independent dimensions.
    """

    proportions: Float[Tensor, " component"]
    means: Float[Tensor, "component dim"]
    loadings: Float[Tensor, "component dim factor"]
    noise: Float[Tensor, "component dim"]


class Posterior(NamedTuple):
    """Log of proportion times density; expectation of the factors; and their covariance, the same for all points."""

    log_joint: Float[Tensor, "point component"]
    factors: Float[Tensor, "point component factor"]
    covariance: Float[Tensor, "component factor factor"]


class Fit(NamedTuple):
    """The mixture of the restart with the largest likelihood, and its mean log-likelihood before each step."""

    mixture: FactorAnalysers
    log_likelihoods: list[float]


def posterior(points: Float[Tensor, "point dim"], mixture: FactorAnalysers) -> Posterior:
    """Compute the E-step; Woodbury's identity reduces densities to matrices of the size of the factors.

    >>> one = FactorAnalysers(torch.ones(1), torch.zeros(1, 2), torch.zeros(1, 2, 1), torch.ones(1, 2))
    >>> posterior(torch.zeros(1, 2), one).log_joint.item()  # -ln 2 pi
    -1.8378...
    """
    loadings, means, precision = mixture.loadings, mixture.means, 1 / mixture.noise
    components, dim, factors = loadings.shape
    scaled = loadings * precision.unsqueeze(2)  # [k d q]
    identity = torch.eye(factors, dtype=points.dtype, device=points.device)
    inner = identity + loadings.transpose(1, 2) @ scaled
    root = torch.linalg.cholesky(inner)  # [k q q]
    covariance = torch.cholesky_inverse(root)
    side_by_side = scaled.movedim(0, 1).flatten(1)  # [d k·q]
    of_points = (points @ side_by_side).view(len(points), components, factors)
    of_means = torch.einsum("kdq,kd->kq", scaled, means)
    projected = of_points - of_means  # [n k q]
    expected = torch.einsum("nkq,kqr->nkr", projected, covariance)
    plain = (
        points.square() @ precision.t()
        - 2 * points @ (precision * means).t()
        + (precision * means.square()).sum(1)
    )
    explained = (projected * expected).sum(2)
    distances = plain - explained  # [n k]
    log_root = root.diagonal(dim1=1, dim2=2).log().sum(1)  # [k]
    log_determinant = mixture.noise.log().sum(1) + 2 * log_root
    log_density = -0.5 * (distances + log_determinant + dim * math.log(2 * math.pi))
    log_joint = mixture.proportions.log() + log_density
    return Posterior(log_joint, expected, covariance)


def em_step(
    points: Float[Tensor, "point dim"], mixture: FactorAnalysers, *, floor: float = _FLOOR
) -> tuple[FactorAnalysers, float]:
    """Take one E- and one M-step; also return the mean log-likelihood of the points before, which never decreases."""
    components, dim, factors = mixture.loadings.shape
    mass = points.new_zeros(components)
    of_squares = points.new_zeros(components, dim)  # sums over points of r y^2
    cross = points.new_zeros(components, dim, factors + 1)  # of r y z~^T, with z~ = (z, 1)
    moments = points.new_zeros(components, factors + 1, factors + 1)  # of r E[z~ z~^T]
    log_likelihood = 0.0
    for chunk in points.split(_CHUNK):
        joint = posterior(chunk, mixture)
        log_total = joint.log_joint.logsumexp(1, keepdim=True)
        shares = (joint.log_joint - log_total).exp()  # [n k]
        log_likelihood += float(log_total.sum())
        ones = torch.ones_like(shares).unsqueeze(2)
        extended = torch.cat([joint.factors, ones], 2)  # [n k q+1]
        weighted = extended * shares.unsqueeze(2)
        of_chunk = shares.sum(0)
        mass += of_chunk
        of_squares += shares.t() @ chunk.square()
        products = chunk.t() @ weighted.flatten(1)  # [d k·(q+1)]
        cross += products.view(dim, components, -1).movedim(0, 1)
        moments += torch.einsum("nkq,nkr->kqr", weighted, extended)
        moments[:, :factors, :factors] += of_chunk.view(-1, 1, 1) * joint.covariance
    enough = mass.clamp_min(torch.finfo(points.dtype).tiny)
    identity = torch.eye(factors + 1, dtype=points.dtype, device=points.device)
    moments += 1e-10 * enough.view(-1, 1, 1) * identity
    joined = torch.linalg.solve(moments, cross, left=False)  # [k d q+1]: loadings and mean
    residual = of_squares - (joined * cross).sum(2)  # [k d]
    variances = residual / enough.unsqueeze(1)
    after = FactorAnalysers(
        proportions=mass / len(points),
        means=joined[..., factors],
        loadings=joined[..., :factors],
        noise=variances.clamp_min(floor),
    )
    return after, log_likelihood / len(points)


def fit_factor_analysers(
    points: Float[Tensor, "point dim"],
    components: int,
    factors: int,
    *,
    steps: int = 50,
    tolerance: float = 1e-4,
    restarts: int = 10,
    floor: float = _FLOOR,
    seed: int = 0,
) -> Fit:
    """Fit the mixture with several restarts, and return the one with the largest likelihood.

    Points are standardised. Without factors, it is a mixture of Gaussians with independent dimensions. Each restart has
    new centres (k-means++) and loadings, and ends after ``steps`` EM steps or when the mean log-likelihood gains less
    than ``tolerance``. ``floor`` is the smallest variance of the noise.
    """
    check_number("components", components, 1)
    check_number("steps", steps, 1)
    check_number("restarts", restarts, 1)
    check_number("factors", factors, 0)
    if len(points) < components:
        raise ValueError(
            f"there are {len(points)} points; expected {components} or more, one for each component"
        )
    fits = []
    for restart in range(restarts):
        generator = torch.Generator().manual_seed(seed * restarts + restart)
        mixture = _start(points, components, factors, floor, generator)
        log_likelihoods: list[float] = []
        for _ in range(steps):
            mixture, log_likelihood = em_step(points, mixture, floor=floor)
            log_likelihoods.append(log_likelihood)
            if len(log_likelihoods) < 2:
                continue
            gain = log_likelihood - log_likelihoods[-2]
            if gain < tolerance:
                break
        fits.append(Fit(mixture, log_likelihoods))
    return max(fits, key=lambda fit: fit.log_likelihoods[-1])


def _start(
    points: Tensor, components: int, factors: int, floor: float, generator: torch.Generator
) -> FactorAnalysers:
    """Return centres by k-means++ (Arthur and Vassilvitskii 2007), small random loadings, variances around centres."""
    first = int(torch.randint(len(points), (1,), generator=generator))
    centres = points[first : first + 1]
    nearest = (points - centres).square().sum(1)
    for _ in range(components - 1):
        weights = nearest.cpu().double()
        if weights.sum() <= 0:
            weights = torch.ones_like(weights)
        drawn = weights.sum() * torch.rand(1, generator=generator).double()
        place = int(torch.searchsorted(weights.cumsum(0), drawn))
        chosen = points[min(place, len(points) - 1)]
        centres = torch.cat([centres, chosen.unsqueeze(0)])
        distances = (points - chosen).square().sum(1)
        nearest = torch.minimum(nearest, distances)
    drawn = torch.randn(components, points.shape[1], factors, generator=generator)
    return FactorAnalysers(
        proportions=points.new_full((components,), 1 / components),
        means=centres,
        loadings=_LOADINGS * drawn.to(points),
        noise=_variances_around(centres, points).clamp_min(floor),
    )


def _variances_around(centres: Tensor, points: Tensor) -> Float[Tensor, "component dim"]:
    """Return the variances of the points nearest to each centre; those of all points for a centre with only one."""
    nearest = torch.cdist(points, centres).argmin(1)
    around = (points - centres[nearest]).square()
    sums = torch.zeros_like(centres).index_add(0, nearest, around)
    counts = torch.bincount(nearest, minlength=len(centres))
    counts = counts.to(points).unsqueeze(1)
    variances = points.var(0, correction=0)
    return torch.where(counts > 1, sums / counts.clamp_min(1), variances)
