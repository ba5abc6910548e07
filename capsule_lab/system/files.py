"""Expansion of paths, and files that are written completely or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def expanded(path: str | Path) -> Path:
    """Replace ``~`` and variables such as ``$HOME`` in ``path``; a shell does not replace ``~`` in ``key=~/…``."""
    return Path(os.path.expandvars(path)).expanduser()


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; the file written there replaces ``path`` when the block ends.

    If the block raises, the temporary file is removed and ``path`` stays as it was. The temporary name is hidden and
    has the suffix of ``path``, from which ``savefig`` and others derive the format.
    """
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
