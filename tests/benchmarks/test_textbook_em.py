from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pytest
from torch import Tensor

from benchmarks.textbook_em import example, fit_mixture, mixture_figure
from capsule_lab.routing import Normaliser, em_routing
from capsule_lab.types import RoutingTrace
from tests.helpers.closeness import assert_close


class Golden(NamedTuple):
    """``proportion`` is of the first component, ``share`` its responsibility for the fourth point."""

    step: int
    log_likelihood: float
    means: list[float]
    variances: list[float]
    proportion: float
    share: float


GOLDEN = [
    Golden(
        step=1,
        log_likelihood=-16.171652256170,
        means=[-1.008247867578, 0.945212760813],
        variances=[1.515163516863, 1.583814539219],
        proportion=0.509461386807,
        share=0.598687660112,
    ),
    Golden(
        step=2,
        log_likelihood=-14.737683844812,
        means=[-1.135898546312, 1.072212845403],
        variances=[1.243466864437, 1.325666382689],
        proportion=0.508222931874,
        share=0.624618219695,
    ),
    Golden(
        step=3,
        log_likelihood=-14.490683899239,
        means=[-1.274617391750, 1.204520749005],
        variances=[0.928437681517, 1.004868370147],
        proportion=0.506030998588,
        share=0.660298241301,
    ),
    Golden(
        step=10,
        log_likelihood=-13.544440191137,
        means=[-1.560070580342, 1.236456646239],
        variances=[0.382990182782, 0.710538001256],
        proportion=0.460019353293,
        share=0.647584883336,
    ),
    Golden(
        step=50,
        log_likelihood=-12.205308311608,
        means=[-1.837620873462, 0.991157564301],
        variances=[0.061583242742, 0.978950256473],
        proportion=0.368059071153,
        share=3.218423e-07,
    ),
]


@pytest.mark.parametrize("expected", GOLDEN)
def test_golden_gaussians_and_shares(expected: Golden) -> None:
    steps = fit_mixture(*example(), expected.step)
    found = steps[-1]
    mixture = found.mixture
    proportions = [expected.proportion, 1 - expected.proportion]
    share = found.responsibilities[3, 0].item()
    assert found.log_likelihood == pytest.approx(expected.log_likelihood, abs=1e-11)
    assert mixture.means.tolist() == pytest.approx(expected.means, abs=1e-11)
    assert mixture.variances.tolist() == pytest.approx(expected.variances, abs=1e-11)
    assert mixture.proportions.tolist() == pytest.approx(proportions, abs=1e-11)
    assert share == pytest.approx(expected.share, rel=1e-6, abs=1e-11)


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
            if self.calls == 1:
                return shares.t().unsqueeze(0)
            return log_couplings.softmax(1)

    traces: list[RoutingTrace] = []
    votes = points.view(1, -1, 1, 1).expand(-1, -1, 2, -1)
    activations = points.new_ones(1, len(points))
    no_beta = points.new_zeros(2)
    em_routing(
        votes,
        activations,
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
    close = partial(assert_close, atol=1e-8)
    steps = fit_mixture(points, start, 3)
    for routed, fitted in zip(traces, steps, strict=True):
        close(routed.couplings[0], fitted.responsibilities)
        close(routed.poses.flatten(), fitted.mixture.means)
        close(routed.variances.flatten(), fitted.mixture.variances)


def test_figure_has_a_panel_per_step_and_the_likelihood() -> None:
    figure = mixture_figure(*example(), shown=(0, 3))
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["start", "after 3", "log-likelihood"]
    _, after_three, likelihood = figure.axes
    steps = fit_mixture(*example(), 4)
    likelihoods = [step.log_likelihood for step in steps]
    (line,) = likelihood.lines
    assert [*line.get_ydata()] == pytest.approx(likelihoods)
    shares = steps[3].responsibilities[:, 1]
    (dots,) = after_three.collections
    assert [*dots.get_array()] == pytest.approx(shares.tolist())
