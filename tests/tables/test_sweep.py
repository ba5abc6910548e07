"""A table is run by any launcher, also if some of its runs fail or are killed; nothing is run twice."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from capsule_lab import report, sweep, train
from capsule_lab.config import build
from capsule_lab.launchers import gpu_pool
from capsule_lab.runs import lock
from capsule_lab.tables.expand import expand
from capsule_lab.tables.reader import read
from tests.helpers import crash_callbacks
from tests.helpers.commands import NO_PICTURES, ROOT, TINY_CAPSNET, TINY_DATA, Ended, start
from tests.helpers.tables import TINY, call, contents, write_table
from tests.helpers.training import TimeOver

Cli = Callable[..., Ended]
FAILING = {"name": "failing", "overrides": ["model.channels=0"]}
GOOD = {"name": "good", "overrides": []}
ENDLESS = [*TINY_CAPSNET, *TINY_DATA, "trainer.max_epochs=100000", *NO_PICTURES]


def results(folder: Path) -> dict[str, float]:
    """Time stamps of all results, by run."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("runs/*/metrics.json")}


def statuses(file: Path) -> list[str]:
    return [cell.status for cell in expand(read(file))]


def once(tmp_path: Path, signum: int) -> dict[str, Any]:
    """A row whose first run is ended by a signal."""
    fault = f"{{_target_: tests.helpers.crash_callbacks.Once, marker: '{tmp_path / 'marker'}', signum: {int(signum)}}}"
    return {"name": "stopped", "overrides": [f"+callbacks.fault={fault}"]}


def test_failing_run_does_not_stop_the_others_and_the_same_command_finishes_the_rest(
    cli: Cli, table_file, tmp_path: Path
) -> None:
    file = table_file(rows=[FAILING, GOOD], seeds=[0])
    ended = cli("sweep", f"table={file}")
    assert ended.status == 2
    assert re.fullmatch(
        r"capsule_lab: 1 of 2 runs of mine failed, the same command tries them again: failing seed 0: "
        r"model: CapsNet has channels 0; expected 1 or more\n",
        ended.err.splitlines(keepends=True)[-1],
    ), ended.err
    assert statuses(file) == ["failed", "done"]
    before = results(tmp_path)

    ended = cli("sweep", f"table={table_file(rows=[GOOD], seeds=[0])}")
    assert (ended.status, ended.out.splitlines()[-1]) == (0, "mine: 1 done")
    assert results(tmp_path) == before


def test_dashboard_has_a_run_for_each_cell_in_the_group_of_the_table(
    cli: Cli, table_file, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    file = table_file(rows=[GOOD])
    assert cli("sweep", f"table={file}", "logger=wandb").status == 0
    records = [path.read_bytes() for path in tmp_path.glob("runs/*/wandb/offline-run-*/*.wandb")]
    assert len(records) == 2
    assert all(b"mine" in record for record in records)
    assert sorted(re.findall(rb"seed \d", record)[0] for record in records) == [b"seed 0", b"seed 1"]
    assert statuses(file) == ["done", "done"], "a dashboard decides nothing about a result"


def test_value_that_refers_to_another_is_resolved_in_each_run(cli: Cli, table_file) -> None:
    ended = cli("sweep", f"table={table_file(seeds=[0])}", "model.class_dim=${model.channels}", "dry_run=true")
    assert (ended.status, ended.err) == (0, "")
    assert "'model.class_dim=${model.channels}'" in ended.out


@pytest.mark.parametrize("argument", ["dry_run=true", "--dry-run"])
def test_dry_run_shows_status_and_commands_and_writes_nothing(
    cli: Cli, table_file, finish, tmp_path: Path, argument: str
) -> None:
    file = table_file()
    first, second = expand(read(file))
    finish(first)
    before = sorted(tmp_path.rglob("*"))
    ended = cli("sweep", f"table={file}", argument)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        "done  one seed 0",
        f"    {first.command}",
        "missing  one seed 1",
        f"    {second.command}",
        "mine: 1 done, 1 missing",
    ]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["table=smok"], "table=smok does not exist; did you mean smoke?"),
        (["table=smoke", "rows=[dynamc]"], "rows: dynamc is not in smoke; did you mean dynamic?"),
        (["table=smoke", "trainer.max_epoch=1"], "row dynamic: trainer.max_epoch does not exist; did you mean"),
        ([], "table is missing; expected table=<name>, one of "),
        (["table=smoke", "seed=1"], "every run has seed=1; leave it out, seeds=[…] are those of a table"),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", ["sweep", "report"])
def test_wrong_arguments_end_in_one_sentence(
    cli: Cli, tmp_path: Path, command: str, arguments: list[str], sentence: str
) -> None:
    ended = cli(command, *arguments)
    assert ended.status == 2
    assert sentence in ended.err
    assert ended.err.count("\n") == 1
    assert list(tmp_path.rglob("metrics.json")) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["budget=soon"], "budget is soon; expected hours, minutes and seconds, such as 9m, 90s or 1h30m"),
        (
            ["budget=9m", "launcher=slurm"],
            "budget=9m is for launcher=basic and launcher=gpus; the time of SLURM's jobs",
        ),
    ],
    ids=str,
)
def test_budget_that_cannot_be_kept_is_refused(cli: Cli, arguments: list[str], sentence: str) -> None:
    ended = cli("sweep", "table=smoke", *arguments)
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert ended.err.startswith(f"capsule_lab: {sentence}")


def test_table_in_slices_goes_on_in_another_place(
    cli: Cli, table_file, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all of its runs, which the report does not take for results."""
    file = table_file(rows=[GOOD])
    command = ("sweep", f"table={file}", "budget=1h")
    real = build.build_trainer
    with monkeypatch.context() as patch:
        patch.setattr(build, "build_trainer", lambda c, d, *more: real(c, d, TimeOver(1), *more))
        ended = cli(*command)
    assert ended.status == 0, ended.err
    assert ended.out.splitlines()[-1] == "mine: 0 of 2 runs complete, 2 paused, 0 not started; the same command goes on"
    assert statuses(file) == ["paused", "paused"]
    assert "0 of 2, 2 paused" in cli("report", f"table={file}").out
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").rename(tmp_path / "elsewhere" / "moved")
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("CAPSULE_LAB_RUNS", "moved")
    assert "paused 50 %  good seed 0" in cli(*command, "dry_run=true").out
    ended = cli(*command)
    assert (ended.status, ended.out.splitlines()[-1]) == (0, "mine: 2 done")
    assert ended.out.count("continuing ") == 2
    assert len(list(Path("moved").glob("capsnet*"))) == 2


def test_launcher_that_does_not_exist_is_refused(cli: Cli) -> None:
    ended = cli("sweep", "table=smoke", "launcher=gpu")
    assert ended.status == 2
    assert ended.err.startswith("capsule_lab: launcher=gpu does not exist; did you mean gpus? Options: ")


@pytest.mark.parametrize(
    ("override", "options"),
    [
        ("hydra/sweeper=optuna", "basic, grid, table"),
        ("hydra/launcher=joblib", "basic, gpus, slurm, submitit_local, submitit_slurm"),
    ],
    ids=str,
)
def test_plugin_of_hydra_that_is_not_installed_is_refused(cli: Cli, override: str, options: str) -> None:
    ended = cli("train", "-m", override)
    assert (ended.status, ended.err) == (2, f"capsule_lab: {override} does not exist; Options: {options}\n")


ON_A_GPU = {"name": "good", "overrides": ["trainer.accelerator=auto"]}
ON_THREE = {"name": "too_many", "overrides": ["trainer.accelerator=auto", "trainer.devices=3"]}


@dataclass(frozen=True)
class Swept:
    """A folder with a table of which one run and one evaluation are killed once, swept twice by the same command."""

    folder: Path
    file: Path
    first: Ended
    between: dict[str, Any]
    statuses: list[str]
    failures: list[tuple[str, str]]
    report: Ended
    second: Ended
    after: dict[str, Any]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swept]:
    """In this process, so that both sweeps fork their runs from one server; there seem to be two GPUs."""
    folder = tmp_path_factory.mktemp("swept")
    data = ["data=mnist", f"data._target_={crash_callbacks.__name__}.MNISTThatKillsOnce", "data.source=standin"]
    evaluated = {"name": "evaluated", "of": "good", "evaluate": [*data, f"+data.marker='{folder / 'evaluated'}'"]}
    file = write_table(folder, seeds=[0], rows=[FAILING, once(folder, signal.SIGKILL), ON_A_GPU, ON_THREE, evaluated])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("TMPDIR", str(folder))  # of the server and its runs
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setattr(gpu_pool, "visible_gpus", lambda: ["0", "1"])
        command = (sweep, f"table={file}", "launcher=gpus")
        first = call(*command)
        cells = expand(read(file))
        seen = contents(folder), [cell.status for cell in cells], [(cell.error, cell.log or "") for cell in cells]
        shown = call(report, f"table={file}")
        second = call(*command)
        yield Swept(folder, file, first, *seen, shown, second, contents(folder))


def test_runs_side_by_side_finish_though_others_fail_or_are_killed(swept: Swept) -> None:
    assert swept.first.status == 2, swept.first.err
    assert "4 of 5 runs of mine failed" in swept.first.err
    assert swept.statuses == ["failed", "failed", "done", "failed", "failed"]
    failing, stopped, _, too_many, evaluated = swept.failures
    assert failing[0] == "model: CapsNet has channels 0; expected 1 or more"
    assert "CapsNet has channels 0" in Path(failing[1]).read_text()
    assert "was ended by SIGKILL" in stopped[0]
    assert "CapsNet on stand-in" in Path(stopped[1]).read_text()
    assert "trainer.devices is 3, and the sweep sees 2 GPUs (0, 1)" in too_many[0]
    assert "was ended by SIGKILL" in evaluated[0]
    lines = swept.first.out.splitlines()
    assert [line for line in lines if line.startswith("run 2")][-1].startswith("run 2 has ended")


def test_run_locks_a_gpu_if_it_takes_one(swept: Swept) -> None:
    locks = sorted(path.name for path in swept.folder.glob("capsule_lab-*/gpu-*"))
    assert locks == ["gpu-0.lock"], "the other runs are for the CPU or were refused"


