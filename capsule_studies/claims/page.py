"""Writes docs/claims.md and the block of README.md."""

from __future__ import annotations

import re
from collections import Counter
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from capsule_studies.claims.effects import PLANNED, UNKNOWN, Effect, effect_of
from capsule_studies.claims.needs import needs
from capsule_studies.claims.read import KINDS, RESULTS, ROOT, changes, open_points
from capsule_studies.claims.verdicts import (
    CORRECTION,
    HOLDS,
    OPEN,
    SMALL,
    VERDICTS,
    Judged,
    survivors,
)

PAGE, README = ROOT / "docs" / "claims.md", ROOT / "README.md"
FIGURE = RESULTS / "claims.png"
START, END = "<!-- written by make claims -->\n", "<!-- end -->"


def title(each: Judged) -> str:
    """Return the claim, with a label if its data are a stand-in."""
    return each.claim["claim"] + _label(each)


def _label(each: Judged) -> str:
    return "" if each.effect.real else f" [stand-in: {each.claim['data']}]"


def signed(value: float) -> str:
    """Round half away from zero, as the digits of the records say: a binary fraction of 0.415 is below 0.415."""
    step = Decimal("0.001") if abs(value) < 0.1 else Decimal("0.01")
    digits = str(float(f"{value:.6g}"))
    rounded = Decimal(digits).quantize(step, ROUND_HALF_UP)
    return f"{rounded:+}"


def p_value(p: float) -> str:
    """Return a p value as text."""
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def page(every: list[Judged]) -> str:
    """Return docs/claims.md."""
    lines = [_head(every)]
    topics: dict[str, list[Judged]] = {}
    for each in every:
        topics.setdefault(each.claim["topic"], []).append(each)
    for topic, of_topic in topics.items():
        lines += [f"## {topic}", ""]
        lines.append("| claim | kind | verdict | difference (95 % interval) | n | plan |")
        lines.append("|---|---|---|---|---|---|")
        lines += [_row(each) for each in of_topic]
        lines.append("")
        for each in of_topic:
            lines += _details(each)
    text = "\n".join(lines).rstrip()
    return f"{text}\n"


_HEAD = """# Claims

**{papers} claims of papers, tested with a published algorithm.** {counts}.

Other rows are counted apart:

{kinds}

The verdicts are about the networks, data and training lengths below, which are small: mostly MNIST for 1.6 epochs, and
a rendered stand-in for smallNORB (toynorb). No row tests a network of a paper in its own size on its own data to its
own schedule. Rows are not independent: many describe the networks of the same five seeds. The counts describe this
page, not capsule networks.

{rules}

Differences in the grey band do not matter. Intervals are not corrected for the number of tests. The direction
of a verdict is corrected; its size is not.

![Every difference with its interval](../results/claims.png)

- **Correction.** {correction}
- **Over the page.** After Holm's correction over all tests of all {rows} rows, {by_holm} of the {decided} decided rows
  remain decided. {different} differences have p < 0.05 before any correction; {by_bh} of {rows} remain below a false
  discovery rate of 5 % (Benjamini and Hochberg).
- **Standard errors** and their degrees of freedom are those of the report (Welch's, where deviations differ).
- **n** is the number of seeds, or of pairs of runs with the same seed; "3 of 8" means that 8 were planned. Intervals
  cover other seeds; those of a bootstrap over clusters of images also cover other toys. A repeated training on another
  make of processor differs by up to about 0.1 points.
- **Planned** means that the comparison (family, margin, test), its measures, rows and seeds stood in the table in the
  commit of every run, and that no result of this table was known when it was added ([plans.csv](../results/plans.csv)
  has the commits). *Plan not verifiable*: the commit of the runs does not exist in this repository. *After the fact*:
  all others. Directions, and margins that the table does not have, were written down when many results were known.

`make claims` writes this page from [claims.yaml](claims.yaml) and the records in [results/](../results/README.md), so
a new run can change a verdict. Commands below read run directories; in a clone, unpack the archive first, as the line
"Records" says.

## Verdicts that changed after results were known

Two readers read two drafts, one as an advocate and one as a sceptic of capsules; a referee read the page of version
a7db179c. After each reading, claims were removed, replaced or judged again, with their results known.

| claim | before | after | changed in | reason |
|---|---|---|---|---|
{changed}

## Open points

{open_points}
"""


def _head(every: list[Judged]) -> str:
    papers = _of_kind(every, "paper")
    rules = []
    for name, rule in VERDICTS.items():
        capitalised = name[0].upper() + name[1:]
        rules.append(f"- **{capitalised}**: {rule}")
    changed = []
    for change in changes():
        cells = [change[key] for key in ("claim", "before", "after", "commit", "reason")]
        changed.append(_line(cells))
    points = [f"- {point}" for point in open_points()]
    over_page = survivors(every)
    return _HEAD.format(
        papers=len(papers),
        counts=counted(papers),
        kinds="\n".join(_other_kinds(every)),
        rules="\n".join(rules),
        correction=CORRECTION,
        rows=len(every),
        by_holm=over_page.by_holm,
        decided=over_page.decided,
        different=over_page.different,
        by_bh=over_page.by_benjamini_hochberg,
        changed="\n".join(changed),
        open_points="\n".join(points),
    )


def _other_kinds(every: list[Judged]) -> list[str]:
    lines = []
    for kind, meaning in KINDS.items():
        of_kind = _of_kind(every, kind)
        if kind != "paper":
            lines.append(f"- **{kind}** ({len(of_kind)} {meaning}). {counted(of_kind)}")
    return lines


