"""Differences between rows, compared with scipy and statsmodels, and by simulation."""

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats import multitest, power, weightstats
from statsmodels.stats.contingency_tables import mcnemar as mcnemar_of_statsmodels

from capsule_lab.statistics import (
    LEVEL,
    Difference,
    Spread,
    crossed_difference,
    difference_from,
    holm,
    interval_over_clusters,
    interval_over_images,
    mcnemar,
    paired_difference,
    pooled,
    runs_for,
    unpaired_difference,
)
from tests.helpers.tiers import whole_but

FIRST = [0.91, 0.88, 0.97, 1.02]
SECOND = [0.80, 0.85, 0.79, 0.90]


def test_unpaired_difference_equals_welch_of_scipy_and_statsmodels() -> None:
    second = SECOND[:3]
    found = unpaired_difference(FIRST, second, margin=0.2)
    expected = stats.ttest_ind(FIRST, second, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue)
    assert found.low == pytest.approx(interval.low)
    assert found.high == pytest.approx(interval.high)
    p, *_ = weightstats.ttost_ind(FIRST, second, -0.2, 0.2, usevar="unequal")
    equivalent = "yes" if p < 0.05 else "undecided"
    assert found.equivalent == equivalent


def test_paired_difference_equals_scipy() -> None:
    found = paired_difference(FIRST, SECOND)
    expected = stats.ttest_rel(FIRST, SECOND)
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue)
    assert found.low == pytest.approx(interval.low)
    assert found.high == pytest.approx(interval.high)


def test_hedges_g_equals_its_formula() -> None:
    variance = (np.var(FIRST, ddof=1) + np.var(SECOND, ddof=1)) / 2
    correction = 1 - 3 / (4 * 6 - 1)
    difference = np.mean(FIRST) - np.mean(SECOND)
    expected = difference / math.sqrt(variance) * correction
    unpaired = unpaired_difference(FIRST, SECOND)
    paired = paired_difference(FIRST, SECOND)
    assert unpaired.g == pytest.approx(expected)
    assert paired.g == pytest.approx(expected)


def test_hedges_g_of_unequal_samples_has_their_pooled_deviation() -> None:
    short = SECOND[:2]
    squares = sum(np.var(sample, ddof=1) * (len(sample) - 1) for sample in (FIRST, short))
    df = len(FIRST) + len(short) - 2
    difference = np.mean(FIRST) - np.mean(short)
    expected = difference / math.sqrt(squares / df) * (1 - 3 / (4 * df - 1))
    assert unpaired_difference(FIRST, short).g == pytest.approx(expected)


def test_hedges_g_by_a_common_deviation_is_corrected_for_its_degrees_of_freedom() -> None:
    """With 40 degrees of freedom, little is left to correct, however small both samples are."""
    common = Spread(2.0, 40)
    found = unpaired_difference([1.0, 2.0], [3.0, 4.0], common=common)
    assert found.g == pytest.approx(-2 / 2.0 * (1 - 3 / (4 * 40 - 1)))


@pytest.mark.parametrize("pairs", [True, False])
def test_interval_of_hedges_g_has_the_statistic_as_a_quantile(pairs: bool) -> None:
    """The noncentral t distributions at both ends leave 2.5 % beyond the observed statistic."""
    compare = paired_difference if pairs else unpaired_difference
    found = compare(FIRST, SECOND)
    low, high = found.g_interval
    assert low < found.g < high
    statistic = found.estimate / found.error
    to_statistic = statistic / found.g
    assert stats.nct.sf(statistic, found.df, low * to_statistic) == pytest.approx(0.025, rel=1e-3)
    assert stats.nct.cdf(statistic, found.df, high * to_statistic) == pytest.approx(0.025, rel=1e-3)


def test_hedges_g_of_no_difference_has_an_interval() -> None:
    found = unpaired_difference([1.0, 2.0, 3.0], [2.0, 1.0, 3.0])
    low, high = found.g_interval
    assert found.g == 0
    assert low == pytest.approx(-high)
    assert high > 0


def test_difference_from_a_number_equals_scipy() -> None:
    found = difference_from(FIRST, 0.3)
    expected = stats.ttest_1samp(FIRST, 0.3)
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue)
    assert [found.low + 0.3, found.high + 0.3] == pytest.approx([interval.low, interval.high])
    count = len(FIRST)
    correction = 1 - 3 / (4 * (count - 1) - 1)
    g = (np.mean(FIRST) - 0.3) / np.std(FIRST, ddof=1) * correction
    assert found.g == pytest.approx(g)


