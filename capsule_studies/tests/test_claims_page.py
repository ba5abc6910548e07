"""The page of claims equals what the records give; the rules of its verdicts."""

import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from capsule_lab import statistics
from capsule_lab.errors import ConfigError
from capsule_lab.statistics import Difference
from capsule_studies.claims import drawing, effects, figure, page, plans, read, readme, texts
from capsule_studies.claims.effects import AFTER, PLANNED, UNKNOWN, Effect, Plan
from capsule_studies.claims.needs import needs
from capsule_studies.claims.verdicts import (
    EQUAL,
    HOLDS,
    NOT,
    OPEN,
    OPPOSITE,
    OPPOSITE_NOT,
    OPPOSITE_OPEN,
    OPPOSITE_SMALL,
    PRELIMINARY,
    SMALL,
    UNDECIDED,
    VERDICTS,
    Judged,
    judged,
    survivors,
)  # fmt: skip
from capsule_studies.tests.judged_claims import CLAIMS, JUDGED
from tests.helpers.quoted_numbers import RESULTS
from tests.reference.claims import verdicts

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
IDS = [claim["id"] for claim in CLAIMS]
MEASURED = {row["id"]: row for row in read.measured()}
BY_ID = dict(zip(IDS, JUDGED, strict=True))


def effect(low: float, high: float, p: float, count: int = 5) -> Effect:
    estimate = (low + high) / 2
    error = (high - low) / 5
    counts = (count, count)
    found = Difference(estimate, low, high, p, counts, "any test", error=error, df=count - 1)
    return Effect(found, paired=True)


def claims(start: str) -> list[dict[str, Any]]:
    return [claim for claim in CLAIMS if claim["claim"].startswith(start)]


def test_page_readme_and_figures_are_up_to_date() -> None:
    """After new records or claims: ``make claims``."""
    assert page.PAGE.read_text() == page.page(JUDGED)
    block = readme.README.read_text()
    assert readme.START in block
    assert block == readme.with_short_form(block, JUDGED)
    files = {path.name: path.read_text() for path in figure.FOLDER.iterdir()}
    assert files == figure.figures(JUDGED)


FIGURES = figure.figures(JUDGED)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_valid_and_no_higher_than_a_screen(name: str) -> None:
    root = ET.fromstring(FIGURES[name])  # ours
    *_, width, height = map(float, root.attrib["viewBox"].split())
    assert width == drawing.WIDTH
    assert height <= 900
    assert f"](../results/claims/{name})" in page.PAGE.read_text()


def test_figures_of_topics_show_every_claim_that_is_not_struck() -> None:
    shown: list[str] = []
    for name, text in FIGURES.items():
        if name != figure.PAPERS:
            shown += re.findall(r">(C-\d+) <tspan", text)
    struck = texts.in_table(JUDGED, "C")
    assert len(shown) == len(JUDGED) - len(struck)
    assert set(shown) < BY_ID.keys()


def test_an_interval_is_drawn_in_units_of_what_matters() -> None:
    """A difference of -2 from -3 to -1, where less is claimed and 1 matters: from 1 to 3 units to the right."""
    axis = drawing.Axis(0, 2 * drawing.WIDEST)
    found = Judged(LOWER, effect(-3, -1, 0.01), 0.01, 1)
    band, zero, line, marker = drawing.interval(found, axis, 10)
    assert '<rect x="7.0" y="2" width="2.0"' in band
    assert "M8.0 2" in zero
    assert "M9.0 10H11.0" in line
    assert 'cx="10.0" cy="10"' in marker
    assert "fill:#fff" in marker, "after the fact"
    planned = replace(found, effect=replace(found.effect, plan=Plan(PLANNED)))
    *_, marker = drawing.interval(planned, axis, 10)
    assert "fill:#fff" not in marker


def test_a_difference_beyond_the_axis_is_an_arrow() -> None:
    axis = drawing.Axis(0, 160)
    found = Judged(LOWER, effect(-30, -10, 0.01), 0.01, 1)
    *_, line, marker = drawing.interval(found, axis, 10)
    assert "M160.0 10H160.0" in line
    assert marker.startswith('<path d="M160.0 10l-9.0')


def test_the_figure_beside_papers_has_the_number_of_the_paper() -> None:
    each = BY_ID["C-071"]
    text = figure.beside_papers([each, JUDGED[0]])
    assert each.published is not None
    assert JUDGED[0].published is None
    assert re.findall(r">(C-\d+) <tspan", text) == ["C-071"]
    assert "paper: MultiMNIST, other errors" in text
    # fewer errors are claimed, so both are at the right
    place = figure._place(-each.published.difference)
    assert f'd="M{place - 5:.1f} ' in text
    assert figure._place(0) < place < figure._place(3)
    assert "fill:#1b1b1b;stroke" not in text
    comparable = replace(each.effect, means=(5.3, 7.4), images_seen=128_000)
    claim = {**each.claim, "published": {**each.claim["published"], "seen": 256_000}}
    text = figure.beside_papers([replace(each, claim=claim, effect=comparable)])
    assert "paper: within our interval" in text
    assert "fill:#1b1b1b;stroke" in text