def _of_kind(every: list[Judged], kind: str) -> list[Judged]:
    return [each for each in every if each.claim["kind"] == kind]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _row(each: Judged) -> str:
    verdict = f"**{each.verdict}**"
    numbers = f"{_interval(each.effect)} {each.claim['unit']}"
    kind = each.claim["kind"]
    return _line([title(each), kind, verdict, numbers, _count(each.effect), _plan(each)])


def _interval(effect: Effect) -> str:
    return f"{signed(effect.found.estimate)} ({signed(effect.low)} to {signed(effect.high)})"


def _count(effect: Effect) -> str:
    if effect.count < effect.plan.seeds:
        return f"{effect.count} of {effect.plan.seeds}"
    return str(effect.count)


def _plan(each: Judged) -> str:
    plan = each.effect.plan
    if plan.label == PLANNED and plan.margin != each.claim["smallest"]:
        return f"{plan.label}, but for the margin"
    return plan.label


def _details(each: Judged) -> list[str]:
    claim = each.claim
    predicted = {"less": "smaller", "more": "larger"}[claim["expects"]]
    matters = f"{claim['smallest']:g} {claim['unit']}"
    lines = [
        f"**{title(each)}** ({claim['by']}): {each.verdict}.",
        "",
        f"- Test: {claim['test']} The claim predicts a {predicted} value; {matters} would matter.",
        f"- Statistics: {_statistics(each)}.",
    ]
    for what, beside in claim.get("beside", {}).items():
        lines.append(f"- {what}: {_outcome(beside)}")
    if "planned_first" in claim:
        planned_first = _outcome({"comparison": claim["planned_first"]})
        lines.append(f"- The measure that was planned first: {planned_first}")
    if each.equivalence:
        lines.append(f"- Test of equivalence: {each.equivalence}")
    lines += _warnings(each.effect)
    lines.append(f"- Scale: {claim['scale']}")
    if not each.is_decided:
        lines.append(f"- Needs: {needs(each)}")
    lines.append(f"- What would change the verdict: {claim['change']}")
    lines += [f"- Command: `{claim['command']}`", f"- Records: {_records(claim)}", ""]
    if claim.get("figure") and each.verdict in (HOLDS, OPEN, SMALL):
        lines += [f"![{title(each)}](../results/{claim['figure']})", ""]
    return lines


def _statistics(each: Judged) -> str:
    """Describe the test, its error, and both p values."""
    found = each.effect.found
    parts = [
        f"{found.test}, {_plan(each)}",
        f"standard error {found.error:.3g} with {found.df:.3g} degrees of freedom",
        f"as one of {each.tests} tests, no difference: {p_value(each.p)}",
        f"a difference that matters: {p_value(each.p_of_smaller)}",
        f"one in the other direction: {p_value(each.p_of_larger)}",
    ]
    return "; ".join(parts)


def _outcome(source: dict[str, Any]) -> str:
    """Describe a difference that does not decide the claim."""
    effect = effect_of({"claim": "a difference beside a claim", **source})
    corrected = f", {p_value(effect.p_of_report)} in its report" if effect.plan.family_p else ""
    p = effect.found.p
    assert p is not None
    return f"{_interval(effect)}, {p_value(p)} uncorrected{corrected}, n = {effect.count}."


def _warnings(effect: Effect) -> list[str]:
    plan = effect.plan
    lines = []
    if plan.label == UNKNOWN:
        missing = ", ".join(plan.missing)
        lines.append(f"- Commit of the runs that does not exist in the repository: {missing}.")
    if len(plan.commits) > 1:
        commits = f"runs of {len(plan.commits)} commits ({', '.join(plan.commits)})"
        lines.append(f"- Warning of the report: {commits}, so differences may come from the code.")
    return lines


def _records(claim: dict[str, Any]) -> str:
    """Say how to get the run directories that the command reads."""
    if "records" in claim:
        return str(claim["records"])
    table = re.search(r"table=(\w+)", claim["command"])
    name = claim.get("archive", table[1] if table else "")
    archive = f"{name}_runs.tar.gz"
    if not (RESULTS / archive).is_file():
        return (
            "no archive of run directories; the numbers come from the CSV of runs in results/, "
            "and the command trains."
        )
    return f"`tar xzf results/{archive} -C runs`, then the command."


def counted(every: list[Judged]) -> str:
    """Return how many claims have each verdict."""
    counts = Counter(each.verdict for each in every)
    parts = [f"{verdict}: {counts[verdict]}" for verdict in VERDICTS if counts[verdict]]
    return "; ".join(parts)


def short_form(every: list[Judged]) -> str:
    """Return the block of README.md: counts of papers' claims, and the decided ones with a key ``short``."""
    papers = _of_kind(every, "paper")
    lines = [
        f"**[{len(papers)} claims of papers](docs/claims.md), tested with a published algorithm** in small networks "
        f"({counted(papers)}). {len(every) - len(papers)} other rows, which are counted apart, concern claims changed "
        "from a paper, an algorithm of ours, controls, and tests decided by construction.",
        "",
    ]
    phrases: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
    for each in papers:
        if each.is_decided and "short" in each.claim:
            phrases[each.verdict].append(each.claim["short"] + _label(each))
    for verdict, of_verdict in phrases.items():
        if of_verdict:
            lines.append(f"- {verdict}: {'; '.join(of_verdict)}")
    return "\n".join([*lines, ""])


def with_short_form(readme: str, every: list[Judged]) -> str:
    """Return README.md with the current short form."""
    pattern = re.compile(re.escape(START) + ".*?" + re.escape(END), re.DOTALL)
    return pattern.sub(lambda _: START + short_form(every) + END, readme)
