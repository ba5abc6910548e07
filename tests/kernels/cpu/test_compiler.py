"""numba's machine code is found wherever the sources lie, and compiled again when they change."""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

from capsule_lab.kernels.cpu import compiler, em
from tests.helpers.commands import ROOT, python


def test_folder_is_named_by_the_hash_of_all_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = [Path(shutil.copy(source, tmp_path)) for source in compiler.SOURCES]
    kernels = {"em.py", "em_backward.py", "dynamic.py", "child_softmax.py"}
    shared = {"tiles.py", "simd.py", "em_arguments.py"}
    assert kernels | shared <= {source.name for source in compiler.SOURCES}
    folders = [compiler.cache_folder(tmp_path, copy)]
    assert folders[0] == compiler.cache_folder(tmp_path, compiler.SOURCES[::-1])
    for source in copy:
        source.write_text(source.read_text() + "\n# changed\n")
        folders.append(compiler.cache_folder(tmp_path, copy))
    monkeypatch.setattr(compiler.numba, "__version__", "0.0.1")
    folders.append(compiler.cache_folder(tmp_path, copy))
    assert len(set(folders)) == len(copy) + 2


def test_where_the_folder_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In ``NUMBA_CACHE_DIR``, or the cache directory of the user; numba's own setting stays as it was."""
    index = Path(em._fit._cache._cache_file._index_path)
    assert index.parent == compiler._FOLDER
    monkeypatch.setattr(compiler.CONFIG, "CACHE_DIR", str(tmp_path / "mine"))
    folder = compiler.make_cache_folder()
    assert folder.is_dir()
    assert folder.parent == tmp_path / "mine" / "capsule_lab"
    compiler.jit(lambda x: x)
    assert str(tmp_path / "mine") == compiler.CONFIG.CACHE_DIR
    monkeypatch.setattr(compiler.CONFIG, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = compiler.make_cache_folder()
    assert folder.parent == tmp_path / "capsule_lab"


SCRIPT = """
import numba, torch
numba.config.reload_config()  # the process is forked with numba imported
from capsule_lab.kernels import cpu
from capsule_lab.kernels.cpu import compiler, em

cpu.distances(torch.ones(1, 1, 2), torch.ones(1, 1, 2), torch.ones(1, 1, 1), torch.ones(1, 1, 1), 1)
print(compiler._FOLDER and compiler._FOLDER.name, sum(em._distances.stats.cache_hits.values()))
"""


@pytest.mark.whole
@pytest.mark.integration
def test_machine_code_is_found_from_another_place(tmp_path: Path) -> None:
    """A copy of the package with other dates; and where nothing can be cached, kernels run all the same."""
    clone = tmp_path / "clone"
    without_bytecode = shutil.ignore_patterns("*.pyc")
    shutil.copytree(ROOT / "capsule_lab", clone / "capsule_lab", ignore=without_bytecode)
    for source in clone.rglob("*.py"):
        os.utime(source)
    name = compiler.cache_folder(tmp_path, compiler.SOURCES).name
    for sources, hits in ((ROOT, "0"), (clone, "1")):
        cache = {"PYTHONPATH": str(sources), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        ended = python("-c", SCRIPT, cwd=tmp_path, **cache)
        assert ended.out.split() == [name, hits]
    (tmp_path / "file").write_text("")
    ended = python("-c", SCRIPT, cwd=tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "file"))
    assert ended.out.split() == ["None", "0"]
    assert "set NUMBA_CACHE_DIR" in ended.err


def test_numba_without_a_compiler_has_no_fused_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.CONFIG, "DISABLE_JIT", 1)
    spec = importlib.util.find_spec(compiler.__name__)
    module = importlib.util.module_from_spec(spec)
    with pytest.raises(ImportError, match="NUMBA_DISABLE_JIT is set"):
        spec.loader.exec_module(module)


@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
def test_damaged_file_of_the_cache_is_replaced(
    tmp_path: Path, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = compiler.CacheFile(str(tmp_path), "name", source_stamp=None)
    cache.save("key", {"machine": "code"})
    assert cache.load("key") == {"machine": "code"}
    for file in tmp_path.glob(f"*{ending}"):
        file.write_bytes(file.read_bytes()[:10])
    assert cache.load("key") is None
    assert "is damaged" in caplog.text
    cache.save("key", {"machine": "code"})
    assert cache.load("key") == {"machine": "code"}
