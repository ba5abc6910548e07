import functools
import math
import re
from pathlib import Path
from typing import Any

import pytest

from capsule_lab.commands import compose
from capsule_lab.commands.tables import read_table as read
from capsule_lab.config.build import build_without_weights
from capsule_lab.config.folders import conf_dir, sweeps_dir
from capsule_lab.errors import TableError
from capsule_lab.tables.cells import EvaluationCell, TrainingCell
from capsule_lab.tables.expand import Composed, distinct, expand, verify
from capsule_lab.tables.reader import select
from capsule_lab.tables.schema import Published
from tests.helpers.extensions import needs_studies
from tests.helpers.tables import names
from tests.helpers.tiers import whole_but

SHIPPED = sorted(file.stem for file in sweeps_dir().glob("*.yaml"))

QUICK = ("smoke", "hinton2018_viewpoints")
shipped = functools.cache(read)
"""Reads a shipped table once."""
COMPOSED: Composed = {}
"""Composed configurations, which the tables share."""


@pytest.mark.parametrize("name", whole_but(SHIPPED, *QUICK))
def test_every_cell_of_a_shipped_table_is_valid(name: str) -> None:
    cells = expand(select(shipped(name), seeds=[0]), composed=COMPOSED)
    runs = set()
    for cell in cells:
        if isinstance(cell, EvaluationCell):
            runs.add((*cell.training.overrides, cell.row.by, *cell.evaluate))
        else:
            runs.add(cell.overrides)
    different = distinct(cells)
    assert len(different) == len(runs)
    for cell in different:
        verify(cell)
        if isinstance(cell, TrainingCell):
            assert _size(cell) > 10_000


def _size(cell: TrainingCell) -> int:
    parameters = [*build_without_weights(cell.config).network.parameters()]
    assert all(parameter.is_meta for parameter in parameters)
    return sum(parameter.numel() for parameter in parameters)


@pytest.mark.parametrize("name", whole_but(SHIPPED, *QUICK))
@needs_studies
def test_head_of_a_shipped_table_names_command_cost_and_expectation(name: str) -> None:
    head = shipped(name).head
    assert f"make sweep table={name}" in head
    for part in ("Command:", "Cost:", "Expected:"):
        assert part in head


PUBLISHED = {
    ("sabour2017_table1", "mnist"): [0.39, 0.34, 0.29, 0.35, 0.25],
    ("sabour2017_table1", "multimnist"): [8.1, None, 7.5, None, 5.2],
    ("sabour2017_affnist", "affnist"): [34, 21],
    ("sabour2017_routing_iterations", "mnist"): [0.29, None, 0.25, None, None],
    ("hinton2018_table1", "smallnorb"): [
        9.7, 2.2, 1.8, 3.9, 2.9, 2.6, 3.2, 3.2, 5.8, 5.2, 2.2, 4.5, 1.4, 2.56, 2.7,
    ],
    ("hahn2019_robustness", "cifar10"): [7.94, 10.01, 8.46, 7.86, 10.25, 12.52, 8.17, 7.86],
    ("hahn2019_robustness", "svhn"): [3.55, 3.98, 3.49, 3.17, 3.85, 3.70, 3.34, 3.12],
    ("hahn2019_robustness", "cifar10_attacked"): [
        62.65, 18.46, 84.86, 45.4, 47.7, 7.38, 54.37, 17.31,
        54.55, 9.99, 63.57, 24.08, 41.2, 5.62, 50.45, 12.13,
    ],
    ("hinton2018_adversarial", "accuracy_0.2"): [16, 13, 83.5, 74.5],  # read off figure 3
    ("hinton2018_adversarial", "accuracy_0.5"): [3.3, 5.2, 69, 54.5],
    ("hinton2018_adversarial", "success_0.25"): [59, 84.5, 18.7, 24.3],
    ("gu2021_components", "affnist"): [None] * 17,  # the paper's tables could not be read
    ("hinton2018_viewpoints", "familiar"): [3.7, 3.7, 4.3, 4.3],
    ("hinton2018_viewpoints", "novel"): [20, 13.5, 17.8, 12.3],
}  # fmt: skip


@pytest.mark.parametrize(("place", "expected"), PUBLISHED.items(), ids=map(str, PUBLISHED))
@needs_studies
def test_published_values_are_those_of_the_papers(
    place: tuple[str, str], expected: list[float | None]
) -> None:
    name, column = place
    table = shipped(name)
    (shown,) = [other for other in table.columns if other.name == column]
    means = []
    for row in table.rows:
        value = row.published.get(column)
        # most rows of attacks have none
        if table.commands.show(row, shown) and (value or not shown.metric.startswith("attack/")):
            means.append(value and value.mean)
    assert means == expected


