"""The folder of numba's cache follows the source of the kernels."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import capsule_lab
from capsule_lab.kernels.cpu import compiler, em
from tests.helpers.damage import with_a_flipped_bit


@pytest.fixture
def copy(tmp_path: Path) -> list[Path]:
    """A copy of the source of the kernels."""
    return [Path(shutil.copy(source, tmp_path)) for source in compiler.SOURCES]


def test_every_file_that_kernels_are_compiled_from_counts() -> None:
    names = {source.name for source in compiler.SOURCES}
    assert {"em.py", "em_backward.py", "dynamic.py", "child_softmax.py", "tiles.py", "simd.py"} <= names
    assert "em_arguments.py" in names


def test_same_source_has_the_same_folder(copy: list[Path], tmp_path: Path) -> None:
    assert compiler.cache_folder(tmp_path, copy) == compiler.cache_folder(tmp_path, compiler.SOURCES)
    assert compiler.cache_folder(tmp_path, copy[::-1]) == compiler.cache_folder(tmp_path, copy)


@pytest.mark.parametrize("number", range(len(compiler.SOURCES)))
def test_changed_source_has_another_folder(copy: list[Path], number: int, tmp_path: Path) -> None:
    before = compiler.cache_folder(tmp_path, copy)
    copy[number].write_text(copy[number].read_text() + "\n# changed\n")
    assert compiler.cache_folder(tmp_path, copy) != before


def test_another_version_of_numba_has_another_folder(copy: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    before = compiler.cache_folder(Path(), copy)
    monkeypatch.setattr(compiler.numba, "__version__", "0.0.1")
    assert compiler.cache_folder(Path(), copy) != before


def test_folder_is_in_the_cache_directory_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiler.CONFIG, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = compiler.make_cache_folder()
    assert folder is not None
    assert folder.is_dir()
    assert folder.parent == tmp_path / "capsule_lab"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert compiler.cache_root() == Path.home() / ".cache" / "capsule_lab"


def test_numba_cache_dir_is_respected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiler.CONFIG, "CACHE_DIR", str(tmp_path / "mine"))
    folder = compiler.make_cache_folder()
    assert folder is not None
    assert folder.parent == tmp_path / "mine" / "capsule_lab"


def test_numba_cache_dir_of_others_stays_as_it_was() -> None:
    before = compiler.CONFIG.CACHE_DIR
    compiler.jit(lambda x: x)
    assert before == compiler.CONFIG.CACHE_DIR


def test_kernels_are_cached_there() -> None:
    folder = compiler.make_cache_folder()
    assert folder is not None
    assert Path(em._fit.stats.cache_path).is_relative_to(folder)


def test_folders_of_the_versions_used_last_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiler.CONFIG, "CACHE_DIR", str(tmp_path))
    root = tmp_path / "capsule_lab"
    others = [root / f"kernels-{number}" for number in range(compiler.KEPT + 2)]
    for age, other in enumerate(others):
        (other / "cpu").mkdir(parents=True)
        os.utime(other, (age, age))
    (root / "something-else").mkdir()
    folder = compiler.make_cache_folder()
    assert sorted(root.iterdir()) == sorted([folder, *others[3:], root / "something-else"])


def test_kernels_run_where_nothing_can_be_cached(tmp_path: Path) -> None:
    """``NUMBA_CACHE_DIR`` is a file: no folder can be made in it."""
    (tmp_path / "file").write_text("")
    script = "from capsule_lab.kernels.cpu import compiler; print(compiler._FOLDER, compiler.jit(lambda x: x + 1)(1))"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "file")}
    command = [sys.executable, "-c", script]
    root = Path(capsule_lab.__file__).parents[1]
    ended = subprocess.run(command, env=environment, cwd=root, check=True, capture_output=True, text=True, timeout=120)
    assert ended.stdout.split() == ["None", "2"]
    assert "set NUMBA_CACHE_DIR" in ended.stderr


def test_damaged_cache_is_compiled_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """numba would unpickle what is there, and run it."""
    monkeypatch.setattr(compiler, "_FOLDER", tmp_path)

    def compiled() -> tuple[int, int]:
        function = compiler.jit(add_one)
        return function(1), sum(function.stats.cache_hits.values())

    assert compiled() == (2, 0)
    assert compiled() == (2, 1)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(path.suffix for path in files) == [".nbc", ".nbi"]
    for file in files:
        for _ in with_a_flipped_bit(file, 1, seed=0):
            assert compiled() == (2, 0)
            assert caplog.messages.pop() == f"{file} is damaged; the kernel is compiled again"
            assert compiled() == (2, 1)


def test_numba_without_a_compiler_has_no_fused_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.CONFIG, "DISABLE_JIT", 1)
    spec = importlib.util.find_spec(compiler.__name__)
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match="NUMBA_DISABLE_JIT is set"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def add_one(x: int) -> int:
    return x + 1