def test_every_claim_is_complete() -> None:
    assert len(CLAIMS) >= 30
    names = {each["claim"] for each in CLAIMS}
    assert len(names) == len(CLAIMS)
    for each in CLAIMS:
        assert each.keys() >= KEYS, each["claim"]
        assert each["kind"] in read.KINDS, each["claim"]
        has_samples = "first" in each and "second" in each
        assert ("comparison" in each) != has_samples, each["claim"]
        assert each["smallest"] > 0
        assert each["command"].startswith("make ")
        table = re.search(r"table=(\w+)", each["command"])
        if table is not None:
            file = read.ROOT / "sweeps" / f"{table[1]}.yaml"
            assert file.is_file()
        if "figure" in each:
            assert (RESULTS / each["figure"]).is_file()


def test_a_misspelt_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check, C-051 would hold without its planned measure."""
    claim = {"id": "C-051", "planed_first": {}}
    monkeypatch.setattr(read, "_section", lambda _: [{"claims": [claim]}])
    with pytest.raises(
        ConfigError, match="C-051: no claim has the key planed_first; did you mean planned_first"
    ):
        read.read()


def test_a_claim_about_real_and_other_data_is_refused(tmp_path: Path) -> None:
    lines = [
        "row,seed,value,source",
        "a,0,1.0,real",
        "a,1,1.5,real",
        "b,0,2.0,standin",
        "b,1,2.6,standin",
    ]
    (tmp_path / "mixed_runs.csv").write_text("\n".join(lines))
    first, second = ({"file": "mixed_runs.csv", "row": row} for row in ("a", "b"))
    claim = {"id": "C-000", "claim": "a is less than b", "first": first, "second": second}
    with pytest.raises(
        ConfigError, match=r"C-000: its runs have the sources \['real', 'standin'\]"
    ):
        effects.effect_of(claim, tmp_path)


def test_a_missing_run_leaves_both_tests(tmp_path: Path) -> None:
    """Else the paired test, whose p is smaller here, would be the only one."""
    values = {"a": [1.0, 2.1, 3.0, 4.2, 5.0], "b": [0.5, 1.5, 2.6, 3.6]}
    lines = ["row,seed,status,column,value,source"]
    for row, of_row in values.items():
        lines += [f"{row},{seed},done,any,{value},real" for seed, value in enumerate(of_row)]
    (tmp_path / "any_runs.csv").write_text("\n".join(lines))
    first, second = ({"file": "any_runs.csv", "row": row} for row in values)
    claim = {"claim": "any", "paired": True, "expects": "more", "first": first, "second": second}
    found = effects.effect_of(claim, tmp_path)
    assert found.found.counts[0] == 4
    assert found.other is not None
    assert found.other.counts == (5, 4)
    assert found.p == found.other.p > found.found.p


def test_a_text_without_the_lines_of_its_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="the text has no lines 'start' and 'end'"):
        read.with_block("end, and start", "start", "end", "block")


def test_pending_claims_have_no_record() -> None:
    for claim in read.read(pending=True):
        with pytest.raises((ValueError, FileNotFoundError)):
            effects.effect_of(claim)


SECOND = verdicts()


def test_a_second_computation_has_the_same_claims() -> None:
    assert [*SECOND] == IDS


@pytest.mark.parametrize("each", JUDGED, ids=IDS)
def test_a_second_computation_gives_the_same_verdict(each: Judged) -> None:
    """``tests/reference/claims.py`` uses numpy and scipy only, and the values of runs."""
    other = SECOND[each.claim["id"]]
    found = each.effect.found
    ours = [found.estimate, found.low, found.high, each.p, each.p_of_smaller, each.p_of_larger]
    *theirs, verdict = other
    assert each.verdict == verdict
    # values in files of runs are rounded to six digits
    assert ours == pytest.approx(theirs, rel=0.01, abs=1e-4)


@pytest.mark.whole
@pytest.mark.skipif(
    not plans.has_history(), reason="needs the history of the repository, which this clone lacks"
)
def test_plans_are_those_of_the_history() -> None:
    """After new results of a table: ``python -m capsule_studies.claims.plans``."""
    recorded = pd.read_csv(plans.FILE, keep_default_na=False)
    assert recorded.to_dict("records") == plans.plans().to_dict("records")


@pytest.mark.parametrize("each", JUDGED, ids=IDS)
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
    lines = lines[lines["test"].str.contains("t-test")]
    lines = lines[lines["low"].notna()]
    assert not lines.empty
    half = stats.t.ppf(0.975, lines["df"]) * lines["error"]
    recorded = (lines["high"] - lines["low"]) / 2
    scale = lines[["low", "high"]].abs().max(axis=1)
    # both are rounded to six digits
    differences = (recorded - half).abs() / scale
    assert differences.max() < 2e-4
    statistic = lines["difference"].abs() / lines["error"]
    p_values = 2 * stats.t.sf(statistic, lines["df"])
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
    found = effects.effect_of({"comparison": source})
    assert found.plan.label == label


def test_rows_with_fewer_seeds_than_planned_say_so() -> None:
    text = page.PAGE.read_text()
    fewer = set()
    for each in JUDGED:
        count, planned = each.effect.count, each.effect.plan.seeds
        if count < planned:
            fewer.add(f"{count} of {planned}")
    assert fewer == {"3 of 8", "4 of 5", "8 of 15"}
    for seeds in fewer:
        assert f"| {seeds} |" in text


STANDINS = [each for each in JUDGED if not each.effect.real]


@pytest.mark.parametrize("each", STANDINS, ids=texts.title)
def test_a_stand_in_is_labelled_wherever_the_claim_is_shown(each: Judged) -> None:
    label = f"[stand-in: {each.claim['data']}]"
    data = f"{each.claim['data']}, stand-in"
    text = page.PAGE.read_text()
    link = re.escape(page._link(each))
    rows = re.findall(f"^.*{link}.*$", text, re.MULTILINE)
    assert rows
    for row in rows:
        assert f'<span class="badge standin">{data}</span>' in row
    assert f"<summary>{each.claim['claim']} {label} <span" in text
    drawn = figure.of_topic("any", [each])
    assert re.search(rf'class="s b"[^>]*>{data}, n = ', drawn)
    assert "smallNORB against" not in each.claim["test"]
    of_the_loss = "the paper's cross-entropy is that of activations"
    assert "paper's" not in each.claim["test"].replace(of_the_loss, "")


def test_a_stand_in_is_labelled_in_the_readme() -> None:
    claim = {**STANDINS[0].claim, "kind": "paper", "short": "a phrase"}
    real = Judged(claim, effect(-3, -1, 0.01), 0.01, 1)
    standin = replace(STANDINS[0], claim=claim)
    assert "a phrase;" not in readme.short_form([real, standin])
    of_standin = replace(effect(3, 9, 0.001), real=False)
    decided = Judged(claim, of_standin, 0.001, 1)
    assert f"a phrase [stand-in: {claim['data']}]" in readme.short_form([decided])


OF_PAPERS = texts.in_table(JUDGED, "A")


@pytest.mark.parametrize("each", OF_PAPERS, ids=texts.title)
def test_a_papers_claim_names_a_paper_and_uses_no_algorithm_of_ours(each: Judged) -> None:
    claim = each.claim
    assert re.search(r"[A-Z]\w+ \d{4}", claim["by"]), claim["by"]
    assert not re.search(r"\b(ours|talks|not this)\b", claim["by"])
    changed = re.search(r"\b(after|implied)\b", claim["by"])
    assert bool(changed) == (claim["kind"] == "implied"), claim["by"]
    assert "ours" not in claim["claim"]
    assert "normalised evidence" not in claim["algorithm"]
    assert claim["network"], "what differs from the network of the paper"


def test_table_a_has_a_row_for_each_claim_and_a_column_for_each_algorithm() -> None:
    """Two and one iterations: both algorithms in their columns. A white-box attack: three tests in the last."""
    table = page._overview(OF_PAPERS)
    _, _, *rows = table.strip().splitlines()
    assert len(rows) == len(texts.by_claim(OF_PAPERS))
    assert len(re.findall(r"\[C-\d+\]", table)) == len(OF_PAPERS)
    (row,) = re.findall("^.*error with two iterations than with one.*$", table, re.MULTILINE)
    *_, dynamic, of_em, others, _ = row.split("|")
    assert "[C-016](#c-016)" in dynamic
    first, second, third = of_em.split("<br>")
    assert first.strip().startswith("[C-155](#c-155)")
    assert second.startswith("[C-013](#c-013)")
    assert third.startswith("[C-026](#c-026)")
    assert not others.strip()
    (row,) = re.findall("^.*more robust to a white-box attack.*$", table, re.MULTILINE)
    *_, dynamic, of_em, others, _ = row.split("|")
    assert not dynamic.strip()
    assert not of_em.strip()
    first, second, third = others.split("<br>")
    assert first.strip().startswith(
        "Efficient-CapsNet with its decoder, eight seeds: [C-130](#c-130)"
    )
    assert second.startswith("Efficient-CapsNet with its decoder: [C-067](#c-067)")
    assert third.startswith("Efficient-CapsNet without decoder: [C-068](#c-068)")


def test_every_claim_has_a_heading_with_its_id_and_commands_that_repeat_it() -> None:
    text = page.PAGE.read_text()
    headings = re.findall(r"^#### (C-\d+)$", text, re.MULTILINE)
    assert sorted(headings) == sorted([*IDS, *MEASURED])
    for name in IDS:
        _, _, proof = text.partition(f"\n#### {name}\n")
        proof, _, _ = proof.partition("</details>")
        has_archive = "Records: no archive" not in proof
        source = "the archive" if has_archive else "the CSV of runs"
        assert f"`make claim id={name}` from {source}" in proof
        assert f"`make claim id={name} train=true` with new seeds" in proof


def proof_of(name: str) -> str:
    """Return what the page folds under the heading of a test."""
    _, _, proof = page.PAGE.read_text().partition(f"\n#### {name}\n")
    proof, _, _ = proof.partition("</details>")
    return proof


def test_a_caveat_stands_in_the_row_and_in_the_proof() -> None:
    text = page.PAGE.read_text()
    with_caveat = [each for each in JUDGED if "caveat" in each.claim]
    assert len(with_caveat) >= 8
    for each in with_caveat:
        caveat = each.claim["caveat"]
        link = re.escape(page._link(each))
        (row,) = re.findall(rf"^\| {link} .*$", text, re.MULTILINE)
        assert f"<br>*{caveat}*" in row
        assert f"- Caution: {caveat}\n" in proof_of(each.claim["id"])


def sides(claim: dict[str, Any]) -> str:
    """Name what a claim compares, from the line of its table or its samples."""
    if "comparison" in claim:
        _, line = effects.line_of(RESULTS, **claim["comparison"])
        return f"{line['first']} {line['second']}"
    return f"{claim['first']} {claim['second']}"


def test_a_test_of_em_routing_says_that_its_temperature_is_not_that_of_the_authors() -> None:
    of_em = [each for each in JUDGED if "EM (Hinton 2018)" in sides(each.claim)]
    assert len(of_em) >= 10
    for each in of_em:
        assert "16 times the inverse temperature" in each.claim["network"], each.claim["id"]
        assert f"- Network: {each.claim['network']}.\n" in proof_of(each.claim["id"])


def test_networks_of_two_tables_have_both_numbers_of_runs_and_a_warning() -> None:
    """C-004: eight networks of algorithms_mnist, and twelve of routing_pays, which has runs of two commits."""
    each = BY_ID["C-004"]
    commits: set[str] = set()
    for source in (each.claim["first"], each.claim["second"]):
        runs = pd.read_csv(RESULTS / source["file"])
        commits |= {*runs[runs["row"].str.startswith(source["row"])]["commit"]}
    assert len(commits) == 3
    assert each.effect.plan.commits == tuple(sorted(commits))
    assert texts.count(each.effect) == "8 and 12"
    assert f"- Warning: runs of 3 commits ({', '.join(sorted(commits))})" in proof_of("C-004")


def test_links_to_a_claim_are_to_headings_of_the_page() -> None:
    anchors = set(re.findall(r"\]\(#(c-\d+)\)", page.PAGE.read_text()))
    anchors |= set(re.findall(r"claims\.md#(c-\d+)\)", readme.README.read_text()))
    assert anchors <= set("\n".join([*IDS, *MEASURED]).lower().splitlines())


def test_what_is_struck_has_a_reason_and_no_verdict() -> None:
    """Struck are tautologies, and claims that were removed from the page."""
    _, _, table = page.PAGE.read_text().partition("## Table C")
    struck = texts.in_table(JUDGED, "C")
    assert len(struck) >= 8
    for each in struck:
        link = re.escape(page._link(each))
        (row,) = re.findall(rf"^\| {link} .*$", table, re.MULTILINE)
        assert each.claim["struck"] in row
        assert re.findall(r"<b>(.*?)</b>", row) == ["struck"]
    assert "| Capsules need fewer labels than a CNN | undecided, -1.24" in table


def test_the_abstract_has_120_words_and_numbers_of_the_records() -> None:
    text = page.abstract_of(JUDGED)
    assert text in page.PAGE.read_text()
    without_numbers = re.sub(r" \(\[C-.*?n = \d+( †)?( <span.*?</span>)?\)", "", text)
    assert len(without_numbers.split()) <= 120
    lines = pd.read_csv(RESULTS / "algorithms_mnist_comparisons.csv")
    line = lines.set_index("comparison").loc["em_3"]
    difference, low, high = map(texts.signed, line[["difference", "low", "high"]])
    assert f"([C-014](#c-014): {difference} ({low} to {high}), n = 8" in text


def test_a_sentence_of_the_abstract_whose_verdict_has_changed_is_an_error() -> None:
    changed = []
    for each in JUDGED:
        of_abstract = each.claim["id"] == "C-105"
        undecided = replace(each, p=0.5, p_of_smaller=0.5, p_of_larger=0.5)
        changed.append(undecided if of_abstract else each)
    with pytest.raises(
        ValueError, match="says of C-105: holds, size open, but its verdict is: undecided"
    ):
        page.abstract_of(changed)


def test_the_newest_version_is_that_of_the_citation() -> None:
    citation = yaml.safe_load((read.ROOT / "CITATION.cff").read_text())
    of_page, of_records, *papers = citation["references"]
    assert of_page["type"] == "website"
    assert of_records["type"] == "data"
    assert papers
    newest = read.versions()[0]
    for entry in (of_page, of_records):
        assert entry["version"] == newest["version"]
        assert entry["date-released"] == newest["date"]
    assert f"Version {newest['version']} of {newest['date']}" in page.PAGE.read_text()


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_label_has_the_colour_of_the_figures(verdict: str) -> None:
    style = (read.ROOT / "docs" / "static" / "claims.css").read_text()
    name = texts.slug(verdict)
    assert f".verdict.{name} {{--colour: {drawing.COLOURS[verdict]};}}" in style


def test_readme_counts_papers_claims_only() -> None:
    _, _, after_start = readme.README.read_text().partition(readme.START)
    block, _, _ = after_start.partition(readme.END)
    counted = Counter(each.verdict for each in OF_PAPERS)
    assert counted[PRELIMINARY] >= 8
    del counted[PRELIMINARY]
    tests = counted.total()
    claims = len(texts.by_claim([each for each in OF_PAPERS if each.verdict != PRELIMINARY]))
    assert f"[{claims} claims of papers with a verdict](docs/claims.md), in {tests} tests" in block
    assert f"\n{claims} claims with a verdict, in {tests} tests" in page.PAGE.read_text()
    counts = re.findall(r"^- ([a-z ,]+) \((\d+)\)", block, re.MULTILINE)
    assert len(counts) == len(counted)
    for verdict, count in counts:
        assert int(count) == counted[verdict]
    listed = re.findall(r"\[(C-\d+)\]", block)
    assert listed
    for name in listed:
        assert BY_ID[name] in OF_PAPERS
        assert BY_ID[name].is_decided


def test_what_no_paper_claims_is_found_after_a_paper_and_not_under_it() -> None:
    for each in JUDGED:
        label = page._label_of(each)
        if each not in OF_PAPERS:
            assert re.search('data-paper="(no paper|after )', label), each.claim["id"]
        else:
            assert 'data-paper="after ' not in label, each.claim["id"]
    assert 'data-paper="Peer 2018"' not in page.PAGE.read_text()
    assert 'data-paper="after Peer 2018"' in page._label_of(BY_ID["C-017"])
    assert 'data-paper="Tsai 2020"' in page._label_of(BY_ID["C-021"])
    assert 'data-paper="Gu and Tresp 2020"' in page._label_of(BY_ID["C-127"])


def test_tests_of_the_same_claim_on_other_data_are_one_row() -> None:
    rows = texts.by_claim(OF_PAPERS)
    for names in (("C-013", "C-155"), ("C-014", "C-157"), ("C-129", "C-164")):
        found = [[each.claim["id"] for each in tests] for tests in rows.values()]
        assert sum({*names} <= {*tests} for tests in found) == 1, names


class Outcome(NamedTuple):
    """An interval, its p values of no difference and of a smaller one, and the number of runs."""

    low: float
    high: float
    p: float
    p_of_smaller: float = 0.01
    p_of_larger: float = 1
    count: int = 5

    def effect(self) -> Effect:
        return effect(self.low, self.high, self.p, self.count)

    def mirrored(self) -> Effect:
        return effect(-self.high, -self.low, self.p, self.count)


LOWER = {"expects": "less", "smallest": 1.0}
HIGHER = {"expects": "more", "smallest": 1.0}
OUTCOMES = {
    "lower, as claimed": (Outcome(-3, -1, 0.01, 1), HOLDS),
    "lower, perhaps by less than what matters": (Outcome(-3, -0.5, 0.01, 1), OPEN),
    "lower by less than what matters": (Outcome(-0.8, -0.2, 0.01), SMALL),
    "not significant after the correction": (Outcome(-3, -1, 0.2, 1), UNDECIDED),
    "every difference that matters is excluded": (Outcome(-0.8, 0.5, 0.5), NOT),
    "a difference that matters is possible": (Outcome(-0.8, 0.5, 0.5, 0.2), UNDECIDED),
    "the opposite": (Outcome(1, 3, 0.01), OPPOSITE),
    "the opposite, perhaps by less than what matters": (Outcome(0.5, 3, 0.01), OPPOSITE_OPEN),
    "the opposite, by less than what matters": (Outcome(0.2, 0.8, 0.01), OPPOSITE_SMALL),
    "a difference that matters is excluded in both directions": (
        Outcome(-0.8, 0.5, 0.5, 0.01, 0.01),
        EQUAL,
    ),
    "one that matters is excluded in the other direction only": (
        Outcome(-3, 0.5, 0.2, 1, 0.01),
        OPPOSITE_NOT,
    ),
    "differences that matter are possible in both directions": (
        Outcome(-3, 3, 0.8, 0.9, 0.9),
        UNDECIDED,
    ),
    "a difference that does not matter": (Outcome(-0.8, -0.2, 0.01, 0.01, 0.01), SMALL),
    "four runs that find a difference": (Outcome(-3, -1, 0.01, 1, count=4), PRELIMINARY),
    "four runs that find none that matters": (
        Outcome(-0.8, 0.5, 0.5, 0.01, 0.01, count=4),
        PRELIMINARY,
    ),
}


@pytest.mark.parametrize(("outcome", "expected"), OUTCOMES.values(), ids=OUTCOMES)
def test_verdicts(outcome: Outcome, expected: str) -> None:
    """The claim: the first value is lower; a difference of 1 matters. The mirrored claim has the same verdict."""
    p_values = outcome.p, outcome.p_of_smaller, outcome.p_of_larger
    found = Judged(LOWER, outcome.effect(), *p_values)
    assert found.verdict == expected
    mirrored = Judged(HIGHER, outcome.mirrored(), *p_values)
    assert mirrored.verdict == expected


UNCORRECTED_EQUALITY = [each for each in JUDGED if each.effect.found.equivalent == "yes"]


@pytest.mark.parametrize("each", UNCORRECTED_EQUALITY, ids=lambda each: each.claim["id"])
def test_the_page_explains_why_a_tables_equality_is_no_verdict(each: Judged) -> None:
    """A report makes two one-sided tests without a correction."""
    if each.verdict in (EQUAL, SMALL):
        assert not each.equivalence
        return
    assert each.equivalence in page.PAGE.read_text()
    assert ("too few" in each.equivalence) == (each.verdict == PRELIMINARY)


def test_two_iterations_of_routing_pays_are_equal_before_the_correction_only() -> None:
    """By hand from results/routing_pays_comparisons.csv: one-sided p of (0.1 - 0.035) / 0.0323, 22 degrees."""
    each = BY_ID["C-001"]
    uncorrected = stats.t.sf((0.1 - 0.0349998) / 0.0323376, 21.9842)
    assert uncorrected < statistics.LEVEL
    # as one of nine tests, of which four have smaller p values and two more that of another claim
    assert each.tests == 9
    assert each.p_of_smaller == pytest.approx(4 * uncorrected, rel=1e-4)
    assert each.verdict == OPPOSITE_NOT


FINDS_LOWER = Outcome(-3, -1, 0.01)
FINDS_HIGHER = Outcome(1, 3, 0.01)
FINDS_NOTHING = Outcome(-1, 3, 0.5)
EXCLUDES_MORE = Outcome(-0.8, 0.5, 0.5)
EXCLUDES_OTHER = Outcome(-3, 0.5, 0.2, 1, 0.01)
EXCLUDES_BOTH = Outcome(-0.8, 0.5, 0.5, 0.01, 0.01)
PLANNED_AND_LATER = {
    "both measures": (FINDS_LOWER, FINDS_LOWER, HOLDS),
    "the planned measure gives the opposite": (FINDS_HIGHER, FINDS_LOWER, UNDECIDED),
    "the planned measure finds nothing": (FINDS_NOTHING, FINDS_LOWER, UNDECIDED),
    "the same for the opposite": (FINDS_NOTHING, FINDS_HIGHER, UNDECIDED),
    "both give the opposite": (FINDS_HIGHER, FINDS_HIGHER, OPPOSITE),
    "only the planned measure finds a difference": (FINDS_LOWER, EXCLUDES_MORE, UNDECIDED),
    "none finds a difference": (FINDS_NOTHING, EXCLUDES_MORE, NOT),
    "the planned measure finds what the later one excludes": (
        FINDS_HIGHER,
        EXCLUDES_OTHER,
        UNDECIDED,
    ),
    "the planned measure finds the claimed difference, the later one excludes the other": (
        FINDS_LOWER,
        EXCLUDES_OTHER,
        OPPOSITE_NOT,
    ),
    "the planned measure finds nothing, the later one equality": (
        FINDS_NOTHING,
        EXCLUDES_BOTH,
        EQUAL,
    ),
    "the planned measure finds the opposite of an equality": (
        FINDS_HIGHER,
        EXCLUDES_BOTH,
        UNDECIDED,
    ),
}


@pytest.mark.parametrize(
    ("planned", "later", "expected"), PLANNED_AND_LATER.values(), ids=PLANNED_AND_LATER
)
def test_a_later_measure_decides_only_with_the_planned_one(
    planned: Outcome, later: Outcome, expected: str
) -> None:
    found = Judged(
        LOWER,
        later.effect(),
        later.p,
        later.p_of_smaller,
        later.p_of_larger,
        planned_first=planned.effect(),
    )
    assert found.verdict == expected


def test_the_page_shows_the_planned_measure_beside_the_later_one() -> None:
    """The numbers of results/inside_capsules_comparisons.csv for rotation, EM routing against a CNN."""
    _, _, after_start = page.PAGE.read_text().partition("\n#### C-044\n")
    section, _, _ = after_start.partition("</details>")
    lines = pd.read_csv(RESULTS / "inside_capsules_comparisons.csv")
    of_em = lines[lines["first"].str.startswith("EM")]
    differences = of_em.groupby("comparison")["difference"].first()
    planned = differences["rotation_no_capsules"]
    reported = differences["rotation_map_no_capsules"]
    assert f"- The measure that was planned first: {texts.signed(planned)} (" in section
    assert f"as this page reported until 27 November: {texts.signed(reported)} (" in section
    assert AFTER in section


@pytest.mark.parametrize("expects", ["less", "more"])
@pytest.mark.parametrize("deviation", [1.0, 5.0], ids=["equal deviations", "different deviations"])
def test_p_value_of_a_difference_that_matters(expects: str, deviation: float) -> None:
    """Judged by scipy's one-sided test of Welch, whose degrees of freedom depend on the deviations."""
    generator = np.random.default_rng(0)
    first = generator.normal(size=6)
    second = deviation * generator.normal(size=4)
    ours = Effect(statistics.unpaired_difference(first, second), paired=False)
    found = ours.p_of_smaller({"expects": expects, "smallest": 0.6})
    found_opposite = ours.p_of_larger({"expects": expects, "smallest": 0.6})
    sign = {"less": -1, "more": 1}[expects]
    welch = partial(stats.ttest_ind, equal_var=False, alternative="less")
    smaller = welch(sign * first - 0.6, sign * second)
    larger = welch(-sign * first - 0.6, -sign * second)
    assert found == pytest.approx(smaller.pvalue, rel=1e-9)
    assert found_opposite == pytest.approx(larger.pvalue, rel=1e-9)