def test_report_shows_the_run_that_was_killed_and_where_its_log_is(swept: Swept) -> None:
    assert (swept.report.status, swept.report.err) == (0, "")
    log = swept.failures[1][1]
    assert f"stopped seed 0 failed: a run was ended by SIGKILL; its log is {log}" in swept.report.out
    assert "stopped seed 0" in (swept.folder / "runs" / "reports" / "mine.md").read_text()


def test_same_command_finishes_only_what_is_left(swept: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(swept.folder)
    assert swept.second.status == 2
    assert swept.second.out.splitlines()[0] == "mine: 1 done, 4 failed"
    assert "2 of 5 runs of mine failed" in swept.second.err
    cells = expand(read(swept.file))
    assert [cell.status for cell in cells] == ["failed", "done", "done", "failed", "done"]
    (killed,), (whole,) = cells[1].directories, cells[2].directories
    before, after = swept.between, swept.after
    assert before.keys() == after.keys() == {killed.name, whole.name}
    assert before[whole.name].items() <= after[whole.name].items()
    assert after[whole.name].keys() - before[whole.name].keys() == {f"{cells[4].fingerprint}.json"}
    assert "metrics.json" in after[killed.name].keys() - before[killed.name].keys()


@pytest.mark.usefixtures("swept")  # for its server
def test_plain_sweep_under_the_same_launcher(tmp_path: Path) -> None:
    ended = call(train, "-m", *TINY, "seed=0,1", "launcher=gpus", "hydra.launcher.jobs=1")
    assert (ended.status, ended.err) == (0, "")
    times = r"2 runs took (\S+) s, 1 at a time: (\S+) s for the runs, and (\S+) % more .*; .* took (\S+) s before that"
    wall, own, more, before = map(float, re.search(times, ended.out).groups())
    assert wall > own > 0
    rounding = 0.05 / own + 0.05 * wall / own**2  # both are printed to 0.1 s
    assert more == pytest.approx(100 * (wall / own - 1), abs=100 * rounding + 0.05)
    assert before > 0
    found = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/metrics.json")]
    assert sorted(result["seed"] for result in found) == [0, 1]
    assert all("-m " not in result["command"].partition("capsule_lab.train")[2] for result in found)


@pytest.mark.slow
def test_sweep_that_is_stopped_stops_its_runs_which_save(
    table_file, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = table_file(seeds=[0, 1], base=ENDLESS, rows=[GOOD])
    process = start(
        "-u", "-m", "capsule_lab.sweep", f"table={file}", "launcher=gpus", "hydra.launcher.jobs=2", cwd=tmp_path
    )
    try:
        wait_for(lambda: len(list(tmp_path.glob("runs/*/metrics.csv"))) == 2)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert err == (
        "capsule_lab: stopped by SIGTERM, and 2 runs with it, which saved what they had trained; "
        "the same command continues\n"
    )
    for cell in expand(read(file)):
        assert "stopped by SIGTERM at step" in cell.error
        assert (cell.directories[0] / "checkpoints" / "last.ckpt").is_file()


@pytest.mark.slow
def test_runs_end_with_their_sweep_and_save_before(table_file, tmp_path: Path) -> None:
    file = table_file(seeds=[0, 1], base=ENDLESS, rows=[GOOD])
    command = ("-m", "capsule_lab.sweep", f"table={file}", "launcher=gpus", "hydra.launcher.jobs=2")
    process = start(*command, cwd=tmp_path)
    try:
        wait_for(lambda: len(list(tmp_path.glob("runs/*/metrics.csv"))) == 2)
        started = [lock.read_record(cell.fingerprint).process for cell in expand(read(file))]
        process.kill()
        wait_for(lambda: not any(Path(f"/proc/{name.split()[0]}").exists() for name in started), 15)
    finally:
        process.kill()
        process.communicate()
    for cell in expand(read(file)):
        assert "stopped by SIGTERM at step" in cell.error
        assert (cell.directories[0] / "checkpoints" / "last.ckpt").is_file()


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.2)
