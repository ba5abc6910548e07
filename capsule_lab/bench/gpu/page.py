"""What the parts have found as one self-contained HTML page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from capsule_lab.bench.gpu.parts import PARTS

_SENTENCES = {part.name: part.sentence for part in PARTS}


def as_page(report: Mapping[str, Any]) -> str:
    """Every part with its failures, its other findings as a list, and its rows as a table; everything is escaped.

    Args:
        report: see ``capsule_lab.bench.gpu.report.Report``.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    parts = [
        {
            "name": name,
            "sentence": _SENTENCES[name],
            **record,
            "older": record["key"] != report["key"],
            "failures": record["found"].get("failures", []),
            "facts": {key: shown(value) for key, value in record["found"].items() if key not in ("rows", "failures")},
            "table": table_of(record["found"].get("rows", [])),
        }
        for name, record in report["parts"].items()
        if name in _SENTENCES
    ]
    return environment.get_template("page.html").render(key=report["key"], process=report["process"], parts=parts)


def table_of(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings, those of all rows in order of appearance, and cells."""
    headings = list(dict.fromkeys(key for row in rows for key in row))
    return headings, [[shown(row.get(heading)) for heading in headings] for row in rows]


def shown(value: Any) -> str:
    """A finding as text, numbers to four digits.

    >>> shown(0.00123456), shown(1234567), shown(None), shown({"a": [1]})
    ('0.001235', '1,234,567', '', '{"a": [1]}')
    """
    if value is None:
        return ""
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
