"""Where kernels keep what they have compiled or measured, from one process to the next."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """``capsule_lab`` in the cache directory of the user.

    Raises:
        RuntimeError: if the user has no home directory.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "capsule_lab"
