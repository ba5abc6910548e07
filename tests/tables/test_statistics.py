"""Differences between rows, compared with scipy and statsmodels, and by simulation."""

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats import multitest, power, weightstats
from statsmodels.stats.contingency_tables import mcnemar as mcnemar_of_statsmodels

from capsule_lab.tables import statistics

FIRST, SECOND = [0.91, 0.88, 0.97, 1.02], [0.80, 0.85, 0.79, 0.90]


def test_unpaired_difference_equals_welch_of_scipy_and_statsmodels() -> None:
    found = statistics.unpaired_difference(FIRST, SECOND[:3], margin=0.2)
    expected = stats.ttest_ind(FIRST, SECOND[:3], equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    p, *_ = weightstats.ttost_ind(FIRST, SECOND[:3], -0.2, 0.2, usevar="unequal")
    assert found.equivalent == ("yes" if p < 0.05 else "undecided")


def test_paired_difference_equals_scipy() -> None:
    found = statistics.paired_difference(FIRST, SECOND)
    expected = stats.ttest_rel(FIRST, SECOND)
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_hedges_g_equals_its_formula() -> None:
    std = math.sqrt((np.var(FIRST, ddof=1) + np.var(SECOND, ddof=1)) / 2)
    expected = (np.mean(FIRST) - np.mean(SECOND)) / std * (1 - 3 / (4 * 6 - 1))
    assert statistics.unpaired_difference(FIRST, SECOND).g == pytest.approx(expected)
    assert statistics.paired_difference(FIRST, SECOND).g == pytest.approx(expected)


@pytest.mark.parametrize(("margin", "expected"), [(0.4, "yes"), (0.13, "undecided"), (0.01, "no")])
def test_equivalence_needs_a_margin_beyond_the_interval(margin: float, expected: str) -> None:
    assert statistics.paired_difference(FIRST, SECOND, margin=margin).equivalent == expected
    assert statistics.paired_difference(FIRST, SECOND).equivalent is None


def test_power_and_number_of_runs_equal_those_of_statsmodels() -> None:
    for size in (0.3, 0.8, 2.5):
        unpaired = power.TTestIndPower().solve_power(size, power=0.8, alpha=0.05)
        paired = power.TTestPower().solve_power(size, power=0.9, alpha=0.05)
        assert statistics.runs_for(size, 1, pairs=False) == math.ceil(unpaired)
        assert statistics.runs_for(size, 1, pairs=True, power=0.9) == math.ceil(paired)
    equal = statistics.unpaired_difference([0.0, 1.0, 2.0], [1.0, 2.0, 3.0])
    assert equal.detectable == pytest.approx(
        power.TTestIndPower().solve_power(nobs1=3, power=0.8, alpha=0.05), 1e-4
    )
    assert statistics.runs_for(1e-9, 1, pairs=False) is None
    hundredth = power.TTestIndPower().solve_power(1.0, power=0.8, alpha=0.05 / 100)
    assert statistics.runs_for(1.0, 1.0, pairs=False, level=0.05 / 100) == math.ceil(hundredth)


def test_holm_equals_statsmodels() -> None:
    p_values = [0.04, 0.001, 0.5, 0.012, 0.012]
    assert statistics.holm(p_values) == pytest.approx(
        multitest.multipletests(p_values, method="holm")[1]
    )


def test_mcnemar_equals_statsmodels() -> None:
    first, second = (
        np.array([1, 1, 1, 1, 0, 0, 0, 0, 1], bool),
        np.array([1, 0, 0, 0, 1, 0, 0, 0, 0], bool),
    )
    found = statistics.mcnemar(first, second)
    table = [
        [(first & second).sum(), (first & ~second).sum()],
        [(~first & second).sum(), (~first & ~second).sum()],
    ]
    assert found.p == pytest.approx(mcnemar_of_statsmodels(table, exact=True).pvalue)
    assert found.estimate == pytest.approx(100 * (first.mean() - second.mean()))
    assert statistics.mcnemar(first, first).p == 1


def test_interval_over_images_is_wilsons() -> None:
    low, high = statistics.interval_over_images(60, 10_000)
    assert (low, high) == pytest.approx((0.466, 0.772), abs=1e-3)


def test_samples_without_a_deviation_have_no_interval() -> None:
    for found in (
        statistics.unpaired_difference([1.0], [2.0, 3.0]),
        statistics.unpaired_difference([1.0, 1.0], [2.0, 2.0]),
        statistics.paired_difference([1.0, 2.0], [2.0, 3.0]),
        statistics.paired_difference([1.0], [2.0]),
    ):
        assert (found.low, found.p, found.detectable) == (None, None, None)
    assert statistics.unpaired_difference([1.0, 1.0], [2.0, 2.0]).estimate == -1


def test_pooled_deviation_replaces_that_of_the_samples() -> None:
    common = statistics.pooled([[1.0, 2.0, 3.0], [5.0, 5.0], [7.0]])
    assert common == statistics.Spread(pytest.approx(math.sqrt(2 / 3)), 3)
    assert statistics.pooled([[1.0, 1.0], [2.0]]) is None
    found = statistics.unpaired_difference([1.0, 1.0], [2.0, 2.0], common=common)
    half = stats.t.ppf(0.975, 3) * common.std
    assert (found.low, found.high) == pytest.approx((-1 - half, -1 + half))


@pytest.mark.parametrize("runs", [3, 5, 10])
def test_intervals_cover_the_true_difference(runs: int) -> None:
    generator = np.random.default_rng(runs)
    pairs = generator.normal([0.3, 0.0], 1.0, (2000, runs, 2))
    found = [statistics.unpaired_difference(*pair.T) for pair in pairs]
    within = np.mean([each.low < 0.3 < each.high for each in found])
    assert 0.93 <= within <= 0.97


def test_family_without_differences_has_five_percent_false_positives() -> None:
    generator = np.random.default_rng(0)
    families = generator.normal(size=(2000, 4, 2, 5))
    p_values = stats.ttest_ind(families[:, :, 0], families[:, :, 1], axis=2, equal_var=True).pvalue
    wrong = np.mean([min(statistics.holm(list(family))) < statistics.LEVEL for family in p_values])
    assert 0.04 <= wrong <= 0.06


@pytest.mark.whole
def test_bootstrap_covers_the_difference_for_other_runs_and_clusters() -> None:
    generator, within = np.random.default_rng(0), []
    variances = (
        1 + 0.25 + 1 + 0.09,
        1 + 0.25 + 1,
    )  # of toys, runs, images, and toys for one of the networks
    expected = 100 * (
        stats.norm.cdf(-1 / math.sqrt(variances[0]))
        - stats.norm.cdf(-1.2 / math.sqrt(variances[1]))
    )
    clusters = np.arange(25).repeat(8)
    for _ in range(150):
        toys = generator.normal(0, 1, 25)[clusters]
        rows = [
            toys + generator.normal(shift, 0.5, (5, 1)) + generator.normal(0, 1, (5, 200))
            for shift in (-1, -1.2)
        ]
        of_toys = generator.normal(0, 0.3, 25)[
            clusters
        ]  # some toys are harder for one of the networks
        wrong = [100.0 * (row > 0) for row in (rows[0] + of_toys, rows[1])]
        found = statistics.resampled_difference(*wrong, clusters, paired=False)
        within.append(found.low < expected < found.high)
    assert 0.9 <= np.mean(within) <= 0.99


def test_bootstrap_of_single_images_equals_the_normal_interval() -> None:
    generator = np.random.default_rng(0)
    first, second = (100.0 * (generator.random((1, 4000)) < share) for share in (0.12, 0.1))
    found = statistics.resampled_difference(first, second, np.arange(4000), paired=True, margin=5)
    error = np.std(first - second) / math.sqrt(4000)
    assert (found.high - found.low) == pytest.approx(2 * 1.96 * error, rel=0.05)
    assert found.estimate == pytest.approx(float((first - second).mean()))
    assert found.equivalent == "yes"


def test_bootstrap_tells_the_part_of_the_error_that_more_runs_do_not_reduce() -> None:
    """Three toys in ten are wrong in every run: runs agree, so the clusters alone have the whole error."""
    clusters = np.repeat(np.arange(10), 50)
    alike = np.where(clusters < 3, 100.0, 0.0)[None].repeat(4, axis=0)
    found = statistics.resampled_difference(alike, np.zeros_like(alike), clusters, paired=False)
    assert found.error == pytest.approx(found.error_of_clusters)
    assert found.error == pytest.approx(100 * math.sqrt(0.3 * 0.7 / 10), rel=0.05)
    assert found.df == 3


def test_bootstrap_of_runs_that_differ_has_no_error_of_equal_clusters() -> None:
    """Every toy of a run has the same result: the whole error is that of runs."""
    clusters = np.repeat(np.arange(10), 50)
    different = np.array([0.0, 100.0, 0.0, 100.0])[:, None].repeat(500, axis=1)
    found = statistics.resampled_difference(
        different, np.zeros_like(different), clusters, paired=False
    )
    assert found.error_of_clusters == pytest.approx(0, abs=1e-9)
    assert found.error == pytest.approx(100 * math.sqrt(0.5 * 0.5 / 4), rel=0.05)