@pytest.mark.parametrize(
    ("margin", "expected"),
    [
        (0.4, "yes"),
        (0.13, "undecided"),
        (0.01, "no"),
        (None, None),
    ],
)
def test_equivalence_needs_a_margin_beyond_the_interval(
    margin: float | None, expected: str | None
) -> None:
    found = paired_difference(FIRST, SECOND, margin=margin)
    assert found.equivalent == expected


UNPAIRED_POWER = power.TTestIndPower()


PAIRED_POWER = power.TTestPower()


@pytest.mark.parametrize("size", [0.3, 0.8, 2.5])
def test_number_of_runs_equals_that_of_statsmodels(size: float) -> None:
    unpaired = UNPAIRED_POWER.solve_power(size, power=0.8, alpha=0.05)
    paired = PAIRED_POWER.solve_power(size, power=0.9, alpha=0.05)
    assert runs_for(size, 1, pairs=False) == math.ceil(unpaired)
    assert runs_for(size, 1, pairs=True, power=0.9) == math.ceil(paired)


def test_number_of_runs_for_one_of_several_tests_is_larger() -> None:
    level = 0.05 / 100
    expected = UNPAIRED_POWER.solve_power(1.0, power=0.8, alpha=level)
    found = runs_for(1.0, 1.0, pairs=False, level=level)
    assert found == math.ceil(expected)


def test_number_of_runs_is_not_searched_without_end() -> None:
    assert runs_for(1e-9, 1, pairs=False) is None


def test_detectable_difference_equals_that_of_statsmodels() -> None:
    found = unpaired_difference([0.0, 1.0, 2.0], [1.0, 2.0, 3.0])
    expected = UNPAIRED_POWER.solve_power(nobs1=3, power=0.8, alpha=0.05)
    assert found.detectable == pytest.approx(expected, 1e-4)


def test_holm_equals_statsmodels() -> None:
    p_values = [0.04, 0.001, 0.5, 0.012, 0.012]
    _, expected, *_ = multitest.multipletests(p_values, method="holm")
    assert holm(p_values) == pytest.approx(expected)


def test_mcnemar_equals_statsmodels() -> None:
    first = np.array([1, 1, 1, 1, 0, 0, 0, 0, 1], bool)
    second = np.array([1, 0, 0, 0, 1, 0, 0, 0, 0], bool)
    found = mcnemar(first, second)
    table = [[1, 4], [1, 3]]  # images that both, one or no network gets wrong
    expected = mcnemar_of_statsmodels(table, exact=True)
    assert found.p == pytest.approx(expected.pvalue)
    difference = 100 * (first.mean() - second.mean())
    assert found.estimate == pytest.approx(difference)
    assert mcnemar(first, first).p == 1


@pytest.mark.parametrize("p", [math.nan, math.inf, -0.1])
def test_holm_refuses_what_is_no_p_value(p: float) -> None:
    with pytest.raises(
        ValueError, match=rf"^p values are 0\.04, {p}; expected numbers from 0 to 1$"
    ):
        holm([0.04, p])


def test_values_that_do_not_belong_together_are_refused() -> None:
    """Numpy would repeat a single value."""
    message = r"^values of shape \({}\) are compared with others of shape \({}\); expected equal "
    with pytest.raises(ValueError, match=message.format("3,", "1,")):
        paired_difference([1.0, 2.0, 3.0], [1.0])
    wrong = np.ones(4, bool)
    with pytest.raises(ValueError, match=message.format("4,", "1,")):
        mcnemar(wrong, wrong[:1])
    errors = np.arange(8.0).reshape(2, 4)
    clusters = np.arange(4)
    with pytest.raises(ValueError, match=message.format("4,", "1,")):
        crossed_difference(errors, errors[:, :1], clusters, paired=False)
    with pytest.raises(ValueError, match=message.format("4,", "3,")):
        crossed_difference(errors, errors, clusters[:3], paired=False)
    with pytest.raises(ValueError, match=message.format("2,", "1,")):
        crossed_difference(errors, errors[:1], clusters, paired=True)


def test_interval_over_images_is_wilsons() -> None:
    interval = interval_over_images(60, 10_000)
    assert interval == pytest.approx((0.466, 0.772), abs=1e-3)


