"""Writes results/claims_over_images.csv: intervals over other seeds and other test images.

The intervals of the page are over seeds, because all networks have the same test images. Where a claim compares errors,
and the archives have the predictions of all its runs, a bootstrap draws both; see ``statistics.resampled_difference``.

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
import numpy.typing as npt
import pandas as pd

from capsule_lab import statistics
from capsule_lab.runs import predictions
from capsule_lab.runs.files import write_text
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
    """
    compared = runs_compared(claim)
    if compared is None:
        return None
    samples = []
    for runs, archive in zip(compared, _archives(claim), strict=True):
        wrong = _percent_wrong(runs, folders[archive]) if archive in folders else None
        if wrong is None:
            return None
        samples.append(wrong)
    first, second = samples
    each_image = np.arange(first.shape[1])
    paired = effect_of(claim).paired
    return statistics.resampled_difference(first, second, each_image, paired=paired)


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


def _percent_wrong(runs: pd.DataFrame, folder: Path) -> npt.NDArray[Any] | None:
    """Return 0 or 100 for each image, ``(run, image)``, in the order of seeds; ``None`` without predictions."""
    if "directory" not in runs:
        return None
    wrong = []
    for run in runs.sort_values("seed").itertuples():
        directory = folder / run.directory
        record = directory / "metrics.json"
        found = None
        if record.is_file():
            found = predictions.read(directory, json.loads(record.read_text()))
        if found is None:
            return None
        percent = 100.0 * found.wrong
        if abs(percent.mean() - float(run.value)) > _ROUNDING:
            return None  # the claim does not compare the error of the test
        wrong.append(percent)
    return np.stack(wrong)


def main() -> int:
    """Write the file."""
    found = frame(read())
    write_text(FILE, as_csv(found))
    sys.stdout.write(f"{len(found)} claims with predictions of all runs: {FILE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
