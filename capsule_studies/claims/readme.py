"""Writes the block of README.md."""

from __future__ import annotations

from collections.abc import Container

from capsule_studies.claims.read import ROOT, with_block
from capsule_studies.claims.texts import (
    anchor,
    by_claim,
    in_table,
    label_of_standin,
    not_struck,
    with_verdict,
)
from capsule_studies.claims.verdicts import VERDICTS, Judged, survivors

README = ROOT / "README.md"
START, END = "<!-- written by make claims -->\n", "<!-- end -->"


def short_form(every: list[Judged]) -> str:
    """Return the block: papers' claims by verdict, of which the decided ones with a key ``short`` are named."""
    of_papers = in_table(every, "A")
    tests = with_verdict(of_papers)
    claims = by_claim(tests)
    lines = [
        f"**[{len(claims)} claims of papers with a verdict](docs/claims.md), in {len(tests)} tests** of published "
        f"algorithms in small networks. {len(every) - len(tests)} others are not counted: preliminary, controls, ours, "
        "struck. †: not if corrected over the page.",
        "",
    ]
    changed = survivors(not_struck(every)).changed
    for verdict in VERDICTS:
        of_verdict = [each for each in tests if each.verdict == verdict]
        if of_verdict:
            phrases = [_phrase(each, changed) for each in of_verdict if _is_listed(each)]
            named = f": {'; '.join(phrases)}" if phrases else ""
            lines.append(f"- {verdict} ({len(of_verdict)}){named}")
    return "\n".join([*lines, ""])


def _is_listed(each: Judged) -> bool:
    return each.is_decided and "short" in each.claim


def _phrase(each: Judged, changed: Container[str]) -> str:
    mark = " †" if each.claim["id"] in changed else ""
    link = f"[{each.claim['id']}](docs/claims.md{anchor(each)})"
    return f"{link} {each.claim['short']}{mark}{label_of_standin(each)}"


def with_short_form(readme: str, every: list[Judged]) -> str:
    """Return README.md with the current short form."""
    return with_block(readme, START, END, short_form(every))
