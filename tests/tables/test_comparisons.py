"""Comparisons of a table, answered from records and predictions that finished runs leave."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsule_lab import runs
from capsule_lab.commands.tables import read_table as read
from capsule_lab.errors import ConfigError, TableError
from capsule_lab.statistics import (
    holm,
    interval_over_clusters,
    paired_difference,
    runs_for,
    unpaired_difference,
)
from capsule_lab.tables import comparison_formats, formats
from capsule_lab.tables.cells import EvaluationCell, TrainingCell
from capsule_lab.tables.comparisons import Compared, compared, plan
from capsule_lab.tables.expand import distinct, expand
from capsule_lab.tables.reader import select
from capsule_lab.tables.summary import summarise
from tests.helpers.tables import (
    RESULT,
    cells_of,
    entries_of,
    write_evaluation,
    write_run,
    write_table,
)

ROWS = [
    {"name": "a", "overrides": ["data.batch_size=8"]},
    {"name": "b", "overrides": ["data.batch_size=9"]},
]
ERRORS = {"a": [1.0, 1.2, 1.4], "b": [1.5, 1.6, 2.0]}
IMAGES = 200


def answers(
    folder: Path,
    comparisons: Sequence[dict[str, Any]],
    errors: dict[str, list[float]] = ERRORS,
    wrong: Callable[[str, int], Any] | None = None,
    **more: Any,
) -> list[Compared]:
    """Answers from runs with these errors; ``wrong`` is a function from row and seed to the wrong images."""
    file = write_table(folder, rows=ROWS, seeds=[0, 1, 2], comparisons=list(comparisons))
    table = read(file)
    for cell in expand(table):
        of_row = errors[cell.row.name]
        if cell.seed < len(of_row):
            directory = write_run(cell, error=of_row[cell.seed], **more)
            if wrong is not None:
                add_predictions(directory, wrong(cell.row.name, cell.seed))
    return compared(table, summarise(table))


def percentage(wrong: Any) -> float:
    return float(100 * wrong.mean())


def add_predictions(directory: Path, wrong: Any, **more: Any) -> None:
    images = np.arange(IMAGES, dtype=np.int32)
    labels = images % 5
    arrays = {
        "label": labels,
        "prediction": (labels + wrong) % 5,
        "margin": -wrong.astype(np.float32),
        "cluster": images // 10,
        **more,
    }
    entry = runs.predictions.write(directory, runs.predictions.FILE, arrays)
    change_record(directory, predictions=entry, test={"error": percentage(wrong)})


def change_record(directory: Path, **changes: Any) -> None:
    file = directory / "metrics.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | changes))


def test_interval_of_one_run_is_over_groups_where_there_are_some(tmp_path: Path) -> None:
    file = write_table(tmp_path, rows=ROWS[:1], seeds=[0])
    table = read(file)
    (cell,) = expand(table)
    wrong = some_wrong("a", 0)
    add_predictions(write_run(cell), wrong)
    (entry,) = summarise(table)
    expected = interval_over_clusters(wrong, np.arange(IMAGES) // 10)
    assert expected is not None
    low, high = expected
    assert str(entry.ours).endswith(f"(one run; {low:.2f} to {high:.2f} over groups)")


def test_clusters_of_a_part_of_the_test_set(tmp_path: Path) -> None:
    """Only images of the part count, and only its errors: half of the clusters are familiar, half are novel."""
    columns = {
        "familiar": {"label": "familiar", "metric": "test/familiar/error"},
        "novel": {"label": "novel", "metric": "test/novel/error"},
    }
    comparison = {**APART, "unit": "clusters", "columns": ["novel"]}
    file = write_table(tmp_path, rows=ROWS, seeds=[0, 1], columns=columns, comparisons=[comparison])
    table = read(file)
    is_novel = np.arange(IMAGES) >= IMAGES // 2
    novel_errors: dict[str, list[float]] = {"a": [], "b": []}
    for cell in distinct(expand(table)):
        directory = write_run(cell)
        wrong = some_wrong(cell.row.name, cell.seed)
        add_predictions(directory, wrong, part=is_novel.astype(np.int32))
        familiar = percentage(wrong[~is_novel])
        novel = percentage(wrong[is_novel])
        novel_errors[cell.row.name].append(novel)
        test = {"error": 1.0, "familiar/error": familiar, "novel/error": novel}
        change_record(directory, test=test)
    (found,) = compared(table, summarise(table))
    clusters = IMAGES // 20
    assert (
        found.difference.test == f"crossed random effects of runs and {clusters} clusters of images"
    )
    expected = np.mean(novel_errors["a"]) - np.mean(novel_errors["b"])
    assert found.difference.estimate == pytest.approx(expected)


def some_wrong(row: str, seed: int) -> Any:
    share = {"a": 0.1, "b": 0.2}[row]
    return np.random.default_rng([ord(row), seed]).random(IMAGES) < share


def almost_equal(row: str, seed: int) -> Any:
    """Runs of ``a`` are equal; those of ``b`` differ by two images."""
    wrong = 20 if row == "a" else 30 + 2 * seed
    return np.arange(IMAGES) < wrong


def test_comparison_on_the_terminal_has_names_instead_of_labels(tmp_path: Path) -> None:
    (pairs,) = answers(tmp_path, [PAIRS])
    long = {"label": "a long label, three times as long"}
    row = pairs.first.row.model_copy(update=long)
    first = replace(pairs.first, row=row)
    labelled = replace(pairs, first=first)
    standin = replace(pairs, real=False)
    sheet = comparison_formats.on_terminal([labelled, standin])
    names = [shown.cells[0] for shown in sheet.rows]
    assert names == ["pairs: a against b", "pairs: a against b (stand-in)"]


PAIRS = {
    "name": "pairs",
    "rows": ["a"],
    "against": "b",
    "pairing": "seed",
    "family": "all",
    "margin": 1.0,
}
APART = {"name": "apart", "rows": ["a"], "against": "b", "family": "all"}


def test_comparisons_over_seeds_pair_or_do_not(tmp_path: Path) -> None:
    pairs, apart = answers(tmp_path, [PAIRS, APART])
    assert pairs.name == "a against b"
    assert pairs.difference == paired_difference(ERRORS["a"], ERRORS["b"], margin=1.0)
    assert apart.difference == unpaired_difference(ERRORS["a"], ERRORS["b"])
    corrected = holm([pairs.difference.p, apart.difference.p])
    assert [pairs.corrected, apart.corrected] == pytest.approx(corrected)


def test_only_seeds_with_both_runs_are_paired(tmp_path: Path) -> None:
    errors = {"a": [1.0, 1.2], "b": [1.5, 1.6, 2.0]}
    (pairs,) = answers(tmp_path, [PAIRS], errors)
    assert pairs.difference == paired_difference([1.0, 1.2], [1.5, 1.6], margin=1.0)
    assert pairs.remark == "1 seeds without a pair"


WITHOUT_P = {
    "one pair": (PAIRS, {"a": [1.0], "b": [1.5]}, "no p value: it needs two pairs"),
    "one run": (APART, {"a": [1.0], "b": [1.5, 1.6]}, "no p value: it needs two runs a row"),
    "equal pairs": (
        PAIRS,
        {"a": [1.0, 2.0], "b": [1.5, 2.5]},
        "no p value: all differences are equal",
    ),
    "equal runs": (
        APART,
        {"a": [1.0, 1.0], "b": [1.5, 1.5]},
        "no p value: all runs of a row are equal",
    ),
}


@pytest.mark.parametrize("kind", WITHOUT_P)
def test_a_comparison_without_p_says_why_and_its_legend_omits_p(tmp_path: Path, kind: str) -> None:
    comparison, errors, reason = WITHOUT_P[kind]
    (found,) = answers(tmp_path, [comparison], errors)
    assert found.difference.p is None
    assert found.remark.endswith(reason)
    legend = comparison_formats.on_terminal([found]).caption
    assert legend.startswith("difference: first row minus second. planned: ")
    assert "p (Holm)" in comparison_formats.explanation()


def test_comparisons_over_images_and_clusters_use_predictions(tmp_path: Path) -> None:
    over_images = {**PAIRS, "name": "images", "unit": "images", "family": "images"}
    over_clusters = {**PAIRS, "name": "clusters", "unit": "clusters", "family": "clusters"}
    found = answers(tmp_path, [over_images, over_clusters], wrong=some_wrong)
    images, clusters = [answer.difference for answer in found]
    assert images.test == "crossed random effects of runs and images"
    assert clusters.test == "crossed random effects of runs and 20 clusters of images"
    for difference in (images, clusters):
        assert difference.low < difference.estimate < difference.high < 0


def test_one_run_of_one_row_has_no_test_over_images(tmp_path: Path) -> None:
    over_images = {**APART, "unit": "images"}
    errors = {"a": [1.0], "b": [1.0, 1.1, 1.2]}
    (found,) = answers(tmp_path, [over_images], errors, some_wrong)
    assert found.difference.p is None
    assert found.remark == "no p value: it needs two runs a row"


def test_runs_that_did_not_reach_the_value_are_named(tmp_path: Path) -> None:
    metric = "time_to_accuracy/99/seconds"
    columns = {"fast": {"overrides": [], "metric": metric, "statistic": "median"}}
    comparisons = [{**APART, "columns": ["fast"]}]
    file = write_table(
        tmp_path, rows=ROWS, seeds=[0, 1, 2], columns=columns, comparisons=comparisons
    )
    table = read(file)
    seconds = {"a": [10.0, None, None], "b": [20.0, 21.0, 22.0]}
    for cell in expand(table):
        found = {"99/seconds": seconds[cell.row.name][cell.seed]}
        write_run(cell, time_to_accuracy=found, hardware=f"machine of {cell.row.name}")
    (answer,) = compared(table, summarise(table))
    assert answer.remark == (
        "2 of 3 runs of a are left out: not reached, so longer than all; times on different hardware, which cannot be "
        "compared; no p value: it needs two runs a row"
    )


def test_one_run_of_each_row_is_compared_by_mcnemar(tmp_path: Path) -> None:
    over_images = {**APART, "unit": "images"}
    (found,) = answers(tmp_path, [over_images], {"a": [1.0], "b": [1.0]}, some_wrong)
    assert found.difference.test == "exact McNemar test, these two networks"


def test_runs_without_predictions_are_compared_over_seeds(tmp_path: Path) -> None:
    (found,) = answers(tmp_path, [{**PAIRS, "unit": "images"}])
    assert found.difference.test == "paired t-test"
    assert found.remark == "over seeds alone: not all runs have predictions with images"


def test_networks_that_were_tested_on_different_images_are_refused(tmp_path: Path) -> None:
    over_images = {**APART, "unit": "images"}
    file = write_table(tmp_path, rows=ROWS, seeds=[0], comparisons=[over_images])
    first, second = cells_of(file)
    add_predictions(write_run(first), some_wrong("a", 0))
    directory = write_run(second)
    zeros = np.zeros(3, np.int32)
    arrays = {"label": zeros, "prediction": zeros, "margin": np.zeros(3)}
    entry = runs.predictions.write(directory, runs.predictions.FILE, arrays)
    change_record(directory, predictions=entry)
    entries = entries_of(file)
    with pytest.raises(TableError, match="a against b has runs with different test images"):
        compared(read(file), entries)


def test_deviation_below_one_image_is_replaced_by_that_of_the_family(tmp_path: Path) -> None:
    (found,) = answers(tmp_path, [APART], wrong=almost_equal)
    expected = np.sqrt((0 + 1) / 2)
    assert found.difference.test == "t-test with pooled deviation"
    assert found.difference.spread == pytest.approx(expected)
    assert "deviations below one test image: pooled over the family" in found.remark


def test_a_row_is_compared_with_itself_in_another_column(tmp_path: Path) -> None:
    columns = {"one": {"label": "one"}, "two": {"label": "two", "metric": "val/error"}}
    comparison = {
        "name": "columns",
        "rows": ["a"],
        "columns": ["one"],
        "against_column": "two",
        "pairing": "seed",
    }
    file = write_table(tmp_path, rows=ROWS, seeds=[0, 1], columns=columns, comparisons=[comparison])
    table = read(file)
    for cell in distinct(expand(table)):
        write_run(cell, error=1.0 + cell.seed)
    (found,) = compared(table, summarise(table))
    assert found.name == "a: one against two"
    assert found.difference == paired_difference([1.0, 2.0], [3.0, 3.0])
    one_column = select(table, columns=["one"])
    assert compared(one_column, summarise(one_column)) == []


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.check_output(command, cwd=folder, text=True).strip()


def test_comparison_is_planned_if_its_runs_have_a_commit_with_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    commits = []
    for comparisons in ([APART], [APART, {**PAIRS, "margin": 2.0}]):
        write_table(tmp_path, rows=ROWS, seeds=[0, 1, 2], comparisons=comparisons)
        git(tmp_path, "add", "mine.yaml")
        git(tmp_path, "commit", "-qm", "plan")
        commits.append(git(tmp_path, "rev-parse", "--short=12", "HEAD"))
    pairs, apart = answers(tmp_path, [PAIRS, APART], commit=commits[1])
    assert apart.planned is True
    assert pairs.planned is False, "the margin was another"
    assert "yes" in comparison_formats.cells_of(apart)
    assert "after the fact" in comparison_formats.cells_of(pairs)
    for cell in cells_of(tmp_path / "mine.yaml"):
        shutil.rmtree(cell.directories[0])
    pairs, apart = answers(tmp_path, [PAIRS, APART], commit=f"{commits[1]}-dirty")
    assert apart.planned is None, "the uncommitted changes are unknown"
    assert pairs.planned is False
    assert "unknown" in comparison_formats.cells_of(apart)


EVALUATIONS = [
    {"name": "of_a", "of": "a", "evaluate": ["data.eval_images=50"]},
    {"name": "of_b", "of": "b", "evaluate": ["data.eval_images=50"]},
    {"name": "of_b_again", "of": "b", "evaluate": ["data.eval_images=60"]},
]
OF_EVALUATIONS = {**APART, "rows": ["of_a"], "against": "of_b"}


def answers_of_evaluations(file: Path, **of_trainings: Any) -> list[Compared]:
    """Answers of a table after all runs, which take an hour, and all evaluations, which take six minutes."""
    for cell in distinct(cells_of(file)):
        if isinstance(cell, TrainingCell) and not cell.waits_for:
            write_run(cell, error=1.0 + cell.seed, training_seconds=3600.0, **of_trainings)
    for cell in distinct(cells_of(file)):
        if cell.status == "missing":
            error = 2.0 + cell.seed * len(cell.row.name)
            if isinstance(cell, EvaluationCell):
                add_evaluation(cell, error)
            else:
                write_run(cell, error=error, training_seconds=3600.0)
    table = read(file)
    return compared(table, summarise(table))


def add_evaluation(cell: EvaluationCell, error: float) -> None:
    commit = git(Path(), "rev-parse", "HEAD") if Path(".git").is_dir() else "abc"
    hardware = RESULT["hardware"]
    write_evaluation(cell, error=error, evaluation_seconds=360.0, commit=commit, hardware=hardware)


@pytest.mark.parametrize(
    ("trained", "remark"),
    [
        ("before", "networks trained before the plan"),
        ("after", ""),
        ("after, dirty", "unknown whether networks were trained before the plan"),
    ],
)
def test_planned_evaluation_says_if_its_networks_were_trained_before(
    tmp_path: Path, trained: str, remark: str
) -> None:
    """An analysis of networks may be planned although they were trained before, as on the page of claims."""
    git(tmp_path, "init", "-q")
    commits = {}
    for name, comparisons in (("before", []), ("after", [OF_EVALUATIONS])):
        file = write_table(tmp_path, rows=[*ROWS, *EVALUATIONS], comparisons=comparisons)
        git(tmp_path, "add", "mine.yaml")
        git(tmp_path, "commit", "-qm", name)
        commits[name] = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    commits["after, dirty"] = f"{commits['after']}-dirty"
    (found,) = answers_of_evaluations(file, commit=commits[trained])
    assert found.planned is True
    assert found.remark == remark


@pytest.mark.parametrize(
    ("comparison", "message"),
    [
        ({**PAIRS, "rows": ["c"]}, "comparison pairs: rows has c; Options: a, b"),
        ({**PAIRS, "columns": ["x"]}, "comparison pairs: columns has x; Options: "),
        (
            {**PAIRS, "pairing": "seeds"},
            "comparison pairs: pairing is 'seeds'; expected none, seed or fold",
        ),
        (
            {"name": "a", "rows": ["a"]},
            "comparison a has no other side; expected against: <row>, or against_column",
        ),
        ({**PAIRS, "agianst": "b"}, "comparison pairs has agianst; did you mean against?"),
    ],
)
def test_wrong_comparisons_are_refused(
    tmp_path: Path, comparison: dict[str, Any], message: str
) -> None:
    with pytest.raises(TableError, match=message.replace("?", r"\?")):
        read(write_table(tmp_path, rows=ROWS, comparisons=[comparison]))


def test_figures_and_records_have_every_comparison(tmp_path: Path) -> None:
    found = answers(tmp_path, [PAIRS, APART])
    frame = comparison_formats.as_frame(found)
    assert frame["difference"].tolist() == pytest.approx([-0.5, -0.5])
    assert frame["equivalent"].fillna("").tolist() == ["yes", ""]
    assert frame["error_of_clusters"].tolist() == [0, 0]
    for line, answer in zip(frame.itertuples(), found, strict=True):
        assert line.error == answer.difference.error
        assert line.df == answer.difference.df
    (axis,) = comparison_formats.differences(found).axes
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels == ["a against b", "a against b"]
    entries = entries_of(tmp_path / "mine.yaml")
    (axis,) = comparison_formats.runs_as_dots(entries).axes
    first_row, *_ = axis.lines
    assert sorted(first_row.get_xdata()) == ERRORS["a"]


OF_PAIRS = "a against b: 4 seeds find a difference of 0.3"


KNOWN = "deviation 0.1 of pairs in 3 seeds, with 90% power; 0.2 hours for both rows"


def test_plan_says_seeds_and_hours_from_the_deviation_that_is_known(tmp_path: Path) -> None:
    found = answers(tmp_path, [PAIRS, APART])
    pairs, apart = plan(found, 0.3, 0.9)
    assert pairs == f"{OF_PAIRS} ({KNOWN})"
    _, unpaired = found
    seeds = runs_for(0.3, unpaired.difference.spread, pairs=False, power=0.9)
    assert apart.startswith(f"a against b: {seeds} seeds")
    message = r"difference=0 and power=0.9 cannot be planned; expected a difference above"
    with pytest.raises(ConfigError, match=message):
        plan(found, 0, 0.9)
    with pytest.raises(TableError, match="no comparison of this table has a known deviation"):
        plan([], 0.3, 0.9)


TAKING = {"name": "c", "overrides": [], "takes": {"optimizer.eps": ["a", "val/error"]}}
HOURS_OF_A_SEED = {
    "two networks are evaluated": (OF_EVALUATIONS, 2.2),
    "one network is evaluated twice": ({**OF_EVALUATIONS, "rows": ["of_b_again"]}, 1.2),
    "a network is evaluated and compared": ({**OF_EVALUATIONS, "against": "a"}, 1.1),
    "a row takes a value of another one": ({**APART, "rows": ["c"]}, 3.0),
    "a run is shown in two columns": (
        {**APART, "against": "", "columns": ["one"], "against_column": "two"},
        1.0,
    ),
}
"""A comparison, and the hours of all that one more seed needs, by what it compares."""


@pytest.mark.parametrize("what", HOURS_OF_A_SEED)
def test_plan_has_the_hours_of_all_that_another_seed_needs_once(tmp_path: Path, what: str) -> None:
    comparison, hours = HOURS_OF_A_SEED[what]
    columns = {"one": {}, "two": {"metric": "test/novel/error"}}
    file = write_table(
        tmp_path,
        rows=[*ROWS, TAKING, *EVALUATIONS],
        columns=columns,
        comparisons=[{"columns": ["one"], **comparison}],
    )
    found = answers_of_evaluations(file)
    (line,) = plan(found, 1.0, 0.8)
    planned = re.search(r": ([\d,]+) seeds find .*; ([\d.]+) hours for both rows\)$", line)
    assert planned is not None
    seeds = int(planned[1])
    assert float(planned[2]) == pytest.approx(seeds * hours, abs=0.05)


def test_comparison_over_seeds_in_place_of_images_is_planned_once(tmp_path: Path) -> None:
    over_images = {**PAIRS, "unit": "images"}
    found = answers(tmp_path, [over_images])
    (line,) = plan(found, 0.3, 0.9)
    assert line.startswith(OF_PAIRS)


ALONE = {**APART, "family": ""}
IN_TWO_COLUMNS = {"one": {}, "two": {"metric": "val/error"}}


def of_two_columns(folder: Path, *comparisons: dict[str, Any]) -> list[Compared]:
    """Answers in two columns with different p values."""
    file = write_table(
        folder, rows=ROWS, seeds=[0, 1, 2], columns=IN_TWO_COLUMNS, comparisons=list(comparisons)
    )
    table = read(file)
    for cell in distinct(expand(table)):
        error = ERRORS[cell.row.name][cell.seed]
        write_run(cell, error=error, val={"error": error + 0.1 * cell.seed**2})
    return compared(table, summarise(table))


def test_columns_with_different_metrics_are_not_compared_over_images(tmp_path: Path) -> None:
    columns = {"columns": ["one"], "against": "", "against_column": "two"}
    (found,) = of_two_columns(tmp_path, {**PAIRS, **columns, "unit": "images"})
    assert found.remark == "over seeds alone: the columns have different metrics"


def test_columns_of_a_comparison_without_a_family_are_corrected_together(tmp_path: Path) -> None:
    """They share a panel, whose heading says so."""
    found = of_two_columns(tmp_path, ALONE)
    p_values = [answer.difference.p for answer in found]
    assert [answer.corrected for answer in found] == pytest.approx(holm(p_values))
    (axis,) = comparison_formats.differences(found).axes
    assert len(axis.get_yticklabels()) == 2


def test_family_with_the_name_of_a_comparison_or_a_number_is_another_one(tmp_path: Path) -> None:
    others = [{**APART, "name": name, "family": name} for name in ("0", "1", "2")]
    alone = {**ALONE, "columns": ["one"]}
    named_alike = {**APART, "name": "other", "family": "apart", "columns": ["two"]}
    found = of_two_columns(
        tmp_path, alone, *({**each, "columns": ["one"]} for each in others), named_alike
    )
    assert len(found) == 5
    for answer in found:
        assert answer.corrected == answer.difference.p
    titles = [axis.get_title(loc="left") for axis in comparison_formats.differences(found).axes]
    assert titles == ["apart", "0", "1", "2", "apart"]


OF_SEEDS = {
    "parts of the test set": [{"image_counts": {"test": IMAGES, "test_set": 2 * IMAGES}}] * 2,
    "pictures that changed": [
        {"provenance": {"source": "real", "name": "pictures", "sha256": "a"}},
        {"provenance": {"source": "real", "name": "pictures", "sha256": "b"}},
    ],
}
"""Changes of the records of two seeds that tested other images with the same labels."""


@pytest.mark.parametrize("what", OF_SEEDS)
def test_other_images_with_the_same_labels_are_not_compared_over_images(
    tmp_path: Path, what: str
) -> None:
    """``data.eval_images`` draws others for every seed, and a folder may have other pictures of the same classes."""
    over_images = {**PAIRS, "unit": "images"}
    file = write_table(tmp_path, rows=ROWS, seeds=[0, 1], comparisons=[over_images])
    for cell in cells_of(file):
        directory = write_run(cell, **OF_SEEDS[what][cell.seed])
        add_predictions(directory, some_wrong(cell.row.name, cell.seed))
    table = read(file)
    with pytest.raises(TableError, match="a against b has runs with different test images"):
        compared(table, summarise(table))


def test_row_that_comparisons_share_is_pooled_once_and_only_with_the_same_pairing(
    tmp_path: Path,
) -> None:
    again = {**APART, "name": "again", "margin": 1.0}
    *unpaired, pairs = answers(tmp_path, [APART, again, PAIRS], wrong=almost_equal)
    for answer in unpaired:
        assert answer.difference.spread == pytest.approx(np.sqrt(0.5))
        assert answer.difference.df == 4, "two rows of three runs"
    assert pairs.difference.test == "paired t-test"


OWN = ["data=arrays", "data.path=own.npz"]


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ("b", r"a seed 0 \(\S+\) and b seed 0 \(\S+\)"),
        ("seed", r"a seed 0 \(\S+\) and a seed 1 \(\S+\)"),
    ],
)
def test_runs_before_and_after_own_files_changed_are_not_tested_against_each_other(
    tmp_path: Path, changed: str, names: str
) -> None:
    """The hash of a configuration has the path of the file, so that runs on both count as those of the table."""
    rows = [{**row, "overrides": [*row["overrides"], *OWN]} for row in ROWS]
    file = write_table(tmp_path, rows=rows, seeds=[0, 1, 2], comparisons=[APART])
    table = read(file)
    for cell in expand(table):
        is_after = cell.seed == 1 if changed == "seed" else cell.row.name == changed
        hashes = {"own.npz": "after" if is_after else "before"}
        provenance = {"source": "real", "name": "arrays of own.npz", "sha256": hashes}
        write_run(cell, error=ERRORS[cell.row.name][cell.seed], provenance=provenance)
    entries = summarise(table)
    (found,) = compared(table, entries)
    assert found.difference.estimate == pytest.approx(-0.5)
    assert found.difference.p is None
    assert found.difference.low is None
    assert re.fullmatch(f"no p value: the files of the data changed between {names}", found.remark)
    expected = f"files of the data changed between {names}, so that means and differences mix other"
    assert sum(bool(re.search(expected, remark)) for remark in formats.remarks(entries)) == 1


def test_rows_that_prepare_own_pictures_differently_are_compared(tmp_path: Path) -> None:
    """The hash of pictures in a folder is of their pixels."""
    rows = []
    for name, size in (("a", 16), ("b", 32)):
        own = ["data=folder", "data.path=pictures", f"data.size={size}", "data.channels=1"]
        rows.append({"name": name, "overrides": own})
    table = read(write_table(tmp_path, rows=rows, seeds=[0, 1, 2], comparisons=[APART]))
    for cell in expand(table):
        provenance = {"source": "real", "name": "pictures", "sha256": cell.row.name}
        write_run(cell, error=ERRORS[cell.row.name][cell.seed], provenance=provenance)
    (found,) = compared(table, summarise(table))
    assert found.difference == unpaired_difference(ERRORS["a"], ERRORS["b"])


STAND_IN = {"source": "standin", "name": "bundled digits"}


def test_runs_on_stand_in_data_are_neither_pooled_nor_compared_with_real_ones(
    tmp_path: Path,
) -> None:
    """Seeds 0 to 2 are real; stand-in runs of ``b`` differ by ten images, not by two."""
    file = write_table(tmp_path, rows=ROWS, seeds=[*range(6)], comparisons=[APART])
    table = read(file)
    for cell in distinct(expand(table)):
        wrong = almost_equal(cell.row.name, cell.seed)
        provenance = {}
        if cell.seed >= 3:
            provenance["provenance"] = STAND_IN
            if cell.row.name == "b":
                wrong = np.arange(IMAGES) < 10 * cell.seed
        add_predictions(write_run(cell, **provenance), wrong)
    on_real, on_standin = compared(table, summarise(table))
    assert (on_real.real, on_standin.real) == (True, False)
    for answer, deviation in ((on_real, 1.0), (on_standin, 5.0)):
        difference = answer.difference
        assert difference.counts == (3, 3)
        assert difference.spread == pytest.approx(deviation / np.sqrt(2))
        assert difference.df == 4, "two rows of three runs"
        assert answer.corrected == difference.p, "each is the only comparison of its family"
    assert on_real.difference.estimate == pytest.approx(10 - 16)
    assert on_standin.difference.estimate == pytest.approx(10 - 20)


def test_comparison_without_a_family_is_pooled_alone(tmp_path: Path) -> None:
    def wrong(row: str, seed: int) -> Any:
        return np.arange(IMAGES) < 20

    alone = {**APART, "family": ""}
    other = {**APART, "name": "other", "family": "", "columns": []}
    for answer in answers(tmp_path, [alone, other], wrong=wrong):
        assert answer.difference.p is None, "all runs are equal, and there is nothing to pool"


def test_long_titles_and_labels_stay_within_the_figure() -> None:
    title = "held-out digits, affine at positions of the training, where moved is 6 %, stand-in"
    label = "equal couplings, transformations shared by positions"
    figure, axes = comparison_formats._panels([title, title], [[label, label], ["CapsNet"]])
    comparison_formats._label_rows(axes[0], [label, label])
    comparison_formats._label_rows(axes[1], ["CapsNet"])
    figure.draw_without_rendering()
    for axis in axes:
        for text in (axis._left_title, *axis.get_yticklabels()):
            extent = text.get_window_extent()
            assert figure.bbox.x0 <= extent.x0
            assert extent.x1 <= figure.bbox.x1
