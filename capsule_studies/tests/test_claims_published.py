"""The effects that papers report, beside ours; Hedges' g of every claim."""

import re
from dataclasses import replace
from typing import Any

import pytest
import yaml
from scipy import stats
from statsmodels.stats.proportion import confint_proportions_2indep

from capsule_lab.statistics import Difference
from capsule_studies.claims import effects, page, read
from capsule_studies.claims.effects import Effect
from capsule_studies.claims.published import published_of, why_none
from capsule_studies.claims.verdicts import Judged
from capsule_studies.tests.judged_claims import JUDGED
from tests.helpers.quoted_numbers import RESULTS

OF_PAPERS = [each for each in JUDGED if each.claim["kind"] in ("paper", "implied")]
WITH_NUMBERS = [each for each in JUDGED if each.published]


def name(each: Judged) -> str:
    found: str = each.claim["id"]
    return found


@pytest.mark.parametrize("each", OF_PAPERS, ids=name)
def test_a_claim_of_a_paper_has_its_numbers_or_says_why_not(each: Judged) -> None:
    published = each.published
    assert (published is None) == bool(why_none(each.claim))


STANDINS = [each for each in JUDGED if not each.effect.real]


@pytest.mark.parametrize("each", STANDINS, ids=name)
def test_a_stand_in_has_no_published_number(each: Judged) -> None:
    assert each.published is None
    if each in OF_PAPERS:
        assert "stand-in" in why_none(each.claim)


TABLES = {
    "Sabour 2017": ["sabour2017_table1"],
    "Hinton 2018": ["hinton2018_table1", "hinton2018_adversarial"],
    "Peer 2018": ["peer2018_scores"],
    "Hahn 2019": ["hahn2019_robustness"],
}


def numbers_in(table: str) -> set[float]:
    """All published numbers of a table in sweeps/."""
    found: set[float] = set()
    rows = yaml.safe_load((read.ROOT / "sweeps" / f"{table}.yaml").read_text())["rows"]
    for row in rows:
        published = row.get("published", {})
        values = published.values() if isinstance(published, dict) else [published]
        for value in values:
            found.update(value if isinstance(value, list) else [value])
    return found


@pytest.mark.parametrize("each", WITH_NUMBERS, ids=name)
def test_published_numbers_are_those_of_the_tables_in_sweeps(each: Judged) -> None:
    known: set[float] = set()
    source = each.claim["published"]["source"]
    for paper, tables in TABLES.items():
        if paper in source:
            for table in tables:
                known |= numbers_in(table)
    # of Ribeiro and Heinsen, the source has the accuracy
    for right in re.findall(r"\(([\d.]+) %", source):
        known.add(round(100 - float(right), 1))
    for side in ("first", "second"):
        numbers = each.claim["published"][side]
        for number in numbers if isinstance(numbers, list) else [numbers]:
            assert number in known


CLAIM: dict[str, Any] = {
    "data": "MNIST",
    "unit": "points",
    "published": {
        "source": "any",
        "data": "MNIST",
        "first": 1.0,
        "second": 3.0,
        "images": 1000,
        "seen": 192_000,
    },
}
FOUND = Difference(-1, -1.5, -0.5, 0.01, (5, 5), "any test", error=0.2, df=8)
OURS = Effect(FOUND, paired=False, images_seen=96_000, means=(1.5, 2.5))


def published(**changes: Any) -> Any:
    found = published_of({**CLAIM, "published": {**CLAIM["published"], **changes}}, OURS)
    assert found is not None
    return found


def test_interval_of_a_published_difference_from_deviations_is_welchs() -> None:
    found = published(first=[1.0, 0.2], second=[3.0, 0.5], trials=4)
    test = stats.ttest_ind_from_stats(1.0, 0.2, 4, 3.0, 0.5, 4, equal_var=False)
    half = (found.high - found.low) / 2
    squares = 0.2**2 + 0.5**2
    error = (squares / 4) ** 0.5
    assert test.statistic == pytest.approx(-2 / error)
    # the quantile of Student's t beyond which 2.5 % lie, at the degrees of freedom of this test
    df = 3 * squares**2 / (0.2**4 + 0.5**4)
    assert 2 * stats.t.sf(2 / error, df) == pytest.approx(test.pvalue)
    assert stats.t.sf(half / error, df) == pytest.approx(0.025)
    assert found.difference == -2
    assert found.interval_from == "deviations over 4 trials"


