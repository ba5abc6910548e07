"""Finished runs are reused unless the real data has arrived since, or ``auto`` means another precision here."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsule_lab import runs
from capsule_lab.commands import compose
from capsule_lab.data.mnist import MNISTFiles
from capsule_lab.launchers import Job
from capsule_lab.launchers.local import LocalLauncher
from capsule_lab.runs.select_run import last_finished, locate
from capsule_lab.tables.cells import DONE, MISSING
from tests.helpers.commands import Cli
from tests.helpers.messages import one_sentence
from tests.helpers.tables import RESULT, TINY, cells_of, statuses, write_run, write_table
from tests.helpers.tiers import whole_but

STANDIN = {"source": "standin", "name": "stand-in for MNIST"}


@pytest.fixture
def arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that creates empty files with the names of the real ones in the data directory."""
    monkeypatch.setenv("CAPSULE_LAB_DATA", str(tmp_path / "data"))

    def put() -> None:
        folder = tmp_path / "data" / MNISTFiles.path
        folder.mkdir(parents=True)
        for name in MNISTFiles.checksums:
            (folder / name).touch()

    return put


def test_run_on_a_standin_is_missing_once_the_real_files_arrive(
    tmp_path: Path, arrive: Callable[[], None]
) -> None:
    auto = {"name": "auto", "overrides": ["data.source=auto"]}
    standin = {"name": "standin", "overrides": ["data.source=standin"]}
    file = write_table(tmp_path, seeds=[0], rows=[auto, standin])
    for cell in cells_of(file):
        write_run(cell, error=2.0, provenance=STANDIN)
    assert statuses(cells_of(file)) == [DONE, DONE]
    arrive()
    # a stand-in that was chosen always counts
    assert statuses(cells_of(file)) == [MISSING, DONE]
    cell, _ = cells_of(file)
    write_run(cell, attempt="-2", error=1.0)
    write_run(cell, attempt="-3", error=3.0, provenance=STANDIN)
    cell, _ = cells_of(file)
    assert cell.status == DONE
    assert cell.value("test/error") == 1.0


@pytest.fixture
def auto_and_fixed(tmp_path: Path) -> Path:
    """A table whose first row has the precision that this machine means by auto, and the second one float32."""
    auto = {"name": "one", "overrides": ["trainer.precision=auto"]}
    float32 = {"name": "two", "overrides": []}
    return write_table(tmp_path, seeds=[0], rows=[auto, float32])


@pytest.fixture
def cells_on(
    auto_and_fixed: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[tuple[str, float | None]]]:
    """A function that returns status and error of both cells, on a machine with bfloat16 or without it."""

    def values(*, bfloat16: bool, any_precision: bool = False) -> list[tuple[str, float | None]]:
        monkeypatch.setattr("capsule_lab.config.build.cpu_computes_bfloat16", lambda: bfloat16)
        cells = cells_of(auto_and_fixed, any_precision=any_precision)
        return [(cell.status, cell.value("test/error")) for cell in cells]

    return values


