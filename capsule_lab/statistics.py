"""Differences between two rows of a table: interval, test, effect size, power and equivalence.

``scipy`` is imported in the functions, because a report without comparisons does not need it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Equivalence = Literal["yes", "no", "undecided"]

LEVEL = 0.05  # two-sided; intervals cover 95 %
POWER = 0.8  # Cohen 1988
_MOST_RUNS = 10_000  # ours: no table has that many seeds


@dataclass(frozen=True)
class Difference:
    """The difference of two means, and what can be said about it.

    Attributes:
        estimate: first minus second.
        low, high: 95 % interval; ``None`` if there is no estimate of the deviation.
        p: two-sided p value of no difference.
        counts: number of runs of both rows, or of pairs (twice the same number).
        test: name of the test, for captions.
        g: Hedges' g, the difference in standard deviations of single runs, corrected for small samples.
        equivalent: whether the difference is smaller than a margin (two one-sided tests); ``None`` without a margin.
        spread: deviation of single runs, or of the differences of ``pairs``, that a t-test used; ``None`` without one.
        error, df: standard error of the estimate, and its degrees of freedom.
        error_of_clusters: the part of the error that more runs do not reduce; 0 for a test over runs alone.
        g_error: the standard error in the unit of ``g``; ``None`` without ``g``.
    """

    estimate: float
    low: float | None
    high: float | None
    p: float | None
    counts: tuple[int, int]
    test: str
    g: float | None = None
    equivalent: Equivalence | None = None
    spread: float | None = None
    pairs: bool = False
    error: float = 0.0
    df: float = 0.0
    error_of_clusters: float = 0.0
    g_error: float | None = None

    @property
    def g_interval(self) -> tuple[float, float] | None:
        """95 % interval of Hedges' g: effects whose noncentral t distribution has the observed statistic as a quantile.

        For pairs, the ratio of both deviations counts as known (Algina and Keselman 2003).
        """
        if self.g_error is None:
            return None
        from scipy.special import nctdtrinc

        statistic = self.estimate / self.error
        low = nctdtrinc(self.df, 1 - LEVEL / 2, statistic)
        high = nctdtrinc(self.df, LEVEL / 2, statistic)
        return self.g_error * float(low), self.g_error * float(high)

    @property
    def detectable(self) -> float | None:
        """The smallest difference that this number of runs finds with a power of 80 %."""
        if self.spread is None:
            return None
        from scipy.optimize import brentq

        # 20 standard errors are enough for one degree of freedom; 1,000 are many times too many for others
        return self.error * float(brentq(lambda shift: _power(shift, self.df) - POWER, 0, 1000))

    @property
    def needed(self) -> int | None:
        """The number of runs per row, or of pairs, that find a difference as large as the estimate with that power."""
        if self.spread is None:
            return None
        return runs_for(self.estimate, self.spread, pairs=self.pairs)


@dataclass(frozen=True)
class Spread:
    """A standard deviation of single runs (or of paired differences) and its degrees of freedom."""

    std: float
    df: int

    def __str__(self) -> str:
        return f"{self.std:.3g}, {self.df} degrees of freedom"


def pooled(samples: Sequence[Sequence[float]]) -> Spread | None:
    """Return the common standard deviation of several samples; ``None`` if no sample has two different values."""
    squares = 0.0
    df = 0
    for sample in samples:
        if len(sample) > 1:
            squares += float(np.var(sample, ddof=1)) * (len(sample) - 1)
            df += len(sample) - 1
    return Spread(math.sqrt(squares / df), df) if squares > 0 else None


def unpaired_difference(
    first: Sequence[float],
    second: Sequence[float],
    *,
    margin: float | None = None,
    common: Spread | None = None,
) -> Difference:
    """Compare two independent samples by Welch's t-test, or with a ``common`` deviation by Student's.

    ``margin`` is the largest difference that counts as none.
    """
    counts = (len(first), len(second))
    unit = math.sqrt(1 / len(first) + 1 / len(second))
    if common is None:
        test = "Welch's t-test"
        error, df = _welch(first, second)
    else:
        test = "t-test with pooled deviation"
        error, df = common.std * unit, float(common.df)
    estimate = float(np.mean(first) - np.mean(second))
    difference = Difference(estimate, None, None, None, counts, test)
    if error == 0:
        return difference
    known = replace(difference, spread=error / unit, error=error, df=df)
    single = common or pooled([first, second])
    if single is not None:
        known = _with_g(known, single)
    return _by_t_test(known, margin)


def _welch(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return the standard error of Welch 1947 and its degrees of freedom; zeros if a sample has no deviation."""
    if min(len(first), len(second)) < 2:
        return 0.0, 0.0
    one = float(np.var(first, ddof=1)) / len(first)
    other = float(np.var(second, ddof=1)) / len(second)
    error = math.sqrt(one + other)
    if error == 0:
        return 0.0, 0.0
    df = error**4 / (one**2 / (len(first) - 1) + other**2 / (len(second) - 1))
    return error, df