def test_published_deviations_are_those_of_the_paper() -> None:
    rows = read("sabour2017_table1").rows
    deviations = [row.published["mnist"].std for row in rows]
    assert deviations == [None, 0.032, 0.011, 0.036, 0.005]


ROUTINGS = {file.stem for file in (conf_dir() / "routing").glob("*.yaml")} - {"none"}
COMPARED = read("routing_algorithms")
TRAINED = [row for row in COMPARED.rows if row.overrides]

VARIANTS = {
    "em_paper",
    "em_official_fast",
    "em_official_legacy",
    "em_tutorial",
    "random_couplings_drawn",
}
"""Variants of routings in the table: other costs, initial values, normalisations and draws."""


def test_every_routing_is_in_the_table_of_routings() -> None:
    chosen = set()
    for row in TRAINED:
        for override in row.overrides["toynorb"]:
            key, _, value = override.partition("=")
            if key == "routing":
                chosen.add(value)
    assert chosen == ROUTINGS - VARIANTS


def test_iterative_routings_are_also_evaluated_with_equal_couplings() -> None:
    evaluated = set()
    for row in COMPARED.rows:
        if row.of:
            assert row.evaluate == {"toynorb": ("couplings=equal",)}
            evaluated.add(row.of)
    several = {name for name in names(TRAINED) if name.endswith(("_2", "_3"))}
    assert evaluated == several | {"self_routing", "self_attention"}


@pytest.mark.whole
def test_rows_of_the_table_of_routings_differ_only_in_routing() -> None:
    for row in TRAINED:
        for column in COMPARED.columns:
            own = row.overrides[column.name]
            groups = {re.split(r"[.=]", override)[0] for override in own}
            assert groups <= {"routing", "class_routing"} or groups == {"model"}
            overrides = [*COMPARED.base, *column.overrides, *own]
            build_without_weights(compose("train", overrides))


def test_rows_without_overrides_are_evaluations_or_only_reported() -> None:
    evaluated = []
    reported = []
    for row in read("hinton2018_table1").rows:
        if not row.overrides:
            (evaluated if row.has_runs else reported).append(row)
    assert names(reported) == ["ciresan2011", "sabour2017"]
    (evaluation,) = evaluated
    assert evaluation.name == "several_crops"
    assert evaluation.of == "three_iterations"


def test_overrides_and_published_values_can_be_given_by_column(table_file) -> None:
    columns = {"x": {}, "y": {"metric": "test/novel/error"}}
    content = {
        "name": "a",
        "overrides": {"x": ["a=1"], "y": ["a=2"]},
        "published": {"y": [1, 0.5]},
    }
    (row,) = read(table_file(columns=columns, rows=[content])).rows
    assert row.overrides == {"x": ("a=1",), "y": ("a=2",)}
    assert row.published == {"y": Published(mean=1.0, std=0.5)}


def test_selection_keeps_order_and_required_rows(table_file) -> None:
    rows = [
        {"name": "a", "overrides": []},
        {"name": "b", "overrides": [], "takes": {"optimizer.eps": ["a", "val/error"]}},
        {"name": "c", "of": "b", "evaluate": []},
        {"name": "d", "overrides": []},
    ]
    columns = {"x": {}, "y": {"metric": "val/error"}}
    table = read(table_file(rows=rows, columns=columns))
    selected = select(table, rows="c", columns=["y"], seeds=[7])
    assert names(selected.rows) == ["a", "b", "c"]
    assert names(selected.columns) == ["y"]
    assert selected.seeds == (7,)


def test_single_row_and_seed_need_no_list() -> None:
    table = select(read("smoke"), rows="uniform", seeds=0)
    assert names(table.rows) == ["uniform"]
    assert table.seeds == (0,)


def test_name_that_is_a_number_needs_no_list(table_file) -> None:
    columns = {"99.5": {}, "y": {"metric": "val/error"}}
    selected = select(read(table_file(columns=columns)), columns=99.5)
    assert names(selected.columns) == ["99.5"]


WRONG_SELECTIONS = [
    ({"rows": 1.5}, "rows: 1.5 is not in smoke; Options: "),
    ({"rows": {"dynamic": 1}}, "rows: {'dynamic': 1} is not in smoke; "),
    ({"seeds": 1.5}, "seeds is 1.5; expected a list of whole numbers"),
    ({"seeds": {0: 1}}, "seeds is {0: 1}; expected a list of whole numbers"),
    ({"rows": ["dynamc"]}, "rows: dynamc is not in smoke; did you mean dynamic?"),
    ({"rows": "dynamc"}, "rows: dynamc is not in smoke; did you mean dynamic?"),
    ({"rows": []}, "rows is empty; expected some of "),
    ({"columns": ["x"]}, "columns is ['x'], but smoke has one without a name; leave columns= out"),
    ({"seeds": []}, "seeds is []; expected a list of whole numbers"),
    ({"seeds": -1}, "seeds is -1; expected a list of whole numbers"),
    ({"seeds": [-1]}, "seeds is [-1]; expected a list of whole numbers"),
    ({"seeds": ["a"]}, "seeds is ['a']; expected a list of whole numbers"),
    ({"seeds": "a"}, "seeds is a; expected a list of whole numbers"),
]


