"""Numbers in documents equal those of the records in ``results/``, see ``tests.helpers.quoted_numbers``."""

from pathlib import Path

import pytest

from tests.helpers.quoted_numbers import START, mismatches, missing_texts, without_source
from tests.helpers.tiers import whole_but

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "results").glob("*.md"))]
CHECKED = [
    page for page in sorted([*PAGES, *(ROOT / "docs").rglob("*.md")]) if START in page.read_text()
]
EXAMPLE = """Error **0.60 %** of 10,000 digits, `x=0.5`; 0.25 % there.
<!-- numbers
0.60 % of 10,000 :: record("mnist_hour.json", "test/error"), 10000
0.25 % :: "Sabour 2017"
-->
"""


def id_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", whole_but(CHECKED, ROOT / "README.md"), ids=id_of)
def test_listed_numbers_equal_those_of_the_records(page: Path) -> None:
    assert not missing_texts(page.read_text())
    assert not mismatches(page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_every_measured_number_has_a_source(page: Path) -> None:
    assert not without_source(page.read_text())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("0.60 %", "0.61 %"), "should be 0.5999"),
        (("10,000", "1,000"), "should be"),
        (('"Sabour 2017"', '""'), "neither a record nor a reason"),
        (('"test/error"', '"test/nothing"'), "has an expression that fails, KeyError"),
    ],
)
def test_wrong_number_is_reported(change: tuple[str, str], message: str) -> None:
    assert not missing_texts(EXAMPLE)
    assert not mismatches(EXAMPLE)
    (wrong,) = mismatches(EXAMPLE.replace(*change))
    assert message in wrong


def test_text_that_is_not_above_its_comment_is_reported() -> None:
    assert missing_texts(EXAMPLE.replace("0.60 %** of", "0.61 %** of")) == ["0.60 % of 10,000"]


def test_number_without_a_source_is_reported() -> None:
    assert not without_source(EXAMPLE)
    assert without_source(EXAMPLE.replace("there.", "there, 0.7 here."))[0].endswith("0.7")
