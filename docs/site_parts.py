"""Parts of the documentation site that are derived from code and records; see ``docs/conf.py``."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def add_to_page(app: Any, name: str, source: list[str]) -> None:
    """Append the derived parts of a page to its text."""
    if name in ("docs/index", "results/README"):
        source[0] += _navigation(source[0])


def write_files(app: Any, error: Exception | None) -> None:
    """Write the page at the root of the site, which leads to the index."""
    if error is None and app.builder.name == "html":
        text = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html"><title>capsule-lab</title>\n'
        (Path(app.outdir) / "index.html").write_text(text)


def _navigation(index: str) -> str:
    """Return a hidden ``toctree`` for each group in the table of the index."""
    groups: dict[str, list[str]] = {"": []}
    for line in index.splitlines():
        if title := re.match(r"\| \*\*(.+?)\*\* \|", line):
            groups[title[1]] = []
        elif link := re.match(r"\| \[.+?\]\((.+?\.md)\) \|", line):
            groups[[*groups][-1]].append(link[1])
    trees = []
    for title, pages in groups.items():
        if pages:
            trees.append(
                "\n".join(["```{toctree}", ":hidden:", *([f":caption: {title}"] if title else []), *pages, "```"])
            )
    return "\n\n" + "\n\n".join(trees) + "\n"