def test_interval_over_clusters_knows_how_many_images_are_independent() -> None:
    """Twins have the interval of half as many images; all twins of many clusters, almost Wilson's."""
    generator = np.random.default_rng(0)
    is_wrong = generator.random(2000) < 0.1
    wrong = is_wrong.astype(float)
    numbers = np.arange(2000)
    wilson = interval_over_images(wrong.sum(), 2000)
    twins = interval_over_clusters(np.repeat(wrong, 2), np.repeat(numbers, 2))
    assert twins == pytest.approx(wilson, abs=0.01)
    single = interval_over_clusters(wrong, numbers)
    assert single == pytest.approx(wilson, abs=0.01)


@pytest.mark.parametrize(("share", "bound"), [(0.0, 0), (1.0, 1)])
def test_interval_over_clusters_without_any_difference_counts_clusters(
    share: float, bound: int
) -> None:
    of_images = np.full(40, share)
    clusters = np.arange(40) // 10
    found = interval_over_clusters(of_images, clusters)
    assert found is not None
    assert found[bound] == pytest.approx(100 * share)
    low, high = found
    square = stats.t.ppf(0.975, 3) ** 2
    width = square / (4 + square)
    assert high - low == pytest.approx(100 * width)
    one_cluster = np.zeros(40)
    assert interval_over_clusters(of_images, one_cluster) is None


def test_overlap_of_folds_widens_the_paired_test() -> None:
    """Nadeau and Bengio 2003: the variance of a mean over folds is (1 / folds + test / training images) of one."""
    plain = paired_difference(FIRST, SECOND)
    corrected = paired_difference(FIRST, SECOND, overlap=1 / 3)
    assert corrected.estimate == plain.estimate
    assert corrected.df == plain.df
    factor = (1 + 4 / 3) ** 0.5
    assert corrected.error == pytest.approx(factor * plain.error)
    assert corrected.p is not None
    assert plain.p is not None
    assert corrected.p > plain.p
    assert corrected.test == "paired t-test, corrected for overlapping folds"
    assert corrected.needed is None


@pytest.mark.parametrize(
    "found",
    [
        unpaired_difference([1.0], [2.0, 3.0]),
        unpaired_difference([1.0, 1.0], [2.0, 2.0]),
        paired_difference([1.0, 2.0], [2.0, 3.0]),
        paired_difference([1.0], [2.0]),
    ],
    ids=["one run", "equal runs", "equal pairs", "one pair"],
)
def test_samples_without_a_deviation_have_no_interval(found: Difference) -> None:
    assert found.low is None
    assert found.p is None
    assert found.detectable is None
    assert found.estimate <= -1


def test_pooled_deviation_replaces_that_of_the_samples() -> None:
    common = pooled([[1.0, 2.0, 3.0], [5.0, 5.0], [7.0]])
    expected = math.sqrt(2 / 3)
    assert common == Spread(pytest.approx(expected), 3)
    found = unpaired_difference([1.0, 1.0], [2.0, 2.0], common=common)
    half = stats.t.ppf(0.975, 3) * common.std
    assert found.low == pytest.approx(-1 - half)
    assert found.high == pytest.approx(-1 + half)


@pytest.mark.parametrize("runs", whole_but([3, 5, 10], 3))
def test_intervals_cover_the_true_difference(runs: int) -> None:
    generator = np.random.default_rng(runs)
    within = 0
    for first, second in generator.normal([[0.3], [0.0]], 1.0, (2000, 2, runs)):
        found = unpaired_difference(first, second)
        within += found.low < 0.3 < found.high
    assert 0.93 <= within / 2000 <= 0.97


def test_family_without_differences_has_five_percent_false_positives() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=(2, 2000, 4, 5))
    families = stats.ttest_ind(first, second, axis=2, equal_var=True).pvalue
    positive = 0
    for p_values in families:
        positive += min(holm(p_values)) < LEVEL
    assert 0.04 <= positive / 2000 <= 0.06


def test_equal_samples_have_no_deviation_to_pool() -> None:
    assert pooled([[1.0, 1.0], [2.0]]) is None


@pytest.mark.whole
def test_crossed_interval_covers_the_difference_for_other_runs_and_clusters() -> None:
    generator = np.random.default_rng(0)
    clusters = np.arange(25).repeat(8)

    def of_toys(std: float) -> np.ndarray:
        """A number for each toy, at each of its images."""
        return generator.normal(0, std, 25)[clusters]

    def scores(mean: float) -> np.ndarray:
        """Scores of five runs, (run, image), apart from those of toys; an image is wrong above 0."""
        runs = generator.normal(mean, 0.5, (5, 1))
        return runs + generator.normal(0, 1, (5, 200))

    # variances of toys, runs, images, and of toys that are harder for the first network only
    first_error = stats.norm.cdf(-1 / math.sqrt(1 + 0.25 + 1 + 0.09))
    second_error = stats.norm.cdf(-1.2 / math.sqrt(1 + 0.25 + 1))
    expected = 100 * (first_error - second_error)
    within = 0
    for _ in range(150):
        toys = of_toys(1)
        first = toys + scores(-1)
        second = toys + scores(-1.2)
        first += of_toys(0.3)
        first_wrong = 100.0 * (first > 0)
        second_wrong = 100.0 * (second > 0)
        found = crossed_difference(first_wrong, second_wrong, clusters, paired=False)
        within += found.low < expected < found.high
    assert 0.92 <= within / 150 <= 0.995


