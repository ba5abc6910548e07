"""Records of finished cells in an archive of results/."""

import json
import tarfile
from pathlib import Path

import pytest

from capsule_lab.errors import RunError
from capsule_lab.tables.cells import EvaluationCell
from capsule_studies.claims import archive as command
from capsule_studies.claims.archive import add_records
from capsule_studies.claims.recompute import reading_runs_in, unpack
from tests.helpers.tables import cells_of, write_evaluation, write_run, write_table

ROWS = [
    {"name": "one", "overrides": []},
    {"name": "inside", "of": "one", "by": "evaluate", "evaluate": ["split=test"]},
]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path, rows=ROWS, seeds=[0, 1])


def run_one(table: Path, seed: int, error: float = 1.0) -> None:
    """Write the records of a training, its weights, and an evaluation."""
    training = next(cell for cell in cells_of(table) if cell.seed == seed)
    directory = write_run(training, error=error)
    (directory / "checkpoints").mkdir(exist_ok=True)
    (directory / "checkpoints" / "last.ckpt").write_bytes(b"weights")
    inside = [cell for cell in cells_of(table) if isinstance(cell, EvaluationCell)]
    command = f"capsule-lab evaluate ckpt={directory.resolve() / 'checkpoints' / 'last.ckpt'}"
    write_evaluation(inside[seed], error=2 * error, command=command)


def test_a_table_is_read_from_its_archive(table: Path, tmp_path: Path) -> None:
    run_one(table, seed=0)
    archive = tmp_path / "table_runs.tar.gz"
    assert add_records(cells_of(table), archive) == 2
    unpack(archive, tmp_path / "elsewhere")
    assert not [*(tmp_path / "elsewhere").rglob("*.ckpt")]
    with reading_runs_in(tmp_path / "elsewhere"):
        values = [cell.value("test/error") for cell in cells_of(table)]
    assert values == [1.0, None, 2.0, None]
    (record,) = (tmp_path / "elsewhere").glob("*/evaluations/*.json")
    words = json.loads(record.read_text())["command"].split()
    assert words[-1] == f"ckpt=runs/{record.parents[1].name}/checkpoints/last.ckpt"


def test_records_of_another_machine_stay(table: Path, tmp_path: Path) -> None:
    archive = tmp_path / "table_runs.tar.gz"
    both = tmp_path / "both"
    for seed in (0, 1):
        with reading_runs_in(tmp_path / f"machine_{seed}"):
            run_one(table, seed, error=seed + 1.0)
            add_records(cells_of(table), archive)
    unpack(archive, both)
    with reading_runs_in(both):
        values = [cell.value("test/error") for cell in cells_of(table)]
    assert values == [1.0, 2.0, 2.0, 4.0]


def test_the_same_records_are_the_same_bytes(table: Path, tmp_path: Path) -> None:
    run_one(table, seed=0)
    archive = tmp_path / "table_runs.tar.gz"
    add_records(cells_of(table), archive)
    before = archive.read_bytes()
    add_records(cells_of(table), archive)
    assert archive.read_bytes() == before
    with tarfile.open(archive) as packed:
        names = packed.getnames()
    assert names == sorted(names)


def test_a_damaged_archive_is_kept(table: Path, tmp_path: Path) -> None:
    run_one(table, seed=0)
    archive = tmp_path / "table_runs.tar.gz"
    archive.write_bytes(b"not an archive")
    with pytest.raises(RunError, match="cannot be unpacked"):
        add_records(cells_of(table), archive)
    assert archive.read_bytes() == b"not an archive"


def test_command(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    run_one(table, seed=0)
    assert command.main([str(table), "--into", "smoke"]) == 0
    assert (tmp_path / "smoke_runs.tar.gz").is_file()
    assert "smoke_runs.tar.gz: 2 of 4 cells have finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["smoke"], "has finished in"),
        (["smokee"], "table=smokee does not exist; did you mean smoke?"),
        (["smoke", "--into", "smokee"], "table=smokee does not exist; did you mean smoke?"),
    ],
)
def test_wrong_arguments_write_nothing(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    assert command.main(arguments) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert not [*tmp_path.glob("*.tar.gz")]
