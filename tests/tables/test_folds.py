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
from capsule_lab.tables.comparisons import compared, plan
from capsule_lab.tables.expand import expand
from capsule_lab.tables.summary import Entry, Mean, summarise
from tests.helpers.commands import Cli
from tests.helpers.tables import TINY, cells_of, write_run, write_table
from tests.helpers.tiers import whole_but

FOLDS = 3
IMAGES = 20
BASE = [
    *TINY,
    "data=folder",
    "data.source=real",
    "data.path=pictures",
    "data.size=20",
]
ROWS: list[dict[str, Any]] = [
    {"name": "a", "overrides": ["data.batch_size=8"]},
    {"name": "b", "overrides": ["data.batch_size=9"]},
]
BY_FOLD = {
    "name": "ab",
    "rows": ["a"],
    "against": "b",
    "pairing": "fold",
}
OVER_IMAGES = {**BY_FOLD, "unit": "images"}
Wrong = Callable[[str, int, int], Any]


def table_over_folds(folder: Path, **content: Any) -> Path:
    table = {"base": BASE, "rows": ROWS, "folds": FOLDS, **content}
    return write_table(folder, **table)


def some_wrong(row: str, fold: int, seed: int) -> Any:
    share = {"a": 0.2, "b": 0.5}[row]
    generator = np.random.default_rng([ord(row), fold, seed])
    return generator.random(IMAGES) < share


def write_runs(file: Path, wrong: Wrong = some_wrong, **more: Any) -> list[Entry]:
    """Finished runs of every cell, with predictions; ``more`` are further arrays of these."""
    for cell in cells_of(file):
        images = wrong(cell.row.name, cell.fold.index, cell.seed)
        directory = write_run(cell, error=100 * float(images.mean()))
        add_predictions(directory, cell.fold.index, images, **more)
    return summarise(read(file))


def add_predictions(directory: Path, fold: int, wrong: Any, **more: Any) -> None:
    labels = (np.arange(len(wrong), dtype=np.int32) + fold) % 3
    arrays = {
        "label": labels,
        "prediction": (labels + wrong) % 3,
        "margin": -wrong.astype(np.float32),
        **more,
    }
    entry = runs.predictions.write(directory, runs.predictions.FILE, arrays)
    metrics = directory / "metrics.json"
    record = json.loads(metrics.read_text())
    record["predictions"] = entry
    metrics.write_text(json.dumps(record))


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
    fingerprints = {cell.fingerprint for cell in cells}
    assert len(names) == len(fingerprints) == FOLDS * 2
    *_, last = cells
    assert last.config.seed == 7
    assert last.config.data.folds == FOLDS
    assert last.config.data.fold == 2
    assert "data.fold=2" in last.command


def test_evaluations_and_taken_values_are_those_of_the_same_fold(tmp_path: Path) -> None:
    taking = {
        "name": "taking",
        "overrides": [],
        "takes": {"data.mixup": ["a", "test/error"]},
    }
    evaluation = {
        "name": "evaluated",
        "of": "a",
        "evaluate": ["data.eval_images=5"],
    }
    rows = [ROWS[0], taking, evaluation]
    file = table_over_folds(tmp_path, rows=rows, seeds=[0])
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
    message = (
        r"^every run has data\.fold=0; "
        r"leave it out, folds: 3 of the table sets the folds$"
    )
    with pytest.raises(TableError, match=message):
        expand(table, ["data.fold=0"])


def percent_by_fold(shares: Any) -> Any:
    of_folds = shares.reshape(FOLDS, IMAGES)
    return 100 * of_folds.mean(axis=1)


def mean_of(entry: Entry) -> Mean:
    assert isinstance(entry.ours, Mean)
    return entry.ours


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_mean_is_over_folds_and_interval_over_all_images(tmp_path: Path, seeds: list[int]) -> None:
    file = table_over_folds(tmp_path, seeds=seeds)
    entry, _ = write_runs(file)
    shares = pooled("a", seeds)
    by_fold = percent_by_fold(shares)
    ours = mean_of(entry)
    assert [*ours.by_fold.values()] == pytest.approx(by_fold)
    assert ours.center == pytest.approx(by_fold.mean())
    assert ours.std == pytest.approx(by_fold.std(ddof=1))
    assert ours.count == FOLDS * len(seeds)
    low, high = interval_over_images(shares.sum(), FOLDS * IMAGES)
    assert ours.interval == (pytest.approx(low), pytest.approx(high), "test images")
    interval = f"{low:.2f} to {high:.2f} over test images"
    assert str(ours) == f"{ours.center:.2f} ({interval})"


