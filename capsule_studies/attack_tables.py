"""Figures of tables whose rows are evaluated by ``attack``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from capsule_lab.tables.summary import Entry, Run
from capsule_studies.attacks.figures import accuracy_figure, attack_of


class _FigureKey(NamedTuple):
    """The properties that all curves of a figure share; ``column`` is empty if all columns have the same overrides."""

    targeted: bool
    space: str
    norm: str
    column: str

    @property
    def quantity(self) -> str:
        """The quantity that the curves show."""
        return "success" if self.targeted else "accuracy"

    @property
    def name(self) -> str:
        """The name of the figure."""
        name = "targeted_attacks" if self.targeted else "attacks"
        if self.space != "input":
            name += f"_in_{self.space}"
        if self.norm == "l2":
            name += "_l2"
        if self.column:
            name += f"_{self.column}"
        return name


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
    settings = {entry.column.overrides for entry in attacked}
    row_labels = {entry.row.name: entry.row.label for entry in entries}
    curves_by_label: dict[_FigureKey, dict[str, _Curve]] = {}
    for entry in attacked:
        column = entry.column.name if len(settings) > 1 else ""
        for run in entry.runs:
            if "targeted" not in run.result:
                continue
            norm = run.result["options"].get("norm", "linf")
            key = _FigureKey(run.result["targeted"], run.result["space"], norm, column)
            new = _new_curve(entry, run, row_labels)
            curve = curves_by_label.setdefault(key, {}).setdefault(new.label, new)
            _add(run, entry, key.quantity, curve)
    curves_of = {key: [*by_label.values()] for key, by_label in curves_by_label.items()}
    # the same network has the same style in all figures
    networks = [curve.network for curve in chain(*curves_of.values())]
    return {key.name: _figure(curves, networks) for key, curves in curves_of.items()}


def _new_curve(entry: Entry, run: Run, row_labels: dict[str, str]) -> _Curve:
    data = "" if run.real else ", stand-in"
    network = row_labels.get(entry.row.of, entry.row.of)
    source = entry.row.takes.get("source", ("",))[0]
    return _Curve(
        label=entry.row.label + data,
        network=network + data,
        source=row_labels.get(source, source),
        runs=[],
        published={},
    )


def _add(run: Run, entry: Entry, quantity: str, curve: _Curve) -> None:
    """Add a run to its curve once, and the number that was published for this entry."""
    epsilon, _, measured = entry.column.metric.removeprefix("attack/").rpartition("/")
    known = {other.cell.fingerprint for other in curve.runs}
    if run.cell.fingerprint not in known:
        curve.runs.append(run)
    if entry.published and run.real and measured == quantity:
        curve.published[float(epsilon)] = entry.published.mean


def _figure(curves: Sequence[_Curve], numbered: Sequence[str]) -> Figure:
    results, attacks, places, published = [], [], [], []
    for curve in curves:
        attack = attack_of(curve.runs[0].result, curve.source)
        results.append(_over_seeds(curve.runs))
        attacks.append(attack)
        places.append((attack, curve.network))
        published.append(curve.published)
    networks = []
    for place, curve in zip(places, curves, strict=True):
        # two attacks that differ only in an option
        is_ambiguous = places.count(place) > 1
        networks.append(curve.label if is_ambiguous else curve.network)
    return accuracy_figure(results, networks, attacks, published, numbered)


def _over_seeds(runs: Sequence[Run]) -> dict[str, Any]:
    """Merge the records of several seeds into one record of their means."""
    results = [run.result for run in runs]
    first = results[0]
    if len(results) == 1:
        return first
    numbers = pd.DataFrame([result["attack"] for result in results], dtype=float)
    merged = numbers.mean().to_dict()
    drawn = "success" if first.get("targeted") else "accuracy"
    for name, values in numbers.items():
        epsilon, _, quantity = str(name).partition("/")
        if quantity == drawn and values.count() > 1:  # runs may have different epsilons
            merged[f"{epsilon}/lowest"] = values.min()
            merged[f"{epsilon}/highest"] = values.max()
    split = first["split"]
    error = statistics.fmean(result[split]["error"] for result in results)
    return {**first, "attack": merged, split: {"error": error}}
