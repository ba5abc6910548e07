"""The page of claims equals what the records give; the rules of its verdicts."""

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy import stats

from capsule_lab.tables import statistics
from capsule_lab.tables.statistics import Difference
from capsule_studies.claims import effects, page, plans, read
from capsule_studies.claims.effects import AFTER, PLANNED, UNKNOWN, Effect, Plan
from capsule_studies.claims.figure import figure
from capsule_studies.claims.needs import needs
from capsule_studies.claims.verdicts import (
    HOLDS,
    NOT,
    OPEN,
    OPPOSITE,
    OPPOSITE_OPEN,
    OPPOSITE_SMALL,
    SMALL,
    UNDECIDED,
    Judged,
    judged,
    survivors,
)  # fmt: skip
from tests.helpers.quoted_numbers import RESULTS
from tests.reference.claim_verdicts import verdicts

CLAIMS = read.read()
JUDGED = judged(CLAIMS)
KEYS = {
    "topic",
    "claim",
    "by",
    "kind",
    "test",
    "expects",
    "smallest",
    "unit",
    "scale",
    "change",
    "command",
}
NAMES = [f"{number}: {claim['claim'][:60]}" for number, claim in enumerate(CLAIMS)]


def effect(low: float, high: float, p: float, count: int = 5) -> Effect:
    estimate = (low + high) / 2
    error = (high - low) / 5
    counts = (count, count)
    found = Difference(estimate, low, high, p, counts, "any test", error=error, df=count - 1)
    return Effect(found, paired=True)


def claims(start: str) -> list[dict[str, Any]]:
    return [claim for claim in CLAIMS if claim["claim"].startswith(start)]


def test_page_and_readme_are_up_to_date() -> None:
    """After new records or claims: ``make claims``."""
    assert page.PAGE.read_text() == page.page(JUDGED)
    readme = page.README.read_text()
    assert page.START in readme
    assert readme == page.with_short_form(readme, JUDGED)


def test_figure_belongs_to_the_page_and_shows_every_claim() -> None:
    checksum = hashlib.sha256(page.PAGE.read_bytes()).hexdigest()
    with Image.open(page.FIGURE) as file:
        assert file.info["Description"] == checksum, "make claims"
    shown = JUDGED[:20]
    (axes,) = figure(shown).axes
    assert len(axes.texts) == 20 + len({each.claim["topic"] for each in shown})
    first = shown[0]
    unit = effects.sign(first.claim) / first.claim["smallest"]
    ends = sorted([unit * first.effect.low, unit * first.effect.high])
    assert [*axes.lines[1].get_xdata()] == pytest.approx(ends)


def test_every_claim_is_complete() -> None:
    assert len(CLAIMS) >= 30
    assert len({each["claim"] for each in CLAIMS}) == len(CLAIMS)
    for each in CLAIMS:
        assert each.keys() >= KEYS, each["claim"]
        assert each["kind"] in read.KINDS, each["claim"]
        assert ("comparison" in each) != ("first" in each and "second" in each), each["claim"]
        assert each["smallest"] > 0
        table = re.search(r"table=(\w+)", each["command"])
        assert each["command"].startswith("make ")
        assert table is None or (read.ROOT / "sweeps" / f"{table[1]}.yaml").is_file()
        assert "figure" not in each or (RESULTS / each["figure"]).is_file()


def test_pending_claims_have_no_record() -> None:
    for claim in read.read(pending=True):
        with pytest.raises((ValueError, FileNotFoundError)):
            effects.effect_of(claim)


@pytest.mark.whole
def test_a_second_computation_gives_the_same_verdicts() -> None:
    """``tests/reference/claim_verdicts.py`` uses numpy and scipy only, and the values of runs."""
    expected = verdicts()
    assert [each.verdict for each in JUDGED] == [each.verdict for each in expected]
    # values in files of runs are rounded to six digits
    p_values = [each.p for each in expected]
    assert [each.p for each in JUDGED] == pytest.approx(p_values, rel=0.01, abs=1e-4)
    smaller = [each.p_of_smaller for each in expected]
    assert [each.p_of_smaller for each in JUDGED] == pytest.approx(smaller, rel=0.01, abs=1e-4)


