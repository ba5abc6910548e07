"""Rows about costs, which have no verdict, and reasons of margins: ``make claims`` stops without a record or reason."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from capsule_studies.claims import __main__ as make
from capsule_studies.claims import claim as command
from capsule_studies.claims import measured, page, read
from capsule_studies.claims.read import RESULTS
from capsule_studies.claims.recompute import files_of
from capsule_studies.claims.verdicts import Judged, judged
from tests.reference.claims import parameters, ratios

CLAIMS = read.read()
ROWS = {row["id"]: row for row in read.measured()}
COUNTED = "C-088"
ON_A_CPU = "C-089"
ON_A_GPU = "C-090"


def section() -> str:
    _, _, after = page.PAGE.read_text().partition("## Measured: cost")
    text, _, _ = after.partition("## Table C")
    return text


@pytest.mark.parametrize("name", ROWS)
def test_a_second_computation_gives_the_same_ratios(name: str) -> None:
    ours = {ratio.name: ratio.value for ratio in measured.ratios_of(ROWS[name])}
    assert ours == pytest.approx(ratios()[name])
    for ratio in ours.values():
        assert f"{ratio:.3g} times" in section()


@pytest.mark.parametrize(("network", "expected"), parameters().items(), ids=[*parameters()])
def test_networks_have_the_parameters_of_the_papers(network: str, expected: int) -> None:
    line = pd.read_csv(RESULTS / "parameters.csv").set_index("network").loc[network]
    assert line["parameters"] == expected
    assert measured.count(line["overrides"]) == expected


def test_a_cost_has_no_verdict_no_interval_and_no_number_of_seeds() -> None:
    assert not ROWS.keys() & {claim["id"] for claim in CLAIMS}
    text = section()
    assert 'class="verdict' not in text
    for name in ROWS:
        assert f"| [{name}](#{name.lower()}) |" in text
        assert f"`make claim id={name}`" in text
    assert not re.search(r"95 %|n = |p = |p < ", text)


def test_the_records_of_a_row_have_the_hardware_that_the_page_names() -> None:
    row = ROWS[ON_A_CPU]
    for file in measured.records_of(row):
        content = json.loads((read.ROOT / file).read_text())
        assert f"- Hardware: {content['hardware']}; commit {content['commit']}.\n" in section()
    cards = pd.read_csv(RESULTS / ROWS[ON_A_GPU]["file"])["card"]
    for card in cards:
        assert f"- Hardware: {card}; commit" in section()


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page that ``make claims`` would write."""
    file = tmp_path / "claims.md"
    monkeypatch.setattr(page, "PAGE", file)
    return file


def stopped(capsys: pytest.CaptureFixture[str], written: Path) -> str:
    """Run ``make claims``, and return the sentence with which it stops."""
    assert make.main() == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.count("\n") == 1
    assert not written.exists()
    return printed.err


def one_ratio(name: str, **changes: Any) -> dict[str, Any]:
    """Return a row with its first ratio only, of which some keys are changed."""
    row = ROWS[name]
    return {**row, "ratios": [{**row["ratios"][0], **changes}]}


WITHOUT_RECORD = {
    "no file": (
        {**ROWS[COUNTED], "file": "sizes.csv"},
        "C-088 has no record: results/sizes.csv does not exist; measure it, or",
    ),
    "no line": (
        one_ratio(ON_A_CPU, second={"name": "em_window", "form": "compiled"}),
        "C-089: results/bench_layers.json has 0 numbers seconds_median of name em_window, form compiled; expected one",
    ),
    "several lines": (
        one_ratio(ON_A_CPU, second={"form": "fused"}),
        "C-089: results/bench_layers.json has 3 numbers seconds_median of form fused; expected one",
    ),
    "an empty cell": (
        one_ratio(ON_A_GPU, value="memory_gb", first={"kind": "forward", "case": "capsnet"}),
        "C-090: results/gpu/kernels_and_steps.csv has 0 numbers memory_gb of kind forward, case capsnet",
    ),
    "no column": (
        one_ratio(ON_A_CPU, value="joules"),
        "C-089: results/bench_layers.json has 0 numbers joules of name em_window, form textbook",
    ),
}


