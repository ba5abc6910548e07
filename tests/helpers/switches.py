"""``python -m tests.helpers.switches`` updates the tables of ``docs/switches.md`` from the comments in ``conf/``.

A table stands after ``<!-- options of <group> -->`` or ``<!-- keys of <group> -->``, up to the next empty line; all
other text of the page is written by hand.
"""

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from capsule_lab.config.folders import described_options, option_files
from tests.helpers.commands import ROOT

PAGE = ROOT / "docs" / "switches.md"
_LINE = re.compile(r"^( *)(\w+):([^#\n]*)(?:# (.*))?$", re.MULTILINE)
"""Indent, name, value and comment of a line that sets an option."""


def updated(text: str) -> str:
    """The page with updated tables."""

    def table(match: re.Match[str]) -> str:
        kind, group = match.groups()
        rows = _options(group) if kind == "options" else _keys(group)
        return f"<!-- {kind} of {group} -->\n{rows}\n"

    return re.sub(r"<!-- (options|keys) of (\w+) -->\n(?:.+\n)*", table, text)


def _options(group: str) -> str:
    rows = ["| option | what |", "|---|---|"]
    for option, comments in described_options(group).items():
        summary = _escaped(_summary(comments))
        rows.append(f"| `{group}={option}` | {summary} |")
    return "\n".join(rows)


def _summary(comments: list[str]) -> str:
    """The comments of an option, up to an indented or empty line."""
    summary = takewhile(lambda line: line and not line.startswith(" "), comments)
    return " ".join(summary)


def _keys(group: str) -> str:
    """Every key of every option with its first comment; keys of nested parts have dots."""
    entries: dict[str, tuple[list[str], list[str]]] = {}
    for option, file in sorted(option_files(group).items()):
        for key, value, comment in _lines(file, group):
            options, comments = entries.setdefault(key, ([], []))
            options.append(option)
            if value:
                comments.append(f"`{value}` {comment}".strip())
    rows = ["| key | of | values in `conf/` |", "|---|---|---|"]
    for key, (options, comments) in sorted(entries.items()):
        different = _escaped("; ".join(dict.fromkeys(comments)))
        rows.append(f"| `{key}` | {', '.join(options)} | {different} |")
    return "\n".join(rows)


def _lines(file: Path, group: str) -> Iterator[tuple[str, str, str]]:
    """Dotted key, value and comment of every line of a file that sets an option of the group."""
    text = file.read_text()
    above = [] if "@package _global_" in text else [group]
    path: list[str] = []
    for indent, name, value, comment in _LINE.findall(text):
        path = [*path[: len(indent) // 2], name]
        key = ".".join([*above, *path])
        is_of_group = key.startswith(f"{group}.") and key != f"{group}.defaults"
        if is_of_group and not name.startswith("_"):
            yield key, value.strip(), comment


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