def paired_difference(
    first: Sequence[float],
    second: Sequence[float],
    *,
    margin: float | None = None,
    common: Spread | None = None,
    overlap: float = 0.0,
) -> Difference:
    """Compare values that belong together, in the same order, by the paired t-test; see ``unpaired_difference``.

    ``overlap`` is the number of test images per training image, if pairs are folds, whose networks share training
    images: the corrected resampled t-test of Nadeau and Bengio 2003. More folds of the same images are not more data,
    so that it plans no number of pairs. Raise a ``ValueError`` if the numbers of values differ.
    """
    _check_shapes(np.shape(first), np.shape(second))
    differences = np.subtract(first, second)
    count = len(differences)
    estimate = float(np.mean(differences))
    if common is None:
        test = "paired t-test"
        std = float(np.std(differences, ddof=1)) if count > 1 else 0.0
        df = count - 1
    else:
        test = "paired t-test with pooled deviation"
        std, df = common.std, common.df
    difference = Difference(estimate, None, None, None, (count, count), test)
    if std == 0:
        return difference
    error = std * math.sqrt(1 / count + overlap)
    known = replace(difference, pairs=True, error=error, df=df)
    single = pooled([first, second])
    if single is not None:
        known = _with_g(known, single)
    if overlap:
        return _by_t_test(replace(known, test=f"{test}, corrected for overlapping folds"), margin)
    return _by_t_test(replace(known, spread=std), margin)


