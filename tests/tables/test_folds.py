"""A table over folds: one cell per fold and seed, their error with its interval, and rows compared by fold."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsule_lab import runs
from capsule_lab.commands.tables import read_table as read
from capsule_lab.errors import TableError
from capsule_lab.statistics import interval_over_clusters, interval_over_images, mcnemar
from capsule_lab.tables import comparison_formats, formats
from capsule_lab.tables.comparisons import compared
from capsule_lab.tables.expand import expand
from capsule_lab.tables.summary import Entry, Mean, summarise
from tests.helpers.tables import TINY, cells_of, write_run, write_table

FOLDS = 3
IMAGES = 20
BASE = [*TINY, "data=folder", "data.source=real", "data.path=pictures", "data.size=20"]
ROWS: list[dict[str, Any]] = [
    {"name": "a", "overrides": ["data.batch_size=8"]},
    {"name": "b", "overrides": ["data.batch_size=9"]},
]
BY_FOLD = {"name": "ab", "rows": ["a"], "against": "b", "pairing": "fold"}
Wrong = Callable[[str, int, int], Any]


def table_over_folds(folder: Path, **content: Any) -> Path:
    return write_table(folder, **{"base": BASE, "rows": ROWS, "folds": FOLDS, **content})


def some_wrong(row: str, fold: int, seed: int) -> Any:
    share = {"a": 0.2, "b": 0.5}[row]
    return np.random.default_rng([ord(row), fold, seed]).random(IMAGES) < share


def write_runs(file: Path, wrong: Wrong = some_wrong, **more: Any) -> list[Entry]:
    """Finished runs of every cell, with predictions; ``more`` are further arrays of these."""
    for cell in cells_of(file):
        images = wrong(cell.row.name, cell.fold.index, cell.seed)
        directory = write_run(cell, error=100 * float(images.mean()))
        labels = (np.arange(IMAGES, dtype=np.int32) + cell.fold.index) % 3
        arrays = {
            "label": labels,
            "prediction": (labels + images) % 3,
            "margin": -images.astype(np.float32),
            **more,
        }
        record = json.loads((directory / "metrics.json").read_text())
        entry = runs.predictions.write(directory, runs.predictions.FILE, arrays)
        (directory / "metrics.json").write_text(json.dumps(record | {"predictions": entry}))
    table = read(file)
    return summarise(table)


def pooled(row: str, seeds: list[int]) -> Any:
    """The share of seeds that get each image of all folds wrong."""
    of_folds = []
    for fold in range(FOLDS):
        wrong = [some_wrong(row, fold, seed) for seed in seeds]
        of_folds.append(np.mean(wrong, axis=0))
    return np.concatenate(of_folds)


def test_every_fold_and_seed_is_a_cell(tmp_path: Path) -> None:
    file = table_over_folds(tmp_path, rows=ROWS[:1], seeds=[4, 7])
    cells = cells_of(file)
    names = [cell.name for cell in cells]
    assert names[:3] == ["a fold 0 seed 4", "a fold 0 seed 7", "a fold 1 seed 4"]
    assert len(names) == len({cell.fingerprint for cell in cells}) == FOLDS * 2
    last = cells[-1].config
    assert (last.data.folds, last.data.fold, last.seed) == (FOLDS, 2, 7)
    assert "data.fold=2" in cells[-1].command


def test_evaluations_and_taken_values_are_those_of_the_same_fold(tmp_path: Path) -> None:
    taking = {"name": "taking", "overrides": [], "takes": {"data.mixup": ["a", "test/error"]}}
    evaluation = {"name": "evaluated", "of": "a", "evaluate": ["data.eval_images=5"]}
    file = table_over_folds(tmp_path, rows=[ROWS[0], taking, evaluation], seeds=[0])
    for cell in cells_of(file):
        if cell.row.name == "a":
            write_run(cell, error=1.0 + cell.fold.index)
    for cell in cells_of(file):
        if cell.row.name == "taking":
            assert cell.config.data.mixup == 1.0 + cell.fold.index
        elif cell.row.name == "evaluated":
            assert cell.training.fold == cell.fold


def test_overrides_of_folds_are_refused(tmp_path: Path) -> None:
    table = read(table_over_folds(tmp_path))
    message = r"^every run has data\.fold=0; leave it out, folds: 3 of the table sets the folds$"
    with pytest.raises(TableError, match=message):
        expand(table, ["data.fold=0"])


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_mean_is_over_folds_and_interval_over_all_images(tmp_path: Path, seeds: list[int]) -> None:
    entry, _ = write_runs(table_over_folds(tmp_path, seeds=seeds))
    shares = pooled("a", seeds)
    by_fold = 100 * shares.reshape(FOLDS, IMAGES).mean(axis=1)
    ours = entry.ours
    assert isinstance(ours, Mean)
    assert [*ours.by_fold.values()] == pytest.approx(by_fold)
    assert ours.center == pytest.approx(by_fold.mean())
    assert ours.std == pytest.approx(by_fold.std(ddof=1))
    assert ours.count == FOLDS * len(seeds)
    low, high = interval_over_images(shares.sum(), FOLDS * IMAGES)
    assert ours.over_images == pytest.approx((low, high))
    assert str(ours) == f"{ours.center:.2f} ({low:.2f} to {high:.2f} over test images)"


def test_interval_is_over_groups_where_there_are_some(tmp_path: Path) -> None:
    groups = np.arange(IMAGES, dtype=np.int32) // 5
    entry, _ = write_runs(table_over_folds(tmp_path, seeds=[0]), cluster=groups)
    assert isinstance(entry.ours, Mean)
    everywhere = np.arange(FOLDS * IMAGES) // 5
    assert entry.ours.over_images == pytest.approx(
        interval_over_clusters(pooled("a", [0]), everywhere)
    )


def test_without_predictions_there_is_no_interval(tmp_path: Path) -> None:
    file = table_over_folds(tmp_path, rows=ROWS[:1], seeds=[0])
    for cell in cells_of(file)[:2]:
        write_run(cell, error=1.0 + cell.fold.index)
    (entry,) = summarise(read(file))
    assert isinstance(entry.ours, Mean)
    assert entry.ours.over_images is None
    assert str(entry.ours) == "1.50 ± 0.707"
    assert entry.state == "2 of 3, 1 missing"


def test_rows_are_compared_by_fold_with_the_correction_for_overlap(tmp_path: Path) -> None:
    """Bouckaert and Frank 2004: t with the variance (1 / folds + 1 / (folds - 1)) of one difference."""
    file = table_over_folds(tmp_path, seeds=[0, 1], comparisons=[BY_FOLD])
    entries = write_runs(file)
    (found,) = compared(read(file), entries)
    differences = (pooled("a", [0, 1]) - pooled("b", [0, 1])).reshape(FOLDS, IMAGES)
    by_fold = 100 * differences.mean(axis=1)
    assert found.difference.estimate == pytest.approx(by_fold.mean())
    variance = by_fold.var(ddof=1) * (1 / FOLDS + 1 / (FOLDS - 1))
    assert found.difference.error == pytest.approx(variance**0.5)
    assert found.difference.df == FOLDS - 1
    assert found.difference.counts == (FOLDS, FOLDS)


def test_networks_of_all_folds_are_compared_over_their_images(tmp_path: Path) -> None:
    file = table_over_folds(tmp_path, seeds=[0], comparisons=[{**BY_FOLD, "unit": "images"}])
    (found,) = compared(read(file), write_runs(file))
    wrong = [pooled(row, [0]).astype(bool) for row in "ab"]
    assert found.difference.p == mcnemar(*wrong).p
    assert found.difference.test == "exact McNemar test, these two networks of each fold"


def test_several_seeds_of_all_folds_are_compared_by_a_bootstrap(tmp_path: Path) -> None:
    over_images = {**BY_FOLD, "unit": "images"}
    file = table_over_folds(tmp_path, seeds=[0, 1], comparisons=[over_images])
    (found,) = compared(read(file), write_runs(file))
    assert found.difference.test == "bootstrap over runs and images"
    expected = 100 * (pooled("a", [0, 1]) - pooled("b", [0, 1])).mean()
    assert found.difference.estimate == pytest.approx(expected)
    (directory,) = runs.directories.attempts(cells_of(file)[0].fingerprint)
    (directory / "metrics.json").unlink()
    (found,) = compared(read(file), summarise(read(file)))
    assert found.remark.startswith(
        "1 runs without a pair; over seeds alone: not all runs have predictions with images"
    )


def test_report_names_every_fold(tmp_path: Path) -> None:
    file = table_over_folds(tmp_path, seeds=[0], comparisons=[BY_FOLD])
    entries = write_runs(file)
    table = read(file)
    answers = compared(table, entries)
    first, second, explanation, *_ = formats._folds(entries)
    values = [run.value for run in entries[0].runs]
    assert first == "error: folds of a: " + ", ".join(
        f"{fold}: {value:.2f}" for fold, value in enumerate(values)
    )
    assert second.startswith("error: folds of b: 0: ")
    assert explanation.startswith("the interval of a row covers other test pictures")
    text = formats.as_markdown(table, entries, "a command", answers)
    assert "folds of b" in text
    frame = formats.as_frame(entries)
    assert isinstance(entries[0].ours, Mean)
    assert (frame["ours_low"][0], frame["ours_high"][0]) == entries[0].ours.over_images
    assert formats.runs_frame(entries)["fold"].tolist() == [0, 1, 2, 0, 1, 2]
    assert "Means over 3 folds and 95 \\% intervals" in formats.as_latex(table, entries, answers)
    figure = comparison_formats.runs_as_dots(entries)
    assert figure is not None
    assert "95 % interval over test images" in figure.get_suptitle().replace("\n", " ")
