"""Files of a run, a report or a benchmark: there whole or not at all."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsule_lab.atomic import atomically
from capsule_lab.errors import RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_text(path: Path, text: str) -> None:
    """A text file, in a folder that is created if need be.

    Raises:
        RunError: if it cannot be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomically(path) as temporary:
            temporary.write_text(text)
    except OSError as error:
        raise RunError(f"cannot write {path} ({error.strerror}); expected a place you may write to") from error


def write_json(path: Path, content: dict[str, Any]) -> None:
    """``write_text`` for JSON, indented."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def check_writable(path: Path) -> None:
    """Whether ``path`` can be written later on.

    Raises:
        RunError: if not.
    """
    probe = path.with_name(f".{path.name}.probe")
    write_text(probe, "")
    probe.unlink()


def save_figure(figure: Figure, path: Path) -> None:
    """A picture, in a folder that is created if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomically(path) as temporary:
        figure.savefig(temporary, dpi=120)


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Everything that is logged in this block also goes to ``path``, with the time."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
