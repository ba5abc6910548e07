"""Writes results/claims_over_images.csv: intervals over other seeds and other test images.

The intervals of the page are over seeds, because all networks have the same test images. Where a claim compares errors,
and the archives have the predictions of all its runs, both can be other ones; see ``statistics.crossed_difference``.

``python -m capsule_studies.claims.images`` reads the archives, which takes a minute; ``make claims`` reads the file
only. Run it after new results of a table.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from capsule_lab import statistics
from capsule_lab.errors import ConfigError
from capsule_lab.runs import predictions
from capsule_lab.runs.files import write_text
from capsule_lab.runs.predictions import Predictions
from capsule_lab.statistics import Difference
from capsule_lab.tables.formats import as_csv
from capsule_studies.claims.effects import effect_of, read_csv, runs_compared
from capsule_studies.claims.read import RESULTS, read
from capsule_studies.claims.recompute import archives_of, unpack

FILE = RESULTS / "claims_over_images.csv"
_ROUNDING = (
    1e-3  # ours, in points: values in results/ are rounded to six digits, an image is 0.01 points
)


def over_images(claim: dict[str, Any], folders: Mapping[Path, Path]) -> Difference | None:
    """Compare the two samples of a claim over seeds and test images.

    Args:
        claim: of docs/claims.yaml.
        folders: where each archive is unpacked.

    Returns:
        The difference with its interval; ``None`` unless every run has predictions whose error is the value that the
        claim compares.

    Raises:
        ConfigError: if runs were tested on different images.
    """
    compared = runs_compared(claim)
    if compared is None:
        return None
    samples = []
    for runs, archive in zip(compared, _archives(claim), strict=True):
        found = _predictions(runs, folders[archive]) if archive in folders else None
        if found is None:
            return None
        samples.append(found)
    first, second = samples
    paired = effect_of(claim).paired
    if paired:
        seeds = sorted(first.keys() & second.keys())
        first, second = ({seed: sample[seed] for seed in seeds} for sample in samples)
    every = [*first.values(), *second.values()]
    labels = every[0].label
    if not all(np.array_equal(each.label, labels) for each in every):
        raise ConfigError(
            f"{claim['id']} has runs with different test images; expected the same in every run"
        )
    wrong, other_wrong = (predictions.percent_wrong(sample.values()) for sample in (first, second))
    return statistics.crossed_difference(wrong, other_wrong, np.arange(len(labels)), paired=paired)


def frame(claims: list[dict[str, Any]]) -> pd.DataFrame:
    """Return one line for each claim with predictions: its id, interval and number of test images."""
    archives = {archive for claim in claims for archive in _archives(claim) if archive.is_file()}
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        folders = {archive: Path(scratch) / archive.stem for archive in archives}
        for archive, folder in folders.items():
            unpack(archive, folder)
        for claim in claims:
            found = over_images(claim, folders)
            if found is not None:
                lines.append({"id": claim["id"], "low": found.low, "high": found.high})
    return pd.DataFrame(lines, columns=["id", "low", "high"]).sort_values("id")


def recorded() -> dict[str, tuple[float, float]]:
    """Return the intervals of the file by the id of the claim."""
    lines = read_csv(FILE)
    return {line.id: (line.low, line.high) for line in lines.itertuples()}


def _archives(claim: dict[str, Any]) -> list[Path]:
    """Return the archives of the first and the second sample."""
    archives = [*archives_of(claim).values()]
    return [archives[0], archives[-1]]


def _predictions(runs: pd.DataFrame, folder: Path) -> dict[int, Predictions] | None:
    """Return the predictions of every run by seed; ``None`` without them, or if a value is not their error."""
    if "directory" not in runs:
        return None
    by_seed = {}
    for run in runs.sort_values("seed").itertuples():
        directory = folder / run.directory
        record = directory / "metrics.json"
        if not record.is_file():
            return None
        found = predictions.read(directory, json.loads(record.read_text()))
        if found is None or abs(100 * found.wrong.mean() - float(run.value)) > _ROUNDING:
            return None
        by_seed[int(run.seed)] = found
    return by_seed


def main() -> int:
    """Write the file."""
    found = frame(read())
    write_text(FILE, as_csv(found))
    sys.stdout.write(f"{len(found)} claims with predictions of all runs: {FILE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
