"""Words of a command line before Hydra reads them: habits of other programs become a sentence, paths become whole."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from hydra._internal.utils import get_args_parser

from capsule_lab.config.compose import choices, commands, default_options, groups, options_of, quoted
from capsule_lab.config.hints import habit
from capsule_lab.errors import ConfigError, closest
from capsule_lab.system.files import expanded

_FIRST = {"evaluate": "ckpt", "figures": "run", "report": "table", "sweep": "table"}
"""The key that a command needs, and that is easily left out before its value."""


def prepared(arguments: Sequence[str], command: str) -> list[str]:
    """Arguments as Hydra takes them: options that begin with a dash first.

    Args:
        arguments: as typed.
        command: its name.

    Raises:
        ConfigError: for an option that there is not, and what is no ``key=value``.
    """
    options, overrides = _split(arguments)
    return [*options, *choices([_override(each, command) for each in overrides], command)]


def own_folders(arguments: Sequence[str]) -> list[str]:
    """The user's own folders of configurations that a command line names, as ``config.search_path`` has them.

    Raises:
        ConfigError: for one that is not there.
    """
    options, overrides = _split(arguments)
    folder = _parser().parse_args(options).config_dir
    entries = [str(expanded(folder))] if folder else []
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "hydra.searchpath":
            entries += [each.strip(" '\"") for each in value.strip("[]").split(",") if each]
    for entry in entries:
        path = entry.removeprefix("file://")
        if "://" not in path and not Path(path).is_dir():
            raise ConfigError(f"there is no folder {path}; expected one that holds such as routing/mine.yaml")
    return [entry if "://" in entry else f"file://{Path(entry).absolute()}" for entry in entries]


def _parser() -> argparse.ArgumentParser:
    """Hydra's own parser of options, which is private; read from hydra-core 1.3.8."""
    parser = get_args_parser()
    parser.exit_on_error = False
    return parser


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options with their values, and overrides.

    Raises:
        ConfigError: for an option that there is not.
    """
    parser = _parser()
    flags = parser._option_string_actions
    options: list[str] = []
    overrides: list[str] = []
    left = list(arguments)
    while left:
        word = left.pop(0)
        if not word.startswith("-"):
            overrides.append(word)
            continue
        name, is_pair, value = word.partition("=")
        action = flags.get(name)
        if action is None:
            raise ConfigError(_no_option(name, value or next(iter(left), ""), flags))
        options.append(word)
        if action.nargs is None and not is_pair and left:
            options.append(left.pop(0))
    try:
        parser.parse_args(options)
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error}; --help shows what there is") from None
    except SystemExit:  # --version, which is answered elsewhere
        pass
    return options, overrides


def _no_option(name: str, value: str, flags: dict[str, argparse.Action]) -> str:
    typed = name.lstrip("-").replace("-", "_")
    key = habit(typed)
    close = closest(name, [flag for flag in flags if flag.startswith("--")]) if key == typed else None
    if close and typed not in groups():
        return f"{name} is no option; did you mean {close}?"
    given = value if value and not value.startswith("-") else "…"
    return f"{name} is no option; expected key=value without dashes: {key}={given}"


def _override(word: str, command: str) -> str:
    """An override with its path made whole.

    Raises:
        ConfigError: for a word that is none.
    """
    key, is_pair, value = word.partition("=")
    if key == "hydra.run.dir" and "LOCAL_RANK" not in os.environ:  # Lightning gives it to processes that it starts
        raise ConfigError(f"{word} would only make an empty folder; expected train.directory=…, or CAPSULE_LAB_RUNS")
    if is_pair and re.match(r"~(/|$)|\$[A-Za-z_]", value):
        return f"{key}={quoted(str(expanded(value)))}"
    if is_pair or word.startswith("~"):
        return word
    raise ConfigError(f"{word} is no key=value; {_meant(word, command)}")


def _meant(word: str, command: str) -> str:
    """What a word without a key may have been."""
    chosen = [f"{group}={word}" for group in default_options(command) if word in options_of(group)]
    if chosen:
        return f"did you mean {' or '.join(chosen)}?"
    if command in _FIRST:
        return f"did you mean {_FIRST[command]}={word}?"
    if word in commands():
        return f"did you mean python -m capsule_lab.{word}?"
    return f"expected such as {word}=…; --help shows the keys"
