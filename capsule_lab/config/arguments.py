"""Preparation of a command line for Hydra: options come first, paths are expanded, unknown words raise errors."""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from capsule_lab.config.declaration import Command
from capsule_lab.config.folders import default_options, groups, options_of
from capsule_lab.config.hints import key_meant
from capsule_lab.config.overrides import as_argument, choices, quoted
from capsule_lab.errors import ConfigError, closest
from capsule_lab.system.files import expanded

_FLAGS = [
    *["--help", "-h"],
    *["--hydra-help", "--version"],
    *["--multirun", "-m"],
    *["--run", "-r"],
    *["--info", "-i"],
    "--resolve",
    *["--shell-completion", "-sc"],
]
_WITH_VALUE = [
    *["--cfg", "-c"],
    *["--package", "-p"],
    *["--config-dir", "-cd"],
    *["--config-name", "-cn"],
    *["--config-path", "-cp"],
    "--experimental-rerun",
]
"""Hydra's options, https://hydra.cc/docs/1.3/advanced/hydra-command-line-flags/."""


def prepared(arguments: Sequence[str], command: Command) -> list[str]:
    """Convert the arguments of a command for Hydra: options that begin with a dash come first."""
    options, overrides = _split(arguments)
    checked = [_override(override, command) for override in overrides]
    return [*options, *choices(checked, command)]


_LAST = re.compile(r"(?<![^,(])last(?![^,)])")
"""The word as a value, or as one of several values of ``-m``."""


def with_last_run(
    arguments: Sequence[str], command: Command, find_last: Callable[[], Path]
) -> list[str]:
    """Replace ``last`` by the path of the run, in the options that take one.

    The processes that the command starts, its messages and its records then name this run, even if another one finishes
    meanwhile.
    """
    find_once = functools.cache(find_last)
    replaced = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key.lstrip("+") in command.runs and _LAST.search(value):
            # quoted for Hydra, as there is no shell in between
            (chosen,) = shlex.split(as_argument(key, find_once()))
            path = chosen.removeprefix(f"{key}=")
            argument = f"{key}={path.join(_LAST.split(value))}"
        replaced.append(argument)
    return replaced


def own_folders(arguments: Sequence[str]) -> list[str]:
    """Return the user's configuration folders in a command line, in the form of ``folders.search_path``."""
    options, overrides = _split(arguments)
    words: list[str] = []
    for option in options:
        words += option.split("=", 1)
    entries = []
    for name, folder in pairwise(words):
        if name in ("--config-dir", "-cd"):
            entries.append(str(expanded(folder)))
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "hydra.searchpath":
            listed = value.strip("[]").split(",")
            entries += [entry.strip(" '\"") for entry in listed if entry]
    for entry in entries:
        path = entry.removeprefix("file://")
        if "://" not in path and not Path(path).is_dir():
            raise ConfigError(
                f"folder {path} does not exist; expected a folder with files such as routing/mine.yaml"
            )
    return [entry if "://" in entry else f"file://{Path(entry).absolute()}" for entry in entries]


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into options with their values, and overrides."""
    options: list[str] = []
    overrides: list[str] = []
    words = iter(arguments)
    for word in words:
        name, is_pair, value = word.partition("=")
        if not word.startswith("-"):
            overrides.append(word)
        elif name in _WITH_VALUE and not is_pair:
            options += [word, next(words, "")]
        elif name in (*_FLAGS, *_WITH_VALUE):
            options.append(word)
        else:
            typed = name.lstrip("-").replace("-", "_")
            key = key_meant(typed)
            close = closest(name, (*_FLAGS, *_WITH_VALUE)) if name.startswith("--") else None
            if close and not key and typed not in groups():
                raise ConfigError(f"{name} is not an option; did you mean {close}?")
            text = value or next(words, "…")
            raise ConfigError(
                f"{name} is not an option; expected key=value without dashes: {key or typed}={text}"
            )
    return options, overrides


def _override(word: str, command: Command) -> str:
    """Check an override and expand its path."""
    key, is_pair, value = word.partition("=")
    is_child = "LOCAL_RANK" in os.environ  # Lightning sets both in the processes that it starts
    if key == "hydra.run.dir" and not is_child:
        raise ConfigError(
            f"{word} would only create an empty folder; expected train.directory=… or CAPSULE_LAB_RUNS"
        )
    if is_pair and re.match(r"~(/|$)|\$[A-Za-z_]", value):
        return f"{key}={quoted(str(expanded(value)))}"
    if key in command.paths and "," in value and not value.startswith("["):
        paths = [quoted(str(expanded(path))) for path in value.split(",") if path]
        return f"{key}=[{','.join(paths)}]"
    if is_pair or word.startswith("~"):
        return word
    meant = [group for group in default_options(command.name) if word in options_of(group)]
    if not meant and command.first:
        meant = [command.first]
    guesses = " or ".join(f"{key}={word}" for key in meant)
    advice = f"did you mean {guesses}?" if guesses else "--help shows the keys"
    raise ConfigError(f"{word} does not have the form key=value; {advice}")
