"""Parts of the documentation site that are derived from code and records; see ``docs/conf.py``."""

import re
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).parents[1]
ALGORITHMS = {  # page: file in capsule_lab/routing, file and function in tests/reference, start of its measured rows
    "attention_over_children": (
        "attention_over_children",
        "attention_over_children_loops",
        "attention_over_children_loops",
        "none",
    ),
    "dynamic_routing": ("dynamic", "loops", "dynamic_routing_loops", "dynamic"),
    "em_routing": ("em", "em_loops", "em_routing_graph", "em_"),
    "heinsen": ("heinsen", "heinsen_loops", "heinsen_loops", "heinsen"),
    "inverted_attention": (
        "inverted_attention",
        "inverted_attention_loops",
        "inverted_attention_loops",
        "inverted",
    ),
    "scaled_distance": (
        "scaled_distance",
        "scaled_distance_loops",
        "scaled_distance_loops",
        "distance",
    ),
    "self_attention": (
        "self_attention",
        "self_attention_loops",
        "self_attention_loops",
        "self_attention",
    ),
    "self_routing": ("self_routing", "self_routing_loops", "self_routing_loops", "self_routing"),
    "variational_bayes": ("variational_bayes", "variational_bayes_loops", "_image", "bayes"),
}
_FIGURES = ("_runs.png", ".png", "_curves.png")


def add_to_page(_: Any, name: str, source: list[str]) -> None:
    """Append the derived parts of a page to its text."""
    folder, _, page = name.rpartition("/")
    if page in ("index", "README"):
        source[0] += _navigation(source[0])
    elif folder == "docs/algorithms" and page in ALGORITHMS:
        *code, rows = ALGORITHMS[page]
        source[0] += _code(*code) + _measured(rows)
    elif folder == "results":
        source[0] += _records(page, source[0])


def write_files(app: Any, error: Exception | None) -> None:
    """Write the page at the root of the site, which leads to the index, and the explorer."""
    if error is not None or app.builder.name != "html":
        return
    text = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html"><title>capsule-lab</title>\n'
    (Path(app.outdir) / "index.html").write_text(text)
    from capsule_studies import explorer

    explorer.show("capsnet_mnist", "em_caps_mnist", "cnn_mnist").save(
        Path(app.outdir) / "docs" / "explorer.html"
    )


def _navigation(index: str) -> str:
    """Return a hidden ``toctree`` for each group in the table of an index."""
    groups: dict[str, list[str]] = {"": []}
    for line in index.splitlines():
        if title := re.match(r"\| \*\*(.+?)\*\* \|", line):
            groups[title[1]] = []
        elif link := re.match(r"\| \[.+?\]\((.+?\.md)\) \|", line):
            groups[[*groups][-1]].append(link[1])
    trees = []
    for title, pages in groups.items():
        if pages:
            caption = [f":caption: {title}"] if title else []
            trees.append("\n".join(["```{toctree}", ":hidden:", *caption, *pages, "```"]))
    return "\n\n" + "\n\n".join(trees) + "\n"


def _code(routing: str, reference: str, function: str) -> str:
    """Return a section with the function of a routing and its slow transcription."""
    text = (ROOT / "capsule_lab" / "routing" / f"{routing}.py").read_text()
    names = re.findall(r"^def (\w+)", text, re.MULTILINE)
    main = next(name for name in names if name.startswith(routing))
    listings = [
        ("The code", f"/capsule_lab/routing/{routing}.py", main),
        ("The slow transcription", f"/tests/reference/{reference}.py", function),
    ]
    return "".join(
        f"\n\n## {title}\n\n`{path[1:]}`\n\n```{{literalinclude}} {path}\n:language: python\n:pyobject: {name}\n```\n"
        for title, path, name in listings
    )


def _measured(start: str) -> str:
    """Return a section with the rows of the table of all algorithms that begin with ``start``; empty without any."""
    table = pd.read_csv(ROOT / "results" / "algorithms_mnist.csv")
    own = table[table["name"].str.startswith((start, "uniform"))]
    if len(own) < 2:
        return ""
    rows = "\n".join(
        f"| {row.row} | {row.ours:.2f} ± {row.ours_std:.2f} | {row.ours_n} |"
        for row in own.itertuples()
    )
    head = "\n\n## Measured\n\n| MNIST, 1.6 epochs | test error, % | networks |\n|---|---|---|\n"
    return f"{head}{rows}\n\nThe same small network for all: [algorithms](../../results/algorithms_mnist.md).\n"


def _records(table: str, text: str) -> str:
    """Return a section with what the records of a table say: question, comparisons, figure; empty without."""
    parts = []
    definition = ROOT / "sweeps" / f"{table}.yaml"
    if definition.exists():
        comments = re.match(r"(#.*\n)+", definition.read_text())
        parts.append(
            _question(
                table, re.sub(r"^# ?", "", comments[0] if comments else "", flags=re.MULTILINE)
            )
        )
    comparisons = ROOT / "results" / f"{table}_comparisons.csv"
    if comparisons.exists():
        parts.append(_comparisons(pd.read_csv(comparisons)))
    for ending in _FIGURES:
        figure = ROOT / "results" / f"{table}{ending}"
        if figure.exists() and figure.name not in text:
            parts.append(f"![Runs of the table {table}]({figure.name})")
            break
    files = sorted(
        path.name
        for path in (ROOT / "results").glob(f"{table}*")
        if path.suffix in (".csv", ".json", ".gz")
    )
    if files:
        parts.append("**Files**: " + ", ".join(f"[{name}]({name})" for name in files))
    return "\n\n## Records\n\n" + "\n\n".join(parts) + "\n" if parts else ""


def _question(table: str, head: str) -> str:
    """Return the comments at the head of a table: a paragraph, then a list of command and cost."""
    text, *facts = re.split(r"^(?=Command:|Cost:|Expected:)", head, flags=re.MULTILINE)
    lines = [
        "- **{}:** {}".format(*re.split(r":\s+", " ".join(fact.split()), maxsplit=1))
        for fact in facts
    ]
    lines = [re.sub(r"(make .*?)$", r"`\1`", line) if "Command" in line else line for line in lines]
    kept = "\n".join(
        line
        for line in lines
        if "Expected:** see results" not in line and "Expected:** results" not in line
    )
    return f"**Question**, from `sweeps/{table}.yaml`: {' '.join(text.split())}\n\n{kept}"


def _comparisons(frame: pd.DataFrame) -> str:
    head = "| comparison | difference, 95 % interval | Holm's p | finds with 80 % | planned |\n|---|---|---|---|---|\n"
    lines = []
    for row in frame.itertuples():
        column = (
            ""
            if row.first_column == row.second_column
            else f" ({row.first_column}; {row.second_column})"
        )
        difference = f"{row.difference:.2f} ({row.low:.2f} to {row.high:.2f})"
        lines.append(
            f"| {row.first} against {row.second}{column} | {difference} | {_rounded(row.p_holm)} | "
            f"{_rounded(row.detectable)} | {row.planned} |"
        )
    return "**Planned and found**:\n\n" + head + "\n".join(lines)


def _rounded(value: float) -> str:
    return "" if pd.isna(value) else "below 0.001" if 0 <= value < 0.001 else f"{value:.3f}"
