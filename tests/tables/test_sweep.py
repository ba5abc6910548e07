"""A table is trained by whatever launcher, whatever becomes of one of its runs; nothing is trained twice."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from capsule_lab.tables.expand import expand
from capsule_lab.tables.reader import read
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, TINY_DATA, Ended, python, start
from tests.helpers.tables import TINY

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


def test_result_tells_the_exact_command_of_its_run(cli: Cli, table_file, tmp_path: Path) -> None:
    file = table_file(seeds=[3])
    assert cli("sweep", f"table={file}").status == 0
    (cell,) = expand(read(file))
    (path,) = tmp_path.glob("runs/*/metrics.json")
    assert json.loads(path.read_text())["command"] == cell.command


def test_dashboard_has_a_run_for_each_cell_in_the_group_of_the_table(
    cli: Cli, table_file, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    file = table_file(rows=[GOOD])
    assert cli("sweep", f"table={file}", "logger=wandb").status == 0
    records = [path.read_bytes() for path in tmp_path.glob("runs/*/wandb/offline-run-*/*.wandb")]
    assert len(records) == 2
    assert all(b"mine" in record for record in records)
    assert sorted(re.findall(rb"good/\d", record)[0] for record in records) == [b"good/0", b"good/1"]
    assert statuses(file) == ["done", "done"], "a dashboard decides nothing about a result"


def test_row_that_takes_a_result_is_trained_after_it(cli: Cli, table_file) -> None:
    taking = {"name": "two", "overrides": ["data.shift=1"], "takes": {"optimizer.eps": ["one", "test/loss"]}}
    file = table_file(seeds=[0], rows=[{"name": "one", "overrides": []}, taking])
    ended = cli("sweep", f"table={file}")
    assert (ended.status, ended.out.splitlines()[-1]) == (0, "mine: 2 done")
    one, two = expand(read(file))
    assert f"optimizer.eps={one.value('test/loss')!r}" in two.overrides


def test_value_that_refers_to_another_is_resolved_in_each_run(cli: Cli, table_file) -> None:
    ended = cli("sweep", f"table={table_file(seeds=[0])}", "model.class_dim=${model.channels}", "dry_run=true")
    assert (ended.status, ended.err) == (0, "")
    assert "'model.class_dim=${model.channels}'" in ended.out


@pytest.mark.parametrize("word", ["dry_run=true", "--dry-run"])
def test_dry_run_says_what_is_to_be_done_and_does_nothing(
    cli: Cli, table_file, finish, tmp_path: Path, word: str
) -> None:
    file = table_file()
    first, second = expand(read(file))
    finish(first)
    before = sorted(tmp_path.rglob("*"))
    ended = cli("sweep", f"table={file}", word)
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
    ("words", "sentence"),
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
def test_wrong_words_end_in_one_sentence(
    cli: Cli, tmp_path: Path, command: str, words: list[str], sentence: str
) -> None:
    ended = cli(command, *words)
    assert ended.status == 2
    assert sentence in ended.err
    assert ended.err.count("\n") == 1
    assert list(tmp_path.rglob("metrics.json")) == []


def test_launcher_that_does_not_exist_is_refused(cli: Cli) -> None:
    ended = cli("sweep", "table=smoke", "launcher=gpu")
    assert ended.status == 2
    assert ended.err.startswith("capsule_lab: launcher=gpu does not exist; did you mean gpus? Options: ")


PRETENDING = "from capsule_lab import devices, sweep; devices.visible_gpus = lambda: ['0', '1']; sweep.main()"
"""``python -m capsule_lab.sweep`` where there seem to be two GPUs."""

ON_A_GPU = {"name": "good", "overrides": ["trainer.accelerator=auto"]}
ON_THREE = {"name": "too_many", "overrides": ["trainer.accelerator=auto", "trainer.devices=3"]}


@pytest.mark.parametrize(
    ("word", "options"),
    [
        ("hydra/sweeper=optuna", "basic, table"),
        ("hydra/launcher=joblib", "basic, gpus, slurm, submitit_local, submitit_slurm"),
    ],
    ids=str,
)
def test_plugin_of_hydra_that_is_not_installed_is_refused(cli: Cli, word: str, options: str) -> None:
    ended = cli("train", "-m", word)
    assert (ended.status, ended.err) == (2, f"capsule_lab: {word} does not exist; Options: {options}\n")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Callable[[], Ended], Ended, Path]:
    """A table of runs side by side, one of which is killed: its folder, what sweeps it, how that ended, its file."""
    folder = tmp_path_factory.mktemp("swept")
    file = folder / "mine.yaml"
    rows = [FAILING, once(folder, signal.SIGKILL), ON_A_GPU, ON_THREE]
    file.write_text(yaml.safe_dump({"paper": "p", "seeds": [0], "base": TINY, "rows": rows}))

    def sweep() -> Ended:
        return python("-c", PRETENDING, f"table={file}", "launcher=gpus", cwd=folder, TMPDIR=str(folder))

    return folder, sweep, sweep(), file


def test_of_runs_side_by_side_those_that_can_finish(swept, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _, ended, file = swept
    monkeypatch.chdir(folder)
    assert ended.status == 2, ended.err
    assert "3 of 4 runs of mine failed" in ended.err
    failing, stopped, good, too_many = expand(read(file))
    assert [cell.status for cell in (failing, stopped, good, too_many)] == ["failed", "failed", "done", "failed"]
    assert failing.error == "model: CapsNet has channels 0; expected 1 or more"
    assert "CapsNet has channels 0" in Path(failing.log).read_text()
    assert "was ended by SIGKILL" in stopped.error
    assert "CapsNet on stand-in" in Path(stopped.log).read_text()
    assert "trainer.devices is 3, and the sweep sees 2 GPUs (0, 1)" in too_many.error
    assert [line for line in ended.out.splitlines() if line.startswith("run 2")][-1].startswith("run 2 completed")


def test_run_leases_a_gpu_if_it_takes_one(swept) -> None:
    leases = [path.name for path in swept[0].glob("capsule_lab-*/gpu-*")]
    assert leases == ["gpu-0.lock"], "of the one that ran, the others are for the CPU or were refused"


def test_report_shows_the_run_that_was_killed_and_where_its_log_is(
    swept, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, _, file = swept
    monkeypatch.chdir(folder)
    _, stopped, *_ = expand(read(file))
    ended = cli("report", f"table={file}")
    assert (ended.status, ended.err) == (0, "")
    assert f"stopped seed 0 failed: a run was ended by SIGKILL; its log is {stopped.log}" in ended.out
    assert "stopped seed 0" in (folder / "runs" / "reports" / "mine.md").read_text()


def contents(folder: Path) -> dict[str, dict[str, tuple[int, bytes]]]:
    """Every file of every run, with its time stamp."""
    return {
        run.name: {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in run.rglob("*") if file.is_file()}
        for run in folder.glob("runs/capsnet-mnist-*")
    }


def test_same_command_finishes_only_what_is_left(swept, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, sweep, _, file = swept
    monkeypatch.chdir(folder)
    _, stopped, good, _ = expand(read(file))
    (killed,), (whole,) = stopped.directories, good.directories
    before = contents(folder)
    ended = sweep()
    assert ended.status == 2
    assert ended.out.splitlines()[0] == "mine: 1 done, 3 failed"
    assert "2 of 4 runs of mine failed" in ended.err
    assert statuses(file) == ["failed", "done", "done", "failed"]
    after = contents(folder)
    assert before.keys() == after.keys() == {killed.name, whole.name}
    assert before[whole.name] == after[whole.name]
    assert "metrics.json" in after[killed.name].keys() - before[killed.name].keys()


def test_plain_sweep_under_the_same_launcher(table_file, tmp_path: Path) -> None:
    words = ["-m", *TINY, "seed=0,1", "launcher=gpus", "hydra.launcher.jobs=1"]
    ended = python("-m", "capsule_lab.train", *words, cwd=tmp_path)
    assert (ended.status, ended.err) == (0, "")
    times = r"2 runs in (\S+) s, of which (\S+) s are their own, 1 at a time: (\S+) % more .*; (\S+) s went before"
    wall, own, more, before = map(float, re.search(times, ended.out).groups())
    assert wall > own > 0
    assert more == pytest.approx(100 * (wall / own - 1), rel=0.2), "they are rounded"
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
        "the same command goes on\n"
    )
    for cell in expand(read(file)):
        assert "stopped by SIGTERM at step" in cell.error
        assert (cell.directories[0] / "checkpoints" / "last.ckpt").is_file()


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.2)
