from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from benchmarks.textbook_em import example, fit_mixture, mixture_figure
from capsule_lab.routing import Normaliser, em_routing
from capsule_lab.types import RoutingTrace

GOLDEN = [
    (1, -16.171652256170, -1.008247867578, 0.945212760813, 1.515163516863, 1.583814539219),
    (2, -14.737683844812, -1.135898546312, 1.072212845403, 1.243466864437, 1.325666382689),
    (3, -14.490683899239, -1.274617391750, 1.204520749005, 0.928437681517, 1.004868370147),
    (10, -13.544440191137, -1.560070580342, 1.236456646239, 0.382990182782, 0.710538001256),
    (50, -12.205308311608, -1.837620873462, 0.991157564301, 0.061583242742, 0.978950256473),
]
SHARES = [
    (1, 0.509461386807, 0.598687660112),
    (2, 0.508222931874, 0.624618219695),
    (3, 0.506030998588, 0.660298241301),
    (10, 0.460019353293, 0.647584883336),
    (50, 0.368059071153, 3.218423e-07),
]


def test_golden_gaussians_and_shares() -> None:
    for (step, *expected), (_, proportion, share) in zip(GOLDEN, SHARES, strict=True):
        *_, found = fit_mixture(*example(), step)
        means = found.mixture.means.tolist()
        variances = found.mixture.variances.tolist()
        numbers = [found.log_likelihood, *means, *variances]
        assert numbers == pytest.approx(expected, abs=1e-11)
        proportions = found.mixture.proportions.tolist()
        assert proportions == pytest.approx([proportion, 1 - proportion], abs=1e-11)
        assert float(found.responsibilities[3, 0]) == pytest.approx(share, rel=1e-6, abs=1e-11)


def test_likelihood_never_falls_and_a_floor_keeps_a_component_from_collapsing() -> None:
    steps = fit_mixture(*example(), 200)
    for before, after in pairwise(steps):
        assert after.log_likelihood >= before.log_likelihood - 1e-12
    assert steps[-1].mixture.variances.min() < 0.07
    *_, last = fit_mixture(*example(), 200, min_variance=0.3)
    assert last.mixture.variances.min() > 0.3


def test_routing_from_another_first_coupling_is_this_mixture() -> None:
    """With mixing proportions in place of activations, EM routing of votes of one component is this EM."""
    points, start = example()
    shares = fit_mixture(points, start, 1)[0].responsibilities  # [point component]

    class FirstShares(Normaliser):
        """Couplings: the mixture's at first, then those of routing."""

        calls = 0

        def __call__(self, log_couplings: Tensor) -> Tensor:
            self.calls += 1
            return shares.t().unsqueeze(0) if self.calls == 1 else log_couplings.softmax(1)

    traces: list[RoutingTrace] = []
    no_beta = points.new_zeros(2)
    em_routing(
        points.view(1, -1, 1, 1).expand(-1, -1, 2, -1),
        points.new_ones(1, len(points)),
        no_beta,
        no_beta,
        iterations=3,
        min_variance=1e-12,
        mass_eps=0.0,
        activation="mixing_proportions",
        normalise=FirstShares(),
        on_iteration=traces.append,
        backend="reference",
    )
    close = partial(torch.testing.assert_close, rtol=0, atol=1e-8)
    for routed, fitted in zip(traces, fit_mixture(points, start, 3), strict=True):
        close(routed.couplings[0], fitted.responsibilities)
        close(routed.poses.flatten(), fitted.mixture.means)
        close(routed.variances.flatten(), fitted.mixture.variances)


def test_figure_has_a_panel_per_step_and_the_likelihood() -> None:
    figure = mixture_figure(*example(), shown=(0, 3))
    assert [axis.get_title() for axis in figure.axes] == ["start", "after 3", "log-likelihood"]
    _, after_three, likelihood = figure.axes
    steps = fit_mixture(*example(), 4)
    (line,) = likelihood.lines
    assert [*line.get_ydata()] == pytest.approx([step.log_likelihood for step in steps])
    (dots,) = after_three.collections
    shares = steps[3].responsibilities[:, 1]
    assert [*dots.get_array()] == pytest.approx(shares.tolist())
