"""Numbers of the documents are those of the records in ``results/``, see ``tests.helpers.claims``."""

from pathlib import Path

import pytest

from tests.helpers.claims import mismatches, unclaimed, unsaid

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "results" / "README.md"]
CHECKED = [page for page in sorted([*PAGES, *(ROOT / "docs").rglob("*.md")]) if "<!-- claims" in page.read_text()]
EXAMPLE = """Error **0.60 %** of 10,000 digits, `x=0.5`; 0.25 % there.
<!-- claims
0.60 % of 10,000 :: record("mnist_hour.json", "test/error"), 10000
0.25 % :: "Sabour 2017"
-->
"""


def id_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", CHECKED, ids=id_of)
def test_numbers_are_those_of_the_records(page: Path) -> None:
    assert not unsaid(page.read_text())
    assert not mismatches(page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_every_measured_number_has_a_record_or_a_reason(page: Path) -> None:
    assert not unclaimed(page.read_text())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("0.60 %", "0.61 %"), "should be 0.5999"),
        (("10,000", "1,000"), "should be"),
        (('"Sabour 2017"', '""'), "neither a record nor a reason"),
        (('"test/error"', '"test/nothing"'), "has a claim that fails, KeyError"),
    ],
)
def test_each_fault_is_said(change: tuple[str, str], said: str) -> None:
    assert not unsaid(EXAMPLE)
    assert not mismatches(EXAMPLE)
    (wrong,) = mismatches(EXAMPLE.replace(*change))
    assert said in wrong


def test_other_text_than_claimed_is_named() -> None:
    assert unsaid(EXAMPLE.replace("0.60 %** of", "0.61 %** of")) == ["0.60 % of 10,000"]


def test_uncovered_number_is_named() -> None:
    assert not unclaimed(EXAMPLE)
    assert unclaimed(EXAMPLE.replace("there.", "there, 0.7 here."))[0].endswith("0.7")