def test_interval_is_over_groups_where_there_are_some(tmp_path: Path) -> None:
    groups = np.arange(IMAGES, dtype=np.int32) // 5
    file = table_over_folds(tmp_path, seeds=[0])
    entry, _ = write_runs(file, cluster=groups)
    everywhere = np.arange(FOLDS * IMAGES) // 5
    expected = interval_over_clusters(pooled("a", [0]), everywhere)
    ours = mean_of(entry)
    assert expected is not None
    low, high = expected
    assert ours.interval == (pytest.approx(low), pytest.approx(high), "groups")
    assert str(ours) == f"{ours.center:.2f} ({low:.2f} to {high:.2f} over groups)"


def test_captions_say_that_intervals_are_over_groups(tmp_path: Path) -> None:
    groups = np.arange(IMAGES, dtype=np.int32) // 5
    file = table_over_folds(tmp_path, seeds=[0])
    entries = write_runs(file, cluster=groups)
    latex = formats.as_latex(read(file), entries)
    assert "95 \\% intervals over all their groups" in latex
    figure = comparison_formats.runs_as_dots(entries)
    assert figure is not None
    title = figure.get_suptitle().replace("\n", " ")
    assert "95 % interval over groups" in title


def test_without_predictions_there_is_no_interval(tmp_path: Path) -> None:
    file = table_over_folds(tmp_path, rows=ROWS[:1], seeds=[0])
    for cell in cells_of(file)[:2]:
        write_run(cell, error=1.0 + cell.fold.index)
    (entry,) = summarise(read(file))
    ours = mean_of(entry)
    assert ours.interval is None
    assert str(ours) == "1.50 ± 0.707"
    assert entry.state == "2 of 3, 1 missing"


def the_comparison(file: Path) -> Any:
    """The comparison of the rows, after runs of every cell."""
    entries = write_runs(file)
    (found,) = compared(read(file), entries)
    return found


def test_rows_are_compared_by_fold_with_the_correction_for_overlap(tmp_path: Path) -> None:
    """Bouckaert and Frank 2004: t with the variance (1 / folds + 1 / (folds - 1)) of one difference."""
    file = table_over_folds(tmp_path, seeds=[0, 1], comparisons=[BY_FOLD])
    difference = the_comparison(file).difference
    by_fold = percent_by_fold(pooled("a", [0, 1]) - pooled("b", [0, 1]))
    assert difference.estimate == pytest.approx(by_fold.mean())
    correction = 1 / FOLDS + 1 / (FOLDS - 1)
    variance = by_fold.var(ddof=1) * correction
    assert difference.error == pytest.approx(variance**0.5)
    assert difference.df == FOLDS - 1
    assert difference.counts == (FOLDS, FOLDS)


def test_networks_of_all_folds_are_compared_over_their_images(tmp_path: Path) -> None:
    file = table_over_folds(tmp_path, seeds=[0], comparisons=[OVER_IMAGES])
    difference = the_comparison(file).difference
    wrong = [pooled(row, [0]).astype(bool) for row in "ab"]
    assert difference.p == mcnemar(*wrong).p
    assert difference.test == "exact McNemar test, these two networks of each fold"


def test_several_seeds_of_all_folds_are_compared_over_runs_and_images(tmp_path: Path) -> None:
    file = table_over_folds(tmp_path, seeds=[0, 1], comparisons=[OVER_IMAGES])
    difference = the_comparison(file).difference
    assert difference.test == "crossed random effects of runs and images"
    differences = pooled("a", [0, 1]) - pooled("b", [0, 1])
    assert difference.estimate == pytest.approx(100 * differences.mean())


def test_without_a_run_of_a_fold_seeds_alone_are_compared(tmp_path: Path) -> None:
    file = table_over_folds(tmp_path, seeds=[0, 1], comparisons=[OVER_IMAGES])
    write_runs(file)
    first, *_ = cells_of(file)
    (directory,) = runs.directories.attempts(first.fingerprint)
    (directory / "metrics.json").unlink()
    table = read(file)
    (found,) = compared(table, summarise(table))
    assert found.remark.startswith(
        "1 runs without a pair; over seeds alone: not all seeds have the same folds"
    )


