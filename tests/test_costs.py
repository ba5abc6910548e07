"""The cost in the head of each experiment is the one of the records in ``results/``; ``make costs`` prints them."""

import re
from pathlib import Path

import pytest

from capsule_lab.commands import compose
from capsule_lab.config.folders import head, options_of
from tests.helpers.commands import ROOT
from tests.helpers.costs import Cost, cost_of, head_of, problem_with, steps_of

COST = Cost(26.4 * 3600, 59.0 * 3600, 2, ("a.json", "b.csv"))
RECORDS = "on two CPU cores (results/a.json, results/b.csv)"
TEXT = f"26 to 59 hours {RECORDS}"
_OF_TIME = r"\b(hours?|days?|weeks?|months?)\b"
_RECORDED = re.compile(r"\d+( to \d+)? \w+ on (one|two) CPU cores? \(results/[^)]*\)")
_WITHOUT_RECORD = re.compile(
    rf"{_OF_TIME}[^.;:]*\bGPU|GPU[^.;:]*{_OF_TIME}|\b(weeks|months)\b",
)


@pytest.fixture(autouse=True)
def _without_type_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded commands have values such as ``model.dropout=0``, as commands do."""
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)


@pytest.mark.whole  # composes all recorded commands
@pytest.mark.parametrize("experiment", options_of("experiment"))
def test_cost_in_a_head_is_that_of_the_records(experiment: str) -> None:
    assert problem_with(head_of(experiment), cost_of(experiment)) == ""


def test_cost_is_written_in_whole_units() -> None:
    short = Cost(90.0, 90.0, 1, ("a.json",))
    long = Cost(4e5, 4e5, 1, ("a.json",))
    assert COST.text == TEXT
    assert short.text == "2 minutes on one CPU core (results/a.json)"
    assert long.text == "5 days on one CPU core (results/a.json)"


@pytest.mark.parametrize(
    ("cost", "text", "expected"),
    [
        (COST, f"Cost: {TEXT}. Expected: 1 %", ""),
        (COST, f"Cost: 27 to 62 hours {RECORDS}; not tried. Expected: 1 %", ""),
        (COST, f"Cost: 26 to 70 hours {RECORDS}.", "is not the cost"),
        (COST, "Cost: 26 to 59 hours on two CPU cores (results/a.json).", "is not the cost"),
        (COST, f"Cost: 26 to 59 days {RECORDS}.", "is not the cost"),
        (COST, "Cost: weeks. Expected: 1 %", "is not the cost"),
        (COST, "Cost: no record.", "is not the cost"),
        (COST, "Expected: 1 %", "expected 'Cost: 26 to 59 hours"),
        (None, "Cost: no record; not tried yet. Expected: 1 %", ""),
        (None, "Cost: two hours on a GPU. Expected: 1 %", "has no record"),
    ],
)
def test_wrong_cost_is_reported(cost: Cost | None, text: str, expected: str) -> None:
    found = problem_with(text, cost)
    assert expected in found
    assert bool(found) is bool(expected)


@pytest.mark.parametrize(
    ("experiment", "steps"),
    [
        ("sabour2017/mnist", 300_000),
        ("mnist_hour", 9372),
        ("hinton2011/stereo", 1800),
    ],
)
def test_steps_are_those_of_the_schedule(experiment: str, steps: int) -> None:
    """The last two are the steps in the records of these experiments."""
    config = compose("train", [f"experiment={experiment}"])
    assert steps_of(config) == steps


HEADS = sorted([*(ROOT / "conf").rglob("*.yaml"), *(ROOT / "sweeps").rglob("*.yaml")])


@pytest.mark.parametrize("file", HEADS, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_no_head_has_a_cost_of_gpus_or_long_times_without_a_record(file: Path) -> None:
    text = " ".join(head(file))
    without_recorded = _RECORDED.sub("", text)
    assert not _WITHOUT_RECORD.search(without_recorded)