def test_the_larger_p_of_paired_and_unpaired_tests_counts() -> None:
    """Seeds that pair make Welch's p larger; seeds that do not, the paired one."""
    first = np.array([1.0, 2.0, 3.0, 4.0])
    second = np.array([0.8, 1.9, 2.7, 3.9])
    paired = statistics.paired_difference(first, second)
    welch = statistics.unpaired_difference(first, second)
    assert paired.p is not None
    assert welch.p is not None
    assert welch.p > paired.p
    found = Effect(paired, paired=True, other=welch)
    assert found.p == welch.p
    claim = {"expects": "less", "smallest": 0.1}
    by_welch = Effect(welch, paired=False)
    assert found.p_of_smaller(claim) == by_welch.p_of_smaller(claim)


def test_all_tests_of_a_planned_family_are_corrected_together() -> None:
    """A family of three comparisons, of which two are claims, has nine tests."""
    of_page = [effect(-0.1, 0.1, 0.03), effect(-3, -1, 0.001)]
    p_values = {0: 0.01, 1: 0.04, 2: 0.02}
    family = []
    for line in (0, 2):
        plan = Plan(PLANNED, family="table", line=line, family_p=p_values)
        family.append(replace(effect(-3, -1, p_values[line]), plan=plan))
    mixed = [of_page[0], family[0], of_page[1], family[1]]
    first, first_of_family, second, second_of_family = judged([LOWER] * 4, mixed)

    smaller = [each.p_of_smaller(LOWER) for each in of_page]
    larger = [each.p_of_larger(LOWER) for each in of_page]
    expected = statistics.holm([0.03, 0.001, *smaller, *larger])
    assert first.tests == 6
    assert second.tests == 6
    assert first.p == expected[0]
    assert second.p == expected[1]
    assert first.p_of_smaller == expected[2]
    assert second.p_of_smaller == expected[3]
    assert first.p_of_larger == expected[4]
    assert second.p_of_larger == expected[5]

    smaller = [each.p_of_smaller(LOWER) for each in family]
    larger = [each.p_of_larger(LOWER) for each in family]
    expected = statistics.holm([0.01, 0.02, *smaller, *larger, 0.04, 1, 1])
    assert first_of_family.tests == 9
    assert second_of_family.tests == 9
    assert first_of_family.p == expected[0]
    assert second_of_family.p == expected[1]
    assert first_of_family.p_of_smaller == expected[2]
    assert second_of_family.p_of_smaller == expected[3]
    assert first_of_family.p_of_larger == expected[4]
    assert second_of_family.p_of_larger == expected[5]