def remove_run(file: Path, fold: int, seed: int) -> None:
    """Remove the results of both rows in this fold with this seed."""
    for cell in cells_of(file):
        if (cell.fold.index, cell.seed) == (fold, seed):
            (directory,) = runs.directories.attempts(cell.fingerprint)
            (directory / "metrics.json").unlink()


def test_seeds_with_other_folds_are_not_compared_over_images(tmp_path: Path) -> None:
    """Folds are stratified, so that pictures listed by class have the same labels in every fold."""
    file = table_over_folds(tmp_path, seeds=[0, 1], comparisons=[OVER_IMAGES])
    write_runs(file, label=np.arange(IMAGES, dtype=np.int32) % 3)
    remove_run(file, fold=2, seed=0)
    remove_run(file, fold=1, seed=1)
    table = read(file)
    (found,) = compared(table, summarise(table))
    assert found.difference.test == "paired t-test, corrected for overlapping folds"
    assert found.remark == "over seeds alone: not all seeds have the same folds"


def test_seeds_of_other_pictures_have_no_interval_over_images(tmp_path: Path) -> None:
    """Pictures were added to the folder after the runs of the first seed."""
    file = table_over_folds(tmp_path, seeds=[0, 1], comparisons=[OVER_IMAGES])
    write_runs(file)
    for cell in cells_of(file):
        if cell.seed == 1:
            (directory,) = runs.directories.attempts(cell.fingerprint)
            add_predictions(directory, cell.fold.index, np.zeros(IMAGES + 5, bool))
    table = read(file)
    entries = summarise(table)
    assert mean_of(entries[0]).interval is None
    (found,) = compared(table, entries)
    assert found.remark == "over seeds alone: runs were tested on different images"
    first, *_ = formats._folds(entries)
    assert first.endswith("; no interval, because runs of a fold were tested on different images")


def test_comparisons_of_folds_are_not_planned(tmp_path: Path) -> None:
    file = table_over_folds(tmp_path, seeds=[0], comparisons=[BY_FOLD])
    answers = compared(read(file), write_runs(file))
    message = "^comparisons over folds cannot be planned, .*; expected a table without folds"
    with pytest.raises(TableError, match=message):
        plan(answers, 1.0, 0.8)


def test_report_names_every_fold(tmp_path: Path) -> None:
    file = table_over_folds(tmp_path, seeds=[0], comparisons=[BY_FOLD])
    entries = write_runs(file)
    table = read(file)
    answers = compared(table, entries)
    first, second, explanation, *_ = formats._folds(entries)
    values = [f"{fold}: {run.value:.2f}" for fold, run in enumerate(entries[0].runs)]
    assert first == "error: folds of a: " + ", ".join(values)
    assert second.startswith("error: folds of b: 0: ")
    assert explanation.startswith("the interval of a row covers other test pictures")
    text = formats.as_markdown(table, entries, "a command", answers)
    assert "folds of b" in text
    latex = formats.as_latex(table, entries, answers)
    assert "Means over 3 folds and 95 \\% intervals" in latex


@pytest.mark.parametrize("columns", whole_but([80, 140], 80))
def test_remarks_of_the_report_fit_the_terminal(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    file = table_over_folds(tmp_path, seeds=[0], comparisons=[BY_FOLD])
    write_runs(file)
    lines = cli("report", f"table={file}", f"out={tmp_path / 'out'}").out.splitlines()
    shown = [line for line in lines if not line.startswith("written to ")]
    assert max(map(len, shown)) <= columns
    assert "Grandvalet 2004)" in " ".join(shown)


def test_frames_and_figure_have_folds_and_intervals(tmp_path: Path) -> None:
    file = table_over_folds(tmp_path, seeds=[0])
    entries = write_runs(file)
    frame = formats.as_frame(entries)
    interval = mean_of(entries[0]).interval
    assert interval is not None
    assert (frame["ours_low"][0], frame["ours_high"][0]) == interval[:2]
    of_runs = formats.runs_frame(entries)
    assert of_runs["fold"].tolist() == [0, 1, 2, 0, 1, 2]
    figure = comparison_formats.runs_as_dots(entries)
    assert figure is not None
    title = figure.get_suptitle().replace("\n", " ")
    assert "95 % interval over test images" in title
