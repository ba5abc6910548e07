"""The page of claims equals what the records give; the rules of its verdicts."""

import hashlib
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from capsule_lab.tables import statistics
from docs import claims
from docs.claims import HOLDS, NOT, OPEN, OPPOSITE, SMALL, UNDECIDED, Effect, Judged
from tests.helpers.claims import RESULTS

CLAIMS = claims.read()
KEYS = {"topic", "claim", "by", "test", "expects", "smallest", "unit", "scale", "change", "command"}


def effect(low: float, high: float, p: float, count: int = 5) -> Effect:
    return Effect((low + high) / 2, low, high, p, (count, count), True, "planned", "any test")


def test_page_and_readme_are_up_to_date() -> None:
    """After new records or claims: ``make claims``."""
    assert claims.PAGE.read_text() == claims.page(claims.read())
    readme = claims.README.read_text()
    assert claims.START in readme
    assert readme == claims.with_short_form(readme, claims.read())


def test_figure_belongs_to_the_page_and_shows_every_claim() -> None:
    with Image.open(claims.FIGURE) as file:
        assert file.info["Description"] == hashlib.sha256(claims.PAGE.read_bytes()).hexdigest(), "make claims"
    (axes,) = claims.figure(CLAIMS[:20]).axes
    texts = [text.get_text() for text in axes.texts]
    assert len(texts) == 20 + len({each["topic"] for each in CLAIMS[:20]})
    first, (low, high) = claims.judged(CLAIMS[:20])[0], axes.lines[1].get_xdata()
    ends = sorted(
        claims._sign(first.claim) * end / first.claim["smallest"] for end in (first.effect.low, first.effect.high)
    )
    assert (low, high) == pytest.approx(tuple(ends))


def test_every_claim_is_complete() -> None:
    assert len(CLAIMS) >= 30
    assert len({each["claim"] for each in CLAIMS}) == len(CLAIMS)
    for each in CLAIMS:
        assert each.keys() >= KEYS, each["claim"]
        assert ("comparison" in each) != ("first" in each and "second" in each), each["claim"]
        assert each["smallest"] > 0
        table = re.search(r"table=(\w+)", each["command"])
        assert each["command"].startswith("make ")
        assert table is None or (claims.ROOT / "sweeps" / f"{table[1]}.yaml").is_file()
        assert "figure" not in each or (RESULTS / each["figure"]).is_file()


def test_pending_claims_have_no_record() -> None:
    for claim in claims.read(pending=True):
        with pytest.raises((ValueError, FileNotFoundError)):
            claims.effect_of(claim)


@pytest.mark.parametrize(
    ("low", "high", "p", "p_of_smaller", "count", "expected"),
    [
        pytest.param(-3, -1, 0.01, 1, 5, HOLDS, id="lower, as claimed"),
        pytest.param(-3, -0.5, 0.01, 1, 5, OPEN, id="lower, perhaps by less than what matters"),
        pytest.param(-0.8, -0.2, 0.01, 0.01, 5, SMALL, id="lower by less than what matters"),
        pytest.param(-3, -1, 0.2, 1, 5, UNDECIDED, id="not significant after the correction"),
        pytest.param(-0.8, 0.5, 0.5, 0.01, 5, NOT, id="every difference that matters is excluded"),
        pytest.param(-0.8, 0.5, 0.5, 0.2, 5, UNDECIDED, id="a difference that matters is possible"),
        pytest.param(1, 3, 0.01, 0.01, 5, OPPOSITE, id="the opposite"),
        pytest.param(-3, -1, 0.01, 1, 2, UNDECIDED, id="two runs"),
    ],
)
def test_verdicts(low: float, high: float, p: float, p_of_smaller: float, count: int, expected: str) -> None:
    """The claim: the first value is lower; a difference of 1 matters. The mirrored claim has the same verdict."""
    claim: dict[str, Any] = {"expects": "less", "smallest": 1.0}
    assert Judged(claim, effect(low, high, p, count), p, p_of_smaller).verdict == expected
    mirrored = effect(-high, -low, p, count)
    assert Judged({**claim, "expects": "more"}, mirrored, p, p_of_smaller).verdict == expected