def _check_shapes(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    """Raise a ``ValueError`` if values do not belong together: numpy would repeat a single one."""
    if first != second:
        raise ValueError(
            f"values of shape {first} are compared with others of shape {second}; expected equal shapes, because each "
            "value belongs to one of the others"
        )


def difference_from(values: Sequence[float], number: float) -> Difference:
    """Compare a sample with a number by Student's t-test."""
    count = len(values)
    estimate = float(np.mean(values)) - number
    difference = Difference(estimate, None, None, None, (count, count), "one-sample t-test")
    single = pooled([values])
    if single is None:
        return difference
    error = single.std / math.sqrt(count)
    known = replace(difference, pairs=True, spread=single.std, error=error, df=count - 1)
    return _by_t_test(_with_g(known, single), None)


def crossed_difference(
    first: npt.NDArray[Any],
    second: npt.NDArray[Any],
    clusters: npt.NDArray[Any],
    *,
    paired: bool,
    margin: float | None = None,
) -> Difference:
    """Compare two rows over other runs and other test images: both are random, and every run has every image.

    The squared error is that over runs, as if the images stayed, plus that over clusters of images, as if the runs
    stayed. The chance of a single prediction is in both parts, so that the error is too large rather than too small.
    Its degrees of freedom are those of Satterthwaite 1946. Two networks, one of each row, are compared over clusters
    only. Without another run of one row, nothing is known about other runs, and there is no interval.

    Args:
        first, second: percent wrong of each image, ``(run, image)``: 0 or 100. Images are the same in all rows.
        clusters: cluster of each image, such as its toy; for single images, different numbers.
        paired: whether runs with the same index belong together.
        margin: the largest difference that counts as none.

    Raises:
        ValueError: if rows have different numbers of images, or pairs a run without another.
    """
    _check_shapes(first.shape[1:], second.shape[1:])
    _check_shapes(first.shape[1:], clusters.shape)
    compare = paired_difference if paired else unpaired_difference
    over_runs = compare(first.mean(1), second.mean(1))
    difference = first.mean(0) - second.mean(0)
    variance_of_clusters, number = _variance_over_clusters(difference, clusters)
    parts = [(over_runs.error**2, over_runs.df), (variance_of_clusters, number - 1.0)]
    unit = "images" if number == len(clusters) else f"{number} clusters of images"
    counts = (len(first), len(second))
    test = f"crossed random effects of runs and {unit}"
    if counts == (1, 1):
        test = f"t-test over {unit}, these two networks"
    found = Difference(
        float(difference.mean()),
        None,
        None,
        None,
        counts,
        test,
        error_of_clusters=math.sqrt(variance_of_clusters),
    )
    variance = sum(part for part, _ in parts)
    is_one_run_unknown = min(counts) == 1 < max(counts)
    if variance == 0 or is_one_run_unknown:
        return found
    df = variance**2 / sum(part**2 / df for part, df in parts if part > 0)
    return _by_t_test(replace(found, error=math.sqrt(variance), df=df), margin)


def _variance_over_clusters(
    values: npt.NDArray[Any], clusters: npt.NDArray[Any]
) -> tuple[float, int]:
    """Return the squared standard error of a mean over images, and the number of clusters; 0 for a single cluster."""
    _, cluster = np.unique(clusters, return_inverse=True)
    deviations = np.bincount(cluster, values - values.mean())
    number = len(deviations)
    if number < 2:
        return 0.0, number
    squares = float(np.square(deviations).sum())
    return number / (number - 1) * squares / len(values) ** 2, number


def mcnemar(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]) -> Difference:
    """Compare which images two networks get wrong by the exact test of McNemar 1947.

    The result applies to these two networks, not to the two kinds of network. The interval is that of the paired
    difference of shares. Raise a ``ValueError`` if the numbers of images differ.
    """
    from scipy.stats import binomtest, norm

    _check_shapes(first.shape, second.shape)
    count = len(first)
    only_first = int((first & ~second).sum())
    only_second = int((second & ~first).sum())
    either = only_first + only_second
    shift = only_first - only_second
    estimate = 100 * shift / count
    p = float(binomtest(only_first, either).pvalue) if either else 1.0
    variance = (either - shift**2 / count) / count**2
    half = 100 * float(norm.ppf(1 - LEVEL / 2)) * math.sqrt(variance)
    return Difference(
        estimate,
        estimate - half,
        estimate + half,
        p,
        (1, 1),
        "exact McNemar test, these two networks",
    )


class Interval(NamedTuple):
    """The 95 % interval of an error in percent, from ``low`` to ``high``, and what it is over."""

    low: float
    high: float
    over: Literal["test images", "groups"]


def interval_of_error(
    wrong: npt.NDArray[Any], clusters: npt.NDArray[Any] | None
) -> Interval | None:
    """Return the interval over clusters of test images, such as patients, if there are any, else over test images.

    See ``interval_over_clusters``.
    """
    if clusters is None:
        return Interval(*interval_over_images(wrong.sum(), len(wrong)), "test images")
    found = interval_over_clusters(wrong, clusters)
    return None if found is None else Interval(*found, "groups")


def interval_over_images(wrong: float, images: int) -> tuple[float, float]:
    """Return the 95 % interval (Wilson 1927) of an error in percent, over test images.

    ``wrong`` is the number of images that a network gets wrong, or its mean over several networks.
    """
    from scipy.stats import norm

    quantile = float(norm.ppf(1 - LEVEL / 2))
    return _wilson(wrong / images, images, quantile)


def interval_over_clusters(
    wrong: npt.NDArray[np.float64], clusters: npt.NDArray[Any]
) -> tuple[float, float] | None:
    """Return the 95 % interval of an error in percent, over clusters of test images, such as patients.

    It is Wilson's, with the number of independent images that have the variance between clusters (Korn and Graubard
    1998), and a quantile of Student's t. ``None`` for a single cluster.

    Args:
        wrong: share of networks that get each image wrong, ``(image,)``, 0 to 1.
        clusters: cluster of each image.
    """
    from scipy.stats import t as student

    share = float(wrong.mean())
    images = len(wrong)
    variance, number = _variance_over_clusters(wrong, clusters)
    if number < 2:
        return None
    independent = float(number)  # as many as clusters if none or all images are wrong
    if 0 < share < 1:
        of_one = share * (1 - share)
        independent = of_one / max(variance, of_one / images)
    quantile = float(student.ppf(1 - LEVEL / 2, number - 1))
    return _wilson(share, independent, quantile)


