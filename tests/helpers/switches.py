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


def updated(text: str) -> str:
    """The page with updated tables."""

    def table(match: re.Match[str]) -> str:
        rows = _options(match[2]) if match[1] == "options" else _keys(match[2])
        return f"{match[0].splitlines()[0]}\n{rows}\n"

    return re.sub(r"<!-- (options|keys) of (\w+) -->\n(?:.+\n)*", table, text)


def _options(group: str) -> str:
    rows = ["| option | what |", "|---|---|"]
    for option, text in described_options(group).items():
        rows.append(f"| `{group}={option}` | {_escaped(_summary(text))} |")
    return "\n".join(rows)


def _summary(comments: list[str]) -> str:
    """The comments of an option, up to an indented or empty line."""
    return " ".join(takewhile(lambda line: line and not line.startswith(" "), comments))


def _keys(group: str) -> str:
    """Every key of every option with its first comment; keys of nested parts have dots."""
    entries: dict[str, tuple[list[str], list[str]]] = {}
    for option, file in sorted(option_files(group).items()):
        for key, value, comment in _lines(file, group):
            options, comments = entries.setdefault(key, ([], []))
            options.append(option)
            comments.extend([f"`{value}` {comment}".strip()] * bool(value))
    rows = ["| key | of | values in `conf/` |", "|---|---|---|"]
    for key, (options, comments) in sorted(entries.items()):
        different = "; ".join(dict.fromkeys(comments))
        rows.append(f"| `{key}` | {', '.join(options)} | {_escaped(different)} |")
    return "\n".join(rows)


def _lines(file: Path, group: str) -> Iterator[tuple[str, str, str]]:
    """Dotted key, value and comment of every line of a file that sets an option of the group."""
    text = file.read_text()
    path: list[str] = []
    lines = re.findall(r"^( *)(\w+):([^#\n]*)(?:# (.*))?$", text, re.MULTILINE)
    for indent, name, value, comment in lines:
        path = [*path[: len(indent) // 2], name]
        key = ".".join(path if "@package _global_" in text else [group, *path])
        if key.startswith(f"{group}.") and key != f"{group}.defaults" and not name.startswith("_"):
            yield key, value.strip(), comment


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
