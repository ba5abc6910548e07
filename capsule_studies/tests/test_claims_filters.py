"""Filters of the page of claims in a browser: ``docs/static/claims.js`` and ``claims.css``."""

from pathlib import Path
from typing import Any

import pytest

from capsule_studies.claims import page, read
from capsule_studies.tests.judged_claims import JUDGED

STATIC = read.ROOT / "docs" / "static"
SHOWN = ("C-013", "C-014", "C-026")  # holds; the opposite holds; preliminary, on a stand-in
pytestmark = [pytest.mark.whole, pytest.mark.integration]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a row and a folded proof of three tests, in a section of each."""
    labels = {each.claim["id"]: page._label_of(each) for each in JUDGED}
    parts = []
    for name in SHOWN:
        label = labels[name]
        row = f"<table><tr><td>row of {name} {label}</td></tr></table>"
        proof = f"<details><summary>{label}</summary>proof of {name}</details>"
        parts.append(f"<section>{row}<section id='{name.lower()}'>{proof}</section></section>")
    text = (
        f"<link rel=stylesheet href='{STATIC / 'claims.css'}'>"
        f"<section><div class=claim-filters></div>{''.join(parts)}<section>open points</section></section>"
        f"<script defer src='{STATIC / 'claims.js'}'></script>"
    )
    written = tmp_path_factory.mktemp("page") / "claims.html"
    written.write_text(text)
    return written


def shown(opened: Any) -> list[str]:
    """Return the rows that are visible."""
    rows = opened.locator("td:visible").all_inner_texts()
    return [name for name in SHOWN if any(f"row of {name}" in row for row in rows)]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"verdict": "holds"}, ["C-013"]),
        ({"paper": "Hinton 2018"}, ["C-013", "C-014", "C-026"]),
        ({"data": "toynorb, stand-in"}, ["C-026"]),
        ({"verdict": "the opposite holds", "data": "toynorb, stand-in"}, []),
    ],
    ids=lambda value: str(value),
)
def test_a_filter_hides_other_tests_and_their_proofs(
    browser: Any, file: Path, filters: dict[str, str], expected: list[str]
) -> None:
    opened = browser.new_page()
    opened.goto(file.as_uri())
    assert shown(opened) == [*SHOWN]
    for name, value in filters.items():
        opened.get_by_label(name).select_option(value)
    assert shown(opened) == expected
    assert opened.locator("details:visible").count() == len(expected)
    assert "open points" in opened.locator("body").inner_text()
    for name in filters:
        opened.get_by_label(name).select_option("")
    assert shown(opened) == [*SHOWN]


def test_a_link_to_a_test_opens_its_proof(browser: Any, file: Path) -> None:
    opened = browser.new_page()
    opened.goto(f"{file.as_uri()}#c-014")
    proofs = opened.locator("details[open]")
    proofs.wait_for()
    assert proofs.all_inner_texts()[0].endswith("proof of C-014")
    opened.get_by_role("button", name="open all").click()
    assert proofs.count() == len(SHOWN)
    opened.get_by_role("button", name="close all").click()
    assert proofs.count() == 0


def test_without_javascript_everything_is_visible(browser: Any, file: Path) -> None:
    opened = browser.new_context(java_script_enabled=False).new_page()
    opened.goto(file.as_uri())
    assert opened.locator("td:visible").count() == len(SHOWN)
    assert opened.locator("summary:visible").count() == len(SHOWN)
    assert not opened.locator(".claim-filters").is_visible()
