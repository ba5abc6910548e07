"""Finished runs are reused unless the real data has arrived since, or ``auto`` means another precision here."""

import json
from collections.abc import Callable
from pathlib import Path

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
    rows = [
        {"name": source, "overrides": [f"data.source={source}"]} for source in ("auto", "standin")
    ]
    file = write_table(tmp_path, seeds=[0], rows=rows)
    for cell in expand(read(file)):
        write_run(cell, error=2.0, provenance=STANDIN)
    assert [cell.status for cell in expand(read(file))] == [DONE, DONE]
    arrive()
    assert [cell.status for cell in expand(read(file))] == [MISSING, DONE], (
        "a chosen stand-in always counts"
    )
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
    for number, more in enumerate(
        ({"hardware": "1 x NVIDIA H100"}, {"device": "cuda"}), 3
    ):  # the first is older
        write_run(cell, attempt=f"-{number}", error=float(number), precision="bf16-mixed", **more)
        assert cells_here(False)[0] == (DONE, number), (
            "of a GPU, as on the node from which a cluster's sweeps start"
        )


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "interrupted"])
def test_resuming_starts_a_new_run_if_precision_or_data_changed(
    a_copy: Path,
    arrive: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    cli: Cli,
    finished: bool,
) -> None:
    """The old precision and data are read from the result, or from the checkpoint."""
    command = [*TINY, "data.source=auto", "train.resume=true"]
    config, auto = compose("train", command), compose("train", [*TINY, "trainer.precision=auto"])
    metrics = a_copy / "metrics.json"
    content = json.loads(metrics.read_text())
    for given in (auto, config):
        changed = {
            **content,
            "config_hash": runs.directories.config_hash(given),
            "provenance": STANDIN,
        }
        metrics.write_text(json.dumps(changed if finished else {}))
        for native in (False, True) if given is auto else ():
            monkeypatch.setattr(
                "capsule_lab.config.build.cpu_computes_bfloat16", lambda native=native: native
            )
            assert runs.select_run.is_outdated(a_copy, auto) is (
                native is not (content["precision"] == "bf16-mixed")
            )
    earlier = runs.directories.root() / f"capsnet-mnist-{runs.directories.config_hash(config)}"
    earlier.parent.mkdir()
    a_copy.rename(earlier)
    chosen: list[Path] = []
    monkeypatch.setattr(
        "capsule_lab.commands.train._train",
        lambda config, directory, *_: chosen.append(directory) or {},
    )
    assert cli("train", *command).status == 0
    arrive()
    assert cli("train", *command).status == 0
    assert chosen == [*([] if finished else [earlier]), earlier.with_name(f"{earlier.name}-2")]
