"""A table through ``launcher=slurm`` on a real SLURM of one node: one run is killed, one pre-empted, all complete."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capsule_lab import runs
from capsule_lab.tables import claims
from capsule_lab.tables.cells import Cell, expand
from capsule_lab.tables.table import read
from tests.conftest import NO_PICTURES, TINY_CAPSNET, TINY_DATA, python, start
from tests.tables.conftest import write_table

MISSING = [name for name in ("slurmctld", "slurmd", "munged", "sbatch") if shutil.which(name) is None]
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(
        bool(MISSING), reason=f"Debian's slurm-wlm and munge are not installed: no {', '.join(MISSING)}"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="starting a cluster takes root"),
]
CLUSTER = Path(__file__).parent / "cluster.sh"
STEPS = 400  # of 4 to an epoch: half a minute


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cluster")
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    try:
        subprocess.run([CLUSTER, "start", folder], check=True, timeout=60)
        yield folder
        subprocess.run(["scancel", "--user", "root"], check=False, timeout=60)
    finally:
        subprocess.run([CLUSTER, "stop", folder], check=True, timeout=60)


def test_killed_and_pre_empted_runs_of_a_table_complete(cluster: Path, tmp_path: Path) -> None:
    options = ["trainer.max_epochs=-1", f"trainer.max_steps={STEPS}", "callbacks.last.every_minutes=60", *NO_PICTURES]
    file = write_table(tmp_path, seeds=[0, 1, 2], base=[*TINY_CAPSNET, *TINY_DATA, *options])
    words = [f"table={file}", "launcher=slurm", "hydra.launcher.cpus_per_task=1"]
    sweep = start("-m", "capsule_lab.sweep", *words, cwd=tmp_path)
    try:
        cells = expand(read(file))
        wait_for(lambda: all(under_way(cell) for cell in cells))
        os.kill(int(claims.record_of(cells[0].fingerprint).process.split()[0]), signal.SIGKILL)
        other = ["sbatch", "--partition=high", "--cpus-per-task=7", "--output=/dev/null", "--wrap=sleep 3"]
        subprocess.run(other, check=True, cwd=tmp_path, capture_output=True)
        wait_for(lambda: start_what_waits() or sweep.poll() is not None)
        out, err = sweep.communicate()
    finally:
        sweep.kill()
        sweep.communicate()
    assert "mine: 2 done, 1 failed" in out
    assert re.search(r"one seed 0: job \d+_0 ended without a result; its log is \S+\.err", err), err

    logs = [log.read_text() for log in tmp_path.glob("runs/multirun/.submitit/*/*_log.out")]
    (pre_empted,) = [log for log in logs if "goes back into the queue" in log]
    assert "SIGTERM: stopping after this step" in pre_empted
    assert re.search(r"continuing \S+last\.ckpt", pre_empted)
    again = [expand(read(file))[seed] for seed in range(3)]
    assert [cell.status for cell in again] == ["failed", "done", "done"]
    assert {cell.finished[1]["steps"] for cell in again[1:]} == {STEPS}

    ended = python("-m", "capsule_lab.sweep", *words, cwd=tmp_path)
    assert (ended.status, ended.out.splitlines()[0]) == (0, "mine: 2 done, 1 failed")
    assert ended.out.splitlines()[-1] == "mine: 3 done"
    assert len(list((tmp_path / "runs").glob("capsnet-mnist-*"))) == 3


def under_way(cell: Cell) -> bool:
    """Whether some epochs of it are over."""
    record = claims.record_of(cell.fingerprint)
    return record is not None and any((path / "metrics.csv").is_file() for path in runs.attempts(cell.fingerprint))


def start_what_waits() -> None:
    """Jobs that were pre-empted begin again at once, not after SLURM's two minutes."""
    listed = ["squeue", "--noheader", "--format", "%i %T"]
    jobs = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.splitlines()
    for job, state in (line.split() for line in jobs):
        if state == "PENDING":
            subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=False, capture_output=True)


def wait_for(condition: Callable[[], object], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.5)
