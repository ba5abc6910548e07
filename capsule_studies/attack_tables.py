"""Figures of tables whose rows are evaluated by ``attack``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from capsule_lab.tables.summary import Entry, Run
from capsule_studies.attacks.figures import accuracy_figure, attack_of


class _Curve(NamedTuple):
    """An attack row, with the labels of the attacked network's row and, for a transfer, of the source's row."""

    label: str
    network: str
    source: str
    runs: list[Run]
    published: dict[float, float]


def accuracy_under_attack(entries: Sequence[Entry]) -> dict[str, Figure]:
    """Draw the rows that ``attack`` evaluates as curves; the figures are named ``attacks`` and ``targeted_attacks``.

    Rows with several seeds show the mean, with the minimum and maximum in place of an interval. Published accuracies or
    success rates are pale points; they are drawn beside results on real data only.
    """
    attacked = [entry for entry in entries if entry.row.by == "attack"]
    several = len({entry.column.overrides for entry in attacked}) > 1
    rows = {entry.row.name: entry.row.label for entry in entries}
    figures: dict[str, dict[str, _Curve]] = {}
    for entry in attacked:
        epsilon, _, quantity = entry.column.metric.removeprefix("attack/").rpartition("/")
        source = entry.row.takes.get("source", ("",))[0]
        for run in (candidate for candidate in entry.runs if "targeted" in candidate.result):
            standin = "" if run.real else ", stand-in"
            name = "targeted_attacks" if run.result["targeted"] else "attacks"
            curve_quantity = "success" if run.result["targeted"] else "accuracy"
            name += "" if run.result["space"] == "input" else f"_in_{run.result['space']}"
            name += "_l2" if run.result["options"].get("norm") == "l2" else ""
            name += f"_{entry.column.name}" if several else ""
            label, network = (
                name + standin for name in (entry.row.label, rows.get(entry.row.of, entry.row.of))
            )
            new = _Curve(label, network, rows.get(source, source), [], {})
            curve = figures.setdefault(name, {}).setdefault(label, new)
            if run.cell.fingerprint not in {other.cell.fingerprint for other in curve.runs}:
                curve.runs.append(run)
            if entry.published and run.real and quantity == curve_quantity:
                curve.published[float(epsilon)] = entry.published.mean
    known = [curve.network for by_label in figures.values() for curve in by_label.values()]
    return {name: _figure([*by_label.values()], known) for name, by_label in figures.items()}


def _figure(curves: Sequence[_Curve], known: Sequence[str]) -> Figure:
    attacks = [attack_of(curve.runs[0].result, curve.source) for curve in curves]
    places = [(attack, curve.network) for attack, curve in zip(attacks, curves, strict=True)]
    networks = [
        curve.network
        if places.count(place) == 1
        else curve.label  # two attacks that differ only in an option
        for place, curve in zip(places, curves, strict=True)
    ]
    results = [_over_seeds(curve.runs) for curve in curves]
    return accuracy_figure(results, networks, attacks, [curve.published for curve in curves], known)


def _over_seeds(runs: Sequence[Run]) -> dict[str, Any]:
    """Merge the records of several seeds into one record of their means."""
    results = [run.result for run in runs]
    if len(results) == 1:
        return results[0]
    numbers = pd.DataFrame([result["attack"] for result in results], dtype=float)
    merged = numbers.mean().to_dict()
    curve_quantity = "success" if results[0].get("targeted") else "accuracy"
    for name, values in numbers.items():
        epsilon, _, key = str(name).partition("/")
        if key == curve_quantity and values.count() > 1:  # runs may have different epsilons
            merged |= {f"{epsilon}/lowest": values.min(), f"{epsilon}/highest": values.max()}
    split = results[0]["split"]
    clean = statistics.fmean(result[split]["error"] for result in results)
    return {**results[0], "attack": merged, split: {"error": clean}}
