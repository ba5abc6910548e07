"""Files of a run, a report or a benchmark: there whole or not at all, and checked when they are read."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from capsule_lab.config.compose import user_message
from capsule_lab.errors import RunError, one_line
from capsule_lab.system.files import atomically, set_aside

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CHECKSUM = "sha256"
_DIGEST = re.compile("[0-9a-f]{64}")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Create the folder of ``path``, and turn what fails in this block into a sentence that names ``path``.

    Raises:
        RunError: for any ``OSError``.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise RunError(
            f"cannot write {path} ({reason}); expected a place with free space that you may write to"
        ) from error


def write_text(path: Path, text: str) -> None:
    """A text file, in a folder that is created if need be.

    Raises:
        RunError: if it cannot be written there.
    """
    with writing(path), atomically(path) as temporary:
        temporary.write_text(text)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """``write_text`` for JSON, indented.

    Raises:
        RunError: also if a number is not finite, for which JSON has no notation.
    """
    try:
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise RunError(f"{path} is not written: {one_line(error)}") from error
    write_text(path, text + "\n")


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """``write_json`` with a checksum of the content under ``"sha256"``, for ``read_record``."""
    write_json(path, {**content, _CHECKSUM: _digest(content)})


def read_record(path: Path, schema: TypeAdapter[Any]) -> dict[str, Any] | None:
    """What ``write_record`` wrote, without the checksum; ``None`` if there is no such file.

    A damaged file counts as missing: see ``set_aside``. One without a checksum is read if it fits the schema, as
    earlier versions wrote none.

    Args:
        path: of the file.
        schema: that its content must fit.
    """
    try:
        content = _unsealed(json.loads(path.read_bytes(), parse_constant=_refuse))
        schema.validate_python(content)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        first = error.errors()[0]
        set_aside(path, f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}")
        return None
    except (ValueError, RecursionError) as error:
        set_aside(path, one_line(error))
        return None
    return content


def _unsealed(content: Any) -> dict[str, Any]:
    """The content of a record without its checksum, which must be right."""
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004  # a file, not an argument
    digest = content.pop(_CHECKSUM, None)
    renamed = any(_DIGEST.fullmatch(str(value)) for value in content.values())  # the damage is in the key
    if (digest is not None and digest != _digest(content)) or (digest is None and renamed):
        raise ValueError("its checksum is wrong")
    return content


def sha256(path: Path) -> str | None:
    """SHA-256 of a file; ``None`` if there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _digest(content: Mapping[str, Any]) -> str:
    read = json.loads(json.dumps(content))  # whose keys are text
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def check_writable(path: Path) -> None:
    """Whether ``path`` can be written later on.

    Raises:
        RunError: if not.
    """
    with writing(path):
        tempfile.TemporaryFile(dir=path.parent).close()


def save_figure(figure: Figure, path: Path) -> None:
    """A picture, in a folder that is created if need be.

    Raises:
        RunError: if it cannot be written there.
    """
    with writing(path), atomically(path) as temporary:
        figure.savefig(temporary, dpi=120)


class _LogFile(logging.FileHandler):
    """Where the disk is full, lines are missing, and training goes on to its next checkpoint, which says so."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the name of the base class
        """Write no traceback to the terminal."""


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Everything that is logged in this block also goes to ``path``, with the time; an error of the block, too."""
    with writing(path):
        handler = _LogFile(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    try:
        yield
    except BaseException as error:  # logged to this file alone: the terminal shows it when the command ends
        message = user_message(error)
        details = None if message else (type(error), error, error.__traceback__)
        handler.handle(logging.makeLogRecord({
            "name": __name__, "levelname": "ERROR", "msg": "%s", "args": (message or "stopped by an error",),
            "exc_info": details,
        }))  # fmt: skip
        raise
    finally:
        logging.getLogger().removeHandler(handler)
        with suppress(OSError):  # what could not be written before
            handler.close()


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a text file, none if it cannot be read."""
    try:
        return path.read_text(errors="replace").splitlines()[-lines:]
    except OSError:
        return []
