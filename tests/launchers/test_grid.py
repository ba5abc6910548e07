"""The grid sweeper of ``-m``: a job for each combination of values."""

import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from capsule_lab.launchers import Job
from capsule_lab.launchers.grid import combinations
from capsule_lab.launchers.local import LocalLauncher
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, Cli
from tests.helpers.messages import one_sentence
from tests.helpers.tables import RESULT, launch_here

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
        assert job.to_continue == "the same command continues"
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
        assert job.to_continue == "the same command with train.resume=true continues"
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


def record(directory: Path, fingerprint: str, error: float, status: str = "finished") -> None:
    """Write the record of a run into its directory."""
    directory.mkdir(parents=True)
    result = {**RESULT, "config_hash": fingerprint, "status": status}
    result |= {"test": {"error": error}, "planned_steps": 8}
    name = "metrics.json" if status == "finished" else "status.json"
    (directory / name).write_text(json.dumps(result))


def own_directories(jobs: Sequence[Job]) -> None:
    """End like runs with ``train.directory``: one is finished, and one is paused and was tested."""
    first, second = jobs
    record(Path(first.config.train.directory), first.fingerprint, 12.5)
    record(Path(second.config.train.directory), second.fingerprint, 25.0, "paused")


def continued(jobs: Sequence[Job]) -> None:
    """End like runs that continue a checkpoint of another configuration, of which one failed."""
    first, second = jobs
    root = Path("runs")
    record(root / f"x-{first.fingerprint}-continued-2", first.fingerprint, 12.5)
    record(root / f"x-{first.fingerprint}", first.fingerprint, 99.0)
    record(root / f"x-{second.fingerprint}-continued", second.fingerprint, 25.0, "failed")


@pytest.mark.parametrize(
    ("overrides", "end", "rows"),
    [
        (
            ["train.directory=out/${seed}"],
            own_directories,
            [
                ["12.50", "%", "1.5", "out/3"],
                ["25.00", "%", "(at", "step", "5", "of", "8)", "1.5", "out/4"],
            ],
        ),
        (
            ["ckpt=other.ckpt"],
            continued,
            [["12.50", "%", "1.5", "runs/x-HASH-continued-2"], ["0.0", "not", "finished"]],
        ),
    ],
    ids=["train.directory", "ckpt"],
)
def test_table_has_runs_that_other_tables_do_not_have(
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
    end: Callable[[Sequence[Job]], None],
    rows: list[list[str]],
) -> None:
    seen: list[Job] = []

    def launch(_: LocalLauncher, jobs: Sequence[Job]) -> dict[str, str | None]:
        seen.extend(jobs)
        end(jobs)
        return {}

    monkeypatch.setattr(LocalLauncher, "launch", launch)
    Path("other.ckpt").touch()
    ended = cli("train", "-m", "seed=3,4", *SMOKE, *overrides)
    assert (ended.status, ended.err) == (0, "")
    found = []
    for line, job in zip(ended.out.splitlines()[-2:], seen, strict=True):
        _, *cells = line.replace(job.fingerprint, "HASH").split()
        found.append(cells)
    assert found == rows


@pytest.mark.parametrize(
    ("own", "status"), [([], 0), (["train.directory=out/${seed}"], 2)], ids=str
)
def test_failing_run_that_is_finished_has_not_failed_if_tables_have_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, own: list[str], status: int
) -> None:
    """Another process may have finished it; in a directory of its own, it is the run of an earlier command."""

    def launch(_: LocalLauncher, jobs: Sequence[Job]) -> dict[str, str | None]:
        for job in jobs:
            directory = job.config.train.directory or f"runs/x-{job.fingerprint}"
            record(Path(directory), job.fingerprint, 12.5)
        return {job.fingerprint: "it was refused" for job in jobs}

    monkeypatch.setattr(LocalLauncher, "launch", launch)
    ended = cli("train", "-m", "seed=3,4", *SMOKE, *own)
    assert ended.status == status
    assert ("2 of 2 runs failed" in ended.err) is bool(status)


SAME = shlex.join(["seed=3", *SMOKE])


@pytest.mark.parametrize(
    ("varied", "named"),
    [
        (["logger=none,csv"], "logger=none and logger=csv"),
        (["name=a,b", "seed=0,1"], "name=a and name=b"),
        (["train.directory=a,b"], "train.directory=a and train.directory=b"),
        (["seed=3,3"], f"{SAME} and {SAME}"),
    ],
    ids=str,
)
def test_runs_of_one_configuration_are_refused_before_a_run(
    cli: Cli, tmp_path: Path, varied: list[str], named: str
) -> None:
    """The hash of a configuration identifies its lock, its log and its result."""
    message = one_sentence(cli("train", "-m", *varied, *SMOKE))
    assert message.startswith(f"{named} have the same configuration hash")
    assert "each with its own train.directory=…" in message
    assert not (tmp_path / "runs").exists()


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
