"""The grid sweeper of ``-m``: a job for each combination of values."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from capsule_lab.launchers import Job
from capsule_lab.launchers.grid import combinations
from capsule_lab.launchers.local import LocalLauncher
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, Cli
from tests.helpers.messages import one_sentence
from tests.helpers.tables import launch_here

SMOKE = ["debug=smoke", *TINY_CAPSNET, "trainer.accelerator=cpu", *NO_PICTURES]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a=1,2", "+b=3,4"], [["a=1", "+b=3"], ["a=1", "+b=4"], ["a=2", "+b=3"], ["a=2", "+b=4"]]),
        (
            ["a=range(2)", "b=[1,2]", "~c", "d='x,y'"],
            [[f"a={a}", "b=[1,2]", "~c", "d='x,y'"] for a in (0, 1)],
        ),
        (
            ["a=choice(x,y)", "group@package=z"],
            [["a=x", "group@package=z"], ["a=y", "group@package=z"]],
        ),
    ],
    ids=str,
)
def test_combinations_has_every_combination_of_values(
    arguments: list[str], expected: list[list[str]]
) -> None:
    assert combinations(arguments) == expected


def test_multirun_gives_a_job_for_each_combination_to_the_launcher(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[LocalLauncher, Sequence[Job]]] = []
    monkeypatch.setattr(LocalLauncher, "launch", lambda self, jobs: seen.append((self, jobs)) or {})
    ended = cli(
        "train",
        "-m",
        "seed=3,4",
        *SMOKE,
        "launcher=gpus",
        "hydra.launcher.jobs=7",
        "hydra.launcher.per_gpu=2",
        "train.resume=true",
    )
    assert (ended.status, ended.err) == (0, "")
    ((launcher, jobs),) = seen
    assert (launcher.jobs, launcher.per_gpu, launcher.show) == (7, 2, False)
    for seed, job in enumerate(jobs, 3):
        assert job.arguments == (
            *("-m", "capsule_lab", "train"),
            f"seed={seed}",
            *SMOKE,
            "train.resume=true",
        )
    assert len({job.fingerprint for job in jobs}) == 2
    assert ended.out.splitlines()[-2:] == [
        "seed=3  0.0      not finished",
        "seed=4  0.0      not finished",
    ]


@pytest.mark.parametrize(
    ("more", "group"),
    [
        ([], "'seed=0,1 routing.squash=relu,half'"),
        (["name=wide"], "wide"),
        (["logger.wandb.group=mine"], None),
    ],
    ids=str,
)
def test_runs_of_a_multirun_have_a_group_and_a_job_type_for_all_seeds(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, more: list[str], group: str | None
) -> None:
    seen: list[Job] = []
    monkeypatch.setattr(LocalLauncher, "launch", lambda self, jobs: seen.extend(jobs) or {})
    varied = ["seed=0,1", "routing.squash=relu,half"]
    ended = cli("train", "-m", *varied, *SMOKE, "logger=wandb", *more)
    assert (ended.status, ended.err) == (0, "")
    groups = []
    job_types = []
    for job in seen:
        for argument in job.arguments:
            key, _, value = argument.partition("=")
            if key == "logger.wandb.group" and argument not in more:
                groups.append(value)
            if key == "logger.wandb.job_type":
                job_types.append(value.strip("'"))
    assert groups == ([group] * 4 if group else [])
    of_a_seed = ["routing.squash=relu", "routing.squash=half"]
    assert job_types == of_a_seed * 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("hydra/sweeper=optuna", "hydra/sweeper=optuna does not exist; "),
        ("launcher=joblib", "launcher=joblib does not exist; Options: basic, gpus, slurm"),
        ("model.channels=4,five", "model.channels is five; expected a whole number"),
    ],
)
def test_invalid_multirun_is_refused_before_a_run(
    cli: Cli, tmp_path: Path, override: str, message: str
) -> None:
    assert one_sentence(cli("train", "-m", *SMOKE, override)).startswith(message)
    assert not list(tmp_path.rglob("metrics.csv"))


def test_failing_run_does_not_stop_the_others(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalLauncher, "launch", lambda _, *given: launch_here(*given))
    ended = cli("train", "-m", "model.channels=0,4", "seed=1", *SMOKE[:1], *SMOKE[2:])
    message = one_sentence(ended)
    assert message.startswith("1 of 2 runs failed: model.channels=0 seed=1 ")
    assert "model: CapsNet has channels 0; expected 1 or more" in message
    (file,) = Path("runs").glob("capsnet-mnist-*/metrics.json")
    heading, failed, row = ended.out.splitlines()[-3:]
    assert heading.split() == ["test", "error", "minutes", "run"]
    assert failed.split() == ["model.channels=0", "0.0", "not", "finished"]
    error = json.loads(file.read_text())["test"]["error"]
    assert row.split()[:3] == ["model.channels=4", f"{error:.2f}", "%"]
    assert "(32 of 359" in row
    # minutes are those of the wall clock, which other work on the machine lengthens
    minutes, directory = row.split()[-2:]
    assert re.fullmatch(r"\d\.\d", minutes)
    assert directory == str(file.parent)
    assert "try next" not in ended.out