@pytest.mark.whole
@pytest.mark.skipif(
    not plans.has_history(), reason="needs the history of the repository, which this clone lacks"
)
def test_plans_are_those_of_the_history() -> None:
    """After new results of a table: ``python -m capsule_studies.claims.plans``."""
    recorded = pd.read_csv(plans.FILE, keep_default_na=False)
    assert recorded.to_dict("records") == plans.plans().to_dict("records")


@pytest.mark.parametrize("each", JUDGED, ids=NAMES)
def test_a_planned_claim_has_commits_that_exist_and_no_earlier_results(each: Judged) -> None:
    plan = each.effect.plan
    if plan.label != PLANNED:
        # only planned comparisons are corrected within the family of their table
        assert not plan.family
        return
    source = each.claim["comparison"]
    known = pd.read_csv(plans.FILE, keep_default_na=False).query("table == @source['file']")
    line = known[known["comparison"] == source["name"]].iloc[0]
    assert line["commits_of_runs"]
    assert not line["missing_commits"]
    assert line["results_known"] == "no"
    assert line["seeds_planned"] >= each.effect.count


COMPARISONS = sorted(RESULTS.glob("*_comparisons.csv"))


@pytest.mark.parametrize("file", COMPARISONS, ids=lambda file: file.name)
def test_recorded_standard_errors_give_the_recorded_intervals_and_p_values(file: Path) -> None:
    """Half of an interval is a quantile of Student's distribution times the standard error."""
    lines = pd.read_csv(file)
    lines = lines[lines["test"].str.contains("t-test") & lines["low"].notna()]
    assert not lines.empty
    half = stats.t.ppf(0.975, lines["df"]) * lines["error"]
    recorded = (lines["high"] - lines["low"]) / 2
    scale = lines[["low", "high"]].abs().max(axis=1)
    # both are rounded to six digits
    assert ((recorded - half).abs() / scale).max() < 2e-4
    p_values = 2 * stats.t.sf(lines["difference"].abs() / lines["error"], lines["df"])
    assert lines["p"].to_numpy() == pytest.approx(p_values, rel=0.01, abs=1e-5)


@pytest.mark.parametrize(
    ("file", "name", "label"),
    [
        ("routing_pays", "iterations", PLANNED),
        ("inside_capsules", "rotation_no_capsules", PLANNED),
        ("inside_capsules", "rotation_map_no_capsules", AFTER),
        ("affine_equal_error", "capsules", UNKNOWN),
        ("attack_controls", "white_box", UNKNOWN),
        ("routing_algorithms", "mnist_em", AFTER),
    ],
)
def test_label_of_a_plan(file: str, name: str, label: str) -> None:
    """A measure that is added after the results of another one on the same networks is after the fact."""
    lines = effects.read_csv(RESULTS / f"{file}_comparisons.csv")
    line = lines[lines["comparison"] == name].iloc[0]
    source = {"file": file, "name": name, "row": line["first"], "column": line["first_column"]}
    assert effects.effect_of({"comparison": source}).plan.label == label


def test_rows_with_fewer_seeds_than_planned_say_so() -> None:
    text = page.PAGE.read_text()
    seeds = {(each.effect.count, each.effect.plan.seeds) for each in JUDGED}
    fewer = {(count, planned) for count, planned in seeds if count < planned}
    assert fewer == {(3, 8), (4, 5), (8, 15)}
    for count, planned in fewer:
        assert f"| {count} of {planned} |" in text


STANDINS = [each for each in JUDGED if not each.effect.real]


@pytest.mark.parametrize("each", STANDINS, ids=page.title)
def test_a_stand_in_is_labelled_wherever_the_claim_is_shown(each: Judged) -> None:
    label = f"[stand-in: {each.claim['data']}]"
    rows = [line for line in page.PAGE.read_text().splitlines() if each.claim["claim"] in line]
    assert len(rows) >= 2
    assert all(label in row for row in rows)
    (axes,) = figure([each]).axes
    assert label in axes.texts[0].get_text()
    assert "smallNORB against" not in each.claim["test"]
    of_the_loss = "the paper's cross-entropy is that of activations"
    assert "paper's" not in each.claim["test"].replace(of_the_loss, "")


def test_a_stand_in_is_labelled_in_the_readme() -> None:
    claim = {**STANDINS[0].claim, "kind": "paper", "short": "a phrase"}
    real = Judged(claim, effect(-3, -1, 0.01), 0.01, 1)
    assert "a phrase;" not in page.short_form([real, replace(STANDINS[0], claim=claim)])
    decided = Judged(claim, replace(effect(3, 9, 0.001), real=False), 0.001, 1)
    assert f"a phrase [stand-in: {claim['data']}]" in page.short_form([decided])