def test_numbers_over_the_page() -> None:
    """By hand: Holm's method, and the step-up procedure of Benjamini and Hochberg over two tests.

    The smallest two of six p values are those of differences in the other direction.
    """
    every = []
    for name, p in (("first", 0.012), ("second", 0.02)):
        every.append(Judged({**LOWER, "id": name}, effect(-3, -1, p), p, 1))
    found = survivors(every)
    assert found.decided == 2
    # 4 x 0.012 is below 5 %, 3 x 0.02 is not
    assert found.changed == {"second": OPPOSITE_NOT}
    assert found.different == 2
    assert found.by_benjamini_hochberg == 2


def test_rows_that_a_correction_over_the_page_changes_are_named() -> None:
    """In the statistics, in their proofs, and where the abstract quotes them; what is struck is left out."""
    text = page.PAGE.read_text()
    (statistics_of_page,) = re.findall(r"- \*\*Over the page(.*?)\n- \*\*", text, re.DOTALL)
    statistics_of_page = statistics_of_page.replace("[stand-in: ", "[")
    changed = page.over_the_page(JUDGED).changed
    assert changed
    quoted = re.findall(
        r"\(\[(C-\d+)\]\(#.*?n = \d+( †)?(?: <span.*?</span>)?\)", page.abstract_of(JUDGED)
    )
    assert quoted
    for name, mark in quoted:
        assert bool(mark) == (name in changed)
    in_readme = readme.short_form(JUDGED)
    named = re.findall(
        r"\[(C-\d+)\]\([^)]*\) [^;\n]*?( †)?(?: \[stand-in[^\]]*\])?(?:;|\n|$)", in_readme
    )
    assert len(named) > 3
    for name, mark in named:
        assert bool(mark) == (name in changed)
    for each in JUDGED:
        name = each.claim["id"]
        _, _, proof = text.partition(f"\n#### {name}\n")
        proof, _, _ = proof.partition("</details>")
        assert ("- Corrected over the whole page: " in proof) == (name in changed)
        if name in changed:
            assert each in texts.not_struck(JUDGED)
            assert re.search(rf"[ :]{changed[name]}: [^:;]*{name}", statistics_of_page)