@pytest.mark.parametrize("expects", ["less", "more"])
def test_p_value_of_a_difference_that_matters(expects: str) -> None:
    """Judged by scipy's one-sided test of the same pairs."""
    pairs = np.array([0.3, -0.4, 0.1, 0.5, -0.2])
    found = statistics.paired_difference(pairs, np.zeros(5))
    claim = {"expects": expects, "smallest": 0.6}
    ours = Effect(
        found.estimate, found.low, found.high, found.p, found.counts, True, "planned", found.test
    ).p_of_smaller(claim)
    sign = {"less": -1, "more": 1}[expects]
    expected = stats.ttest_1samp(sign * pairs, 0.6, alternative="less").pvalue
    assert ours == pytest.approx(expected, rel=1e-9)


def test_tests_are_corrected_over_the_page_or_within_their_planned_family() -> None:
    claim = {"expects": "less", "smallest": 1.0}
    page = [effect(-0.1, 0.1, 0.03), replace(effect(-3, -1, 0.001), p_of_report=0.5)]
    family = [replace(effect(-3, -1, p), p_of_report=2 * p, family="table/family") for p in (0.01, 0.02)]
    found = claims.judged([claim] * 4, [page[0], family[0], page[1], family[1]])
    expected = statistics.holm([each.p for each in page] + [each.p_of_smaller(claim) for each in page])
    assert (found[0].p, found[2].p) == (expected[0], 0.5), "the report corrects the second more strictly"
    assert [found[0].p_of_smaller, found[2].p_of_smaller] == expected[2:]
    assert [found[1].p, found[3].p] == [0.02, 0.04], "as in the report"
    assert [found[1].p_of_smaller, found[3].p_of_smaller] == statistics.holm([e.p_of_smaller(claim) for e in family])
    assert [each.tests for each in found] == [4] * 4


@pytest.mark.parametrize("paired", [True, False])
def test_runs_that_find_the_difference_that_matters(paired: bool) -> None:
    """Judged by the plan of a report for the same deviation."""
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=6), generator.normal(size=6)
    compare = statistics.paired_difference if paired else statistics.unpaired_difference
    found = compare(first, second)
    common = statistics.pooled([first, second])
    of_pairs = float(np.std(first - second, ddof=1))
    ours = Effect(found.estimate, found.low, found.high, found.p, found.counts, paired, "planned", found.test)
    expected = statistics.runs_for(0.7, of_pairs if paired else common.std, pairs=paired)
    got = Judged({"expects": "less", "smallest": 0.7}, ours, 1, 1).needed
    assert got == pytest.approx(expected, rel=0 if paired else 0.2), "Welch's degrees of freedom differ a little"


def test_a_paired_sample_uses_the_seeds_that_both_have() -> None:
    """25 labels, five draws, by hand: EMCaps minus the convolutions."""
    rows = ({"file": "data_efficiency_runs.csv", "column": "25 labels", "row": row} for row in ("EMCaps", "three"))
    claim = {"claim": "labels", "paired": True, **dict(zip(("first", "second"), rows, strict=True))}
    differences = [33.48 - 34.44, 29.35 - 31.65, 28.69 - 30.12, 22.5 - 24.21, 27.75 - 27.56]
    found = claims.effect_of(claim)
    assert (found.counts, found.difference) == ((5, 5), pytest.approx(sum(differences) / 5, abs=1e-3))
    assert found.paired


def test_a_sample_against_a_number() -> None:
    claim = next(
        each
        for each in CLAIMS
        if each["claim"].startswith("Couplings are closer to one parent than to equal shares (EM")
    )
    values = claims._sample(claim["first"])
    found = claims.effect_of(claim)
    assert found.difference == pytest.approx(values.mean() - 0.5)
    assert found.p == pytest.approx(stats.ttest_1samp(values, 0.5).pvalue)


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"comparison": {"file": "inside_capsules", "name": "tree"}}, "has 2 lines of tree, '', ''; expected one"),
        ({"first": {"file": "data_efficiency_runs.csv", "row": "three"}, "second": {}}, "expected one of each seed"),
    ],
)
def test_a_source_that_is_not_one_sample_is_an_error(claim: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        claims.effect_of({"claim": "any", **claim})
