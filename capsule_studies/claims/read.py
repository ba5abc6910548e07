"""Reads docs/claims.yaml; replaces a generated block of a text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from capsule_lab.errors import ConfigError, closest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
CLAIMS = ROOT / "docs" / "claims.yaml"
KINDS = {
    "paper": "claims of a paper, tested with a published algorithm",
    "implied": "claims that follow from a paper, or that change one",
    "ours": "claims and questions tested with normalised evidence, an algorithm of this project",
    "control": "controls and questions of this project",
    "tautology": "tests that their construction decides, or a network that breaks",
}

KEYS = frozenset(
    {
        "algorithm",
        "archive",
        "asks",
        "beside",
        "by",
        "caveat",
        "change",
        "claim",
        "command",
        "comparison",
        "data",
        "expects",
        "figure",
        "first",
        "id",
        "kind",
        "network",
        "paired",
        "pairing",
        "pending",
        "planned_first",
        "published",
        "records",
        "scale",
        "second",
        "short",
        "smallest",
        "source",
        "struck",
        "test",
        "topic",
        "unit",
    }
)
"""Keys of a claim; the head of docs/claims.yaml explains them."""


def read(*, pending: bool = False) -> list[dict[str, Any]]:
    """Return the claims of docs/claims.yaml with the keys of their groups, or those whose records are ``pending``.

    Raises:
        ConfigError: for a key that no claim has, because a misspelt one could change a verdict.
    """
    claims = []
    for group in _section("topics"):
        own = group.pop("claims")
        claims += [{**group, **claim} for claim in own]
    for claim in claims:
        for key in claim.keys() - KEYS:
            meant = closest(key, KEYS)
            hint = f"; did you mean {meant}?" if meant else ""
            raise ConfigError(
                f"docs/claims.yaml, {claim.get('id')}: no claim has the key {key}{hint}"
            )
    return [claim for claim in claims if claim.get("pending", False) is pending]


def measured() -> list[dict[str, Any]]:
    """Return the rows about costs, which have no seeds; see ``measured.py``."""
    return _section("measured")


def margins() -> dict[tuple[str, str], str]:
    """Return why a difference matters, by table and difference: ``("routing_pays", "0.1 points")``."""
    reasons = {}
    for each in _section("margins"):
        for table in each["tables"]:
            reasons[table, each["margin"]] = each["reason"]
    return reasons


def changes() -> list[dict[str, str]]:
    """Return the verdicts that changed after results were known."""
    return _section("changed")


def open_points() -> list[str]:
    """Return what only new runs or a later version of the page can answer."""
    return _section("open")


def reviews() -> list[str]:
    """Return the readings of the page, the first one first."""
    return _section("reviews")


def referee() -> list[dict[str, str]]:
    """Return the points of the first referee, and what became of them."""
    return _section("referee")


def versions() -> list[dict[str, Any]]:
    """Return the versions of the page, the newest first."""
    return _section("versions")


def abstract() -> list[dict[str, Any]]:
    """Return the sentences of the abstract, with the verdicts that they need."""
    return _section("abstract")


def _section(name: str) -> list[Any]:
    # written in C, which reads it seven times as fast
    content = yaml.load(CLAIMS.read_text(), Loader=yaml.CSafeLoader)
    found: list[Any] = content[name]
    return found


def with_block(text: str, start: str, end: str, block: str) -> str:
    """Return a text with another block between two lines that say who writes it.

    Raises:
        ConfigError: if the lines are not there.
    """
    if start not in text or end not in text.partition(start)[2]:
        raise ConfigError(
            f"the text has no lines {start.strip()!r} and {end.strip()!r}, between which it is written"
        )
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    return pattern.sub(lambda _: start + block + end, text)