@pytest.mark.parametrize(("selection", "message"), WRONG_SELECTIONS, ids=str)
def test_invalid_selection_is_refused(selection: dict[str, Any], message: str) -> None:
    with pytest.raises(TableError, match=re.escape(message)):
        select(read("smoke"), **selection)


ROW = {"name": "a", "overrides": []}


def of_rows(*rows: Any) -> dict[str, Any]:
    return {"rows": [*rows]}


def with_row(**changes: Any) -> dict[str, Any]:
    """A table whose only row has these changes."""
    return of_rows({**ROW, **changes})


OTHER = {**ROW, "name": "b"}
NOT_TRAINED = {"name": "a"}
EVALUATION = {"name": "b", "of": "a", "evaluate": []}
OF_A_ROW_BELOW = {**EVALUATION, "of": "c"}
OF_A_CHECKPOINT = {**EVALUATION, "evaluate": ["ckpt=x"]}
TAKES_A_CHECKPOINT = {**OTHER, "takes": {"ckpt": ["a", "checkpoint"]}}
SAME_LABELS = {"a": {"label": "it"}, "b": {"label": "it"}}
UNPAIRED = {"comparisons": [{"name": "c", "against": "one"}]}
BY_FOLD = {"name": "c", "against": "one", "pairing": "fold"}
TIME = {"metric": "time_to_accuracy/99/seconds"}
LOGGING = "hydra.job_logging.handlers.x.()"
NUMBERS = "expected a number, or [mean,"
WHOLE_NUMBERS = "expected a list of whole numbers"
NAME = "expected only letters, digits"
TOGETHER = "expected of and evaluate together"
WRONG_FILES: list[tuple[dict[str, Any], str]] = [
    ({"row": []}, "row|did you mean rows"),
    (of_rows({"name": "a", "overides": []}), "row a|overides|did you mean overrides"),
    (of_rows({"overrides": []}), "row|name|expected one"),
    (with_row(overrides=["seed"]), "row a|overrides|seed|expected key=value"),
    (with_row(overrides={"x": []}), "row a|overrides|x|Options: "),
    (with_row(overrides=["+ckpt=x"]), "row a|+ckpt=x|leave it out, a table finds its runs"),
    (with_row(published=[1, 2, 3]), f"row a|published|[1, 2, 3]|{NUMBERS}"),
    (with_row(published="many"), f"row a|published|many|{NUMBERS}"),
    (with_row(published={"": math.inf}), f"row a|published|inf|{NUMBERS}"),
    (with_row(published=[1.0, math.nan]), f"row a|published|nan|{NUMBERS}"),
    (with_row(name="a (b), c"), f"name|'a (b), c'|{NAME}"),
    (with_row(name="../a"), f"name|'../a'|{NAME}"),
    (with_row(label=""), "row a|label is ''|expected text"),
    ({"columns": {"x": {"label": ""}}}, "column x|label is ''|expected text"),
    (with_row(takes={"seed": "b"}), "row a|takes|expected key: [row, metric]"),
    (with_row(evaluate=[]), f"row a|{TOGETHER}"),
    (of_rows(ROW, ROW), "two rows have the same name|a, a|expected"),
    (of_rows({**ROW, "takes": {"seed": ["b", "test/error"]}}, OTHER), "row a|takes|b|expected"),
    (of_rows(ROW, TAKES_A_CHECKPOINT), "takes has ckpt|a metric of a"),
    (of_rows(ROW, OF_A_ROW_BELOW), "row b|of|c|expected a row above it"),
    (of_rows(NOT_TRAINED, EVALUATION), "row b|of is a|not trained|expected"),
    (of_rows(ROW, {"name": "b", "of": "a"}), f"row b|{TOGETHER}"),
    (of_rows(ROW, {**OTHER, **EVALUATION}), f"row b|{TOGETHER}"),
    (of_rows(ROW, OF_A_CHECKPOINT), "row b|evaluate|ckpt=x|leave it out"),
    ({"rows": {"a": []}}, "rows|{'a': []}|expected a list"),
    ({"rows": ["a"]}, "rows|'a'|expected a list"),
    ({"rows": []}, "rows|[]|expected a list"),
    ({"columns": ["a"]}, "columns|'a'|expected a mapping"),
    ({"columns": SAME_LABELS}, "two columns have the same label|it, it|expected"),
    ({"columns": {"x": {"metrics": "a"}}}, "column x|metrics|did you mean metric"),
    ({"columns": {"x": TIME}}, "column x|expected statistic: median"),
    ({"columns": {"x": {"statistic": "mode"}}}, "column x|statistic|mode|expected mean or median"),
    ({"columns": {"../a": {}}}, f"name|'../a'|{NAME}"),
    ({"seeds": 3}, f"seeds|3|{WHOLE_NUMBERS}"),
    ({"seeds": ["a"]}, f"seeds|'a'|{WHOLE_NUMBERS}"),
    ({"seeds": [10**30]}, f"seeds|{10**30}|{WHOLE_NUMBERS}, 0 to 4294967295"),
    ({"folds": 1}, "folds|1|expected a whole number from 2"),
    ({"folds": "5"}, "folds|'5'|expected a whole number from 2"),
    ({"folds": 3, "base": ["+data.fold=1"]}, "base|+data.fold=1|leave it out, folds: 3 of the"),
    ({"folds": 3, **with_row(overrides=["data.folds=5"])}, "row a|data.folds=5|leave it out"),
    ({"folds": 3, **UNPAIRED}, "comparison c|pairing is none|expected fold in a table with folds"),
    ({"comparisons": [BY_FOLD]}, "comparison c|pairing is fold|expected none or seed without"),
    ({"base": ["seed=1"]}, "base|seed=1|leave it out, seeds=[…] sets the seeds of a table"),
    ({"base": "seed=1"}, "base|'seed=1'|expected a list of key=value"),
    ({"base": [f"{LOGGING}=os.system"]}, "base|hydra.job_logging|can run code|command line"),
    ({"base": ["+hydra.callbacks.x._target_=os.system"]}, "base|+hydra.callbacks|can run code"),
    ({"base": ["hydra/job_logging=evil"]}, "base|hydra/job_logging|can run code"),
    ({"base": ["hydra.searchpath=[pkg://evil]"]}, "base|hydra.searchpath|can run code"),
    ({"base": ["~hydra.searchpath"]}, "base|~hydra.searchpath|can run code"),
]
"""The content of a file, and parts of the error message."""


