"""Writes docs/claims.md."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from capsule_lab.errors import ConfigError
from capsule_studies.claims import computation, texts
from capsule_studies.claims.computation import Computation
from capsule_studies.claims.effects import UNKNOWN, Effect, effect_of
from capsule_studies.claims.figure import PAPERS, name_of
from capsule_studies.claims.images import recorded
from capsule_studies.claims.measured import (
    BENCHMARK,
    COUNT,
    ratios_of,
    record_of,
    records_of,
    shown,
)
from capsule_studies.claims.needs import needs
from capsule_studies.claims.published import why_none
from capsule_studies.claims.read import (
    RESULTS,
    ROOT,
    abstract,
    changes,
    margins,
    measured,
    open_points,
    referee,
    reviews,
    versions,
)
from capsule_studies.claims.recompute import archives_of, files_of
from capsule_studies.claims.verdicts import (
    CORRECTION,
    HOLDS,
    OPEN,
    OPPOSITE_NOT,
    SMALL,
    VERDICTS,
    Judged,
    Survivors,
    survivors,
)

PAGE = ROOT / "docs" / "claims.md"
_ALGORITHMS = {"dynamic": "dynamic routing", "EM": "EM routing (Hinton 2018)"}
_STRUCK = "struck"

_HEAD = """# Claims

{abstract}

