"""Compilation of the kernels by numba, and where their machine code is cached.

numba compares a cached function with the file that it is defined in only, and misses changes in what it inlines from
other files. Here the cache is a folder whose name contains a hash of all files of the kernels, so that an edit of one
of them compiles all of them again. Read from numba 0.68.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numba

from capsule_lab.kernels import em_arguments
from capsule_lab.kernels.cpu.simd import FAST_MATH

_LOG = logging.getLogger(__name__)
CONFIG: Any = numba.config
SOURCES = [*sorted(Path(__file__).parent.glob("*.py")), Path(em_arguments.__file__)]
KEPT = 8  # ours: folders that stay, as many checkouts or branches as are in use at a time


def cache_root() -> Path:
    """``capsule_lab`` in ``NUMBA_CACHE_DIR`` where it is set, otherwise in the cache directory of the user.

    Raises:
        RuntimeError: if the user has no home directory.
    """
    return Path(CONFIG.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "capsule_lab"


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


def _compiled(**options: Any) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        cached = _FOLDER is not None  # otherwise every process compiles for itself
        before = CONFIG.CACHE_DIR
        CONFIG.CACHE_DIR = str(_FOLDER or "")  # numba reads it when a function is decorated
        try:
            return numba.njit(nogil=True, error_model="numpy", cache=cached, **options)(function)
        finally:
            CONFIG.CACHE_DIR = before

    return decorate


jit = _compiled()
# for loops over children without SIMD types: LLVM vectorises sums only if it may reorder them
jit_reordering = _compiled(fastmath=set(FAST_MATH))
