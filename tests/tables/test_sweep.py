"""Sweeps: all runs of a table are finished though some fail or are killed, and none is repeated."""

import json
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from capsule_lab.launchers import local
from capsule_lab.runs import lock
from capsule_lab.system import protocol
from tests.helpers import crash_callbacks, forked_commands
from tests.helpers.commands import (
    NO_PICTURES,
    ROOT,
    TINY_CAPSNET,
    TINY_DATA,
    Cli,
    Ended,
    start,
    wait_for,
)
from tests.helpers.tables import (
    TINY,
    call,
    cells_of,
    contents,
    names,
    statuses,
    write_run,
    write_table,
)

FAILING = {"name": "failing", "overrides": ["model.channels=0"]}
GOOD = {"name": "good", "overrides": []}
ENDLESS = [*TINY_CAPSNET, *TINY_DATA, "trainer.max_epochs=100000", *NO_PICTURES]


def results(folder: Path) -> dict[str, float]:
    """Modification times of all results, by run."""
    files = folder.glob("runs/*/metrics.json")
    return {file.parent.name: file.stat().st_mtime_ns for file in files}


def once(tmp_path: Path, signum: int) -> dict[str, Any]:
    """A row whose first run sends itself a signal."""
    target = "tests.helpers.crash_callbacks.Once"
    fault = f"_target_: {target}, marker: '{tmp_path / 'marker'}', signum: {int(signum)}"
    return {"name": "stopped", "overrides": [f"+callbacks.fault={{{fault}}}"]}


@pytest.mark.usefixtures("runs_here")
def test_table_is_swept_repeated_and_reported(cli: Cli, table_file, tmp_path: Path) -> None:
    """A failing run does not stop the others. A repeated sweep does not train finished runs again."""
    evaluated = {"name": "evaluated", "of": "good", "evaluate": ["data.eval_images=50"]}
    file = table_file(rows=[FAILING, GOOD, evaluated], seeds=[0])
    ended = cli("sweep", f"table={file}")
    assert ended.status == 2
    assert ended.err.endswith("\n")
    message = (
        r"capsule_lab: 1 of 3 runs of mine failed; the same command repeats them: failing seed 0: "
        r"model: CapsNet has channels 0; expected 1 or more( \(log: a\.log\))?"
    )
    assert re.fullmatch(message, ended.err.splitlines()[-1]), ended.err
    assert statuses(cells_of(file)) == ["failed", "done", "done"]
    before = results(tmp_path)
    _, good, evaluation = cells_of(file)
    directory, result = good.finished
    assert result["command"].endswith(shlex.join(good.overrides))
    assert result["overrides"] == [*good.overrides]
    record = json.loads((directory / "evaluations" / f"{evaluation.fingerprint}.json").read_text())
    assert record["command"].endswith(shlex.join(evaluation.overrides))
    assert record["provenance"]["test_images"] == "50 of 359"
    assert record["evaluation_seconds"] > 0

    shown = cli("report", f"table={file}")
    assert (shown.status, shown.err) == (0, "")
    assert f"{result['test']['error']:.2f}" in shown.out
    assert "failing seed 0 failed: model: CapsNet has channels 0" in shown.out
    file = table_file(rows=[GOOD, evaluated], seeds=[0])
    ended = cli("sweep", f"table={file}")
    done = "mine: 2 done"
    next_command = f"next: capsule-lab report table={file}"
    assert (ended.status, ended.out.splitlines()) == (0, [done, done, next_command])
    assert results(tmp_path) == before
    selected = cli("sweep", f"table={file}", "rows=[good]", "seeds=0")
    assert selected.out.splitlines()[-1] == f"{next_command} 'rows=[good]' 'seeds=[0]'"


def test_dry_run_prints_status_and_commands_and_writes_nothing(
    cli: Cli, table_file, tmp_path: Path
) -> None:
    file = table_file()
    first, second = cells_of(file)
    write_run(first)
    before = sorted(tmp_path.rglob("*"))
    ended = cli("sweep", f"table={file}", "dry_run=true")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        "done  one seed 0",
        f"    {first.command}",
        "missing  one seed 1",
        f"    {second.command}",
        "mine: 1 done, 1 missing",
    ]
    assert sorted(tmp_path.rglob("*")) == before


