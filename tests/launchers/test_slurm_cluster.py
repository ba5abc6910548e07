"""The smoke table with ``launcher=slurm`` on a cluster of one node: jobs are killed, pre-empted, out of time."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from capsule_lab.commands.tables import read_table as read
from capsule_lab.tables.cells import Cell
from capsule_lab.tables.expand import expand
from capsule_lab.tables.reader import select
from tests.helpers.commands import NO_PICTURES, Ended, python, start, wait_for
from tests.helpers.interruptions import differences
from tests.helpers.tables import contents, names, statuses

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"Debian's slurm-wlm and munge are not installed: no {', '.join(MISSING)}",
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="starting a cluster takes root"),
]
CLUSTER = Path(__file__).parent / "cluster.sh"
HELD_AT = 60  # steps of 37 to an epoch; 30 of processes that are two, which look for signals at every tenth
WARNING = 20  # seconds before the time limit; SLURM may send it a minute earlier


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        try:
            subprocess.run([CLUSTER, "start", folder], check=True, timeout=60)
            yield
            slurm("scancel", "--user", "root")
        finally:
            subprocess.run([CLUSTER, "stop", folder], check=True, timeout=60)


def slurm(*command: str) -> str:
    ended = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    return ended.stdout


def overrides_for(step: int, *more: str) -> list[str]:
    """Overrides of the smoke table that make its jobs wait at a step."""
    hold = f"+callbacks.hold={{_target_: tests.helpers.hold_callback.Hold, step: {step}}}"
    return ["trainer.accelerator=cpu", hold, *NO_PICTURES, *more]


def sweep(*more: str) -> list[str]:
    return [
        "-m",
        "capsule_lab",
        "sweep",
        "table=smoke",
        "launcher=slurm",
        "hydra.launcher.cpus_per_task=1",
        f"hydra.launcher.additional_parameters.signal=USR1@{WARNING}",
        *more,
    ]


def says(text: str, *logs: Path) -> list[bool]:
    """Whether each log contains a text."""
    return [text in log.read_text() for log in logs]


def epochs(log: str) -> list[str]:
    """The epochs that a log reports, in their order."""
    return re.findall(r"(epoch \d).*", log)


@pytest.mark.usefixtures("cluster")
def test_table_is_finished_though_jobs_are_killed_preempted_and_out_of_time(tmp_path: Path) -> None:
    overrides = overrides_for(HELD_AT)
    command = sweep(*overrides)
    every = cells(overrides)
    killed, *others = every
    with start(*command, cwd=tmp_path) as process:
        try:
            wait_for(lambda: all(map(held, every)), process)
            # while they run: a finished cell has the log of its run, not that of its job
            logs = {cell.name: Path(cell.log) for cell in every}
            of_others = [logs[cell.name] for cell in others]
            os.kill(held(killed)["pid"], signal.SIGKILL)
            pre_empt(cpus=6)
            wait_for(lambda: any(says("SIGTERM: stopping", *of_others)), process)
            stopped = says("SIGTERM: stopping", *of_others)
            late = [
                cell for cell, is_stopped in zip(others, stopped, strict=True) if not is_stopped
            ]
            of_late = [logs[cell.name] for cell in late]
            for cell in late:
                let_time_run_out(held(cell)["job"])
            uninterrupted = directly(late[0], tmp_path)  # while nothing else computes
            wait_for(lambda: all(says("SIGUSR1: stopping", *of_late)), process)
            wait_for(lambda: start_what_waits() or process.poll() is not None, process)
            out, err = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 2
    *_, last_line = out.splitlines()
    shown = out + err + texts_of(logs.values())
    assert last_line == "smoke: 3 done, 1 failed", shown
    message = r"dynamic seed 0: job \d+_0 ended without a result; its log is \S+\.err"
    assert re.search(message, err), err
    assert statuses(cells(overrides)) == ["failed", "done", "done", "done"]
    assert len(late) == 2
    for log in of_others:
        expect_requeued(log)

    (killed_in,) = names(killed.directories)
    before = contents(tmp_path)
    ended = python(*command, cwd=tmp_path)
    assert ended.status == 0
    lines = ended.out.splitlines()
    assert lines[0] == "smoke: 3 done, 1 failed"
    assert lines[-2] == "smoke: 4 done"
    after = contents(tmp_path)
    changed = [name for name in after if after[name] != before.get(name)]
    assert changed == [killed_in]

    assert uninterrupted.status == 0, uninterrupted.err
    (directory,) = late[0].directories
    (whole,) = (tmp_path / "direct").glob("capsnet-mnist-*")
    result = result_in(directory)
    expected = result_in(whole)
    assert differences(result, directory, expected, whole) == []
    steps_in_epoch = result["steps"] / result["epochs"]
    assert HELD_AT % steps_in_epoch != 0, "it was stopped within an epoch"


def result_in(directory: Path) -> Any:
    file = directory / "metrics.json"
    return json.loads(file.read_text())


def texts_of(logs: Iterable[Path]) -> str:
    """What all jobs wrote, for a failure."""
    texts = []
    for log in logs:
        errors = log.with_suffix(".err")
        texts += [log.read_text(), errors.read_text()]
    return "\n".join(texts)


def expect_requeued(log: Path) -> None:
    """Check that a run of four epochs was stopped in the second, and continued there."""
    errors = log.with_suffix(".err")
    assert f"at step {HELD_AT}, saved in" in errors.read_text()
    before, _, after = log.read_text().partition("is requeued")
    assert epochs(before) == ["epoch 1"]
    assert re.search(r"continuing \S+last\.ckpt", after)
    assert epochs(after) == ["epoch 2", "epoch 3", "epoch 4"]


@pytest.mark.usefixtures("cluster")
def test_preempted_run_of_two_processes_continues(tmp_path: Path) -> None:
    overrides = overrides_for(HELD_AT // 2, "trainer.devices=2", "trainer.strategy=ddp")
    command = sweep("rows=[dynamic]", "seeds=[5]", "hydra.launcher.tasks_per_node=2", *overrides)
    (cell,) = cells(overrides, rows=["dynamic"], seeds=[5])
    with start(*command, cwd=tmp_path) as process:
        try:
            wait_for(lambda: held(cell, 0) and held(cell, 1), process)
            pre_empt(cpus=7)
            wait_for(lambda: start_what_waits() or process.poll() is not None, process)
            out, err = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 0, err
    lines = out.splitlines()
    assert lines[-2] == "smoke: 1 done"
    (again,) = cells(overrides, rows=["dynamic"], seeds=[5])
    directory, result = again.finished
    assert directory == cell.directories[0]
    assert result["steps"] == result["planned_steps"]
    logs = tmp_path.glob("runs/multirun/.submitit/*/*_log.*")
    text = "".join(path.read_text() for path in logs)
    stopped = f"stopped by SIGTERM at step {HELD_AT // 2}, saved in"
    assert text.count(stopped) == 2, "each process says so"
    assert text.count("is requeued") == 1
    assert "Traceback" not in text


def cells(overrides: list[str], **selection: Any) -> list[Cell]:
    table = select(read("smoke"), **selection)
    return expand(table, overrides)


def held(cell: Cell, rank: int = 0) -> dict[str, Any]:
    """Job and process of a run that waits or has waited; empty if there is none yet."""
    for directory in cell.directories:
        file = directory / f"held-{rank}.json"
        text = file.read_text() if file.is_file() else ""
        if text:
            found: dict[str, Any] = json.loads(text)
            return found
    return {}


def pre_empt(cpus: int, seconds: int = 3) -> str:
    """Submit a job of higher priority that takes ``cpus`` of the node's 8 CPUs; return its number."""
    options = ["--parsable", "--partition=high", f"--cpus-per-task={cpus}", "--output=/dev/null"]
    number = slurm("sbatch", *options, f"--wrap=sleep {seconds}")
    return number.strip()