def test_run_counts_only_where_auto_means_its_precision(
    auto_and_fixed: Path, cells_on: Callable[..., list[tuple[str, float | None]]]
) -> None:
    for cell in cells_of(auto_and_fixed):
        write_run(cell, error=2.0, precision="32-true")
    both_done = [(DONE, 2.0), (DONE, 2.0)]
    assert cells_on(bfloat16=False) == both_done
    assert cells_on(bfloat16=True, any_precision=True) == both_done
    assert cells_on(bfloat16=True) == [(MISSING, None), (DONE, 2.0)]
    cell, _ = cells_of(auto_and_fixed)
    used = f"{cell.directories[0].name} used 32-true, real MNIST"
    assert cell.described == f"missing here ({used})"

    write_run(cell, attempt="-2", error=1.0, precision="bf16-mixed")
    for any_precision in (True, False):
        with_bfloat16, _ = cells_on(bfloat16=True, any_precision=any_precision)
        without, _ = cells_on(bfloat16=False, any_precision=any_precision)
        assert with_bfloat16 == (DONE, 1.0)
        assert without == (DONE, 2.0)


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "interrupted"])
def test_resuming_starts_a_new_run_if_the_real_data_has_arrived(
    a_copy: Path,
    arrive: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    cli: Cli,
    finished: bool,
) -> None:
    """The old data is read from the result, or from the checkpoint."""
    command = [*TINY, "data.source=auto", "train.resume=true"]
    fingerprint = record_as(a_copy, command, finished=finished)
    earlier = runs.directories.root() / f"capsnet-mnist-{fingerprint}"
    earlier.parent.mkdir()
    a_copy.rename(earlier)
    chosen: list[Path] = []

    def fake_train(config: Any, directory: Path, *_: Any) -> dict[str, Any]:
        chosen.append(directory)
        return {}

    monkeypatch.setattr("capsule_lab.commands.train._train", fake_train)
    assert cli("train", *command).status == 0
    assert chosen == ([] if finished else [earlier])
    arrive()
    assert cli("train", *command).status == 0
    assert chosen[-1] == earlier.with_name(f"{earlier.name}-2")


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"hardware": "1 x NVIDIA H100"}, id="in older records"),
        pytest.param({"device": "cuda"}, id="in records"),
    ],
)
def test_run_of_a_gpu_counts_on_a_machine_without_one(
    auto_and_fixed: Path,
    cells_on: Callable[..., list[tuple[str, float | None]]],
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, str],
) -> None:
    """Such as the node that starts the sweeps of a cluster."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    cell, _ = cells_of(auto_and_fixed)
    write_run(cell, error=2.0, precision="32-true")
    write_run(cell, attempt="-2", error=3.0, precision="bf16-mixed", **facts)
    first, _ = cells_on(bfloat16=False)
    assert first == (DONE, 3.0)


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "interrupted"])
def test_run_is_outdated_where_auto_means_another_precision(
    a_copy: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    """The old precision is read from the result, or from the checkpoint."""
    result = json.loads((a_copy / "metrics.json").read_text())
    command = [*TINY, "trainer.precision=auto"]
    config = compose("train", command)
    record_as(a_copy, command, finished=finished)
    name = "capsule_lab.config.build.cpu_computes_bfloat16"
    for native, here in ((False, "32-true"), (True, "bf16-mixed")):
        monkeypatch.setattr(name, lambda native=native: native)
        is_outdated = runs.select_run.is_outdated(a_copy, config)
        assert is_outdated is (result["precision"] != here)


def record_as(directory: Path, command: list[str], *, finished: bool) -> str:
    """Make a run one of this command on a stand-in, with a result only if it is finished; return the hash."""
    fingerprint = runs.directories.config_hash(compose("train", command))
    metrics = directory / "metrics.json"
    content = json.loads(metrics.read_text())
    content |= {"config_hash": fingerprint, "provenance": STANDIN}
    metrics.write_text(json.dumps(content if finished else {}))
    return fingerprint


@pytest.fixture
def three_runs() -> Path:
    """A finished run with weights; after it, one without weights and one that has not finished. Returns the first."""
    made = {}
    for number, name in enumerate(["with", "without", "unfinished"]):
        directory = runs.directories.root() / f"{name}-0000000{number}"
        (directory / "checkpoints").mkdir(parents=True)
        if name != "unfinished":
            result = {**RESULT, "config_hash": f"0000000{number}"}
            file = directory / "metrics.json"
            file.write_text(json.dumps(result))
            os.utime(file, (number, number))
        if name != "without":
            (directory / "checkpoints" / "best.ckpt").write_text("not a checkpoint")
        made[name] = directory
    return made["with"]


def test_last_is_the_latest_finished_run_with_weights(three_runs: Path) -> None:
    assert last_finished() == locate("last") == three_runs


OF_COMMANDS = [
    "evaluate ckpt=last",
    "figures run=last",
    "train ckpt=last debug=smoke",
    "export ckpt=last to=onnx out=a.onnx",
    "predict ckpt=last images=a.png",
]


@pytest.mark.parametrize(
    "words", whole_but(OF_COMMANDS, "evaluate ckpt=last", "predict ckpt=last images=a.png")
)
def test_every_command_that_takes_a_run_takes_the_last_one(
    cli: Cli, three_runs: Path, words: str
) -> None:
    name, *arguments = words.split()
    refused = one_sentence(cli(name, *arguments))
    assert f"runs/{three_runs.name}/checkpoints/best.ckpt" in refused


def test_last_is_found_before_the_command_starts(
    cli: Cli, three_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its children, the command to continue and the records name the run, also when another one has finished."""
    seen: list[Job] = []
    monkeypatch.setattr(LocalLauncher, "launch", lambda self, jobs: seen.extend(jobs) or {})
    monkeypatch.setattr(runs.initial_weights, "check", lambda config: None)
    ended = cli("train", "-m", "seed=0,1", "train.start_from=last", "debug=smoke")
    assert (ended.status, ended.err) == (0, "")
    path = f"runs/{three_runs.name}"
    for job in seen:
        assert f"train.start_from={path}" in job.arguments
        assert job.config.train.start_from == path
    assert len(seen) == 2


def test_last_without_a_finished_run_is_one_sentence(cli: Cli) -> None:
    refused = one_sentence(cli("evaluate", "ckpt=last"))
    assert "last is the latest finished run, but" in refused


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("evaluate ckpt=runs/with-00000001", "?"),
        ("evaluate ckpt=with-00000000", "?"),
        ("train ckpt=runs/with-00000001 debug=smoke", "? Otherwise, expected a .ckpt file"),
        ("evaluate ckpt=runs/without-00000001", "? Otherwise, expected a .ckpt file"),
    ],
)
def test_run_that_was_probably_meant_is_named(
    cli: Cli, three_runs: Path, words: str, instead: str
) -> None:
    name, *arguments = words.split()
    refused = one_sentence(cli(name, *arguments))
    pattern = r"did you mean runs/\w+-0000000\d" + re.escape(instead)
    assert re.search(pattern, refused)


@pytest.mark.parametrize("command", ["evaluate", "train debug=smoke"])
def test_mistyped_last_is_recognised_if_there_is_a_run(
    cli: Cli, three_runs: Path, command: str
) -> None:
    name, *arguments = command.split()
    assert "did you mean last?" in one_sentence(cli(name, *arguments, "ckpt=lst"))
    shutil.rmtree(three_runs.parent)
    assert "did you mean" not in one_sentence(cli(name, *arguments, "ckpt=lst"))