def test_readme_counts_papers_claims_only() -> None:
    papers = [each for each in JUDGED if each.claim["kind"] == "paper"]
    block = page.README.read_text().partition(page.START)[2].partition(page.END)[0]
    assert f"[{len(papers)} claims of papers]" in block
    counts = [int(number) for number in re.findall(r": (\d+)[;)]", block)]
    assert sum(counts) == len(papers)
    for each in papers:
        names_paper = re.search(r"\b(after|implied|ours|talks)\b", each.claim["by"]) is None
        assert names_paper, each.claim["by"]
        assert "ours" not in each.claim["claim"]
        assert "normalised evidence" not in each.claim["scale"]
    listed: set[str] = set()
    for line in re.findall(r"^- (.*)$", block, re.MULTILINE):
        listed |= set(line.split(": ", 1)[1].split("; "))
    others = [each.claim for each in JUDGED if each.claim["kind"] != "paper"]
    assert not listed & {claim.get("short") for claim in others}


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
        pytest.param(
            0.5,
            3,
            0.01,
            0.01,
            5,
            OPPOSITE_OPEN,
            id="the opposite, perhaps by less than what matters",
        ),
        pytest.param(
            0.2, 0.8, 0.01, 0.01, 5, OPPOSITE_SMALL, id="the opposite, by less than what matters"
        ),
        pytest.param(-3, -1, 0.01, 1, 2, UNDECIDED, id="two runs"),
    ],
)
def test_verdicts(
    low: float, high: float, p: float, p_of_smaller: float, count: int, expected: str
) -> None:
    """The claim: the first value is lower; a difference of 1 matters. The mirrored claim has the same verdict."""
    claim: dict[str, Any] = {"expects": "less", "smallest": 1.0}
    assert Judged(claim, effect(low, high, p, count), p, p_of_smaller).verdict == expected
    mirrored = effect(-high, -low, p, count)
    assert Judged({**claim, "expects": "more"}, mirrored, p, p_of_smaller).verdict == expected


@pytest.mark.parametrize(
    ("planned", "later", "expected"),
    [
        pytest.param((-3, -1, 0.01), (-3, -1, 0.01), HOLDS, id="both measures"),
        pytest.param(
            (1, 3, 0.01), (-3, -1, 0.01), UNDECIDED, id="the planned measure gives the opposite"
        ),
        pytest.param(
            (-1, 3, 0.5), (-3, -1, 0.01), UNDECIDED, id="the planned measure finds nothing"
        ),
        pytest.param((-1, 3, 0.5), (1, 3, 0.01), UNDECIDED, id="the same for the opposite"),
        pytest.param((1, 3, 0.01), (1, 3, 0.01), OPPOSITE, id="both give the opposite"),
        pytest.param(
            (-3, -1, 0.01),
            (-0.8, 0.5, 0.5),
            UNDECIDED,
            id="only the planned measure finds a difference",
        ),
        pytest.param((-1, 3, 0.5), (-0.8, 0.5, 0.5), NOT, id="none finds a difference"),
    ],
)
def test_a_later_measure_decides_only_with_the_planned_one(
    planned: tuple[float, float, float], later: tuple[float, float, float], expected: str
) -> None:
    first = replace(effect(*planned), p_of_report=planned[2])
    claim: dict[str, Any] = {"expects": "less", "smallest": 1.0}
    assert Judged(claim, effect(*later), later[2], 0.01, planned_first=first).verdict == expected


def test_the_page_shows_the_planned_measure_beside_the_later_one() -> None:
    """The numbers of results/inside_capsules_comparisons.csv for rotation, EM routing against a CNN."""
    start = "**Poses of capsules change by one affine map when the image rotates"
    section = page.PAGE.read_text().partition(start)[2].partition("\n**")[0]
    lines = pd.read_csv(RESULTS / "inside_capsules_comparisons.csv")
    of_em = lines[lines["first"].str.startswith("EM")]
    differences = of_em.groupby("comparison")["difference"].first()
    planned = differences["rotation_no_capsules"]
    reported = differences["rotation_map_no_capsules"]
    assert f"- The measure that was planned first: {page.signed(planned)} (" in section
    assert f"as this page reported until 27 November: {page.signed(reported)} (" in section
    assert AFTER in section