def test_interval_of_a_published_difference_from_test_images_is_that_of_statsmodels() -> None:
    """Newcombe 1998, method 10: 12 and 30 of 1,000 images."""
    found = published(first=1.2, second=3.0)
    expected = confint_proportions_2indep(12, 1000, 30, 1000, method="newcomb")
    assert [found.low / 100, found.high / 100] == pytest.approx([*expected])
    assert "1,000 test images" in found.interval_from


def test_ours_is_compared_on_the_same_data_only() -> None:
    same = published()
    assert same.ratio == 0.5
    assert same.excluded is True
    assert not same.why_not_compared
    other = published(data="smallNORB")
    assert other.ratio is None
    assert other.excluded is None
    assert other.why_not_compared == "the data set is smallNORB, ours MNIST"


def test_a_stand_in_is_never_compared() -> None:
    found = published_of(CLAIM, replace(OURS, real=False))
    assert found is not None
    assert found.excluded is None
    assert found.why_not_compared == "MNIST is a stand-in"


@pytest.mark.parametrize(
    ("means", "differs"),
    [
        ((1.9, 3.0), ""),
        ((2.1, 3.0), "other errors"),
        ((0.49, 3.0), "other errors"),
        ((1.0, 6.1), "other errors"),
    ],
)
def test_ours_is_compared_at_errors_within_a_factor_of_two(
    means: tuple[float, float], differs: str
) -> None:
    found = published_of(CLAIM, replace(OURS, means=means))
    assert found is not None
    assert found.differs == differs
    assert (found.excluded is None) == (found.ratio is None) == bool(differs)
    assert bool(found.why_not_compared) == bool(differs)


@pytest.mark.parametrize(("seen", "differs"), [(960_000, ""), (970_000, "less training")])
def test_ours_is_compared_after_a_tenth_of_the_papers_training(seen: int, differs: str) -> None:
    found = published(seen=seen)
    assert found.differs == differs
    assert (found.excluded is None) == bool(differs)


@pytest.mark.parametrize("each", WITH_NUMBERS, ids=name)
def test_the_row_says_why_ours_is_not_compared(each: Judged) -> None:
    found = each.published
    assert found is not None
    assert (f"not compared, because {found.why_not_compared}" in page._paper(each)) == bool(
        found.differs
    )


def test_pairs_of_the_same_digits_are_not_independent() -> None:
    each = next(each for each in JUDGED if name(each) == "C-071")
    assert each.published is not None
    assert "not independent, so the interval is too narrow" in each.published.interval_from


def test_means_differ_by_the_estimate() -> None:
    for each in JUDGED:
        assert each.effect.means is not None
        first, second = each.effect.means
        # values in files of runs are rounded to six digits; pairs use the seeds that both have
        assert first - second == pytest.approx(each.effect.found.estimate, rel=0.01, abs=1e-4)


def test_there_is_no_ratio_to_a_difference_that_may_be_none() -> None:
    found = published(first=2.9)
    assert found.ratio is None
    assert found.excluded is True


@pytest.mark.parametrize(("second", "excluded"), [(1.6, False), (2.4, False), (2.6, True)])
def test_whether_our_interval_excludes_the_published_difference(
    second: float, excluded: bool
) -> None:
    assert published(second=second).excluded is excluded


def test_share_of_the_papers_compute() -> None:
    assert published(seen=960_000).compute == 0.1
    unknown = published(seen=None)
    assert unknown.compute is None
    assert unknown.differs == "unknown training"
    assert unknown.excluded is None


def test_images_seen_come_from_the_records() -> None:
    """1,500 steps of 64, against 300,000 steps of 128."""
    each = next(each for each in JUDGED if name(each) == "C-009")
    assert each.effect.images_seen == 96_000
    assert each.published is not None
    assert each.published.compute == pytest.approx(1500 * 64 / (300_000 * 128))


@pytest.mark.parametrize("each", JUDGED, ids=name)
def test_every_claim_has_hedges_g_within_its_interval(each: Judged) -> None:
    g, interval = each.effect.hedges_g, each.effect.hedges_g_interval
    assert g is not None
    assert interval is not None
    low, high = interval
    assert low < g < high
    assert g * each.effect.found.estimate >= 0
    recorded = recorded_g(each.claim)
    if recorded:
        # values in files of runs are rounded to six digits
        assert g == pytest.approx(recorded, rel=0.01, abs=1e-4)


def recorded_g(claim: dict[str, Any]) -> float | None:
    """Hedges' g of the report; ``None`` for a claim from samples, and for a test over images."""
    if "comparison" not in claim:
        return None
    _, line = effects.line_of(RESULTS, **claim["comparison"])
    found = line["hedges_g"]
    return None if found == "" else float(found)
