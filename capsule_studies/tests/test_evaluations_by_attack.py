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
    shown = {
        column.name: [row.name for row in table.rows if table.commands.show(row, column)]
        for column in table.columns
    }
    trained, attacked = ["one", "other"], ["white_box", "transfer"]
    assert shown == {"clean": trained, "attacked_0.1": attacked, "attacked_0.3": attacked}
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
    assert transfer.evaluate[-1] == f"source={other.fingerprint}", (
        "a hash does not depend on the path of the runs"
    )
    assert transfer.job.arguments == ("-m", "capsule_lab", "attack", *transfer.overrides)


def test_checkpoint_of_next_seed_is_the_source_of_a_transfer(table_file) -> None:
    for seeds in [[0, 4, 2], [0]]:
        twin = {**ROWS[-1], "takes": {"source": ["one", "checkpoint_of_next_seed"]}}
        cells = distinct(
            expand(read(table_file(rows=[ROWS[0], twin], columns=COLUMNS, seeds=seeds)))
        )
        trained = {cell.seed: cell.fingerprint for cell in cells if cell.row.name == "one"}
        sources = {cell.seed: cell.evaluate[-1] for cell in cells if cell.row.name == "transfer"}
        following = {0: 4, 4: seeds[2] if len(seeds) > 2 else 0, 2: 0}
        expected = (
            {seed: f"source={trained[following[seed]]}" for seed in seeds} if len(seeds) > 1 else {}
        )
        assert sources == expected, "a single seed has no next one"


def test_wrong_rows_are_refused_before_anything_runs(cli: Cli, table_file) -> None:
    for row, message in [
        (
            {"takes": {"source": ["other", "val/error"]}},
            "takes has source: [other, val/error]; expected [other, checkpoint]",
        ),
        ({"by": "guessing"}, "by has guessing; Options: analyse, attack, evaluate"),
        ({"evaluate": ["attack=fgsm", "space=pixels"]}, "space is 'pixels'; expected 'input' or"),
        ({"evaluate": ["attack=fgsm", "attack.steps=3"]}, "attack.steps"),
    ]:
        attacked = {"name": "attacked", "of": "one", "by": "attack", "evaluate": ATTACK, **row}
        ended = cli(
            "sweep", f"table={table_file(rows=[*ROWS[:2], attacked], columns=COLUMNS, seeds=[0])}"
        )
        assert ended.status == 2
        assert message in ended.err


@pytest.mark.whole
@pytest.mark.usefixtures("runs_here")
def test_table_with_attacks_is_swept_and_reported(cli: Cli, file: Path, tmp_path: Path) -> None:
    ended = cli("sweep", f"table={file}")
    assert (ended.status, ended.out.splitlines()[-1]) == (0, "mine: 4 done"), ended.err
    before = contents(tmp_path)
    assert cli("sweep", f"table={file}").status == 0
    assert contents(tmp_path) == before, "no attack is repeated"

    entries = {(entry.column.name, entry.row.name): entry for entry in summarise(read(file))}
    (run,) = entries["attacked_0.1", "white_box"].runs
    (more,) = entries["attacked_0.3", "white_box"].runs
    assert run.value >= more.value
    assert run.result["images"] == 20
    assert run.result["source"] is None
    (transfer,) = entries["attacked_0.1", "transfer"].runs
    other = entries["clean", "other"].runs[0].directory
    assert transfer.result["source"] == str(other / "checkpoints" / "best.ckpt")
    assert [run.cell.row.name for run in best_runs(list(entries.values()))] != ["white_box"]
    assert {*figures_by_command(list(entries.values()))} == {"attacks"}

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
    assert [entry.state for entry in entries] == ["1 of 1, failed checks: large budget"] * 2


def test_attack_curves_are_means_over_seeds_with_their_extremes() -> None:
    records = [
        {
            "attack": {"0.1/accuracy": accuracy, "0.1/lowest": 0.0, "0.1/highest": 100.0},
            "split": "test",
            "test": test,
        }
        for accuracy, test in ((40.0, {"error": 1.0}), (60.0, {"error": 3.0}))
    ]
    merged = _over_seeds([SimpleNamespace(result=record) for record in records])
    assert merged["attack"] == {"0.1/accuracy": 50.0, "0.1/lowest": 40.0, "0.1/highest": 60.0}
    assert merged["test"] == {"error": 2.0}
    assert _over_seeds([SimpleNamespace(result=records[0])]) == records[0]