def test_run_pauses_when_the_budget_of_its_sweep_is_spent(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause before the first step is no failure, unlike the end of ``trainer.max_time``."""
    monkeypatch.setenv(protocol.DEADLINE, str(time.time()))
    monkeypatch.setenv(protocol.LOG, "a.log")
    ended = cli("train", *TINY, "seed=0")
    assert (ended.status, ended.err) == (0, "")
    assert "PAUSED at step 0 of" in ended.out
    monkeypatch.delenv(protocol.LOG)
    monkeypatch.delenv(protocol.DEADLINE)
    ended = cli("train", *TINY, "seed=0", "train.resume=true", "trainer.max_time={seconds: 0.001}")
    assert ended.status == 2
    assert "ran out after" in ended.err


ON_A_GPU = {"name": "good", "overrides": ["trainer.accelerator=auto"]}
ON_THREE = {"name": "too_many", "overrides": ["trainer.accelerator=auto", "trainer.devices=3"]}


@dataclass(frozen=True)
class Swept:
    """Two sweeps of a table. In the first, a run and an evaluation are killed; the second is the same command."""

    folder: Path
    file: Path
    first: Ended
    between: dict[str, Any]
    statuses: list[str]
    failures: list[tuple[str, str]]
    report: Ended
    second: Ended
    after: dict[str, Any]


FORKED = {**vars(subprocess), "Popen": forked_commands.Popen}
"""``subprocess`` without the time in which a new interpreter imports the libraries."""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swept]:
    """The launcher sees two GPUs."""
    folder = tmp_path_factory.mktemp("swept")
    data = [
        "data=mnist",
        f"data._target_={crash_callbacks.__name__}.MNISTThatKillsOnce",
        "data.source=standin",
    ]
    evaluated = {
        "name": "evaluated",
        "of": "good",
        "evaluate": [*data, f"+data.marker='{folder / 'evaluated'}'"],
    }
    file = write_table(
        folder, seeds=[0], rows=[once(folder, signal.SIGKILL), ON_A_GPU, ON_THREE, evaluated]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("tempfile.tempdir", str(folder))
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setattr(local, "visible_gpus", lambda: ["0", "1"])
        patch.setattr(local, "subprocess", SimpleNamespace(**FORKED))
        command = ("sweep", f"table={file}", "launcher=gpus")
        first = call(*command)
        cells = cells_of(file)
        yield Swept(
            folder,
            file,
            first,
            between=contents(folder),
            statuses=statuses(cells),
            failures=[(cell.error, cell.log or "") for cell in cells],
            report=call("report", f"table={file}"),
            second=call(*command),
            after=contents(folder),
        )


@pytest.mark.whole
@pytest.mark.integration
def test_sweep_finishes_though_runs_fail_or_are_killed(swept: Swept) -> None:
    assert swept.first.status == 2, swept.first.err
    assert "3 of 4 runs of mine failed" in swept.first.err
    assert swept.statuses == ["failed", "done", "failed", "failed"]
    stopped, _, too_many, evaluated = swept.failures
    assert "was killed by SIGKILL" in stopped[0]
    assert "CapsNet on stand-in" in Path(stopped[1]).read_text()
    assert "trainer.devices is 3, but the sweep sees only 2 GPUs (0, 1)" in too_many[0]
    assert "was killed by SIGKILL" in evaluated[0]
    of_second = re.findall(r"^\[2/3\].*", swept.first.out, re.MULTILINE)
    assert re.match(r"\[2/3\] good seed 0: \d+\.\d\d % in 0\.\d min", of_second[-1])
    locks = sorted(path.name for path in swept.folder.glob("capsule_lab-*/gpu-*"))
    assert locks == ["gpu-0-1-of-1.lock"], "the other runs use the CPU or were refused"

    assert (swept.report.status, swept.report.err) == (0, "")
    message = f"stopped seed 0 failed: a run was killed by SIGKILL; its log is {stopped[1]}"
    assert message in swept.report.out
    assert "stopped seed 0" in (swept.folder / "runs" / "reports" / "mine.md").read_text()


@pytest.mark.whole
@pytest.mark.integration
def test_repeated_sweep_runs_only_unfinished_cells(
    swept: Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(swept.folder)
    assert swept.second.status == 2
    assert swept.second.out.splitlines()[0] == "mine: 1 done, 3 failed"
    assert "1 of 4 runs of mine failed" in swept.second.err
    cells = cells_of(swept.file)
    assert statuses(cells) == ["done", "done", "failed", "done"]
    (killed,) = names(cells[0].directories)
    (whole,) = names(cells[1].directories)
    before, after = swept.between, swept.after
    assert before.keys() == after.keys() == {killed, whole}
    assert before[whole].items() <= after[whole].items()
    record = cells[3].fingerprint
    new = after[whole].keys() - before[whole].keys()
    assert f"{record}.json" in new
    suffixes = {Path(name).suffix for name in new}
    assert suffixes == {".json", ".npz"}, "record and predictions of the command"
    assert "metrics.json" in after[killed].keys() - before[killed].keys()


@pytest.mark.whole
@pytest.mark.integration
@pytest.mark.parametrize(
    ("signum", "seeds"),
    [
        pytest.param(signal.SIGTERM, [0], id="SIGTERM"),
        pytest.param(signal.SIGTERM, [0, 1], id="SIGTERM, two runs", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, [0], id="SIGKILL", marks=pytest.mark.slow),
    ],
)
def test_runs_save_a_checkpoint_and_end_with_their_sweep(
    table_file, tmp_path: Path, signum: signal.Signals, seeds: list[int]
) -> None:
    file = table_file(seeds=seeds, base=ENDLESS, rows=[GOOD])
    command = ["-u", "-m", "capsule_lab", "sweep", f"table={file}", "launcher=gpus"]
    process = start(*command, "hydra.launcher.jobs=2", cwd=tmp_path)
    try:
        wait_for(lambda: len(list(tmp_path.glob("runs/*/metrics.csv"))) == len(seeds))
        runs = []
        for cell in cells_of(file):
            number, *_ = lock.read_record(cell.fingerprint).process.split()
            runs.append(Path("/proc") / number)
        process.send_signal(signum)
        _, err = process.communicate(timeout=60)
        wait_for(lambda: not any(run.exists() for run in runs))
    finally:
        process.kill()
        process.communicate()
    if signum == signal.SIGTERM:
        assert process.returncode == 128 + signal.SIGTERM
        saved = (
            f"{len(seeds)} runs were stopped after saving checkpoints; the same command continues"
        )
        assert err == f"capsule_lab: stopped by SIGTERM; {saved}\n"
    for cell in cells_of(file):
        assert "stopped by SIGTERM at step" in cell.error
        assert (cell.directories[0] / "checkpoints" / "last.ckpt").is_file()
