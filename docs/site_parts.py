"""Parts of the documentation site that are derived from code and records; see ``docs/conf.py``."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

ROOT = Path(__file__).parents[1]


class Algorithm(NamedTuple):
    """Where the code and the measurements of an algorithm are.

    Attributes:
        routing: file in capsule_lab/routing.
        reference: file in tests/reference.
        function: the function in that file.
        rows: start of the names of its measured rows.
    """

    routing: str
    reference: str
    function: str
    rows: str


def _algorithm(name: str, rows: str) -> Algorithm:
    """Return an algorithm whose files and functions have its name."""
    return Algorithm(name, f"{name}_loops", f"{name}_loops", rows)


ALGORITHMS = {  # by page
    "attention_over_children": _algorithm("attention_over_children", "none"),
    "dynamic_routing": Algorithm("dynamic", "loops", "dynamic_routing_loops", "dynamic"),
    "em_routing": Algorithm("em", "em_loops", "em_routing_graph", "em_"),
    "heinsen": _algorithm("heinsen", "heinsen"),
    "inverted_attention": _algorithm("inverted_attention", "inverted"),
    "scaled_distance": _algorithm("scaled_distance", "distance"),
    "self_attention": _algorithm("self_attention", "self_attention"),
    "self_routing": _algorithm("self_routing", "self_routing"),
    "variational_bayes": Algorithm(
        "variational_bayes", "variational_bayes_loops", "_image", "bayes"
    ),
}
_FIGURES = ("_runs.png", ".png", "_curves.png")


def add_to_page(_: Any, name: str, source: list[str]) -> None:
    """Append the derived parts of a page to its text."""
    folder, _, page = name.rpartition("/")
    if page in ("index", "README"):
        source[0] += _navigation(source[0])
    elif folder == "docs/algorithms" and page in ALGORITHMS:
        algorithm = ALGORITHMS[page]
        source[0] += _code(algorithm) + _measured(algorithm)
    elif name == "docs/api/routing":
        title, _, rest = source[0].partition("\n\n")
        source[0] = f"{title}\n\n{_routings()}\n{rest}"
    elif folder == "docs/notebooks":
        head, _, text = source[0].partition("\n# ")
        title, _, rest = text.partition("\n")
        link = f'<a href="{page}.ipynb" download>Download as .ipynb</a>'
        source[0] = f"{head}\n# {title}\n\n{link}\n{rest}"
    elif folder == "results":
        source[0] += _records(page, source[0])


def write_files(app: Any, error: Exception | None) -> None:
    """Write the page at the root of the site, which leads to the index, the notebooks for download, and the explorer.

    Parts of MathJax that no page loads are removed: they were two fifths of the site.
    """
    if error is not None or app.builder.name != "html":
        return
    site = Path(app.outdir)
    text = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html"><title>capsule-lab</title>\n'
    (site / "index.html").write_text(text)
    executed = site.parent / "jupyter_execute"
    for notebook in executed.glob("docs/notebooks/*.ipynb"):
        shutil.copy(notebook, site / "docs" / "notebooks")
    _remove_unused(site / "_static" / "mathjax")
    from capsule_studies import explorer

    shown = explorer.show("capsnet_mnist", "em_caps_mnist", "cnn_mnist")
    shown.save(site / "docs" / "explorer.html")


def _remove_unused(mathjax: Path) -> None:
    """Remove what is not needed to show TeX as HTML: other outputs, speech, and tools for Node."""
    used = ["tex-chtml.js", "output/chtml/**/*", "input/tex/**/*"]
    keep = set()
    for pattern in used:
        keep |= {*mathjax.glob(pattern)}
    for file in mathjax.rglob("*"):
        if file.is_file() and file not in keep:
            file.unlink()


def _navigation(index: str) -> str:
    """Return a hidden ``toctree`` for each group in the table of an index."""
    title = ""
    groups: dict[str, list[str]] = {}
    for line in index.splitlines():
        heading = re.match(r"\| \*\*(.+?)\*\* \|", line)
        link = re.match(r"\| \[.+?\]\((.+?\.md)\) \|", line)
        if heading:
            title = heading[1]
        elif link:
            groups.setdefault(title, []).append(link[1])
    trees = []
    for title, pages in groups.items():
        caption = [f":caption: {title}"] if title else []
        lines = ["```{toctree}", ":hidden:", *caption, *pages, "```"]
        trees.append("\n".join(lines))
    return "\n\n" + "\n\n".join(trees) + "\n"


def _routings() -> str:
    """Return a table of all routings: options, class and functions, and the paper with a link to its page."""
    from capsule_lab import routing
    from capsule_lab.commands import compose
    from capsule_lab.config.folders import options_of

    options: dict[str, list[str]] = {}  # by name of the class
    for option in options_of("routing"):
        if option != "none":
            chosen = compose("train", ["model=em_caps", f"routing={option}"]).routing
            options.setdefault(chosen["_target_"].rpartition(".")[2], []).append(option)
    lines = ["| `routing=` | class and function | algorithm and paper |", "|---|---|---|"]
    for name, of_class in options.items():
        module = sys.modules[vars(routing)[name].__module__]
        exported = vars(module)["__all__"]
        functions = [_link("func", function) for function in exported if function.islower()]
        paper = _one_line(str(module.__doc__).partition("\n\n")[0])
        page = _page_of(module.__name__.rpartition(".")[2])
        cells = [
            ", ".join(f"`{option}`" for option in of_class),
            "<br>".join([_link("class", name), *functions]),
            f"{paper} Page: {page}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _link(kind: str, name: str) -> str:
    """Return a link to the documentation of a class or function of ``capsule_lab.routing``."""
    return f"{{py:{kind}}}`~capsule_lab.routing.{name}`"


def _page_of(routing: str) -> str:
    """Return a link to the page about a file in capsule_lab/routing, the first one that names it."""
    for page in sorted((ROOT / "docs" / "algorithms").glob("*.md")):
        title, _, text = page.read_text().partition("\n")
        if f"`capsule_lab/routing/{routing}.py`" in text:
            return f"[{title.removeprefix('# ')}](../algorithms/{page.name})"
    return ""


def _code(algorithm: Algorithm) -> str:
    """Return sections with the function of a routing and its slow transcription."""
    path = f"capsule_lab/routing/{algorithm.routing}.py"
    main = re.search(rf"^def ({algorithm.routing}\w*)", (ROOT / path).read_text(), re.MULTILINE)
    assert main is not None, f"{path} has no function {algorithm.routing}…"
    slow = f"tests/reference/{algorithm.reference}.py"
    code = _listing("The code", path, main[1])
    return code + _listing("The slow transcription", slow, algorithm.function)


def _listing(title: str, path: str, function: str) -> str:
    """Return a section that shows a function."""
    lines = [
        f"\n\n## {title}\n",
        f"`{path}`\n",
        f"```{{literalinclude}} /{path}",
        ":language: python",
        f":pyobject: {function}",
        "```\n",
    ]
    return "\n".join(lines)


def _measured(algorithm: Algorithm) -> str:
    """Return a section with the rows of an algorithm in the table of all algorithms; empty without any."""
    table = pd.read_csv(ROOT / "results" / "algorithms_mnist.csv")
    own = table[table["name"].str.startswith((algorithm.rows, "uniform"))]
    if len(own) < 2:
        return ""
    rows = []
    for row in own.itertuples():
        rows.append(f"| {row.row} | {row.ours:.2f} ± {row.ours_std:.2f} | {row.ours_n} |")
    listed = "\n".join(rows)
    head = "\n\n## Measured\n\n| MNIST, 1.6 epochs | test error, % | networks |\n|---|---|---|\n"
    return f"{head}{listed}\n\nThe same small network for all: [algorithms](../../results/algorithms_mnist.md).\n"


def _records(table: str, text: str) -> str:
    """Return a section with what the records of a table say: question, comparisons, figure; empty without."""
    parts = []
    definition = ROOT / "sweeps" / f"{table}.yaml"
    if definition.exists():
        comments = re.match(r"(#.*\n)*", definition.read_text())
        assert comments is not None
        head = re.sub(r"^# ?", "", comments[0], flags=re.MULTILINE)
        parts.append(_question(table, head))
    comparisons = ROOT / "results" / f"{table}_comparisons.csv"
    if comparisons.exists():
        parts.append(_comparisons(pd.read_csv(comparisons)))
    for ending in _FIGURES:
        figure = ROOT / "results" / f"{table}{ending}"
        if figure.exists() and figure.name not in text:
            parts.append(f"![Runs of the table {table}]({figure.name})")
            break
    links = []
    for path in sorted((ROOT / "results").glob(f"{table}*")):
        if path.suffix in (".csv", ".json", ".gz"):
            links.append(f"[{path.name}]({path.name})")
    if links:
        parts.append("**Files**: " + ", ".join(links))
    if not parts:
        return ""
    return "\n\n## Records\n\n" + "\n\n".join(parts) + "\n"


def _question(table: str, head: str) -> str:
    """Return the comments at the head of a table: a paragraph, then a list of command and cost."""
    text, *facts = re.split(r"^(?=Command:|Cost:|Expected:)", head, flags=re.MULTILINE)
    lines = []
    for fact in facts:
        name, value = re.split(r":\s+", _one_line(fact), maxsplit=1)
        if name == "Command":
            value = re.sub(r"(make .*)$", r"`\1`", value)
        # the page itself has these
        if name == "Expected" and value.startswith(("see results", "results")):
            continue
        lines.append(f"- **{name}:** {value}")
    listed = "\n".join(lines)
    return f"**Question**, from `sweeps/{table}.yaml`: {_one_line(text)}\n\n{listed}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _comparisons(frame: pd.DataFrame) -> str:
    head = "| comparison | difference, 95 % interval | Holm's p | finds with 80 % | planned |\n|---|---|---|---|---|\n"
    lines = []
    for row in frame.itertuples():
        rows = f"{row.first} against {row.second}"
        if row.first_column != row.second_column:
            rows += f" ({row.first_column}; {row.second_column})"
        difference = f"{row.difference:.2f} ({row.low:.2f} to {row.high:.2f})"
        p = _rounded(row.p_holm)
        detectable = _rounded(row.detectable)
        lines.append(f"| {rows} | {difference} | {p} | {detectable} | {row.planned} |")
    return "**Planned and found**:\n\n" + head + "\n".join(lines)


def _rounded(value: float) -> str:
    if pd.isna(value):
        return ""
    return "below 0.001" if 0 <= value < 0.001 else f"{value:.3f}"
