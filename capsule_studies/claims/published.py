"""The effect that a paper reports, beside ours: the key ``published`` of docs/claims.yaml."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from capsule_lab.statistics import LEVEL, interval_over_images
from capsule_studies.claims.effects import Effect

_LARGEST_FACTOR = 2.0  # ours, between our errors and those of the paper
_LEAST_TRAINING = 0.1  # ours, as a share of the training images that the paper's networks saw


@dataclass(frozen=True)
class Published:
    """The difference of two numbers of a paper, and what it says about ours. Rounding of the numbers is not included.

    Attributes:
        source: paper and table.
        data: the data set of the paper.
        unit: unit of both numbers.
        first, second: the numbers, in the order of the claim.
        low, high: 95 % interval of their difference.
        interval_from: what the interval comes from.
        why_not_compared: why ``ratio`` and ``excluded`` are ``None``; empty if ``excluded`` is not.
        differs: the same in two or three words.
        ratio: our difference divided by that of the paper; ``None`` if the paper's interval contains no difference.
        excluded: whether our 95 % interval excludes the paper's difference.
        training: how long the paper trained; empty if the claim does not say it.
        compute: images that our networks have seen in training, as a share of the paper's; ``None`` if unknown.
    """

    source: str
    data: str
    unit: str
    first: float
    second: float
    low: float
    high: float
    interval_from: str
    why_not_compared: str
    differs: str
    ratio: float | None
    excluded: bool | None
    training: str
    compute: float | None

    @property
    def difference(self) -> float:
        """First minus second."""
        return self.first - self.second


def published_of(claim: dict[str, Any], effect: Effect) -> Published | None:
    """Return the published effect of a claim; ``None`` if ``published`` is missing, or says why there is none.

    Ours is compared with it only on the data set of the paper, at errors within a factor of two of the paper's, and
    after a tenth of its training, if both lengths are known. A stand-in is another data set.
    """
    published = claim.get("published")
    if not isinstance(published, dict):
        return None
    first, *deviations = _listed(published["first"])
    second, *other_deviations = _listed(published["second"])
    if deviations and other_deviations and "trials" in published:
        half = _half_width(deviations[0], other_deviations[0], published["trials"])
        low, high = first - second - half, first - second + half
        interval_from = f"deviations over {published['trials']} trials"
    else:
        images = published["images"]
        low, high = _over_images(first, second, images)
        interval_from = f"{images:,} test images, as if both numbers came from different ones"
    if "images_are" in published:
        interval_from += f" ({published['images_are']})"
    difference = first - second
    seen = published.get("seen")
    compute = None
    if seen is not None and effect.images_seen is not None:
        compute = effect.images_seen / seen
    differs, why_not_compared = _why_not_compared(
        claim, effect, published["data"], (first, second), compute
    )
    ratio, excluded = None, None
    if not why_not_compared:
        excluded = not effect.low <= difference <= effect.high
        if low > 0 or high < 0:
            ratio = effect.found.estimate / difference
    return Published(
        source=published["source"],
        data=published["data"],
        unit=published.get("unit", "%"),
        first=first,
        second=second,
        low=low,
        high=high,
        interval_from=interval_from,
        why_not_compared=why_not_compared,
        differs=differs,
        ratio=ratio,
        excluded=excluded,
        training=published.get("training", ""),
        compute=compute,
    )


def why_none(claim: dict[str, Any]) -> str:
    """Return why a claim has no published effect; empty if it has one, or says nothing about it."""
    published = claim.get("published", "")
    return published if isinstance(published, str) else ""


def _why_not_compared(
    claim: dict[str, Any],
    effect: Effect,
    data: str,
    numbers: tuple[float, float],
    compute: float | None,
) -> tuple[str, str]:
    """Return what differs in a few words, and a sentence; empty texts if nothing does."""
    if not effect.real:
        return "other data", f"{claim['data']} is a stand-in"
    if claim["data"] != data:
        return "other data", f"the data set is {data}, ours {claim['data']}"
    if compute is not None and compute < _LEAST_TRAINING:
        return "less training", f"our networks saw {100 * compute:.2g} % as many training images"
    assert effect.means is not None
    for ours, of_paper in zip(effect.means, numbers, strict=True):
        if max(ours, of_paper) > _LARGEST_FACTOR * min(ours, of_paper):
            first, second = effect.means
            return "other errors", f"our networks have errors of {first:.3g} and {second:.3g} %"
    if compute is None:
        return "unknown training", "how long its networks trained, or ours, is not known"
    return "", ""


def _listed(value: float | list[float]) -> list[float]:
    return value if isinstance(value, list) else [value]


def _half_width(deviation: float, other_deviation: float, trials: int) -> float:
    """Return half of Welch's interval, from deviations over trials."""
    from scipy.stats import t as student

    squares = deviation**2 + other_deviation**2
    error = math.sqrt(squares / trials)
    df = (trials - 1) * squares**2 / (deviation**4 + other_deviation**4)
    return float(student.ppf(1 - LEVEL / 2, df)) * error


def _over_images(first: float, second: float, images: int) -> tuple[float, float]:
    """Return Newcombe's interval (1998, method 10) of the difference of two percentages of independent images."""
    low, high = interval_over_images(first / 100 * images, images)
    other_low, other_high = interval_over_images(second / 100 * images, images)
    below = math.hypot(first - low, other_high - second)
    above = math.hypot(high - first, second - other_low)
    return first - second - below, first - second + above
