"""Finished runs are reused unless the real data has arrived since, or ``auto`` means another precision here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsule_lab import runs
from capsule_lab.commands import compose
from capsule_lab.commands.tables import read_table as read
from capsule_lab.data.mnist import MNISTFiles
from capsule_lab.tables.cells import DONE, MISSING
from capsule_lab.tables.expand import expand
from tests.helpers.commands import Cli
from tests.helpers.tables import TINY, write_run, write_table

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
    for cell in expand(read(file)):
        write_run(cell, error=2.0, provenance=STANDIN)
    assert [cell.status for cell in expand(read(file))] == [DONE, DONE]
    arrive()
    # a stand-in that was chosen always counts
    assert [cell.status for cell in expand(read(file))] == [MISSING, DONE]
    cell, _ = expand(read(file))
    write_run(cell, attempt="-2", error=1.0)
    write_run(cell, attempt="-3", error=3.0, provenance=STANDIN)
    cell, _ = expand(read(file))
    assert (cell.status, cell.value("test/error")) == (DONE, 1.0)


def test_run_counts_only_where_auto_means_its_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auto = {"name": "one", "overrides": ["trainer.precision=auto"]}
    file = write_table(tmp_path, seeds=[0], rows=[auto, {"name": "two", "overrides": []}])

    def cells_here(native: bool, *, any_precision: bool = False) -> list[tuple[str, float | None]]:
        monkeypatch.setattr("capsule_lab.config.build.cpu_computes_bfloat16", lambda: native)
        cells = expand(read(file), any_precision=any_precision)
        return [(cell.status, cell.value("test/error")) for cell in cells]

    for cell in expand(read(file)):
        assert write_run(cell, error=2.0, precision="32-true")
    assert cells_here(False) == cells_here(True, any_precision=True) == [(DONE, 2.0)] * 2
    assert cells_here(True) == [(MISSING, None), (DONE, 2.0)]
    (cell, _) = expand(read(file))
    assert cell.described == f"missing here ({cell.directories[0].name} used 32-true, real MNIST)"
    write_run(cell, attempt="-2", error=1.0, precision="bf16-mixed")
    for any_precision in (True, False):
        assert cells_here(True, any_precision=any_precision)[0] == (DONE, 1.0)
        assert cells_here(False, any_precision=any_precision)[0] == (DONE, 2.0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    # runs of a GPU count on a machine without one, such as the node that starts a cluster's sweeps
    in_older_record, in_record = {"hardware": "1 x NVIDIA H100"}, {"device": "cuda"}
    for number, facts in ((3, in_older_record), (4, in_record)):
        write_run(cell, attempt=f"-{number}", error=float(number), precision="bf16-mixed", **facts)
        assert cells_here(False)[0] == (DONE, number)


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


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "interrupted"])
def test_run_is_outdated_where_auto_means_another_precision(
    a_copy: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    """The old precision is read from the result, or from the checkpoint."""
    precision = json.loads((a_copy / "metrics.json").read_text())["precision"]
    command = [*TINY, "trainer.precision=auto"]
    record_as(a_copy, command, finished=finished)
    for native, here in ((False, "32-true"), (True, "bf16-mixed")):
        name = "capsule_lab.config.build.cpu_computes_bfloat16"
        monkeypatch.setattr(name, lambda native=native: native)
        is_outdated = runs.select_run.is_outdated(a_copy, compose("train", command))
        assert is_outdated is (precision != here)


def record_as(directory: Path, command: list[str], *, finished: bool) -> str:
    """Make a run one of this command on a stand-in, with a result only if it is finished; return the hash."""
    fingerprint = runs.directories.config_hash(compose("train", command))
    metrics = directory / "metrics.json"
    content = json.loads(metrics.read_text())
    content |= {"config_hash": fingerprint, "provenance": STANDIN}
    metrics.write_text(json.dumps(content if finished else {}))
    return fingerprint