def _wilson(share: float, images: float, quantile: float) -> tuple[float, float]:
    """Return the interval of Wilson 1927 in percent."""
    square = quantile**2 / images
    divisor = 1 + square
    center = (share + square / 2) / divisor
    variance = square * share * (1 - share) + square**2 / 4
    half = math.sqrt(variance) / divisor
    low = max(0.0, center - half)
    high = min(1.0, center + half)
    return 100 * low, 100 * high


def half_width(values: Sequence[float]) -> float | None:
    """Return half of the 95 % interval of a mean over runs; ``None`` for a single run."""
    from scipy.stats import t as student

    if len(values) < 2:
        return None
    quantile = float(student.ppf(1 - LEVEL / 2, len(values) - 1))
    return quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p values of a family after the correction of Holm 1979, in the given order.

    Raise a ``ValueError`` for a number that is no p value, such as NaN.
    """
    if not all(0 <= p <= 1 for p in p_values):
        listed = ", ".join(f"{p:g}" for p in p_values)
        raise ValueError(f"p values are {listed}; expected numbers from 0 to 1")
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        adjusted = min(1.0, (len(p_values) - rank) * p_values[index])
        largest = max(largest, adjusted)
        corrected[index] = largest
    return corrected


def runs_for(
    difference: float, std: float, *, pairs: bool, power: float = POWER, level: float = LEVEL
) -> int | None:
    """Return the number of runs per row, or of pairs, with which a t-test finds a difference with this power.

    ``None`` if more than 10,000 are needed. ``level`` is that of the test, smaller for one of several tests.
    """
    samples = 1 if pairs else 2

    def is_enough(count: int) -> bool:
        error = std * math.sqrt(samples / count)
        shift = abs(difference) / error
        return _power(shift, samples * (count - 1), level) >= power

    if difference == 0 or not is_enough(_MOST_RUNS):
        return None
    too_few = 1
    enough = _MOST_RUNS
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if is_enough(middle):
            enough = middle
        else:
            too_few = middle
    return enough


def _by_t_test(found: Difference, margin: float | None) -> Difference:
    """Add interval, p value and equivalence from the standard error and its degrees of freedom."""
    from scipy.stats import t as student

    half = float(student.ppf(1 - LEVEL / 2, found.df)) * found.error
    p = 2 * float(student.sf(abs(found.estimate) / found.error, found.df))
    found = replace(found, low=found.estimate - half, high=found.estimate + half, p=p)
    if margin is None:
        return found
    # the larger of the p values of two one-sided tests
    p_outside = float(student.sf((margin - abs(found.estimate)) / found.error, found.df))
    equivalent: Equivalence = "undecided"
    if p_outside < LEVEL:
        equivalent = "yes"
    elif 1 - p_outside < LEVEL:
        equivalent = "no"
    return replace(found, equivalent=equivalent)


def _power(shift: float, df: float, level: float = LEVEL) -> float:
    """Return the power of a two-sided t-test for a difference of ``shift`` standard errors."""
    from scipy.stats import nct
    from scipy.stats import t as student

    critical = float(student.ppf(1 - level / 2, df))
    above = nct.sf(critical, df, shift)
    below = nct.cdf(-critical, df, shift)
    # both are NaN in scipy 1.17 for large shifts
    return float(np.nan_to_num(above, nan=1.0) + np.nan_to_num(below, nan=0.0))


def _with_g(found: Difference, single: Spread) -> Difference:
    """Add Hedges' g, the difference in deviations of ``single`` runs."""
    unit = _small_sample(single.df) / single.std
    return replace(found, g=found.estimate * unit, g_error=found.error * unit)


def _small_sample(df: int) -> float:
    """Return the factor that removes the bias of Cohen's d (Hedges 1981)."""
    return 1 - 3 / (4 * df - 1)
