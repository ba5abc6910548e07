"""The local launcher, with short commands as jobs; ``tests/tables`` has whole sweeps."""

import json
import logging
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from omegaconf import DictConfig

from capsule_lab.errors import InterruptError
from capsule_lab.launchers import Job, local
from capsule_lab.launchers.local import LocalLauncher
from capsule_lab.system import protocol
from tests.helpers.commands import start


def training(accelerator: str, devices: int = 1) -> DictConfig:
    """The part of a configuration that the launcher reads."""
    return DictConfig({"trainer": {"accelerator": accelerator, "devices": devices}})


CPU = training("cpu")
SHOW_ENVIRONMENT = "import json, os; print(json.dumps({**os.environ}))"


def job(fingerprint: str, script: str, config: DictConfig = CPU, **environment: str) -> Job:
    return Job(f"the {fingerprint}", ("-c", script), config, fingerprint, environment)


def test_line_of_a_run_has_its_outcome_and_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "capsule_lab")
    monkeypatch.setattr(local, "visible_gpus", list)
    scripts = {
        "broken": "raise SystemExit(3)",
        "first": "",
        "last": "",
    }
    jobs = []
    for name, script in scripts.items():
        plain = job(name, script)
        jobs.append(plain._replace(outcome=lambda: "23.96 %"))
    LocalLauncher(jobs=1, logs=str(tmp_path)).launch(jobs)
    broken, first, last = [line for line in caplog.messages if ": log " not in line]
    assert broken.startswith("[1/3] the broken: failed: ")
    left = "; 1 of 3 left, about 0 min"
    assert re.fullmatch(rf"\[2/3\] the first: 23\.96 % in 0\.\d min{left}", first)
    assert re.fullmatch(r"\[3/3\] the last: 23\.96 % in 0\.\d min", last)


def test_launch_sets_the_environment_of_jobs_and_returns_their_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "capsule_lab")
    monkeypatch.setattr(local, "visible_gpus", lambda: ["3", "5"])
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    jobs = [
        job("good", SHOW_ENVIRONMENT, EXTRA="x"),
        job("on_gpus", SHOW_ENVIRONMENT, training("gpu", 2)),
        job("too_many", "", training("gpu", 3)),
        job("refused", "import sys; sys.exit('a\\ncapsule_lab: no disk')"),
        job("killed", "import os; os.kill(os.getpid(), 9)"),
        job("broken", "raise SystemExit(3)"),
    ]
    deadline = time.time() + 600
    logs = tmp_path / "logs"
    assert LocalLauncher(logs=str(logs)).launch(jobs, deadline) == {
        "good": None,
        "on_gpus": None,
        "too_many": "trainer.devices is 3, but the sweep sees only 2 GPUs (3, 5); expected at most that many, or "
        "launcher=slurm for a larger machine",
        "refused": "no disk",
        "killed": f"a run was killed by SIGKILL; its log is {logs / 'killed.log'}",
        "broken": f"a run ended with status 3; its log is {logs / 'broken.log'}",
    }
    good = json.loads((logs / "good.log").read_text())
    on_gpus = json.loads((logs / "on_gpus.log").read_text())
    own = {"EXTRA": "x", protocol.LOG: str(logs / "good.log"), protocol.PARENT: str(os.getpid())}
    assert own.items() <= good.items()
    assert good[protocol.DEADLINE] == str(deadline)
    cores = len(os.sched_getaffinity(0))
    assert good["OMP_NUM_THREADS"] == str(max(1, cores // 2)), "two jobs at a time, one a GPU"
    of_slurm = {name for name in good if name.startswith("SLURM_")}
    assert not of_slurm & {"SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"}
    assert on_gpus["CUDA_VISIBLE_DEVICES"] == "3,5"
    locks = {path.name for path in tmp_path.glob("capsule_lab-*/*")}
    assert locks == {"gpu-3-1-of-1.lock", "gpu-5-1-of-1.lock"}
    lines = [line for line in caplog.messages if "the refused" in line]
    assert lines == [
        f"[4/6] the refused: log {logs / 'refused.log'}",
        "[4/6] the refused: failed: no disk",
    ]


def test_jobs_are_not_started_after_the_deadline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [job("a", "print('this is a')"), job("b", "print('this is b')")]
    launcher = LocalLauncher(jobs=1, logs=str(tmp_path), show=True)
    assert launcher.launch(jobs) == {"a": None, "b": None}
    assert launcher.launch(jobs[:1]) == {"a": None}
    # an appended log is shown once
    assert capsys.readouterr().out == "this is a\nthis is b\nthis is a\n"
    assert (tmp_path / "a.log").read_text() == "this is a\n" * 2
    slow = job("slow", "import time; time.sleep(0.6)")
    assert launcher.launch([slow, *jobs], time.time() + 0.5) == {"slow": None}


def test_no_job_at_once_is_refused() -> None:
    message = r"hydra\.launcher\.jobs is 0; expected 1 or more, or null"
    with pytest.raises(ValueError, match=message):
        LocalLauncher(jobs=0)


INT = signal.SIGINT
TERM = signal.SIGTERM
HUP = signal.SIGHUP
USR1 = signal.SIGUSR1
KILL = signal.SIGKILL


@pytest.mark.parametrize(
    ("signum", "further", "passed_on"),
    [
        (HUP, [], [TERM]),
        (USR1, [TERM], [USR1, TERM]),
        (INT, [INT, INT], [TERM, TERM, KILL]),
    ],
    ids=str,
)
def test_signal_is_passed_on_to_running_jobs(
    signum: int, further: list[int], passed_on: list[int]
) -> None:
    """Further signals arrive while the sweep waits for its jobs."""
    received: list[int] = []
    left = list(further)

    class Popen:
        send_signal = received.append

        def wait(self) -> None:
            if left:
                signal.raise_signal(left.pop(0))

    process = local._Process(job("a", ""), "", Path(), Popen(), 0.0, 0, 0)  # type: ignore[arg-type]
    how = "the same command continues"
    with pytest.raises(InterruptError) as caught, local._stopping([process], how):
        signal.raise_signal(signum)
    assert caught.value.signum == signum
    assert received == passed_on
    saved = "without saving" if further else "after saving checkpoints"
    stopped = f"stopped by {signal.Signals(signum).name}; 1 runs were stopped {saved}"
    assert str(caught.value) == f"{stopped}; {how}"


def test_stopped_sweep_says_how_its_jobs_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "visible_gpus", list)
    slow = job("slow", "import time; time.sleep(60)")
    slow = slow._replace(to_continue="ask somebody")

    def stop(_: float) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(time, "sleep", stop)
    with pytest.raises(InterruptError, match=r"; 1 runs were stopped .*; ask somebody$"):
        LocalLauncher(logs=str(tmp_path)).launch([slow])


def test_command_ends_with_the_sweep_that_started_it(tmp_path: Path) -> None:
    """Also if the sweep is killed during the imports of the command."""
    with subprocess.Popen(["sleep", "60"]) as gone:
        gone.kill()
    parent = {protocol.PARENT: str(gone.pid)}
    with start("-m", "capsule_lab", "train", cwd=tmp_path, **parent) as process:
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (-signal.SIGTERM, "")
    assert not list(tmp_path.rglob("metrics.json"))
