"""Intervals of claims over other seeds and other test images: results/claims_over_images.csv."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from capsule_lab.errors import ConfigError
from capsule_lab.runs import predictions
from capsule_studies.claims import images
from capsule_studies.claims.read import read

ARCHIVE = Path("of_a_table_runs.tar.gz")
IMAGES = 2000


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return ``over_images`` of a claim about two networks with these errors per seed, in percent."""
    generator = np.random.default_rng(3)

    def runs(name: str, errors: list[float], label: int) -> pd.DataFrame:
        lines = []
        for seed, error in enumerate(errors):
            directory = tmp_path / f"{name}-{seed}"
            directory.mkdir()
            wrong = np.zeros(IMAGES, dtype=np.int32)
            wrong[generator.permutation(IMAGES)[: round(error * IMAGES / 100)]] = 1
            arrays = {
                "label": np.full_like(wrong, label),
                "prediction": label + wrong,
                "margin": 0.5 - wrong.astype(np.float32),
            }
            entry = predictions.write(directory, predictions.FILE, arrays)
            (directory / "metrics.json").write_text(json.dumps({"predictions": entry}))
            lines.append({"seed": seed, "value": error, "directory": directory.name})
        return pd.DataFrame(lines)

    def compared(
        first: list[float], second: list[float], *, other_images: bool = False, **changed: Any
    ) -> Any:
        samples = (
            runs("first", first, 0).assign(**changed),
            runs("second", second, int(other_images)),
        )
        monkeypatch.setattr(images, "runs_compared", lambda _: samples)
        monkeypatch.setattr(images, "archives_of", lambda _: {"of_a_table": ARCHIVE})
        monkeypatch.setattr(images, "effect_of", lambda _: SimpleNamespace(paired=False))
        return images.over_images({"id": "C-000"}, {ARCHIVE: tmp_path})

    return compared


def test_interval_covers_other_images_although_all_seeds_agree(compare: Callable[..., Any]) -> None:
    """The deviation over seeds is zero; 120 and 60 of three times 2,000 predictions are wrong."""
    found = compare([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    error_of_images = 100 * math.sqrt((0.02 + 0.01) / (3 * IMAGES))
    assert found.estimate == pytest.approx(1.0)
    assert found.error == pytest.approx(error_of_images, rel=0.05)
    assert found.low == pytest.approx(1.0 - 1.96 * error_of_images, abs=0.05)
    assert found.high == pytest.approx(1.0 + 1.96 * error_of_images, abs=0.05)


def test_runs_with_other_test_images_are_refused(compare: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="different test images"):
        compare([2.0, 1.5], [1.0, 1.5], other_images=True)


def test_a_value_that_is_not_the_error_of_the_predictions_has_no_interval(
    compare: Callable[..., Any],
) -> None:
    assert compare([2.0, 1.5], [1.0, 1.5], value=[2.0, 1.6]) is None


def test_a_run_without_predictions_has_no_interval(compare: Callable[..., Any]) -> None:
    assert compare([2.0, 1.5], [1.0, 1.5], directory=["first-0", "missing"]) is None


def test_a_claim_against_a_number_has_no_interval() -> None:
    claim = next(each for each in read() if isinstance(each.get("second"), float | int))
    assert images.over_images(claim, {}) is None


@pytest.mark.slow
def test_the_file_is_that_of_the_archives() -> None:
    """After new results of a table: ``python -m capsule_studies.claims.images``."""
    known = images.recorded()
    found = images.frame(read())
    assert [*known] == [*found["id"]]
    for line in found.itertuples():
        low, high = known[line.id]
        assert (line.low, line.high) == pytest.approx((low, high), abs=0.05 * (high - low))