@pytest.mark.parametrize(("row", "message"), WITHOUT_RECORD.values(), ids=WITHOUT_RECORD)
def test_a_row_without_a_record_stops_the_page(
    row: dict[str, Any],
    message: str,
    written: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(read, "measured", lambda: [row])
    assert message in stopped(capsys, written)


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of records in place of results/, which a test changes."""
    folder = tmp_path / "results"
    folder.mkdir()
    for name in ("parameters.csv", "bench_layers.json", "bench_cpu.json"):
        shutil.copy(RESULTS / name, folder)
    monkeypatch.setattr(measured, "RESULTS", folder)
    return folder


@pytest.fixture
def another_count(records: Path) -> None:
    file = records / "parameters.csv"
    file.write_text(file.read_text().replace("6804384", "6804385"))


@pytest.mark.usefixtures("another_count")
def test_another_count_than_that_of_the_record_stops_the_page(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = stopped(capsys, written)
    assert "C-088: CapsNet, no decoder has 6,804,384 parameters" in message
    assert (
        "results/parameters.csv has 6,804,385; if the network should have changed, run" in message
    )


def claimed(capsys: pytest.CaptureFixture[str], name: str, status: int = 0) -> str:
    assert command.main([f"id={name}"]) == status
    return capsys.readouterr().out


def test_a_claim_about_parameters_is_counted_again(capsys: pytest.CaptureFixture[str]) -> None:
    printed = claimed(capsys, COUNTED)
    assert "Efficient-CapsNet, no decoder: 161,824 parameters; recorded: 161,824\n" in printed
    assert "both with decoder: 8,215,728 against 1,573,168 parameters, 5.22 times\n" in printed
    assert "agreement   yes" in printed


@pytest.mark.usefixtures("another_count")
def test_another_count_disagrees(capsys: pytest.CaptureFixture[str]) -> None:
    printed = claimed(capsys, COUNTED, status=1)
    assert "CapsNet, no decoder: 6,804,384 parameters; recorded: 6,804,385\n" in printed
    assert "agreement   NO" in printed


def test_ratios_of_a_benchmark_stand_beside_the_recorded_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Median, fastest and slowest of nine rounds of both forms, by hand."""
    lines = pd.DataFrame(json.loads((RESULTS / "bench_layers.json").read_text())["rows"])
    lines = lines[lines["name"] == "em_window"].set_index("form")
    textbook, fused = lines.loc["textbook"], lines.loc["fused"]
    low = textbook["seconds_fastest"] / fused["seconds_slowest"]
    high = textbook["seconds_slowest"] / fused["seconds_fastest"]
    printed = claimed(capsys, ON_A_CPU)
    recorded = f"{fused['speedup']:.3g}"
    assert f"{recorded} times ({low:.3g} to {high:.3g}); recorded: {recorded} times\n" in printed
    assert "agreement   yes" in printed
    assert "results/bench_layers.json, results/bench_cpu.json" in printed


def test_other_times_than_those_of_the_recorded_ratio_disagree(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = records / "bench_layers.json"
    content = json.loads(file.read_text())
    for row in content["rows"]:
        if row["form"] == "fused":
            row["seconds_median"] *= 2
    file.write_text(json.dumps(content))
    printed = claimed(capsys, ON_A_CPU, status=1)
    assert "8.74 times" in printed
    assert "recorded: 17.5 times" in printed
    assert "agreement   NO" in printed


def test_a_record_without_ratios_has_nothing_to_agree_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = claimed(capsys, ON_A_GPU)
    assert "70.3 against 8.28 ms, 8.49 times\n" in printed
    assert "agreement   the record has no ratios" in printed


def test_a_cost_cannot_be_trained(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([f"id={ON_A_CPU}", "train=true"]) == 2
    message = capsys.readouterr().err
    assert "C-089 has no runs to train; without train=true" in message
    assert message.count("\n") == 1


@pytest.fixture(scope="module")
def every() -> list[Judged]:
    return judged(CLAIMS)


def test_every_test_has_the_reason_of_its_margin(every: list[Judged]) -> None:
    text = page.PAGE.read_text()
    reasons = read.margins()
    used = set()
    for each in every:
        _, _, proof = text.partition(f"\n#### {each.claim['id']}\n")
        proof, _, _ = proof.partition("</details>")
        margin = f"{each.claim['smallest']:g} {each.claim['unit']}"
        key = (files_of(each.claim)[0], margin)
        used.add(key)
        (line,) = re.findall("^- Margin: .*$", proof, re.MULTILINE)
        assert line.startswith(f"- Margin: {margin} (g = ")
        assert line.endswith(f") would matter, {reasons[key]}.")
    for claim in read.read(pending=True):
        used.add((files_of(claim)[0], f"{claim['smallest']:g} {claim['unit']}"))
    assert used == reasons.keys()


def test_a_margin_without_a_reason_stops_the_page(
    written: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another margin than that which has the reason."""
    reasons = read.margins()
    reasons["routing_pays", "0.2 points"] = reasons.pop(("routing_pays", "0.1 points"))
    monkeypatch.setattr(page, "margins", lambda: reasons)
    monkeypatch.setattr(read, "measured", list)
    message = stopped(capsys, written)
    assert "C-001: 0.1 points would matter in routing_pays, and docs/claims.yaml" in message
    assert "has no reason; write down who set it" in message


def test_a_margin_in_the_unit_of_hedges_g(every: list[Judged]) -> None:
    """C-016 by hand: 0.1 points in deviations of single runs, with the correction for 14 degrees of freedom."""
    runs = pd.read_csv(RESULTS / "algorithms_mnist_runs.csv")
    variances = []
    for row in ("dynamic (Sabour 2017), 2 iterations", "equal couplings"):
        values = runs[runs["row"] == row]["value"]
        assert len(values) == 8
        variances.append(values.var())
    deviation = np.sqrt(np.mean(variances))
    expected = 0.1 / deviation * (1 - 3 / (4 * 14 - 1))
    (each,) = [each for each in every if each.claim["id"] == "C-016"]
    assert each.effect.margin_as_g(each.claim) == pytest.approx(expected, rel=1e-4)