def let_time_run_out(job: str) -> None:
    """Set the shortest time limit in whole minutes after which SLURM can still send its warning."""
    time_used = slurm("squeue", "--noheader", "--jobs", job, "--format", "%M")
    elapsed = 0
    for part in time_used.split(":"):  # [hours:]minutes:seconds
        elapsed = 60 * elapsed + int(part)
    latest = elapsed + WARNING + 30
    minutes = latest // 60 + 1
    slurm("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}")


def start_what_waits() -> None:
    """Start requeued jobs after ten seconds instead of SLURM's two minutes, and without a time limit.

    SLURM 22.05 gives a job that starts while its processes are still ending the exit status of these.
    """
    pending = slurm("squeue", "--noheader", "--states=PENDING", "--format", "%i %V")
    for line in pending.splitlines():
        job, submitted = line.split()
        waited = datetime.now() - datetime.fromisoformat(submitted)  # SLURM's clock
        if waited > timedelta(seconds=10):
            change = ["scontrol", "update", f"JobId={job}", "StartTime=now", "TimeLimit=UNLIMITED"]
            subprocess.run(change, check=False, capture_output=True)  # it may have begun since


def directly(cell: Cell, folder: Path) -> Ended:
    """Run the command of a cell outside of SLURM."""
    runs = str(folder / "direct")
    command = ["-m", "capsule_lab", "train", *cell.overrides]
    return python(*command, cwd=folder, CAPSULE_LAB_RUNS=runs)
