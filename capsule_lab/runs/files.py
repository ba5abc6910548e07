"""Files of a run, a report or a benchmark: written completely or not at all, and checked when they are read."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from capsule_lab.config.messages import user_message
from capsule_lab.errors import ConfigError, RunError, cleaned, one_line
from capsule_lab.system.files import atomically, read_regular

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)

_LARGEST_RECORD = 2**24  # ours: bytes; those of runs have 10 kB
_FIGURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg")
_DPI = 120  # ours: of figures


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Create the folder of ``path``, and turn any ``OSError`` of this block into a ``RunError`` that names ``path``."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise RunError(
            f"cannot write {path} ({reason}); expected a writable folder with free space"
        ) from error


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8; create its folder if necessary.

    Names of files that are not UTF-8 contain surrogates, which are written as escapes, in JSON those of the format.
    """
    with writing(path), atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def json_text(content: Any, name: object, **options: Any) -> str:
    """Return ``content`` as JSON for the file ``name``, with the ``options`` of ``json.dumps``.

    Raises:
        RunError: for a number that is not finite, or text that is not Unicode, which JSON cannot represent.
    """
    try:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, **options)
        text.encode()
    except ValueError as error:
        raise RunError(f"{name} cannot be written: {one_line(error)[:200]}") from error
    return text


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Write indented JSON, see ``json_text``."""
    write_text(path, json_text(content, path, indent=2) + "\n")


def read_record(path: Path, schema: TypeAdapter[Any], inside: Path) -> dict[str, Any] | None:
    """Read a file of ``write_record`` in the folder ``inside``, such as the run's.

    Return ``None`` if it is missing or, with a warning, if it is damaged or outside of the folder.
    """
    try:
        text = read_regular(path, inside=inside, most=_LARGEST_RECORD)
        content: dict[str, Any] = cleaned(json.loads(text))
        schema.validate_python(content)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(key) for key in first["loc"])
        reason = f"{place or 'content'}: {first['msg']}"
    except OSError as error:
        reason = error.strerror or one_line(error)
    except (ValueError, RecursionError) as error:
        reason = one_line(error)
    else:
        return content
    _warn_once(path, reason)
    return None


@functools.cache
def _warn_once(path: Path, reason: str) -> None:
    """Warn once per file, because a report reads the same file several times."""
    log.warning("%s is damaged (%s) and is treated as missing", path, reason)


def sha256(path: Path) -> str | None:
    """Return the SHA-256 of a file; ``None`` if it does not exist."""
    if not path.is_file():
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_figure_name(option: str, path: Path) -> None:
    """Raise a ``ConfigError`` if the ending of a file that a user names is not that of a format of figures."""
    if path.suffix.lower() not in _FIGURES:
        raise ConfigError(
            f"{option}={path} does not name a format of pictures; expected a name that ends in {', '.join(_FIGURES)}"
        )


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure in the format of its ending; create its folder if necessary."""
    from capsule_lab.analysis.axes import as_png, show_dollar_signs  # imports matplotlib

    with writing(path), atomically(path) as temporary:
        if path.suffix == ".png":
            temporary.write_bytes(as_png(figure, _DPI))
            return
        show_dollar_signs(figure)
        figure.savefig(temporary, dpi=_DPI)


@contextmanager
def logging_to(path: Path) -> Iterator[Callable[[str], None]]:
    """Also write the log messages of this block to ``path``, with the time, and an error that ends the block.

    The block receives a function that writes a message to this file alone, because the command prints it when it ends.
    """
    with writing(path):
        handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)

    def write(text: str, level: int = logging.INFO, details: Any = None) -> None:
        handler.handle(logging.LogRecord(__name__, level, "", 0, text, None, details))

    try:
        yield write
    except BaseException as error:
        message = user_message(error)
        details = None if message else (type(error), error, error.__traceback__)
        write(message or "stopped by an error", logging.ERROR, details)
        raise
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


def tail(path: Path, lines: int) -> list[str]:
    """Return the last lines of a text file; an empty list if it cannot be read."""
    try:
        text = read_regular(path, inside=path.parent).decode(errors="replace")
    except OSError:
        return []
    return text.splitlines()[-lines:]
