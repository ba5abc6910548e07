"""Compilation of the kernels by numba, and where their machine code is cached.

numba compares a cached function with the file that it is defined in only, and misses changes in what it inlines from
other files. Here the cache is a folder whose name contains a hash of all files of the kernels, so that an edit of one
of them compiles all of them again. Read from numba 0.68.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import IndexDataCacheFile

from capsule_lab.kernels import em_arguments
from capsule_lab.kernels.cache import user_cache
from capsule_lab.kernels.cpu.simd import FAST_MATH

_LOG = logging.getLogger(__name__)
CONFIG: Any = numba.config
SOURCES = [*sorted(Path(__file__).parent.glob("*.py")), Path(em_arguments.__file__)]
_DIGEST = hashlib.sha256().digest_size
KEPT = 8  # ours: folders that stay, as many checkouts or branches as are in use at a time


if CONFIG.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT is set, so that no kernel can be compiled; unset it")


def cache_root() -> Path:
    """``capsule_lab`` in ``NUMBA_CACHE_DIR`` where it is set, otherwise in the cache directory of the user.

    Raises:
        RuntimeError: if the user has no home directory.
    """
    return Path(CONFIG.CACHE_DIR) / "capsule_lab" if CONFIG.CACHE_DIR else user_cache()


def cache_folder(root: Path, sources: Iterable[Path]) -> Path:
    """Folder below ``root`` for the machine code of these files, compiled by this version of numba."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(sources, key=lambda path: path.name):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return root / f"kernels-{digest.hexdigest()[:16]}"


def make_cache_folder() -> Path | None:
    """The folder of the kernels as they are now, or ``None`` if nothing can be written there.

    Of folders for other versions of the kernels, those used last remain.
    """
    try:
        folder = cache_folder(cache_root(), SOURCES)
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        os.utime(folder)
    except (OSError, RuntimeError) as error:
        _LOG.warning("kernels are compiled again in every process: %s; set NUMBA_CACHE_DIR to a writable folder", error)
        return None
    with contextlib.suppress(OSError):  # another process may remove one at the same time
        by_age = sorted(folder.parent.glob("kernels-*"), key=lambda path: path.stat().st_mtime)
        for old in by_age[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    return folder


_FOLDER = make_cache_folder()


class CheckedCacheFile(IndexDataCacheFile):
    """numba's index and machine code of one function, each file with a checksum at its end, behind what numba reads.

    numba itself unpickles and runs what it finds. A damaged file counts as missing: the function is compiled again.
    """

    @contextlib.contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[Any]:
        content = io.BytesIO()
        yield content
        with super()._open_for_write(filepath) as file:
            file.write(content.getvalue() + hashlib.sha256(content.getvalue()).digest())

    def _load_index(self) -> Any:
        return super()._load_index() if _is_complete(Path(self._index_path)) else {}

    def _load_data(self, name: str) -> Any:
        if not _is_complete(Path(self._data_path(name))):
            raise FileNotFoundError(name)  # which numba expects
        return super()._load_data(name)


def _is_complete(path: Path) -> bool:
    """Whether a file of the cache is there, and ends with its checksum; one that is damaged is removed."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    if hashlib.sha256(content[:-_DIGEST]).digest() == content[-_DIGEST:]:
        return True
    _LOG.warning("%s is damaged; the kernel is compiled again", path)
    path.unlink(missing_ok=True)
    return False


def check_cache(dispatcher: Any) -> None:
    """Make a compiled function use ``CheckedCacheFile``; private attributes of numba, read from 0.68."""
    file = dispatcher._cache._cache_file
    file.__class__ = CheckedCacheFile


def _compiled(**options: Any) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        cached = _FOLDER is not None  # otherwise every process compiles for itself
        before = CONFIG.CACHE_DIR
        CONFIG.CACHE_DIR = str(_FOLDER or "")  # numba reads it when a function is decorated
        try:
            dispatcher = numba.njit(nogil=True, error_model="numpy", cache=cached, **options)(function)
            if cached:
                check_cache(dispatcher)
            return dispatcher
        finally:
            CONFIG.CACHE_DIR = before

    return decorate


jit = _compiled()
# for loops over children without SIMD types: LLVM vectorises sums only if it may reorder them
jit_reordering = _compiled(fastmath=set(FAST_MATH))
