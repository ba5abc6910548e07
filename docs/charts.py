"""Writes the charts of the landing page from the records: docs/drawings/speed.svg and claims.svg.

``python -m docs.charts`` writes them anew; a test compares them with the records. They have the width of a phone.
"""

import csv
import html
import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from capsule_studies.claims.drawing import COLOURS, Axis, interval
from capsule_studies.claims.read import read
from capsule_studies.claims.texts import in_table, title
from capsule_studies.claims.verdicts import PRELIMINARY, VERDICTS, Judged, judged
from docs.drawings import FOLDER, svg

RESULTS = Path(__file__).parents[1] / "results"
WIDTH = 420
_LETTERS = 58  # of a line


@dataclass
class Speed:
    """Images per second of a training step: textbook code or a port, and ours, at equal precision."""

    step: str
    other_name: str
    other: float
    ours: float


def speeds() -> list[Speed]:
    """Return the measured pairs: on two CPU cores textbook code, on a GPU a public port."""
    rows = json.loads((RESULTS / "bench_cpu.json").read_text())["rows"]
    steps = {
        (row["name"], row["form"]): row["images_per_second"]
        for row in rows
        if row["precision"] == "32-true"
    }
    names = {
        "em_caps": "EMCaps of the paper",
        "em_caps_small": "EMCaps 64/8/16/16",
        "capsnet": "CapsNet of the paper",
    }
    pairs = []
    for name, words in names.items():
        step = f"{words}, two CPU cores"
        pairs.append(Speed(step, "textbook code", steps[name, "textbook"], steps[name, "fused"]))
    with (RESULTS / "gpu" / "kernels_and_steps.csv").open() as file:
        of_gpu = [row for row in csv.DictReader(file) if row["precision"] == "32-true"]
    for port in (row for row in of_gpu if row["form"] == "public port"):
        ours = next(
            row
            for row in of_gpu
            if row["form"] == "fused" and row["note"].startswith("the network")
        )
        step = f"EMCaps of the paper, {port['card']}"
        images = float(port["images_per_second"]), float(ours["images_per_second"])
        pairs.append(Speed(step, f"port {port['note']}", *images))
    return pairs


def speed() -> str:
    """Return bars of the speed of training steps, each in units of the other implementation."""
    pairs = speeds()
    unit = 250 / max(pair.ours / pair.other for pair in pairs)
    shapes = []
    for number, pair in enumerate(pairs):
        top = 18 + 66 * number
        factor = pair.ours / pair.other
        length = unit * factor
        shapes += [
            f'<text class="b" x="10" y="{top}">{pair.step}</text>',
            f'<rect class="units" x="10" y="{top + 8}" width="{unit:.1f}" height="14"/>',
            f'<text class="s" x="{unit + 16:.1f}" y="{top + 19}">{pair.other_name}, {pair.other:.3g} images/s</text>',
            f'<rect class="caps" x="10" y="{top + 26}" width="{length:.1f}" height="14"/>',
            f'<text x="{length + 16:.1f}" y="{top + 37}">{pair.ours:,.0f} images/s, {factor:.1f} times</text>',
        ]
    height = 66 * len(pairs)
    return svg(
        WIDTH, height, "Images per second in training beside other code", shapes, is_fixed=True
    )


def claims(every: list[Judged]) -> str:
    """Return the tests of papers' claims by verdict; those that are decided with their intervals, others by id."""
    tested = in_table(every, "A")
    order = list(VERDICTS)
    tested.sort(key=lambda each: order.index(each.verdict))
    axis = Axis(14, WIDTH - 14)
    shapes, top = [], 8
    for verdict, group in groupby(tested, key=lambda each: each.verdict):
        members = list(group)
        colour = COLOURS[verdict]
        apart = ", not counted" if verdict == PRELIMINARY else ""
        top += 22
        shapes.append(
            f'<text x="10" y="{top}" style="font-weight:600;fill:{colour}">{verdict}{apart}: {len(members)}</text>'
        )
        if not members[0].is_decided:
            words = ", ".join(each.claim["id"] for each in members)
            top = _write(shapes, words, top)
            continue
        for each in members:
            top = _write(shapes, f"{each.claim['id']} {title(each)}", top) + 12
            shapes += interval(each, axis, top)
            top += 6
    top += 12
    for line in (
        "Differences with 95 % intervals; right: as claimed.",
        "Differences within the band do not matter. Filled: planned.",
    ):
        top += 15
        shapes.append(f'<text x="{WIDTH / 2:.0f}" y="{top}" text-anchor="middle">{line}</text>')
    return svg(WIDTH, top + 10, "Claims of papers and what was found", shapes, is_fixed=True)


def _write(shapes: list[str], words: str, top: float) -> float:
    """Write words on lines below a height, and return the height of the last one."""
    for line in textwrap.wrap(words, _LETTERS, break_on_hyphens=False):
        top += 15
        shapes.append(f'<text class="s" x="10" y="{top}">{html.escape(line)}</text>')
    return top


def charts() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every file."""
    yield "speed.svg", speed()
    yield "claims.svg", claims(judged(read()))


if __name__ == "__main__":
    for name, text in charts():
        (FOLDER / name).write_text(text)
