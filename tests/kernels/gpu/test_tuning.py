"""Which blocks are chosen, and what becomes of the file that they are stored in."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton, which compiles the kernels of a GPU, is not installed", allow_module_level=True)

from capsule_lab.errors import ConfigError
from capsule_lab.kernels.gpu import tuning
from capsule_lab.kernels.gpu.tuning import Blocks, searching, tuned

CPU = torch.device("cpu")
DEFAULT, FASTER, BROKEN = Blocks(64, 2), Blocks(32, 1, kept=3), Blocks(512, 1)
CANDIDATES = [DEFAULT, FASTER, BROKEN]


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where blocks are stored; nothing has been read yet."""
    monkeypatch.setenv(tuning.VARIABLE, str(tmp_path / "cache" / "blocks.json"))
    tuning._stored.cache_clear()
    yield tmp_path / "cache" / "blocks.json"
    tuning._stored.cache_clear()


def launch(blocks: Blocks) -> Blocks:
    """A kernel that tells its blocks."""
    if blocks == BROKEN:
        raise RuntimeError("out of resource:\n registers")
    return blocks


def used(kernel: str = "fit", child: int = 288, candidates: Any = CANDIDATES) -> Blocks:
    return tuned(kernel, {"child": child}, CPU, candidates, launch)


def pretend(**times: float) -> Callable[[Callable[[], object]], float]:
    """A timer that takes so many milliseconds for the blocks of so many children."""
    return lambda call: times[f"of_{call().children}"]  # type: ignore[attr-defined]


def new_process() -> None:
    tuning._stored.cache_clear()


def test_default_without_a_search(file: Path) -> None:
    assert used() == DEFAULT
    assert not file.exists()


def test_fastest_is_stored_for_later_processes(file: Path) -> None:
    with searching(60.0, pretend(of_64=2.0, of_32=1.0)) as search:
        assert used() == FASTER
        assert used() == FASTER  # is not measured again
    assert [(row["children"], row["microseconds"], row["chosen"]) for row in search.rows] == [
        (64, 2000.0, False),
        (32, 1000.0, True),
        (512, None, False),
    ]
    assert [row["error"] for row in search.rows] == [None, None, "RuntimeError: out of resource: registers"]
    assert all(row["first_seconds"] > 0 for row in search.rows[:2])
    new_process()
    assert used() == FASTER
    assert used(child=144) == used("grad_poses") == DEFAULT
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_default_stays_unless_another_is_clearly_faster() -> None:
    with searching(60.0, pretend(of_64=1.0, of_32=0.98)):
        assert used() == DEFAULT


def test_blocks_that_are_known_are_not_searched_again() -> None:
    with searching(60.0, pretend(of_64=2.0, of_32=1.0)):
        used()
    new_process()
    with searching(60.0, pretend()) as search:
        assert used() == FASTER
    assert search.rows == []


def test_no_search_after_the_deadline(file: Path) -> None:
    with searching(-1.0, pretend()) as search:
        assert used() == DEFAULT
    assert (search.rows, search.skipped) == ([], {"fit child=288"})
    assert not file.exists()


def test_no_kernel_is_begun_that_may_end_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 1.0, 6.0, 7.0])  # of the beginning of the search, the first kernel, its end, the second
    monkeypatch.setattr(tuning.time, "monotonic", lambda: next(seconds))
    with searching(10.0, pretend(of_64=2.0, of_32=1.0)) as search:
        assert used(child=288) == FASTER
        assert used(child=144) == DEFAULT
    assert search.skipped == {"fit child=144"}


def test_other_gpu_version_and_source_have_their_own(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with searching(60.0, pretend(of_64=2.0, of_32=1.0)):
        used()
    stored = tuning.section_name(CPU)
    assert stored.startswith(f"interpreter, Triton {tuning.triton.__version__}, source ")
    monkeypatch.setattr(tuning, "section_name", lambda _: stored.replace("interpreter", "NVIDIA H200"))
    new_process()
    assert used() == DEFAULT
    with searching(60.0, pretend(of_64=1.0, of_32=2.0)):
        used()
    assert [len(entries) for entries in json.loads(file.read_text()).values()] == [1, 1]


@pytest.mark.parametrize(
    "content",
    ["{", "[1]", '{"a": {"fit": {"children": 64}}}', '{"a": {"fit": {"children": 65, "warps": 1}}}',
     '{"a": {"fit": {"children": 64, "warps": "2"}}}'],
)  # fmt: skip
def test_damaged_file_counts_as_missing(file: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    file.parent.mkdir()
    file.write_text(content)
    assert used() == used() == DEFAULT
    (warning,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert f"{file} is damaged" in warning.getMessage()


def test_interrupted_search_keeps_what_it_found(file: Path) -> None:
    def launch_and_stop() -> None:
        with searching(60.0, pretend(of_64=2.0, of_32=1.0)):
            used()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch_and_stop()
    new_process()
    assert used() == FASTER


def test_environment_that_names_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for named in (str(tmp_path), os.devnull):
        monkeypatch.setenv(tuning.VARIABLE, named)
        with pytest.raises(
            ConfigError, match=f"CAPSULE_LAB_BLOCKS is {named}, which is no file; expected a .json file"
        ):
            used()


def test_without_a_home_directory_there_are_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv(tuning.VARIABLE)
    monkeypatch.setattr(tuning, "user_cache", fail)
    assert used() == DEFAULT
