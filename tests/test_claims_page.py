"""The page of claims equals what the records give; the rules of its verdicts."""

import re
from typing import Any

import pytest

from docs import claims
from docs.claims import HOLDS, NOT, SMALL, UNDECIDED, Effect
from tests.helpers.claims import RESULTS

CLAIMS = claims.read()
KEYS = {"topic", "claim", "by", "test", "expects", "smallest", "unit", "scale", "change", "command"}


def effect(low: float, high: float, p: float, count: int = 5) -> Effect:
    return Effect((low + high) / 2, low, high, p, count, "planned", "a test")


def test_page_and_readme_are_up_to_date() -> None:
    """After new records or claims: ``make claims``."""
    assert claims.PAGE.read_text() == claims.page(claims.read())
    readme = claims.README.read_text()
    assert claims.START in readme
    assert readme == claims.with_short_form(readme, claims.read())


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


@pytest.mark.parametrize(
    ("low", "high", "p", "count", "expected"),
    [
        pytest.param(-3, -1, 0.01, 5, HOLDS, id="lower, as claimed"),
        pytest.param(-3, -1, 0.2, 5, UNDECIDED, id="not significant after the correction"),
        pytest.param(-0.8, -0.2, 0.01, 5, SMALL, id="lower by less than what matters"),
        pytest.param(-0.8, 0.5, 0.5, 5, NOT, id="every difference that matters is excluded"),
        pytest.param(-1.2, 0.5, 0.5, 5, UNDECIDED, id="a difference that matters is possible"),
        pytest.param(1, 3, 0.01, 5, NOT, id="the opposite"),
        pytest.param(-3, -1, 0.01, 2, UNDECIDED, id="two runs"),
    ],
)
def test_verdicts(low: float, high: float, p: float, count: int, expected: str) -> None:
    """The claim: the first value is lower; a difference of 1 matters. The mirrored claim has the same verdict."""
    claim: dict[str, Any] = {"expects": "less", "smallest": 1.0}
    assert claims.verdict(claim, effect(low, high, p, count)) == expected
    assert claims.verdict({**claim, "expects": "more"}, effect(-high, -low, p, count)) == expected


def test_runs_that_find_the_difference_that_matters() -> None:
    """Five runs with a half-width of 1 detect 1.43 with 80 % power; twice the precision needs four times the runs."""
    claim = {"expects": "less", "smallest": 1.43}
    assert claims.needed(claim, effect(-1, 1, 0.5)) == 5
    assert claims.needed({**claim, "smallest": 1.43 / 2}, effect(-1, 1, 0.5)) == 20
    assert claims.needed({**claim, "smallest": 100.0}, effect(-1, 1, 0.5)) == 3
    observed = effect(-1.43 * 2 - 1, -1.43 * 2 + 1, 0.5)
    assert claims.needed({**claim, "smallest": 0.1}, observed) == 3, "the observed difference is larger"
    assert claims.needed({**claim, "smallest": 0.715, "expects": "more"}, observed) == 20, "but not as claimed"


def test_claims_without_a_report_are_corrected_together() -> None:
    effects = [effect(0, 1, 0.01), effect(0, 1, 0.03), Effect(0, 0, 1, 0.04, 5, "planned", "a test", "table/family")]
    assert [each.p for each in claims.corrected(effects)] == [0.02, 0.03, 0.04]


def test_a_paired_sample_uses_the_seeds_that_both_have() -> None:
    """25 labels, five draws, by hand: EMCaps minus the convolutions."""
    claim = next(each for each in CLAIMS if "fewer labels" in each["claim"])
    differences = [33.48 - 34.44, 29.35 - 31.65, 28.69 - 30.12, 22.5 - 24.21, 27.75 - 27.56]
    found = claims.effect_of(claim)
    assert (found.count, found.difference) == (5, pytest.approx(sum(differences) / 5, abs=1e-3))
    assert found.test == "paired t-test"


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
