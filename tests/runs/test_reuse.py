"""A run on a stand-in counts until the real files are here; one of precision ``auto`` where it is used."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from capsule_lab import runs
from capsule_lab.config.compose import compose
from capsule_lab.data.mnist import MNISTFiles
from capsule_lab.tables.cells import DONE, MISSING
from capsule_lab.tables.expand import expand
from capsule_lab.tables.reader import read
from tests.helpers.commands import Cli
from tests.helpers.tables import TINY, write_run, write_table

STANDIN = {"source": "standin", "name": "stand-in for MNIST"}


@pytest.fixture
def arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Puts files with the names of the real ones into an empty data directory."""
    monkeypatch.setenv("CAPSULE_LAB_DATA", str(tmp_path / "data"))

    def put() -> None:
        folder = tmp_path / "data" / MNISTFiles.path
        folder.mkdir(parents=True)
        for name in MNISTFiles.checksums:
            (folder / name).touch()

    return put


def test_table_wants_the_real_run_when_the_files_arrive(tmp_path: Path, arrive: Callable[[], None]) -> None:
    rows = [{"name": source, "overrides": [f"data.source={source}"]} for source in ("auto", "standin")]
    file = write_table(tmp_path, seeds=[0], rows=rows)
    for cell in expand(read(file)):
        write_run(cell, error=2.0, provenance=STANDIN)
    assert [cell.status for cell in expand(read(file))] == [DONE, DONE]
    arrive()
    assert [cell.status for cell in expand(read(file))] == [MISSING, DONE], "a stand-in by choice counts for ever"
    cell, _ = expand(read(file))
    write_run(cell, attempt="-2", error=1.0)
    write_run(cell, attempt="-3", error=3.0, provenance=STANDIN)
    cell, _ = expand(read(file))
    assert (cell.status, cell.value("test/error")) == (DONE, 1.0)


def test_precision_counts_where_it_is_used_and_is_shown_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auto = {"name": "one", "overrides": ["trainer.precision=auto"]}
    file = write_table(tmp_path, seeds=[0], rows=[auto, {"name": "two", "overrides": []}])

    def found(native: bool, *, any_precision: bool = False) -> list[tuple[str, float | None]]:
        monkeypatch.setattr("capsule_lab.config.build.cpu_computes_bfloat16", lambda: native)
        cells = expand(read(file), any_precision=any_precision)
        return [(cell.status, cell.value("test/error")) for cell in cells]

    for cell in expand(read(file)):
        assert write_run(cell, error=2.0, precision="32-true")
    assert found(False) == found(True, any_precision=True) == [(DONE, 2.0)] * 2
    assert found(True) == [(MISSING, None), (DONE, 2.0)]
    (cell, _) = expand(read(file))
    assert cell.described == f"missing here ({cell.directories[0].name} used 32-true, real MNIST)"
    write_run(cell, attempt="-2", error=1.0, precision="bf16-mixed")
    for any_precision in (True, False):
        assert found(True, any_precision=any_precision)[0] == (DONE, 1.0)
        assert found(False, any_precision=any_precision)[0] == (DONE, 2.0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for number, more in enumerate(({"hardware": "1 x NVIDIA H100"}, {"device": "cuda"}), 3):  # the first is older
        write_run(cell, attempt=f"-{number}", error=float(number), precision="bf16-mixed", **more)
        assert found(False)[0] == (DONE, number), "of a GPU, as on the node from which a cluster's sweeps start"


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "interrupted"])
def test_resuming_starts_anew_in_another_precision_and_when_the_files_arrive(
    a_copy: Path, arrive: Callable[[], None], monkeypatch: pytest.MonkeyPatch, cli: Cli, finished: bool
) -> None:
    """By its result, or by the record in its checkpoint."""
    command = [*TINY, "data.source=auto", "train.resume=true"]
    config, auto = compose("train", command), compose("train", [*TINY, "trainer.precision=auto"])
    metrics = a_copy / "metrics.json"
    content = json.loads(metrics.read_text())
    for each in (auto, config):
        changed = {**content, "config_hash": runs.directories.config_hash(each), "provenance": STANDIN}
        metrics.write_text(json.dumps(changed if finished else {}))
        for native in (False, True) if each is auto else ():
            monkeypatch.setattr("capsule_lab.config.build.cpu_computes_bfloat16", lambda native=native: native)
            assert runs.reuse.is_outdated(a_copy, auto) is (native is not (content["precision"] == "bf16-mixed"))
    earlier = runs.directories.root() / f"capsnet-mnist-{runs.directories.config_hash(config)}"
    earlier.parent.mkdir()
    a_copy.rename(earlier)
    chosen: list[Path] = []
    monkeypatch.setattr("capsule_lab.train.train", lambda config, directory, *_: chosen.append(directory) or {})
    assert cli("train", *command).status == 0
    arrive()
    assert cli("train", *command).status == 0
    assert chosen == [*([] if finished else [earlier]), earlier.with_name(f"{earlier.name}-2")]