def test_false_discoveries_on_the_page_are_those_of_scipy() -> None:
    p_values = [each.effect.p for each in JUDGED]
    adjusted = stats.false_discovery_control(p_values)
    expected = (adjusted < statistics.LEVEL).sum()
    assert survivors(JUDGED).by_benjamini_hochberg == expected


@pytest.mark.parametrize("paired", [True, False])
def test_runs_that_find_the_difference_that_matters(paired: bool) -> None:
    """Judged by the plan of a report for the same deviation."""
    generator = np.random.default_rng(0)
    first = generator.normal(size=6)
    second = generator.normal(size=6)
    compare = statistics.paired_difference if paired else statistics.unpaired_difference
    found = compare(first, second)
    assert found.spread is not None
    expected = statistics.runs_for(0.7, found.spread, pairs=paired)
    claim = {"expects": "less", "smallest": 0.7}
    judgement = Judged(claim, Effect(found, paired), 1, 1)
    assert judgement.needed_for(0.7) == expected


def test_the_needed_runs_are_those_of_the_test_that_finds_less() -> None:
    """Seeds that do not pair: the paired test needs more pairs than Welch's test needs runs."""
    first = np.array([1.0, 2.0, 3.0, 4.0])
    second = np.array([4.0, 2.5, 2.0, 0.5])
    paired = statistics.paired_difference(first, second)
    welch = statistics.unpaired_difference(first, second)
    judgement = Judged(LOWER, Effect(welch, paired=False, other=paired), 1, 1)
    pairs = judgement.seeds_for(1, paired)
    runs = judgement.seeds_for(1, welch)
    assert pairs is not None
    assert runs is not None
    assert pairs > runs
    assert judgement.needed_for(1) == pairs