@pytest.mark.parametrize("expects", ["less", "more"])
@pytest.mark.parametrize("deviation", [1.0, 5.0], ids=["equal deviations", "different deviations"])
def test_p_value_of_a_difference_that_matters(expects: str, deviation: float) -> None:
    """Judged by scipy's one-sided test of Welch, whose degrees of freedom depend on the deviations."""
    generator = np.random.default_rng(0)
    first = generator.normal(size=6)
    second = deviation * generator.normal(size=4)
    ours = Effect(statistics.unpaired_difference(first, second), paired=False)
    sign = {"less": -1, "more": 1}[expects]
    shifted = sign * first - 0.6
    expected = stats.ttest_ind(shifted, sign * second, equal_var=False, alternative="less").pvalue
    found = ours.p_of_smaller({"expects": expects, "smallest": 0.6})
    assert found == pytest.approx(expected, rel=1e-9)


def test_the_larger_p_of_paired_and_unpaired_tests_counts() -> None:
    """Seeds that pair make Welch's p larger; seeds that do not, the paired one."""
    first = np.array([1.0, 2.0, 3.0, 4.0])
    second = np.array([0.8, 1.9, 2.7, 3.9])
    paired = statistics.paired_difference(first, second)
    welch = statistics.unpaired_difference(first, second)
    assert paired.p is not None
    assert welch.p is not None
    found = Effect(paired, paired=True, other=welch)
    assert found.p == welch.p > paired.p
    claim = {"expects": "less", "smallest": 0.1}
    assert found.p_of_smaller(claim) == Effect(welch, paired=False).p_of_smaller(claim)


def test_both_tests_of_a_planned_family_are_corrected_together() -> None:
    """A family of three comparisons, of which two are claims, has six tests."""
    claim = {"expects": "less", "smallest": 1.0}
    of_page = [effect(-0.1, 0.1, 0.03), replace(effect(-3, -1, 0.001), p_of_report=0.5)]
    p_values = {0: 0.01, 1: 0.04, 2: 0.02}
    family = []
    for line in (0, 2):
        plan = Plan(PLANNED, family="table", line=line, family_p=p_values)
        family.append(replace(effect(-3, -1, p_values[line]), plan=plan))
    found = judged([claim] * 4, [of_page[0], family[0], of_page[1], family[1]])
    smaller = [each.p_of_smaller(claim) for each in of_page]
    expected = statistics.holm([*[each.p for each in of_page], *smaller])
    assert found[0].p == expected[0]
    assert found[2].p == 0.5, "the report corrects the second more strictly"
    assert [found[0].p_of_smaller, found[2].p_of_smaller] == expected[2:]
    smaller = [each.p_of_smaller(claim) for each in family]
    expected = statistics.holm([0.01, 0.02, *smaller, 0.04, 1])
    assert [found[1].p, found[3].p] == expected[:2]
    assert [found[1].p_of_smaller, found[3].p_of_smaller] == expected[2:4]
    assert [each.tests for each in found] == [4, 6, 4, 6]


def test_numbers_over_the_page() -> None:
    """By hand: Holm's method over four tests, and the step-up procedure of Benjamini and Hochberg over two."""
    claim = {"expects": "less", "smallest": 1.0}
    every = [Judged(claim, effect(-3, -1, p), p, 1) for p in (0.012, 0.02)]
    found = survivors(every)
    assert (found.decided, found.by_holm) == (2, 1), "4 x 0.012 is below 5 %, 3 x 0.02 is not"
    assert (found.different, found.by_benjamini_hochberg) == (2, 2)
    by_scipy = stats.false_discovery_control([each.effect.p for each in JUDGED])
    assert survivors(JUDGED).by_benjamini_hochberg == (by_scipy < statistics.LEVEL).sum()


