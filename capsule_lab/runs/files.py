"""Files of a run, a report or a benchmark: written completely or not at all, and checked when they are read."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from capsule_lab.config.compose import user_message
from capsule_lab.errors import RunError, one_line
from capsule_lab.system.files import atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Create the folder of ``path``, and turn any ``OSError`` of this block into a ``RunError`` that names ``path``."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise RunError(
            f"cannot write {path} ({reason}); expected a place with free space that you may write to"
        ) from error


def write_text(path: Path, text: str) -> None:
    """A text file, in a folder that is created if need be."""
    with writing(path), atomically(path) as temporary:
        temporary.write_text(text)


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """``write_text`` for JSON, indented, which has no notation for a number that is not finite."""
    try:
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise RunError(f"{path} is not written: {one_line(error)}") from error
    write_text(path, text + "\n")


write_json = write_record  # the name in benchmarks


def read_record(path: Path, schema: TypeAdapter[Any]) -> dict[str, Any] | None:
    """What ``write_record`` wrote; ``None`` if it is missing or, which a warning says, does not fit the schema."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        schema.validate_python(content)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}"
    except (ValueError, RecursionError) as error:
        reason = one_line(error)
    else:
        return content
    _warn_once(path, reason)
    return None


@functools.cache
def _warn_once(path: Path, reason: str) -> None:
    """A report reads the same file several times."""
    log.warning("%s is damaged (%s) and counts as missing", path, reason)


def sha256(path: Path) -> str | None:
    """SHA-256 of a file; ``None`` if there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def check_writable(path: Path) -> None:
    """Check that ``path`` can be written later on."""
    with writing(path):
        tempfile.TemporaryFile(dir=path.parent).close()


def save_figure(figure: Figure, path: Path) -> None:
    """A picture, in a folder that is created if need be."""
    with writing(path), atomically(path) as temporary:
        figure.savefig(temporary, dpi=120)


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Everything that is logged in this block also goes to ``path``, with the time; an error of the block, too."""
    with writing(path):
        handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    try:
        yield
    except BaseException as error:  # logged to this file alone: the terminal shows it when the command ends
        message = user_message(error)
        details = None if message else (type(error), error, error.__traceback__)
        text = message or "stopped by an error"
        handler.handle(logging.LogRecord(__name__, logging.ERROR, "", 0, text, None, details))
        raise
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a text file, none if it cannot be read."""
    try:
        return path.read_text(errors="replace").splitlines()[-lines:]
    except OSError:
        return []
