"""One-line messages for mistakes of the user, also those that Hydra reports with a traceback.

Only this file reads the text of errors of Hydra 1.3 and OmegaConf 2.3.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

from hydra.errors import (
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import open_dict
from omegaconf.errors import OmegaConfBaseException

from capsule_lab.config.composition import composed
from capsule_lab.config.declaration import Command
from capsule_lab.config.folders import default_options, options_of
from capsule_lab.config.hints import hint
from capsule_lab.config.overrides import as_argument
from capsule_lab.errors import CapsuleLabError, InterruptError, one_line, suggest

_OURS = ("capsule_lab", "capsule_studies")


def user_message(
    error: BaseException, command: Command | None = None, overrides: Sequence[str] = ()
) -> str | None:
    """Return a one-line message if the error is a mistake of the user; ``None`` for any other error.

    Args:
        error: the error.
        command: the command that was composed, for suggestions of keys.
        overrides: its overrides.
    """
    if isinstance(error, CapsuleLabError | InterruptError):
        return str(error)
    if isinstance(error, HydraException | OmegaConfBaseException):
        return _of_hydra(error, command, overrides)
    if isinstance(error, OSError):
        return _of_a_file(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return f"not enough memory ({one_line(error)}); try a smaller network or data.batch_size"
    is_for_the_user = isinstance(error, ModuleNotFoundError) and error.name is None  # not an import
    if is_for_the_user or type(error).__name__ == "MisconfigurationException":
        return one_line(error)  # the latter is Lightning's, which --help does not import
    return None


def _of_hydra(
    error: HydraException | OmegaConfBaseException,
    command: Command | None,
    overrides: Sequence[str],
) -> str:
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _unknown_option(error)
    if isinstance(error, OverrideParseException):
        key, _, value = str(error.override).partition("=")
        return (
            f"{error.override} cannot be read as key=value; put quotes around text with brackets, commas or the like, "
            f"and another pair for the shell: {as_argument(key, value)}"
        )
    if isinstance(error, InstantiationException) and error.__cause__ is not None:
        node = str(error).rpartition("full_key: ")[2].strip()
        reason = reason_of(error.__cause__)
        says_where = not node or node in one_line(error.__cause__)
        return reason if says_where else f"{node}: {reason}"
    absent = re.match("Interpolation key '([^']+)' not found", str(error))
    if absent and command and isinstance(error, OmegaConfBaseException):
        return (
            f"{error.full_key or 'a value'} refers to {absent[1]}, which {command.name} does not have; expected "
            f"another value, or the key {absent[1]} in conf/{command.name}.yaml"
        )
    found = re.match("Could not override '([^'=]+)'", str(error))
    if found and command and isinstance(error, HydraException):
        key = found[1]
        within = getattr(error.__cause__, "full_key", None) or ""  # of a value such as {key: value}
        return _unknown_key(within if within.startswith(f"{key}.") else key, command, overrides)
    return one_line(error)


def reason_of(error: BaseException) -> str:
    """Return the message of a constructor's error in one line, with its kind and place if it is in code of the user."""
    reason = one_line(error)
    place = None if isinstance(error, CapsuleLabError) else _own_place(error)
    if place is None:
        return reason
    return f"{type(error).__name__}: {reason} ({place}; HYDRA_FULL_ERROR=1 shows the traceback)"


def reason_of_import(error: BaseException) -> str:
    """Return why Hydra could not import a target, with the place if the module is the user's."""
    cause = error.__cause__ or error
    if isinstance(cause, SyntaxError):
        return one_line(cause)  # says file and line
    return one_line(error) if _own_place(cause) is None else reason_of(cause)


def _own_place(error: BaseException) -> str | None:
    """Return file and line of the user's code that raised an error, or that called the package which raised it.

    Errors such as ``KeyError: 'sizes'`` do not say which part of a class raised them. Those that we raise do.
    """
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        if frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
            return None
        file = Path(frame.f_code.co_filename)
        if file.is_file() and not any(map(file.is_relative_to, installed)):
            return f"{file.name}, line {line}"
    return None


def _unknown_option(error: MissingConfigException) -> str:
    parts = str(error.missing_cfg_file).split("/")
    count = 2 if parts[0] == "hydra" else 1
    group, option = "/".join(parts[:count]), "/".join(parts[count:])
    known = [each for each in error.options or () if not each.startswith("_")]
    return f"{group}={option} does not exist; {suggest(option, {*options_of(group), *known})}"


def _unknown_key(key: str, command: Command, overrides: Sequence[str]) -> str:
    if key.startswith("hydra."):
        return f"{key} is not an option of Hydra; capsule-lab {command.name} --cfg hydra lists them"
    groups = default_options(command.name)
    chosen = {}  # a group of other commands would fail again
    for override in overrides:
        group = override.partition("=")[0].lstrip("+")
        if group in groups and group != key:
            chosen[group] = override
    config = composed(command, [*chosen.values()])
    with open_dict(config):
        for group in groups:
            config.setdefault(group, None)
    return f"{key} does not exist; {hint(key, config)}"


def _of_a_file(error: OSError) -> str | None:
    if not error.strerror or isinstance(error, FileNotFoundError | BrokenPipeError):
        return None
    return f"{error.filename or 'a file'} cannot be written or read: {error.strerror}"
