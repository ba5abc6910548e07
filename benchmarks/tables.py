"""Measurements as tables for the terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

Row = dict[str, Any]
WIDTH = 120  # ours: width of tables in files and pipes


def _ms(seconds: float) -> str:
    milliseconds = 1000 * seconds
    return f"{milliseconds:.0f}" if milliseconds >= 10 else f"{milliseconds:.2g}"


def _range(row: Row) -> str:
    median = _ms(row["seconds_median"])
    return f"{median} ({_ms(row['seconds_fastest'])}-{_ms(row['seconds_slowest'])})"


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


Columns = dict[str, Callable[[Row], str]]
BOUNDS: Columns = {
    "least ms\narithmetic": lambda row: _ms(row["floor_arithmetic_seconds"]),
    "least ms\nmemory": lambda row: _ms(row["floor_memory_seconds"]),
    "of\nroofline": lambda row: f"{row['roofline_percent']:.1f} %",
}
RATIO: Columns = {"ratio": lambda row: f"{row['speedup']:.2f}x"}
CASE: Columns = {
    "name": itemgetter("name"),
    "form": itemgetter("form"),
    "precision": itemgetter("precision"),
}
LAYERS: Columns = CASE | {
    "forward ms": lambda row: _ms(row["forward_seconds_median"]),
    "and backward ms": _range,
    **RATIO,
    "memory": lambda row: _size(row["memory_above_bytes"]),
    "share": lambda row: f"{row['memory_above_share']:.0%}",
    **BOUNDS,
}
MODELS: Columns = CASE | {
    "batch": lambda row: str(row["batch_size"]),
    "images/s": lambda row: f"{row['images_per_second']:.3g}",
    "ms/step": _range,
    **RATIO,
    "peak memory": lambda row: _size(row["peak_memory_bytes"]),
    "share": lambda row: f"{row['peak_memory_share']:.0%}",
    **BOUNDS,
}
SCALING: Columns = {
    "size": lambda row: str(row["value"]),
    "backend": itemgetter("form"),
    "votes": lambda row: f"{row['votes']:,}",
    "ms": _range,
    "ns per vote and iteration": lambda row: f"{row['seconds_per_vote'] * 1e9:.2f}",
    "memory": lambda row: _size(row["memory_above_bytes"]),
    "bytes per vote": lambda row: f"{row['memory_above_bytes'] / row['votes']:.1f}",
}
OPERATORS: Columns = {
    "operator": itemgetter("name"),
    "family": itemgetter("family"),
    "ms": lambda row: _ms(row["seconds"]),
    "share": lambda row: f"{row['share']:.1%}",
}
LOOPS: Columns = {
    "loop": itemgetter("loop"),
    "ms/step\n10th percentile": lambda row: f"{1e3 * row['seconds_tenth_percentile']:.3f}",
    "median": lambda row: f"{1e3 * row['seconds_median']:.3f}",
    "to plain\nLightning": lambda row: f"{row['to_plain']:.2f}x",
    "to bare\nloop": lambda row: f"{row['to_bare']:.2f}x",
    "Python calls\nper step": lambda row: f"{row['python_calls']:,.0f}",
    "built-in calls\nper step": lambda row: f"{row['builtin_calls']:,.0f}",
}
FUNCTIONS: Columns = {
    "function": itemgetter("name"),
    "calls per step": lambda row: f"{row['calls']:.1f}",
}
TEXTS = ("name", "form", "precision", "backend", "operator", "family", "loop", "function")
"""Headings of columns of text."""


def show(report: dict[str, Any], hardware: str) -> None:
    """Print the tables of a report: for layers and models, for each axis, for each profile, or for loops."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    if "loops" in report:
        show_loops(console, report["loops"], hardware)
        return
    rows = report["rows"]
    if "rates" in report:
        show_cases(console, rows, report["rates"], hardware)
    elif "axis" in rows[0]:
        for axis, of_axis in groupby(rows, key=itemgetter("axis")):
            title = f"a convolutional EM layer against {axis}, float32, {hardware}"
            caption = "forward and backward; memory: without inputs"
            console.print(_table(title, caption, SCALING, of_axis))
    else:
        for row in rows:
            shares = ", ".join(f"{family} {share:.1%}" for family, share in row["shares"].items())
            case = f"{row['name']} ({row['form']}, {row['precision']})"
            title = f"{case}, {_ms(row['seconds'])} ms/step, {hardware}"
            console.print(_table(title, shares, OPERATORS, row["operators"]))


def show_cases(console: Console, rows: list[Row], rates: dict[str, float], hardware: str) -> None:
    """Print a table of layers and one of models; ``rates`` are those of the machine."""
    speeds = []
    for name, rate in rates.items():
        unit, _, _ = name.partition("_")
        if unit != "bytes":
            speeds.append(f"{rate / 1e9:.0f} GFLOP/s in {unit}")
    speeds.append(f"{rates['bytes_per_second'] / 1e9:.1f} GB/s")
    least = ", ".join(speeds)
    caption = f"ratio and share: relative to the first row of a name; least: at {least}"
    for kind, of_kind in groupby(rows, key=itemgetter("kind")):
        columns, memory = MODELS, "of the whole process"
        if kind == "layer":
            columns, memory = LAYERS, "without inputs"
        title = f"{kind}s, {hardware}; memory: {memory}"
        console.print(_table(title, caption, columns, of_kind))


def show_loops(console: Console, rows: list[Row], hardware: str) -> None:
    """Print a table of loops for each model, and one of the functions that ours calls most often."""
    for name, of_model in groupby(rows, key=itemgetter("name")):
        loops = [*of_model]
        title = f"{name}, a network with next to no work, {hardware}, one core"
        console.print(_table(title, f"processor time of {loops[0]['steps']} steps", LOOPS, loops))
        (ours,) = [row for row in loops if row["loop"] == "ours"]
        caption = "all calls: Python and built-in"
        console.print(_table(f"{name}, our loop", caption, FUNCTIONS, ours["functions"]))


def _table(title: str, caption: str, columns: Columns, rows: Iterable[Row]) -> Table:
    table = Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for heading in columns:
        is_text = heading in TEXTS
        table.add_column(heading, no_wrap=is_text, justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*[cell(row) for cell in columns.values()])
    return table
