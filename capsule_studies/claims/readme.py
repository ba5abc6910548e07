"""Writes the block of README.md."""

from __future__ import annotations

from capsule_studies.claims.read import ROOT, with_block
from capsule_studies.claims.texts import (
    anchor,
    by_claim,
    counted,
    in_table,
    label_of_standin,
    with_verdict,
)
from capsule_studies.claims.verdicts import VERDICTS, Judged

README = ROOT / "README.md"
START, END = "<!-- written by make claims -->\n", "<!-- end -->"


def short_form(every: list[Judged]) -> str:
    """Return the block: counts of papers' claims, and the decided ones with a key ``short``."""
    of_papers = in_table(every, "A")
    tests = with_verdict(of_papers)
    claims = by_claim(tests)
    lines = [
        f"**[{len(claims)} claims of papers with a verdict](docs/claims.md), in {len(tests)} tests** of published "
        f"algorithms in small networks ({counted(tests)}). {len(every) - len(tests)} others are not counted: "
        "preliminary, controls, ours, struck.",
        "",
    ]
    phrases: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
    for each in of_papers:
        if each.is_decided and "short" in each.claim:
            link = f"[{each.claim['id']}](docs/claims.md{anchor(each)})"
            phrase = f"{link} {each.claim['short']}{label_of_standin(each)}"
            phrases[each.verdict].append(phrase)
    for verdict, of_verdict in phrases.items():
        if of_verdict:
            lines.append(f"- {verdict}: {'; '.join(of_verdict)}")
    return "\n".join([*lines, ""])


def with_short_form(readme: str, every: list[Judged]) -> str:
    """Return README.md with the current short form."""
    return with_block(readme, START, END, short_form(every))