@pytest.mark.parametrize("each", JUDGED, ids=IDS)
def test_the_page_says_what_a_claim_needs_that_may_still_hold(each: Judged) -> None:
    is_open = each.verdict in (UNDECIDED, PRELIMINARY, OPPOSITE_NOT)
    assert ("\n- Needs: " in proof_of(each.claim["id"])) == is_open


def test_the_overview_says_once_what_networks_have_in_common() -> None:
    _, _, *rows = page._overview(OF_PAPERS).strip().splitlines()
    for row in rows:
        _, _, _, networks, *_ = row.split("|")
        parts = networks.strip().split("; ")
        assert len({*parts}) == len(parts)


MORE_TOYS = "more test toys. No number of seeds decides this row"
ONE_MEASURE = "one measure that is chosen before its runs"


def test_a_preliminary_claim_needs_five_runs() -> None:
    """Three runs with a large difference: fewer than five would find it, and give no verdict."""
    each = BY_ID["C-075"]
    preliminary = replace(each, claim={**each.claim, "smallest": 20})
    assert preliminary.verdict == PRELIMINARY
    needed = preliminary.needed_for(20)
    assert needed is not None
    assert needed < 5
    assert needs(preliminary).startswith("about 5 seeds")


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ("Capsules generalise better to novel azimuths", MORE_TOYS),
        ("Capsules generalise better to novel elevations", MORE_TOYS),
        (
            "Capsules are more robust to a white-box attack than dense units on the same convolutions "
            "(Efficient-CapsNet without",
            "Pairing limits this",
        ),
        ("Training makes poses more equivariant to translation", ONE_MEASURE),
        ("Matrix poses are better than vectors", "as one of 33 tests"),
    ],
)
def test_what_an_undecided_claim_needs(claim: str, expected: str) -> None:
    first, *_ = [each for each in JUDGED if each.claim["claim"].startswith(claim)]
    assert expected in needs(first)


