"""Compilation of the kernels by numba, and the cache of their machine code.

numba validates a cached function by path and date of its file and misses changes in functions inlined from other files.
Here the name of the cache folder contains a hash of all files of the kernels. Editing one file recompiles all kernels,
whereas a new clone, a wheel, and a checkout of another branch and back reuse existing machine code. Read from numba
0.68.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import IndexDataCacheFile

from capsule_lab.kernels import em_arguments
from capsule_lab.kernels.cpu.simd import FAST_MATH

_LOG = logging.getLogger(__name__)
CONFIG: Any = numba.config
SOURCES = [*sorted(Path(__file__).parent.glob("*.py")), Path(em_arguments.__file__)]

if CONFIG.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT is set, which prevents compiling kernels; unset it")


def cache_folder(root: Path, sources: Iterable[Path]) -> Path:
    """Return the folder below ``root`` for machine code of these files compiled by this version of numba."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(sources, key=lambda path: path.name):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return root / f"kernels-{digest.hexdigest()[:16]}"


def make_cache_folder() -> Path | None:
    """Create and return the cache folder of the current kernels; ``None`` if it is not writable.

    It is in ``NUMBA_CACHE_DIR`` if that is set, otherwise in the cache directory of the user.
    """
    try:
        root = CONFIG.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = cache_folder(Path(root) / "capsule_lab", SOURCES)
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home directory
        _LOG.warning(
            "kernels are compiled again in every process: %s; set NUMBA_CACHE_DIR to a writable folder",
            error,
        )
        return None
    return folder


_FOLDER = make_cache_folder()


class CacheFile(IndexDataCacheFile):
    """numba's cache of a function; a damaged one, after a crash or on a full disk, is replaced."""

    def load(self, key: Any) -> Any:
        try:
            return super().load(key)
        except Exception as error:  # of pickle, and of what it finds
            _LOG.warning(
                "the cache of kernels is damaged (%s) and is compiled again", type(error).__name__
            )
            self.flush()
            return None


def _compiled(**options: Any) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        if _FOLDER is None:  # every process compiles separately
            return numba.njit(nogil=True, error_model="numpy", **options)(function)
        before = CONFIG.CACHE_DIR
        CONFIG.CACHE_DIR = str(_FOLDER)  # numba reads it during decoration
        try:
            dispatcher = numba.njit(nogil=True, error_model="numpy", cache=True, **options)(
                function
            )
        finally:
            CONFIG.CACHE_DIR = before
        cache = dispatcher._cache  # without a source stamp, to ignore the date of the file
        cache._cache_file = CacheFile(str(_FOLDER), cache._impl.filename_base, source_stamp=None)
        return dispatcher

    return decorate


jit = _compiled()
# for loops over children without SIMD types: LLVM vectorises a sum only if it may reorder it
jit_reordering = _compiled(fastmath=set(FAST_MATH))
