"""The page shows whatever a part has found, and nothing of it as HTML."""

from __future__ import annotations

import re
from typing import Any

from capsule_lab.bench.gpu.page import as_page, shown, table_of

KEY = {"device": "1 x <GPU>", "size": "full", "torch": "2.11.0", "triton": "3.6.0", "sources": "0123"}


def page(found: dict[str, Any], **more: Any) -> str:
    record = {
        "key": KEY,
        "state": "wrong",
        "seconds": 1.5,
        "ended": "2026-01-01",
        "error": None,
        "found": found,
        **more,
    }
    process = {"command": "python -m capsule_lab.gpu", "commit": None, "versions": {}, "python": "3.12.3"}
    return as_page({"key": KEY, "process": process, "parts": {"correctness": record}})


def test_rows_failures_and_facts() -> None:
    html = page({"rows": [{"a": 1}, {"b": 0.5}], "failures": ["em differs"], "driver": "580", "versions": {"x": None}})
    cells = re.findall(r"<t[hd]>(.*?)</t[hd]>", html)
    assert cells[-6:] == ["a", "b", "1", "", "", "0.5"]
    assert '<ul class="failed"><li>em differs</li></ul>' in html
    assert "<li>driver: 580</li><li>versions: {&#34;x&#34;: null}</li>" in html
    assert "Whether every routing" in html


def test_everything_is_escaped_and_nothing_is_fetched() -> None:
    bad = "<script>alert(1)</script>"
    html = page({"rows": [{bad: bad}], "failures": [bad], bad: bad}, error=bad)
    assert "<script" not in html
    assert "1 x &lt;GPU&gt;" in html
    assert not re.search(r"(src|href)=\"(?!#)", html)


def test_older_results_are_marked() -> None:
    html = page({}, key={**KEY, "sources": "4567"})
    assert "Measured with device 1 x &lt;GPU&gt;, size full, torch 2.11.0, triton 3.6.0, sources 4567." in html


def test_table_of_nothing() -> None:
    assert table_of([]) == ([], [])


def test_numbers() -> None:
    assert [shown(value) for value in (True, 12345, 1e-7, 123456.0)] == ["True", "12,345", "1e-07", "1.235e+05"]