def test_error_in_a_table_names_file_place_and_expected_value(table_file) -> None:
    for content, parts in WRONG_FILES:
        file = table_file(**content)
        with pytest.raises(TableError) as caught:
            read(file)
        message = str(caught.value)
        assert message.startswith(f"{file}: ")
        assert "\n" not in message
        for part in parts.split("|"):
            assert part in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "holds a list; expected"),
        ("a: [", "cannot be read: "),
        ("paper: p\nseeds: [0]", "has no rows"),
        ("!!python/object/apply:os.mkdir [MARKER]", "cannot be read: "),
        ("paper: !!python/object/apply:os.mkdir [MARKER]", "cannot be read: "),
        ("paper: !!python/name:os.mkdir", "cannot be read: "),
        ("!!python/object/new:os.mkdir [MARKER]", "cannot be read: "),
        pytest.param("[" * 500, "cannot be read: ", id="500 brackets"),
        pytest.param("a: \xff", "cannot be read: ", id="no UTF-8"),
    ],
)
def test_file_without_a_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(TableError, match=message):
        read(file)
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize(
    "content",
    [
        {"paper": "x ${oc.env:SECRET}"},
        {"rows": [{"name": "a", "label": "${oc.env:SECRET,none}", "overrides": []}]},
        {"rows": [{"name": "a", "overrides": ["+data.note=${oc.env:SECRET}"]}]},
        {"rows": [{"name": "a", "overrides": [], "note": r"\${oc.env:SECRET}"}]},
        {"columns": {"${oc.env:SECRET}": {"label": "x"}}},
        {"paper": "${python:os.mkdir}"},
        {"paper": "${seeds}"},
    ],
    ids=str,
)
def test_interpolation_in_a_table_is_refused(
    table_file, monkeypatch: pytest.MonkeyPatch, content: dict[str, Any]
) -> None:
    monkeypatch.setenv("SECRET", "s3cr3t")
    message = r"mine\.yaml cannot be read: it contains '.*\$\{.*'; expected text without "
    with pytest.raises(TableError, match=message) as caught:
        read(table_file(**content))
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("name", ["smok", "nowhere.yaml", "../sweeps/smoke", "./smoke"])
def test_table_that_does_not_exist_is_refused(name: str) -> None:
    message = rf"table={name} does not exist; .*smoke.*, or a \.yaml file"
    with pytest.raises(TableError, match=message):
        read(name)


def test_missing_table_is_refused() -> None:
    message = r"^table is missing; expected table=<name>, one of .*_small, or a \.yaml file"
    with pytest.raises(TableError, match=message):
        read(None)
