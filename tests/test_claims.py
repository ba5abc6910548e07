"""Numbers of the documents are those of the records in ``results/``, see ``tests.helpers.claims``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.claims import mismatches, parts_of, unclaimed

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "results" / "README.md"]
CHECKED = [page for page in sorted([*PAGES, *(ROOT / "docs").rglob("*.md")]) if "<!-- claims" in page.read_text()]
EXAMPLE = """Error **0.60 %** of 10,000 digits, `x=0.5`; 0.25 % there.
<!-- claims
0.60 % of 10,000 :: record("mnist_hour.json", "test/error"), 10000
0.25 % :: "Sabour 2017"
-->
"""


@pytest.mark.parametrize("page", CHECKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_numbers_are_those_of_the_records(page: Path) -> None:
    assert not mismatches(page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_measured_number_has_a_record_or_a_reason(page: Path) -> None:
    assert not unclaimed(page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_changed_digit_is_noticed(page: Path) -> None:
    """The last digit of every claimed number with a decimal point, in the text."""
    document = page.read_text()
    claimed = "\n".join(text for part in parts_of(document) for text, _ in part.claims)
    for number in sorted({*re.findall(r"(?<![\w.])\d+\.\d+(?!\w)", claimed)}):
        changed = number[:-1] + str((int(number[-1]) + 1) % 10)
        in_text = re.sub(rf"(?<![\w.]){re.escape(number)}(?!\w)(?![^<>]*-->)", changed, document)
        assert in_text == document or mismatches(in_text), number


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("0.60 %** of", "0.61 %** of"), "does not say"),
        (("0.60 %", "0.61 %"), "should be 0.5999"),
        (("10,000", "1,000"), "should be"),
        (('"Sabour 2017"', '""'), "neither a record nor a reason"),
    ],
)
def test_each_fault_is_said(change: tuple[str, str], said: str) -> None:
    assert not mismatches(EXAMPLE)
    (wrong,) = mismatches(EXAMPLE.replace(*change))
    assert said in wrong


def test_uncovered_number_is_named() -> None:
    assert not unclaimed(EXAMPLE)
    assert unclaimed(EXAMPLE.replace("there.", "there, 0.7 here."))[0].endswith("0.7")
