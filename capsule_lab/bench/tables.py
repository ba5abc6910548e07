"""Measurements as tables for the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capsule_lab.bench.breakdown import FAMILIES
from capsule_lab.errors import printable

if TYPE_CHECKING:
    from capsule_lab.bench.gpu.parts import Part
    from capsule_lab.bench.gpu.report import Record

Row = dict[str, Any]
LOWER_BOUNDS = ("least ms\narithmetic", "least ms\nmemory", "of\nroofline")
WIDTH = 120  # ours: of tables in files and pipes
SHORT = {"32-true": "f32", "bf16-mixed": "bf16"}


def show(tables: Iterable[Table]) -> None:
    """Print them."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    for table in tables:
        console.print(table)


def of_measured(report: dict[str, Any], hardware: str) -> Iterator[Table]:
    """One for layers, one for models."""
    rates = report["rates"]
    speeds = ", ".join(
        f"{rates[f'{name}_operations_per_second'] / 1e9:.0f} GFLOP/s in {name}"
        for name in ("float32", "tf32", "bfloat16")
        if f"{name}_operations_per_second" in rates
    )
    machine = f"least: at {speeds}, {rates['bytes_per_second'] / 1e9:.1f} GB/s"
    kinds = {"layer": _of_layers, "model": _of_models}
    for kind, rows in groupby(report["rows"], key=lambda row: row["kind"]):
        yield kinds[kind](list(rows), hardware, machine)


def _of_layers(rows: list[Row], hardware: str, machine: str) -> Table:
    shown = _table(
        f"layers, float32, {hardware}",
        f"ratio and share: to the first row of a layer; memory: above its inputs; {machine}",
        ["layer", "form"],
        ["forward ms", "and backward ms", "ratio", "memory", "share", *LOWER_BOUNDS],
    )
    for row in rows:
        shown.add_row(
            row["name"], row["form"], _ms(row["forward_seconds_median"]), _range(row), f"{row['speedup']:.2f}x",
            _size(row["memory_above_bytes"]), f"{row['memory_above_share']:.0%}", *_lower_bounds(row),
        )  # fmt: skip
    return shown


def _of_models(rows: list[Row], hardware: str, machine: str) -> Table:
    shown = _table(
        f"training steps (forward, backward, Adam), {hardware}",
        f"ratio and share: to the first row of a model; memory: of the whole process; {machine}",
        ["model", "form", "precision"],
        ["batch", "images/s", "ms/step", "ratio", "peak memory", "share", *LOWER_BOUNDS],
    )
    for row in rows:
        shown.add_row(
            row["name"], row["form"], SHORT[row["precision"]], str(row["batch_size"]),
            f"{row['images_per_second']:.3g}", _range(row), f"{row['speedup']:.2f}x", _size(row["peak_memory_bytes"]),
            f"{row['peak_memory_share']:.0%}", *_lower_bounds(row),
        )  # fmt: skip
    return shown


def _lower_bounds(row: Row) -> tuple[str, str, str]:
    arithmetic, memory = row["floor_arithmetic_seconds"], row["floor_memory_seconds"]
    return _ms(arithmetic), _ms(memory), f"{row['roofline_percent']:.1f} %"


def of_scaling(rows: list[Row], hardware: str) -> Iterator[Table]:
    """One for each axis."""
    for axis, of_axis in groupby(rows, key=lambda row: row["axis"]):
        shown = _table(
            f"a convolutional EM layer against {axis}, float32, {hardware}",
            "forward and backward; memory: above its inputs",
            [axis, "backend"],
            ["votes", "ms", "ns per vote and iteration", "memory", "bytes per vote"],
        )
        for row in of_axis:
            shown.add_row(
                str(row["value"]), row["form"], f"{row['votes']:,}", _range(row),
                f"{row['seconds_per_vote'] * 1e9:.2f}", _size(row["memory_above_bytes"]),
                f"{row['memory_above_bytes'] / row['votes']:.1f}",
            )  # fmt: skip
        yield shown


def of_profile(rows: list[Row], hardware: str) -> Iterator[Table]:
    """Shares of the families, then the costliest operators of each row."""
    shown = _table(
        f"where a training step's time goes, {hardware}",
        "routing: capsule layers that route, votes and backward pass included",
        ["model", "form", "precision"],
        ["batch", "ms/step", *FAMILIES],
    )
    for row in rows:
        shares = [f"{row['shares'][family]:.1%}" for family in FAMILIES]
        shown.add_row(
            row["name"], row["form"], SHORT[row["precision"]], str(row["batch_size"]), _ms(row["seconds"]), *shares
        )
    yield shown
    for row in rows:
        shown = _table(
            f"costliest operators, {row['name']} {row['form']} {SHORT[row['precision']]}",
            "",
            ["operator", "family"],
            ["ms", "share"],
        )
        for found in row["operators"]:
            shown.add_row(found["name"], found["family"], _ms(found["seconds"]), f"{found['share']:.1%}")
        yield shown


def of_plan(parts: Sequence[Part]) -> Table:
    """What ``python -m capsule_lab.gpu`` would run."""
    total = sum(part.seconds for part in parts)
    shown = _table(f"parts, {total} seconds as planned on a GPU", "", ["part"], ["seconds"])
    shown.add_column("answers")
    for part in parts:
        shown.add_row(part.name, str(part.seconds), part.sentence)
    return shown


def of_parts(parts: Sequence[Part], records: Mapping[str, Record], left: Sequence[Part]) -> Table:
    """What has become of them."""
    shown = _table("parts", "", ["part", "state"], ["seconds"])
    shown.add_column("failures", overflow="fold")
    for part in parts:
        if part in left:
            shown.add_row(part.name, "left", "", "no time was left; the same command goes on with it")
            continue
        record = records[part.name]
        failures = [record["error"]] if record["error"] else record["found"].get("failures", [])
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        text = escape(printable(failures[0])) + more if failures else ""
        shown.add_row(part.name, record["state"], f"{record['seconds']:.0f}", text, style="red" if failures else None)
    return shown


def _table(title: str, caption: str, texts: list[str], numbers: list[str]) -> Table:
    shown = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in texts:
        shown.add_column(name, no_wrap=True)
    for name in numbers:
        shown.add_column(name, justify="right")
    return shown


def _ms(seconds: float) -> str:
    milliseconds = 1000 * seconds
    return f"{milliseconds:.0f}" if milliseconds >= 10 else f"{milliseconds:.2g}"


def _range(row: Row) -> str:
    low, middle, high = (_ms(row[f"seconds_{name}"]) for name in ("fastest", "median", "slowest"))
    return f"{middle} ({low}-{high})"


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