Version {version} of {date}; [what changed](#changes-of-this-page). To cite the page or its data:
[CITATION.cff](../CITATION.cff). The counts describe this page, not capsule networks: rows are not independent, since
several compare with the same sample of networks, such as one of EM with three iterations. †: another verdict if
corrected over the whole page.

<div class="claim-filters"></div>

<details><summary>What the verdicts mean</summary>

{verdicts}

Differences in the grey band of the figures do not matter. Intervals are not corrected for the number of tests. The
direction of a verdict is corrected; its size is not.

</details>

<details><summary>Statistics</summary>

- **Correction.** {correction}
- **Over the page.** After Holm's correction over all tests of the {rows} rows that are not struck, {kept} of the
  {decided} decided rows keep their verdict. The others, which have a † in the abstract, would have another:
  {changed}. {different} differences have p < 0.05 before any correction; {by_bh} of {rows} remain below a false
  discovery rate of 5 % (Benjamini and Hochberg).
- **Standard errors** and their degrees of freedom are those of the report (Welch's, where deviations differ).
- **Margin**: the smallest difference that would matter. Each proof has its size as Hedges' g, and where it comes from.
- **n** is the number of seeds, or of pairs of runs with the same seed; "3 of 8" means that 8 were planned. Intervals
  cover other seeds; those over clusters of images also cover other toys.
{over_images}
- **Computation**: parameters include those of a decoder. Multiplications are those of a prediction, without the
  decoder, with votes stored ([claims_computation.csv](../results/claims_computation.csv)); training used kernels that
  compute votes again in each iteration. Times are given where all runs have one kind of processor.
- **g** is Hedges' g: the difference in standard deviations of single runs.
- **Planned** means that the comparison (family, margin, test), its measures, rows and seeds stood in the table in the
  commit of every run, and that no result of this table was known when it was added ([plans.csv](../results/plans.csv)
  has the commits). An analysis may be planned although its *networks* were *trained before the plan*. *Plan not
  verifiable*: the commit of a run is not in the history of this repository. *After the fact*: all others. Directions,
  and margins that the table does not have, were written down when many results were known.

</details>

<details><summary>How to repeat a test</summary>

`make claim id=C-017` computes a test again from its archive in [results/](../results/README.md).
`make claim id=C-017 train=true` trains its networks with new seeds. `make claims` writes this page from
[claims.yaml](claims.yaml) and the records, so a new run can change a verdict.

</details>

## Table A: claims of papers

{papers} claims with a verdict, in {tests} tests with a published algorithm and five or more runs: {counts}. Only these
are counted. {preliminary} preliminary tests, with fewer runs, are listed with their label.
Several algorithms may test the same claim; the column "network" says what differs from the network of the paper.
"""

_TEST_IMAGES = """\
- **Test images** are the same for all networks. In {rows} rows, which compare errors and whose archives have all
  predictions, the proof also has an interval over other seeds and other test images, as crossed random effects. It
  counts the chance of a single prediction twice, and so is too wide rather than too narrow. {different} of these rows
  have an interval on one side of no difference; over other test images, {included} include no difference{listed}.
  Verdicts are over seeds."""

_BESIDE_PAPERS = """### A: our differences beside those of the papers

A diamond is the difference of the paper. It is filled if the networks are comparable: the same data, errors within a
factor of two of those of the paper, and at least a tenth of its training. Others are open, and the rows say why.
{comparable}

![Our differences beside those of the papers](../results/claims/{figure})
"""

_B = """## Table B: controls and questions of ours

{tests} tests which are not counted: they use normalised evidence, an algorithm of this project, or ask what no paper
claims for networks like these.
"""

_MEASURED = """## Measured: cost

These rows have no seeds, and so no interval, no test and no verdict. They are not counted.

### Cost: parameters, time and memory
"""

_C = """## Table C: struck

What is not counted and why, so that nobody adds it again.

### C: {tests} tests decided by their construction
"""

_REMOVED = """### C: claims removed after results were known
"""

_CHANGES = """## Changes of this page

{versions}

Who read it:

{reviews}

After each reading, claims were removed, replaced or judged again, with their results known.

<details><summary>{points} points of the first referee, and what became of them</summary>

{referee}
</details>

<details><summary>{count} verdicts that changed after results were known</summary>

| claim | before | after | changed in | reason |
|---|---|---|---|---|
{changed}

</details>

## Open points

{open_points}
"""

_REPEATS = {
    COUNT: "counts again.",
    BENCHMARK: "computes the ratios again from the record.",
}
_COLUMNS_OF_MEASURED = ["id", "claim", "paper and its number", "ours", "hardware"]

_COLUMNS = [
    "id",
    "claim",
    "paper and its number",
    "data",
    "n",
    "difference (95 %), Hedges' g",
    "plan",
    "verdict",
]


def page(every: list[Judged]) -> str:
    """Return docs/claims.md."""
    of_papers = texts.in_table(every, "A")
    own = texts.in_table(every, "B")
    struck = texts.in_table(every, "C")
    changed = over_the_page(every).changed
    proof = partial(
        _proof,
        over_page=changed,
        over_images=recorded(),
        computed=computation.recorded(),
        reasons=margins(),
    )
    rows = measured()
    parts = [
        _head(every, of_papers),
        _overview(of_papers),
        _beside_papers(of_papers),
        *_topics("A", of_papers, proof),
        _B.format(tests=len(own)),
        *_topics("B", own, proof),
        _MEASURED,
        _measured_rows(rows),
        *map(_measured_proof, rows),
        _C.format(tests=len(struck)),
        _struck_rows(struck),
        *map(proof, struck),
        _REMOVED,
        _removed_rows(),
        _end(),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _head(every: list[Judged], of_papers: list[Judged]) -> str:
    newest = versions()[0]
    over_page = over_the_page(every)
    with_verdict = texts.with_verdict(of_papers)
    rules = [["verdict", "rule"]]
    for name, rule in VERDICTS.items():
        rules.append([_label(name), rule])
    return _HEAD.format(
        abstract=abstract_of(every),
        version=newest["version"],
        date=newest["date"],
        verdicts=_table(rules),
        correction=CORRECTION,
        rows=len(texts.not_struck(every)),
        kept=over_page.decided - len(over_page.changed),
        changed=_changed(every, over_page.changed),
        decided=over_page.decided,
        different=over_page.different,
        over_images=_over_images(every),
        by_bh=over_page.by_benjamini_hochberg,
        papers=len(texts.by_claim(with_verdict)),
        tests=len(with_verdict),
        counts=texts.counted(with_verdict),
        preliminary=len(of_papers) - len(with_verdict),
    )


def _over_images(every: list[Judged]) -> str:
    """Say how many intervals include no difference once they also cover other test images."""
    intervals = recorded()
    different = 0
    included = []
    for each in texts.not_struck(every):
        name = each.claim["id"]
        if name not in intervals or each.effect.low < 0 < each.effect.high:
            continue
        different += 1
        low, high = intervals[name]
        if low < 0 < high:
            included.append(name)
    listed = f" ({', '.join(included)})" if included else ""
    return _TEST_IMAGES.format(
        rows=len(intervals),
        different=different,
        included=len(included),
        listed=listed,
    )


def _changed(every: list[Judged], verdicts: dict[str, str]) -> str:
    """List the rows that a correction over all rows changes, by their new verdict."""
    names: dict[str, list[str]] = {}
    for each in every:
        name = each.claim["id"]
        if name in verdicts:
            of_verdict = names.setdefault(verdicts[name], [])
            of_verdict.append(name + texts.label_of_standin(each))
    parts = []
    for verdict, of_verdict in names.items():
        listed = ", ".join(of_verdict)
        parts.append(f"{verdict}: {listed}")
    return "; ".join(parts)


def over_the_page(every: list[Judged]) -> Survivors:
    """Return what a correction over all rows leaves; what is struck has no verdict to correct."""
    return survivors(texts.not_struck(every))


def abstract_of(every: list[Judged]) -> str:
    """Return the abstract; a sentence whose verdicts have changed is an error, because it has to be written anew."""
    of_papers = texts.in_table(every, "A")
    with_verdict = texts.with_verdict(of_papers)
    not_decided = [each for each in with_verdict if not each.is_decided]
    values: dict[str, Any] = {
        "claims": len(texts.by_claim(with_verdict)),
        "tests": len(with_verdict),
        "undecided": len(not_decided),
        "preliminary": len(of_papers) - len(with_verdict),
    }
    verdicts = {}
    changed = over_the_page(every).changed
    for each in every:
        name = each.claim["id"]
        mark = " †" if name in changed else ""
        badge = "" if each.effect.real else f" {_badge(each)}"
        numbers = f"{texts.interval(each.effect)}, n = {each.effect.count}{mark}{badge}"
        values[name] = f"([{name}]({texts.anchor(each)}): {numbers})"
        verdicts[name] = each.verdict
    sentences = []
    for sentence in abstract():
        for name, expected in sentence.get("verdicts", {}).items():
            if not verdicts[name].startswith(expected):
                raise ConfigError(
                    f"The abstract says of {name}: {expected}, but its verdict is: {verdicts[name]}. "
                    "Write the sentence anew in docs/claims.yaml, section abstract."
                )
        sentences.append(sentence["text"].format_map(values))
    return " ".join(sentences)


def _table(rows: list[list[str]]) -> str:
    """Return a table in Markdown; the first row has the names of the columns."""
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    rule = "|" + "---|" * len(rows[0])
    return "\n".join([lines[0], rule, *lines[1:], ""])


def _label(verdict: str, attributes: str = "") -> str:
    return f'<span class="verdict {texts.slug(verdict)}"{attributes}><b>{verdict}</b></span>'


def _label_of(each: Judged) -> str:
    """Return the verdict as a label; the filters of the site read its attributes."""
    is_struck = texts.TABLES[each.claim["kind"]] == "C"
    verdict = _STRUCK if is_struck else each.verdict
    name = "no paper"
    paper = re.search(r"[A-Z]\w+( and [A-Z]\w+)? \d{4}", each.claim["by"])
    if paper:
        name = paper[0]
        if texts.TABLES[each.claim["kind"]] != "A":  # the paper does not claim it for this network
            name = f"after {name}"
    return _label(verdict, f' data-paper="{name}" data-data="{texts.data(each)}"')


def _badge(each: Judged) -> str:
    name = "badge" if each.effect.real else "badge standin"
    return f'<span class="{name}">{texts.data(each)}</span>'


def _link(each: Judged) -> str:
    return f"[{each.claim['id']}]({texts.anchor(each)})"


def _overview(of_papers: list[Judged]) -> str:
    """Return a table with a row for each claim, and the algorithms that test it in columns."""
    others = "another algorithm or network"
    rows = [["claim", "paper and its number", "network", *_ALGORITHMS.values(), others]]
    for claim, tests in texts.by_claim(of_papers).items():
        cells: dict[str, list[str]] = {name: [] for name in [*_ALGORITHMS.values(), others]}
        for each in tests:
            algorithm = each.claim["algorithm"]
            cell = f"{_link(each)} {_label_of(each)} {_badge(each)}"
            if algorithm in _ALGORITHMS:
                cells[_ALGORITHMS[algorithm]].append(cell)
            else:
                cells[others].append(f"{algorithm}: {cell}")
        papers = _unique(each.claim["by"] for each in tests)
        networks = _unique(_parts_of_networks(tests))
        verdicts = ["<br>".join(of_algorithm) for of_algorithm in cells.values()]
        rows.append([claim, papers, networks, *verdicts])
    return _table(rows)


def _beside_papers(of_papers: list[Judged]) -> str:
    """Return the section of the figure, with the rows whose networks are comparable with those of their papers."""
    comparable = []
    for each in of_papers:
        if each.published is not None and not each.published.why_not_compared:
            comparable.append(_link(each))
    if comparable:
        sentence = f"Comparable are {', '.join(comparable)}, whose proofs have the ratio of the two differences."
    else:
        sentence = "No row is comparable today, so that none has a ratio of the two differences."
    return _BESIDE_PAPERS.format(comparable=sentence, figure=PAPERS)


def _parts_of_networks(tests: list[Judged]) -> list[str]:
    """Return what the column "network" says, in parts that several tests may share."""
    parts = []
    for each in tests:
        network: str = each.claim["network"]
        parts += network.split("; ")
    return parts


def _unique(names: Any) -> str:
    return "; ".join(dict.fromkeys(names))


def _topics(table: str, tests: list[Judged], proof: Callable[[Judged], str]) -> list[str]:
    """Return the sections of a table: a figure, a row for each test, and its proof."""
    parts = []
    for topic, of_topic in texts.by_topic(tests).items():
        rows = [_COLUMNS]
        for each in of_topic:
            rows.append(_row(each))
        parts += [
            f"### {table}: {topic}\n",
            f"![{table}: {topic}](../results/claims/{name_of(table, topic)})\n",
            _table(rows),
            *map(proof, of_topic),
        ]
    return parts


def _row(each: Judged) -> list[str]:
    claim = each.claim
    return [
        _link(each),
        _claim(claim),
        _paper(each),
        _badge(each),
        texts.count(each.effect),
        _difference(each),
        texts.plan(each),
        _label_of(each),
    ]


def _claim(claim: dict[str, Any]) -> str:
    """Return a claim and what a reader of its row has to know."""
    words: str = claim["claim"]
    if "caveat" in claim:
        words += f"<br>*{claim['caveat']}*"
    return words


def _difference(each: Judged) -> str:
    numbers = f"{texts.interval(each.effect)} {each.claim['unit']}"
    g = each.effect.hedges_g
    return numbers if g is None else f"{numbers}; g = {g:+.3g}"


def _paper(each: Judged) -> str:
    """Return who claims it, and the difference of the paper."""
    by: str = each.claim["by"]
    found = each.published
    if found is None:
        return by
    conditions = found.data
    if found.why_not_compared:
        conditions += f"; not compared, because {found.why_not_compared}"
    difference = texts.signed(found.difference)
    return f"{by}. Its difference: {difference} points ({conditions})"


def _struck_rows(struck: list[Judged]) -> str:
    rows = [["id", "claim", "data", "n", "difference (95 %), Hedges' g", "reason", "verdict"]]
    for each in struck:
        claim = each.claim
        cells = [
            _link(each),
            _claim(claim),
            _badge(each),
            texts.count(each.effect),
            _difference(each),
            claim["struck"],
            _label_of(each),
        ]
        rows.append(cells)
    return _table(rows)


def _removed_rows() -> str:
    rows = [["claim", "verdict before", "after", "reason"]]
    for change in changes():
        if change["after"].startswith("removed"):
            rows.append([change[key] for key in ("claim", "before", "after", "reason")])
    return _table(rows)


def _measured_rows(rows: list[dict[str, Any]]) -> str:
    table = [_COLUMNS_OF_MEASURED]
    for row in rows:
        name = row["id"]
        ours = [f"{ratio.name}: {ratio.value:.3g} times" for ratio in ratios_of(row)]
        cells = [
            f"[{name}](#{name.lower()})",
            row["claim"],
            f"{row['by']}. {row['published']}",
            "; ".join(ours),
            record_of(row).hardware or "any",
        ]
        table.append(cells)
    return _table(table)


def _measured_proof(row: dict[str, Any]) -> str:
    """Return the heading of a row about costs, and all its numbers, folded."""
    lines = [
        f"#### {row['id']}",
        "",
        f"<details><summary>{html.escape(row['claim'], quote=False)}</summary>",
        "",
        f"- Claimed by: {row['by']}: {row['published']}.",
    ]
    for ratio in ratios_of(row):
        lines.append(f"- Ours, {ratio.name}: {shown(ratio)}.")
    record = record_of(row)
    if record.hardware:
        lines.append(f"- Hardware: {record.hardware}; commit {record.commit}.")
    files = " and ".join(f"[{file}](../{file})" for file in records_of(row))
    lines += [
        f"- Record: {files}. {row['record']}",
        f"- Differences from the paper: {row['differs']}",
        f"- Repeat: `make claim id={row['id']}` {_REPEATS[row['kind']]}",
    ]
    if "command" in row:
        lines.append(f"- Measure again: `{row['command']}`")
    return "\n".join([*lines, "", "</details>", ""])


def _proof(
    each: Judged,
    over_page: dict[str, str],
    over_images: dict[str, tuple[float, float]],
    computed: dict[str, tuple[Computation, Computation]],
    reasons: dict[tuple[str, str], str],
) -> str:
    """Return the heading of a test, and what supports its verdict, folded.

    ``over_page`` has the verdicts that a correction over the whole page would change, ``over_images`` the intervals
    that also cover other test images, ``computed`` what both networks compute; ``reasons`` is ``margins()``.
    """
    claim = each.claim
    predicted = {"less": "smaller", "more": "larger"}[claim["expects"]]
    name = html.escape(texts.title(each), quote=False)
    lines = [
        f"#### {claim['id']}",
        "",
        f"<details><summary>{name} {_label_of(each)}</summary>",
        "",
        f"- Claimed by: {claim['by']}.",
        f"- Test: {claim['test']} The claim predicts a {predicted} value.",
        f"- Margin: {_margin(each, reasons)}.",
        f"- Statistics: {_statistics(each)}.",
    ]
    if claim["id"] in over_images:
        low, high = over_images[claim["id"]]
        limits = f"{texts.signed(low)} to {texts.signed(high)} {claim['unit']}"
        lines.append(f"- Interval over other seeds and other test images: {limits}.")
    if "pairing" in claim:
        lines.append(f"- Pairing, by the plan: {claim['pairing']}.")
    if "network" in claim:
        lines.append(f"- Network: {claim['network']}.")
    if claim["id"] in computed:
        lines.append(f"- Computation: {_computation(claim, computed[claim['id']])}.")
    if "caveat" in claim:
        lines.append(f"- Caution: {claim['caveat']}")
    corrected = over_page.get(claim["id"])
    if corrected:
        lines.append(f"- Corrected over the whole page: {corrected}.")
    for what, beside in claim.get("beside", {}).items():
        lines.append(f"- {what}: {_outcome(beside)}")
    if "planned_first" in claim:
        planned_first = _outcome({"comparison": claim["planned_first"]})
        lines.append(f"- The measure that was planned first: {planned_first}")
    lines += _of_paper(each)
    if each.equivalence:
        lines.append(f"- Test of equivalence: {each.equivalence}")
    lines += _warnings(each.effect)
    lines.append(f"- Scale: {claim['scale']}")
    if not each.is_decided or each.verdict == OPPOSITE_NOT:
        lines.append(f"- Needs: {needs(each)}")
    has_archives = all(archive.is_file() for archive in archives_of(claim).values())
    source = "the archive" if has_archives else "the CSV of runs"
    lines += [
        f"- What would change the verdict: {claim['change']}",
        f"- Repeat: `make claim id={claim['id']}` from {source}, `make claim id={claim['id']} train=true` with new "
        f"seeds. The whole table: `{claim['command']}`",
        f"- Records: {_records(claim)}",
        "",
    ]
    if claim.get("figure") and each.verdict in (HOLDS, OPEN, SMALL):
        lines += [f"![{texts.title(each)}](../results/{claim['figure']})", ""]
    return "\n".join([*lines, "</details>", ""])


def _computation(claim: dict[str, Any], networks: tuple[Computation, Computation]) -> str:
    """Compare parameters, multiplications and, on one kind of hardware, times of two networks."""
    first, second = networks
    millions = [_short(each.multiplications / 1e6) for each in networks]
    parts = [
        f"{first.parameters:,} against {second.parameters:,} parameters",
        f"{millions[0]} against {millions[1]} million multiplications for an image",
    ]
    minutes = computation.minutes_of(claim)
    if minutes is not None:
        times = " against ".join(map(_short, minutes))
        parts.append(f"{times} minutes of training (medians, beside other work)")
    return "; ".join(parts)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _margin(each: Judged, reasons: dict[tuple[str, str], str]) -> str:
    """Return the smallest difference that would matter, and who set it from what."""
    claim = each.claim
    table, *_ = files_of(claim)
    margin = f"{claim['smallest']:g} {claim['unit']}"
    if (table, margin) not in reasons:
        raise ConfigError(
            f"{claim['id']}: {margin} would matter in {table}, and docs/claims.yaml, section margins, has no reason; "
            "write down who set it, and from what"
        )
    as_g = each.effect.margin_as_g(claim)
    size = "" if as_g is None else f" (g = {as_g:.2g})"
    return f"{margin}{size} would matter, {reasons[table, margin]}"


def _statistics(each: Judged) -> str:
    """Describe the test, its error, and both p values."""
    found = each.effect.found
    parts = [
        f"{texts.interval(each.effect)} {each.claim['unit']}, n = {texts.count(each.effect)}",
        f"{found.test}, {texts.plan(each)}",
        f"standard error {found.error:.3g} with {found.df:.3g} degrees of freedom",
        f"as one of {each.tests} tests, no difference: {texts.p_value(each.p)}",
        f"a difference that matters: {texts.p_value(each.p_of_smaller)}",
        f"one in the other direction: {texts.p_value(each.p_of_larger)}",
    ]
    if each.effect.hedges_g_interval is not None:
        low, high = each.effect.hedges_g_interval
        parts.append(f"Hedges' g {each.effect.hedges_g:+.3g} ({low:+.3g} to {high:+.3g})")
    return "; ".join(parts)


def _of_paper(each: Judged) -> list[str]:
    """Return a line about the numbers of the paper, and what they say about ours."""
    found = each.published
    if found is None:
        reason = why_none(each.claim)
        return [f"- Number of the paper: none; {reason}."] if reason else []
    numbers = f"{found.first:g} against {found.second:g} {found.unit} on {found.data}"
    difference = f"{texts.signed(found.difference)} ({texts.signed(found.low)} to {texts.signed(found.high)})"
    parts = [f"{found.source}: {numbers}, a difference of {difference}, from {found.interval_from}"]
    if found.why_not_compared:
        parts.append(f"not compared, because {found.why_not_compared}")
    else:
        parts.append(f"our interval {'excludes' if found.excluded else 'includes'} it")
    if found.ratio is not None:
        parts.append(f"our difference is {found.ratio:.2g} times as large")
    if found.training:
        parts.append(f"training: {found.training}")
    if found.compute is not None and found.differs != "less training":
        parts.append(f"our networks saw {100 * found.compute:.2g} % as many training images")
    return [f"- Number of the paper: {'; '.join(parts)}."]


def _outcome(source: dict[str, Any]) -> str:
    """Describe a difference that does not decide the claim."""
    effect = effect_of({"claim": "a difference beside a claim", **source})
    p = effect.found.p
    assert p is not None
    return f"{texts.interval(effect)}, {texts.p_value(p)} uncorrected, n = {effect.count}."


def _warnings(effect: Effect) -> list[str]:
    plan = effect.plan
    lines = []
    if plan.label == UNKNOWN:
        missing = ", ".join(plan.missing)
        lines.append(
            f"- Commit of the runs that is not in the history of the repository: {missing}."
        )
    if len(plan.commits) > 1:
        commits = f"runs of {len(plan.commits)} commits ({', '.join(plan.commits)})"
        lines.append(f"- Warning: {commits}, so differences may come from the code.")
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
    return f"`tar xzf results/{archive} -C runs`, then the command of the table."


def _end() -> str:
    of_page = []
    for each in versions():
        of_page.append(f"- **{each['version']}** ({each['date']}): {each['text']}")
    changed = []
    for change in changes():
        cells = [change[key] for key in ("claim", "before", "after", "commit", "reason")]
        changed.append("| " + " | ".join(cells) + " |")
    points = [f"- {point}" for point in open_points()]
    answers = [["point", "what became of it"]]
    for each in referee():
        answers.append([each["point"], each["answer"]])
    return _CHANGES.format(
        versions="\n".join(of_page),
        reviews="\n".join(f"- {each}" for each in reviews()),
        points=len(referee()),
        referee=_table(answers),
        count=len(changed),
        changed="\n".join(changed),
        open_points="\n".join(points),
    )