def test_the_toys_alone_leave_rows_about_viewpoints_undecided() -> None:
    """The interval with infinitely many seeds contains no difference and differences that matter, or nearly so."""
    for each in JUDGED:
        found = each.effect.found
        if found.error_of_clusters:
            assert abs(found.estimate) < 2 * found.error_of_clusters
            assert found.error_of_clusters < found.error


UNDECIDED_CLAIMS = [each for each in JUDGED if not each.is_decided]


@pytest.mark.parametrize("each", UNDECIDED_CLAIMS, ids=texts.title)
def test_no_claim_needs_more_than_ten_thousand_seeds(each: Judged) -> None:
    assert "10,000" not in needs(each)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.415, "+0.42"),
        (-0.265, "-0.27"),
        (0.115, "+0.12"),
        (-0.0125, "-0.013"),
        (85.65, "+85.65"),
    ],
)
def test_halves_are_rounded_away_from_zero(value: float, text: str) -> None:
    assert texts.signed(value) == text


def test_a_claim_says_how_to_unpack_its_records() -> None:
    text = page.PAGE.read_text()
    archives = set(re.findall(r"tar xzf (results/\S+)", text))
    assert len(archives) >= 10
    for archive in archives:
        assert (read.ROOT / archive).is_file()
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
    of_em = runs[runs["row"].str.startswith("EM")]
    means = of_em.groupby("column")["value"].mean()
    expected = means[sample["column"]] - means[sample["minus"]]
    values = effects._sample(sample)
    assert values.mean() == pytest.approx(expected)


