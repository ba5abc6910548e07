from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from capsule_lab.commands.tables import read_table as read
from capsule_lab.tables.expand import distinct, expand
from capsule_lab.tables.figure import figures_by_command
from capsule_lab.tables.summary import best_runs, summarise
from capsule_studies.attack_tables import _over_seeds
from tests.helpers.commands import Cli
from tests.helpers.tables import ATTACKED, contents, write_evaluation, write_run

COLUMNS = {
    "clean": {"label": "clean, error %"},
    "attacked_0.1": {"label": "epsilon 0.1, accuracy %", "metric": "attack/0.1/accuracy"},
    "attacked_0.3": {"label": "epsilon 0.3, accuracy %", "metric": "attack/0.3/accuracy"},
}
ATTACK = ["attack=fgsm", "epsilons=[0.1,0.3]", "images=20", "checks=false"]
ROWS: list[dict[str, Any]] = [
    {"name": "one", "overrides": []},
    {"name": "other", "overrides": ["model.class_dim=3"]},
    {
        "name": "white_box",
        "of": "one",
        "by": "attack",
        "evaluate": ATTACK,
        "published": {"attacked_0.1": 50},
    },
    {
        "name": "transfer",
        "of": "one",
        "by": "attack",
        "evaluate": ATTACK,
        "takes": {"source": ["other", "checkpoint"]},
    },
]


@pytest.fixture
def file(table_file) -> Path:
    return table_file(rows=ROWS, columns=COLUMNS, seeds=[0])


def test_column_shows_only_rows_with_its_metric(file: Path) -> None:
    table = read(file)
    shown = {}
    for column in table.columns:
        shown[column.name] = [row.name for row in table.rows if table.commands.show(row, column)]
    assert shown == {
        "clean": ["one", "other"],
        "attacked_0.1": ["white_box", "transfer"],
        "attacked_0.3": ["white_box", "transfer"],
    }
    assert len(distinct(expand(table))) == 4, "one attack for all budgets"


def test_transfer_waits_for_both_runs_and_takes_the_other_as_source(file: Path) -> None:
    one, other, white_box, transfer = distinct(expand(read(file)))
    assert (white_box.waits_for, transfer.waits_for) == ("one", "one")
    directory = write_run(one)
    *_, white_box, transfer = distinct(expand(read(file)))
    assert (white_box.status, transfer.waits_for) == ("missing", "other")
    source = write_run(other)
    *_, transfer = distinct(expand(read(file)))
    assert transfer.status == "missing"
    best = "checkpoints/best.ckpt"
    assert transfer.command.startswith(f"capsule-lab attack ckpt={directory / best} ")
    assert transfer.command.endswith(f" source={source / best}")
    # a hash does not depend on the path of the runs
    assert transfer.evaluate[-1] == f"source={other.fingerprint}"
    assert transfer.job.arguments == ("-m", "capsule_lab", "attack", *transfer.overrides)


TWIN = {**ROWS[-1], "takes": {"source": ["one", "checkpoint_of_next_seed"]}}


def test_checkpoint_of_next_seed_is_the_source_of_a_transfer(table_file) -> None:
    file = table_file(rows=[ROWS[0], TWIN], columns=COLUMNS, seeds=[0, 4, 2])
    trained = {}
    sources = {}
    for cell in distinct(expand(read(file))):
        if cell.row.name == "one":
            trained[cell.seed] = cell.fingerprint
        else:
            sources[cell.seed] = cell.evaluate[-1]
    assert sources == {
        0: f"source={trained[4]}",
        4: f"source={trained[2]}",
        2: f"source={trained[0]}",
    }


