"""The smoke table with ``launcher=slurm`` on a cluster of one node: jobs are killed, pre-empted, out of time."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
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
from tests.helpers.tables import contents

MISSING = [
    name for name in ("slurmctld", "slurmd", "munged", "sbatch") if shutil.which(name) is None
]
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
    return subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout


def overrides_for(step: int, *more: str) -> list[str]:
    """Overrides of the smoke table that make its jobs wait at a step."""
    hold = f"+callbacks.hold={{_target_: tests.helpers.hold_callback.Hold, step: {step}}}"
    return ["trainer.accelerator=cpu", hold, *NO_PICTURES, *more]


def sweep(*more: str) -> list[str]:
    options = [
        "hydra.launcher.cpus_per_task=1",
        f"hydra.launcher.additional_parameters.signal=USR1@{WARNING}",
    ]
    return ["-m", "capsule_lab", "sweep", "table=smoke", "launcher=slurm", *options, *more]


@pytest.mark.usefixtures("cluster")
def test_table_is_finished_though_jobs_are_killed_preempted_and_out_of_time(tmp_path: Path) -> None:
    overrides = overrides_for(HELD_AT)
    command = sweep(*overrides)
    killed, *others = asked = cells(overrides)
    with start(*command, cwd=tmp_path) as process:
        try:
            wait_for(lambda: all(map(held, asked)), process)
            logs = {cell.name: Path(cell.log) for cell in asked}
            os.kill(held(killed)["pid"], signal.SIGKILL)
            pre_empt(cpus=6)
            wait_for(
                lambda: any("SIGTERM: stopping" in logs[cell.name].read_text() for cell in others),
                process,
            )
            late = [
                cell for cell in others if "SIGTERM: stopping" not in logs[cell.name].read_text()
            ]
            for cell in late:
                let_time_run_out(held(cell)["job"])
            uninterrupted = directly(late[0], tmp_path)  # while nothing else computes
            wait_for(
                lambda: all("SIGUSR1: stopping" in logs[cell.name].read_text() for cell in late),
                process,
            )
            wait_for(lambda: start_what_waits() or process.poll() is not None, process)
            out, err = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 2
    of_jobs = [path.read_text() for log in logs.values() for path in (log, log.with_suffix(".err"))]
    assert out.splitlines()[-1] == "smoke: 3 done, 1 failed", "\n".join([out, err, *of_jobs])
    assert re.search(
        r"dynamic seed 0: job \d+_0 ended without a result; its log is \S+\.err", err
    ), err
    assert [cell.status for cell in cells(overrides)] == ["failed", "done", "done", "done"]
    assert len(late) == 2
    for cell in others:
        before, _, after = logs[cell.name].read_text().partition("is requeued")
        assert f"at step {HELD_AT}, saved in" in logs[cell.name].with_suffix(".err").read_text()
        assert [line[:7] for line in re.findall(r"epoch \d.*", before)] == ["epoch 1"]
        assert re.search(r"continuing \S+last\.ckpt", after)
        assert [line[:7] for line in re.findall(r"epoch \d.*", after)] == [
            "epoch 2",
            "epoch 3",
            "epoch 4",
        ]

    (directory,) = late[0].directories
    (killed_in,) = killed.directories
    before = contents(tmp_path)
    ended = python(*command, cwd=tmp_path)
    assert (ended.status, ended.out.splitlines()[0]) == (0, "smoke: 3 done, 1 failed")
    assert ended.out.splitlines()[-1] == "smoke: 4 done"
    assert {
        name for name, content in contents(tmp_path).items() if content != before.get(name)
    } == {killed_in.name}

    assert uninterrupted.status == 0, uninterrupted.err
    (whole,) = (tmp_path / "direct").glob("capsnet-mnist-*")
    result, expected = (
        json.loads((path / "metrics.json").read_text()) for path in (directory, whole)
    )
    assert differences(result, directory, expected, whole) == []
    assert HELD_AT % (result["steps"] / result["epochs"]) != 0, "it was stopped within an epoch"


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
    assert (process.returncode, out.splitlines()[-1]) == (0, "smoke: 1 done"), err
    (again,) = cells(overrides, rows=["dynamic"], seeds=[5])
    assert again.finished[0] == cell.directories[0]
    assert again.finished[1]["steps"] == again.finished[1]["planned_steps"]
    text = "".join(path.read_text() for path in tmp_path.glob("runs/multirun/.submitit/*/*_log.*"))
    assert text.count(f"stopped by SIGTERM at step {HELD_AT // 2}, saved in") == 2, (
        "each process says so"
    )
    assert text.count("is requeued") == 1
    assert "Traceback" not in text


def cells(overrides: list[str], **selection: Any) -> list[Cell]:
    return expand(select(read("smoke"), **selection), overrides)


def held(cell: Cell, rank: int = 0) -> dict[str, Any]:
    """Job and process of a run that waits or has waited; empty if there is none yet."""
    files = [path / f"held-{rank}.json" for path in cell.directories]
    return next(
        (json.loads(path.read_text()) for path in files if path.is_file() and path.stat().st_size),
        {},
    )


def pre_empt(cpus: int, seconds: int = 3) -> str:
    """Submit a job of higher priority that takes ``cpus`` of the node's 8 CPUs; return its number."""
    options = ["--parsable", "--partition=high", f"--cpus-per-task={cpus}", "--output=/dev/null"]
    return slurm("sbatch", *options, f"--wrap=sleep {seconds}").strip()


def let_time_run_out(job: str) -> None:
    """Set the shortest time limit in whole minutes after which SLURM can still send its warning."""
    hours_minutes_seconds = (
        slurm("squeue", "--noheader", "--jobs", job, "--format", "%M").strip().split(":")
    )
    elapsed = sum(
        int(part) * 60**power for power, part in enumerate(reversed(hours_minutes_seconds))
    )
    slurm("scontrol", "update", f"JobId={job}", f"TimeLimit={(elapsed + WARNING + 30) // 60 + 1}")


def start_what_waits() -> None:
    """Start requeued jobs after ten seconds instead of SLURM's two minutes, and without a time limit.

    SLURM 22.05 gives a job that starts while its processes are still ending the exit status of these.
    """
    for line in slurm("squeue", "--noheader", "--states=PENDING", "--format", "%i %V").splitlines():
        job, submitted = line.split()
        if datetime.now() - datetime.fromisoformat(submitted) > timedelta(
            seconds=10
        ):  # SLURM's clock
            change = ["scontrol", "update", f"JobId={job}", "StartTime=now", "TimeLimit=UNLIMITED"]
            subprocess.run(change, check=False, capture_output=True)  # it may have begun since


def directly(cell: Cell, folder: Path) -> Ended:
    """Run the command of a cell outside of SLURM."""
    return python(
        "-m",
        "capsule_lab",
        "train",
        *cell.overrides,
        cwd=folder,
        CAPSULE_LAB_RUNS=str(folder / "direct"),
    )
