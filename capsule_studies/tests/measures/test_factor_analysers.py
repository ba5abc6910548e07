"""Mixtures of factor analysers compared with known numbers and scikit-learn; the likelihood of EM never falls."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.decomposition import FactorAnalysis
from torch import Tensor

from capsule_studies.measures.factor_analysers import (
    FactorAnalysers,
    em_step,
    fit_factor_analysers,
    posterior,
)


def double(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def golden() -> FactorAnalysers:
    angles = 0.7 * torch.arange(6, dtype=torch.float64) + 0.2
    return FactorAnalysers(
        proportions=double(1),
        means=double(0.1, -0.2, 0.3)[None],
        loadings=angles.cos().view(1, 3, 2),
        noise=double(0.5, 0.3, 0.8)[None],
    )


def drawn(
    points: int = 300, components: int = 3, dim: int = 5, factors: int = 2, seed: int = 0
) -> Tensor:
    """Draw points of a mixture whose components are far apart."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    own = torch.arange(points) % components
    means = 4 * normal(components, dim)
    loadings = normal(components, dim, factors)
    along = loadings[own] @ normal(points, factors, 1)
    noise = 0.3 * normal(points, dim)
    return means[own] + along.squeeze(2) + noise


def random_mixture(components: int = 3, dim: int = 5, factors: int = 2) -> FactorAnalysers:
    generator = torch.Generator().manual_seed(1)
    shares = torch.rand(components, generator=generator)
    means = torch.randn(components, dim, generator=generator)
    loadings = torch.randn(components, dim, factors, generator=generator)
    noise = 0.5 + torch.rand(components, dim, generator=generator)
    proportions = shares.double() / shares.double().sum()
    return FactorAnalysers(proportions, means.double(), loadings.double(), noise.double())


def test_golden_numbers_of_one_analyser() -> None:
    point = double(0.6, 0.1, -0.4)[None]
    found = posterior(point, golden())
    assert found.log_joint.item() == pytest.approx(-3.2198469503972844, abs=1e-12)
    factors = [0.5021583623676817, -0.11417560731584396]
    assert found.factors[0, 0].tolist() == pytest.approx(factors, rel=0, abs=1e-12)
    off_diagonal = -0.19797708450430834
    covariance = [0.35233511451682503, off_diagonal, off_diagonal, 0.3521122285801933]
    assert found.covariance.flatten().tolist() == pytest.approx(covariance, rel=0, abs=1e-12)


def test_densities_are_those_of_gaussians() -> None:
    points, mixture = drawn(20), random_mixture()
    found = posterior(points, mixture).log_joint
    for number, (share, mean, loadings, noise) in enumerate(zip(*mixture, strict=True)):
        covariance = loadings @ loadings.t() + noise.diag()
        gaussian = multivariate_normal(mean.numpy(), covariance.numpy())
        log_density = gaussian.logpdf(points.numpy())
        expected = log_density + share.log().item()
        np.testing.assert_allclose(found[:, number], expected, rtol=1e-10)


def em_loops(points: Tensor, mixture: FactorAnalysers) -> FactorAnalysers:
    """Ghahramani and Hinton 1996, equations 15 to 17, one point and component at a time."""
    components, dim, factors = mixture.loadings.shape
    found = posterior(points, mixture)
    shares = found.log_joint.softmax(1)
    noise = torch.zeros(components, dim).double()
    joined = []
    one = torch.ones(1).double()
    for k in range(components):
        left = torch.zeros(dim, factors + 1).double()
        right = torch.zeros(factors + 1, factors + 1).double()
        extended = [torch.cat([expected, one]) for expected in found.factors[:, k]]
        for n, point in enumerate(points):
            second = torch.outer(extended[n], extended[n])
            second[:factors, :factors] += found.covariance[k]
            left += shares[n, k] * torch.outer(point, extended[n])
            right += shares[n, k] * second
        joined.append(left @ torch.linalg.inv(right))
        for n, point in enumerate(points):
            residual = point - joined[k] @ extended[n]
            noise[k] += shares[n, k] * residual * point
    mass = shares.sum(0)
    both = torch.stack(joined)
    return FactorAnalysers(
        proportions=mass / len(points),
        means=both[..., -1],
        loadings=both[..., :-1],
        noise=noise / mass[:, None],
    )


def test_a_step_equals_the_loops_in_chunks_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    points, mixture = drawn(30), random_mixture()
    expected = em_loops(points, mixture)
    for chunk in (4096, 7):
        monkeypatch.setattr("capsule_studies.measures.factor_analysers._CHUNK", chunk)
        found, _ = em_step(points, mixture, floor=1e-9)
        torch.testing.assert_close(tuple(found), tuple(expected), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(("components", "factors"), [(4, 2), (4, 0), (1, 2)])
def test_likelihood_never_falls(components: int, factors: int) -> None:
    options = {"steps": 30, "tolerance": 0.0, "restarts": 1}
    fit = fit_factor_analysers(drawn(), components, factors, **options)
    gains = np.diff(fit.log_likelihoods)
    assert (gains > -1e-9).all()
    assert gains[0] > 1e-3


def test_scikit_learn_agrees_about_one_analyser() -> None:
    points = drawn(components=1, factors=2)
    options = {"steps": 2000, "tolerance": 1e-12, "restarts": 1, "floor": 1e-9}
    fit = fit_factor_analysers(points, 1, 2, **options)
    judge = FactorAnalysis(2, tol=1e-10, max_iter=5000, svd_method="lapack")
    judge.fit(points.numpy())
    likelihood = judge.score(points.numpy())
    assert fit.log_likelihoods[-1] == pytest.approx(likelihood, abs=1e-4)
    loadings = fit.mixture.loadings[0]
    along_factors = loadings @ loadings.t()
    expected = torch.from_numpy(judge.components_.T @ judge.components_)
    torch.testing.assert_close(along_factors, expected, rtol=0.02, atol=0.02)


def test_the_best_likelihood_is_kept_and_the_seed_decides() -> None:
    points = drawn()
    several = fit_factor_analysers(points, 4, 1, restarts=4, seed=3)
    alone = []
    for seed in (12, 13, 14, 15):
        fit = fit_factor_analysers(points, 4, 1, restarts=1, seed=seed)
        alone.append(fit.log_likelihoods[-1])
    best, worst = max(alone), min(alone)
    assert several.log_likelihoods[-1] == best
    assert best - worst > 1e-6


def test_a_mixture_of_equal_points_is_finite() -> None:
    points = torch.ones(10, 3, dtype=torch.float64)
    fit = fit_factor_analysers(points, 2, 1, restarts=2)
    for parameter in fit.mixture:
        assert parameter.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"restarts": 0}, "restarts is 0"),
        ({"factors": -1}, "factors is -1"),
        ({"components": 31}, "there are 30 points; expected 31 or more"),
    ],
)
def test_wrong_numbers(options: dict[str, int], message: str) -> None:
    sizes = {"components": 2, "factors": 1}
    with pytest.raises(ValueError, match=message):
        fit_factor_analysers(drawn(30), **{**sizes, **options})