def test_single_seed_has_no_next_one(table_file) -> None:
    file = table_file(rows=[ROWS[0], TWIN], columns=COLUMNS, seeds=[0])
    (cell,) = distinct(expand(read(file)))
    assert cell.row.name == "one"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"takes": {"source": ["other", "val/error"]}},
            "takes has source: [other, val/error]; expected [other, checkpoint]",
        ),
        ({"by": "guessing"}, "by has guessing; Options: analyse, attack, evaluate"),
        ({"evaluate": ["attack=fgsm", "space=pixels"]}, "space is 'pixels'; expected 'input' or"),
        ({"evaluate": ["attack=fgsm", "attack.steps=3"]}, "attack.steps"),
    ],
)
def test_wrong_row_is_refused_before_anything_runs(
    cli: Cli, table_file, change: dict[str, Any], message: str
) -> None:
    attacked = {"name": "attacked", "of": "one", "by": "attack", "evaluate": ATTACK, **change}
    file = table_file(rows=[*ROWS[:2], attacked], columns=COLUMNS, seeds=[0])
    ended = cli("sweep", f"table={file}")
    assert ended.status == 2
    assert message in ended.err


@pytest.mark.slow
@pytest.mark.usefixtures("runs_here")
def test_table_with_attacks_is_swept_and_reported(cli: Cli, file: Path, tmp_path: Path) -> None:
    ended = cli("sweep", f"table={file}")
    assert (ended.status, ended.out.splitlines()[-2]) == (0, "mine: 4 done"), ended.err
    before = contents(tmp_path)
    assert cli("sweep", f"table={file}").status == 0
    assert contents(tmp_path) == before, "no attack is repeated"

    found = summarise(read(file))
    entries = {(entry.column.name, entry.row.name): entry for entry in found}
    (run,) = entries["attacked_0.1", "white_box"].runs
    (more,) = entries["attacked_0.3", "white_box"].runs
    assert run.value >= more.value
    assert run.result["images"] == 20
    assert run.result["source"] is None
    (transfer,) = entries["attacked_0.1", "transfer"].runs
    (other,) = entries["clean", "other"].runs
    assert transfer.result["source"] == str(other.directory / "checkpoints" / "best.ckpt")
    (best,) = best_runs(found)
    assert best.cell.row.name in ("one", "other")
    assert [*figures_by_command(read(file), found)] == ["attacks"]

    ended = cli("report", f"table={file}", "out=.")
    assert ended.status == 0, ended.err
    assert Path("mine_attacks.png").is_file()
    assert "<h2>Attacks</h2>" in Path("mine.html").read_text()


def test_failed_check_is_part_of_the_state(file: Path) -> None:
    one, *_ = distinct(expand(read(file)))
    write_run(one)
    *_, white_box, _ = distinct(expand(read(file)))
    checks = [
        {"name": "large budget", "passed": False, "found": "12 %"},
        {"name": "loss", "passed": None, "found": ""},
    ]
    attacked = {**ATTACKED, "attack": {"0.1/accuracy": 40.0, "0.3/accuracy": 2.0}, "checks": checks}
    write_evaluation(white_box, error=1.0, **attacked)
    entries = [entry for entry in summarise(read(file)) if entry.row.name == "white_box"]
    assert len(entries) == 2, "a column for each budget"
    for entry in entries:
        assert entry.state == "1 of 1, failed checks: large budget"


def test_attack_curves_are_means_over_seeds_with_their_extremes() -> None:
    first = attacked_run(accuracy=40.0, error=1.0)
    second = attacked_run(accuracy=60.0, error=3.0)
    merged = _over_seeds([first, second])
    assert merged["attack"] == {"0.1/accuracy": 50.0, "0.1/lowest": 40.0, "0.1/highest": 60.0}
    assert merged["test"] == {"error": 2.0}
    assert _over_seeds([first]) == first.result


def attacked_run(accuracy: float, error: float) -> SimpleNamespace:
    curves = {"0.1/accuracy": accuracy, "0.1/lowest": 0.0, "0.1/highest": 100.0}
    return SimpleNamespace(result={"attack": curves, "split": "test", "test": {"error": error}})