def test_a_sample_against_a_number() -> None:
    of_couplings = claims("Couplings are closer to one parent than to equal shares")
    claim, *_ = [each for each in of_couplings if "EM" in each["claim"]]
    values = effects._sample(claim["first"])
    found = effects.effect_of(claim)
    expected = stats.ttest_1samp(values, 0.5)
    assert found.found.estimate == pytest.approx(values.mean() - 0.5)
    assert found.p == pytest.approx(expected.pvalue)


def test_a_recorded_difference_of_zero_is_a_number(tmp_path: Path) -> None:
    """A column of numbers has 0 where another line has an empty cell."""
    lines = pd.read_csv(RESULTS / "iterations_or_gain_comparisons.csv")
    lines["difference"] = 0.0
    lines.to_csv(tmp_path / "iterations_or_gain_comparisons.csv", index=False)
    runs = RESULTS / "iterations_or_gain_runs.csv"
    (tmp_path / runs.name).write_text(runs.read_text())
    source = {"comparison": {"file": "iterations_or_gain", "name": "gain"}}
    assert effects.effect_of(source, tmp_path).found.estimate == 0


def test_a_whole_label_is_preferred_to_the_beginning_of_another() -> None:
    """Another row is "equal couplings, transformations shared by positions"."""
    column = "held-out digits, affine, where moved is 6"
    source = {"file": "gu2020_affine_mnist", "name": "other_levels", "column": column}
    _, line = effects.line_of(RESULTS, row="equal couplings", **source)
    assert line["first"] == "equal couplings"


OF_TWO_ROWS = {"file": "inside_capsules", "name": "tree"}
OF_ALL_COLUMNS = {"file": "data_efficiency_runs.csv", "row": "three"}


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"comparison": OF_TWO_ROWS}, "has 2 lines of tree, '', ''; expected one"),
        ({"first": OF_ALL_COLUMNS, "second": {}}, "expected one of each seed"),
    ],
)
def test_a_source_that_is_not_one_sample_is_an_error(claim: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        effects.effect_of({"claim": "any", **claim})