@pytest.mark.parametrize("paired", [True, False])
def test_runs_that_find_the_difference_that_matters(paired: bool) -> None:
    """Judged by the plan of a report for the same deviation."""
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=6), generator.normal(size=6)
    compare = statistics.paired_difference if paired else statistics.unpaired_difference
    found = compare(first, second)
    assert found.spread is not None
    expected = statistics.runs_for(0.7, found.spread, pairs=paired)
    got = Judged({"expects": "less", "smallest": 0.7}, Effect(found, paired), 1, 1).needed
    assert got == expected


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (
            "Capsules generalise better to novel azimuths",
            "more test toys. No number of seeds decides this row",
        ),
        (
            "Capsules generalise better to novel elevations",
            "more test toys. No number of seeds decides this row",
        ),
        ("Capsules are more robust to a white-box attack", "Pairing limits this"),
        (
            "Training makes poses more equivariant to translation",
            "one measure that is chosen before its runs",
        ),
        ("Matrix poses are better than vectors", "as one of 22 tests"),
    ],
)
def test_what_an_undecided_claim_needs(claim: str, expected: str) -> None:
    each, *_ = [each for each in JUDGED if each.claim["claim"].startswith(claim)]
    assert expected in needs(each)


def test_the_toys_alone_leave_rows_about_viewpoints_undecided() -> None:
    """The interval with infinitely many seeds contains no difference and differences that matter, or nearly so."""
    for each in JUDGED:
        found = each.effect.found
        if found.error_of_clusters:
            assert abs(found.estimate) < 2 * found.error_of_clusters
            assert found.error_of_clusters < found.error


UNDECIDED_CLAIMS = [each for each in JUDGED if each.verdict == UNDECIDED]


@pytest.mark.parametrize("each", UNDECIDED_CLAIMS, ids=page.title)
def test_no_claim_needs_more_than_ten_thousand_seeds(each: Judged) -> None:
    assert "10,000" not in needs(each)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.415, "+0.42"), (-0.265, "-0.27"), (0.115, "+0.12"), (-0.0125, "-0.013"), (85.65, "+85.65")],
)
def test_halves_are_rounded_away_from_zero(value: float, text: str) -> None:
    assert page.signed(value) == text


def test_a_claim_says_how_to_unpack_its_records() -> None:
    text = page.PAGE.read_text()
    archives = set(re.findall(r"tar xzf (results/\S+)", text))
    assert len(archives) >= 10
    assert all((read.ROOT / archive).is_file() for archive in archives)
    assert text.count("- Records: ") == len(CLAIMS)


def test_a_paired_sample_uses_the_seeds_that_both_have() -> None:
    """25 labels, five draws, by hand: EMCaps minus the convolutions."""
    column = {"file": "data_efficiency_runs.csv", "column": "25 labels"}
    claim = {
        "claim": "labels",
        "paired": True,
        "first": {**column, "row": "EMCaps"},
        "second": {**column, "row": "three"},
    }
    differences = [33.48 - 34.44, 29.35 - 31.65, 28.69 - 30.12, 22.5 - 24.21, 27.75 - 27.56]
    effect = effects.effect_of(claim)
    assert effect.found.counts == (5, 5)
    assert effect.found.estimate == pytest.approx(sum(differences) / 5, abs=1e-3)
    assert effect.paired


def test_a_sample_minus_another_column_of_the_same_runs() -> None:
    """The share of the change of poses beyond the shift that all images have in common: mean of five networks."""
    claim, *_ = [each for each in CLAIMS if "when the image rotates" in each["claim"]]
    sample = claim["first"]
    runs = pd.read_csv(RESULTS / "inside_capsules_runs.csv")
    means = runs[runs["row"].str.startswith("EM")].groupby("column")["value"].mean()
    expected = means[sample["column"]] - means[sample["minus"]]
    assert effects._sample(sample).mean() == pytest.approx(expected)


def test_a_sample_against_a_number() -> None:
    of_couplings = claims("Couplings are closer to one parent than to equal shares")
    claim, *_ = [each for each in of_couplings if "EM" in each["claim"]]
    values = effects._sample(claim["first"])
    found = effects.effect_of(claim)
    assert found.found.estimate == pytest.approx(values.mean() - 0.5)
    assert found.p == pytest.approx(stats.ttest_1samp(values, 0.5).pvalue)


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (
            {"comparison": {"file": "inside_capsules", "name": "tree"}},
            "has 2 lines of tree, '', ''; expected one",
        ),
        (
            {"first": {"file": "data_efficiency_runs.csv", "row": "three"}, "second": {}},
            "expected one of each seed",
        ),
    ],
)
def test_a_source_that_is_not_one_sample_is_an_error(claim: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        effects.effect_of({"claim": "any", **claim})