@pytest.mark.parametrize("paired", [True, False], ids=["paired", "unpaired"])
@pytest.mark.parametrize("runs", [3, 5, 8])
def test_crossed_test_finds_no_difference_where_there_is_none(runs: int, paired: bool) -> None:
    """Runs, images and single predictions are random; few runs must not make the error too small."""
    generator = np.random.default_rng(runs)
    images = 500

    def percent_wrong(of_runs: np.ndarray, of_images: np.ndarray) -> np.ndarray:
        scores = of_runs + of_images + generator.normal(0, 1, (runs, images))
        return 100.0 * (scores > 2)

    found = 0
    for _ in range(300):
        of_images = generator.normal(0, 1, images)
        shared = generator.normal(0, 0.2, (runs, 1)) if paired else 0
        first = percent_wrong(shared + generator.normal(0, 0.2, (runs, 1)), of_images)
        second = percent_wrong(shared + generator.normal(0, 0.2, (runs, 1)), of_images)
        p = crossed_difference(first, second, np.arange(images), paired=paired).p
        found += p < LEVEL
    assert found / 300 <= 0.07


def test_crossed_interval_of_single_runs_equals_the_normal_interval_over_images() -> None:
    images = 4000
    generator = np.random.default_rng(0)
    first = 100.0 * (generator.random((1, images)) < 0.12)
    second = 100.0 * (generator.random((1, images)) < 0.1)
    found = crossed_difference(first, second, np.arange(images), paired=True, margin=5)
    difference = first - second
    width = 2 * 1.96 * np.std(difference) / math.sqrt(images)
    assert found.high - found.low == pytest.approx(width, rel=0.05)
    assert found.estimate == pytest.approx(difference.mean())
    assert found.equivalent == "yes"


def test_crossed_difference_with_one_run_of_a_row_has_no_interval() -> None:
    """Nothing is known about other runs of this row; two networks are compared over clusters, and named as such."""
    generator = np.random.default_rng(0)
    first, second = (100.0 * (generator.random((runs, 40)) < 0.2) for runs in (1, 3))
    clusters = np.arange(40) // 4
    found = crossed_difference(first, second, clusters, paired=False)
    assert found.estimate == pytest.approx(first.mean() - second.mean())
    assert (found.p, found.low, found.high) == (None, None, None)
    of_two = crossed_difference(first, second[:1], clusters, paired=False)
    assert of_two.p is not None
    assert of_two.test == "t-test over 10 clusters of images, these two networks"


def test_crossed_difference_tells_the_part_of_the_error_that_more_runs_do_not_reduce() -> None:
    """Three toys in ten are wrong in every run: runs agree, so the clusters alone have the whole error."""
    clusters = np.repeat(np.arange(10), 50)
    wrong = 100.0 * (clusters < 3)
    alike = np.tile(wrong, (4, 1))
    right = np.zeros_like(alike)
    found = crossed_difference(alike, right, clusters, paired=False)
    expected = 100 * math.sqrt(0.3 * 0.7 / 9)
    assert found.error == pytest.approx(found.error_of_clusters)
    assert found.error == pytest.approx(expected)
    assert found.df == pytest.approx(9)


def test_crossed_difference_of_runs_that_differ_has_no_error_of_equal_clusters() -> None:
    """Every toy of a run has the same result: the whole error is that of runs."""
    clusters = np.repeat(np.arange(10), 50)
    of_runs = [[0.0], [100.0], [0.0], [100.0]]
    different = np.repeat(of_runs, 500, axis=1)
    right = np.zeros_like(different)
    found = crossed_difference(different, right, clusters, paired=False)
    expected = 100 * math.sqrt(0.5 * 0.5 / 3)
    assert found.error_of_clusters == pytest.approx(0, abs=1e-9)
    assert found.error == pytest.approx(expected)
    assert found.df == pytest.approx(3)
