"""Files of a run and of a report: there whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from capsule_lab.errors import RunError


def write_atomically(path: Path, text: str) -> None:
    """Write a file beside its target and rename it: it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """``write_atomically`` where the user says.

    Raises:
        RunError: if it cannot be written there.
    """
    try:
        write_atomically(path, text)
    except OSError as error:
        raise RunError(f"cannot write {path} ({error.strerror}); expected a place you may write to") from error


def write_json(path: Path, content: dict[str, Any]) -> None:
    """``write_text`` for JSON that people read."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def check_writable(path: Path) -> None:
    """Whether ``path`` can be written later on.

    Raises:
        RunError: if not.
    """
    probe = path.with_name(f".{path.name}.probe")
    write_json(probe, {})
    probe.unlink()


def save_figure(figure: Figure, path: Path) -> None:
    """A picture, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        figure.savefig(partial, dpi=120)  # dots per inch
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
