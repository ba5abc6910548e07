"""Overrides as text: how the command line, Hydra and the shell spell them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig

from capsule_lab.config.declaration import Command
from capsule_lab.config.folders import default_options, groups, options_of, search_path
from capsule_lab.errors import ConfigError, suggest

_COMBINED = ("logger", "callbacks")
"""Groups of which several options can be combined: ``logger=[csv,wandb]``."""

_PLAIN = r"[\w./:@%+-]+"
"""Values that neither the shell nor Hydra changes."""


def choices(overrides: Sequence[str], command: Command | None) -> list[str]:
    """Convert overrides for Hydra, for which null is not an option of a group, and which adds keys only with ``+``.

    ``group=null`` and ``group=none`` leave a group out. A command that takes its data from a checkpoint has no key of
    ``data``, so that ``data.size=…`` becomes ``+data.size=…``.
    """
    defaults = default_options(command.name) if command else {}
    adds_data = _has_no_data(overrides, defaults)
    found = []
    for override in overrides:
        group, _, option = override.partition("=")
        if not group:
            raise ConfigError(f"{override} has no key; expected key=value")
        if adds_data and group.startswith("data."):
            found.append(f"+{override}")
        elif group in groups():
            found += _choice(group, option, defaults)
        else:
            found.append(override)
    return found


def _choice(group: str, option: str, defaults: dict[str, str | None]) -> list[str]:
    """Return the choice of an option of a group for Hydra; an empty list if the group is left out anyway."""
    override = f"{group}={option}"
    if option in ("null", "none", ""):
        if "none" in options_of(group):
            return [f"{group}=none"]
        if defaults.get(group) is None and group in defaults:
            return []
        expected = ", ".join(options_of(group))
        raise ConfigError(
            f"{override} leaves out a required part; expected {group}= one of {expected}"
        )
    if option.startswith("[") and group not in _COMBINED:
        raise ConfigError(
            f"{override} has several options; expected one, or -m {group}={option[1:-1]} to run each"
        )
    if re.fullmatch(r"[\d.]+|true|false|\{.*", option, re.IGNORECASE):
        raise ConfigError(f"{override} does not exist; {suggest(option, options_of(group))}")
    return [override]


def _has_no_data(overrides: Sequence[str], defaults: dict[str, str | None]) -> bool:
    """Return whether a command takes its data from a checkpoint, and the overrides do not choose other data."""
    chosen = [override.partition("=")[2] for override in overrides if override.startswith("data=")]
    return defaults.get("data", "") is None and not {*chosen} - {"null", "none", ""}


def search_override() -> list[str]:
    """Return the override that passes ``search_path`` to a command; an empty list if the path is empty."""
    entries = [_quoted_if_needed(entry) for entry in search_path()]
    return [f"hydra.searchpath=[{','.join(entries)}]"] if entries else []


def names_for_loggers(config: DictConfig, names: Mapping[str, str]) -> list[str]:
    """Return overrides that give these names to every logger of a configuration that groups runs."""
    found = []
    for logger, options in (config.get("logger") or {}).items():
        if "group" not in (options or {}):
            continue
        for key, value in names.items():
            found.append(f"logger.{logger}.{key}={_quoted_if_needed(value)}")
    return found


def _quoted_if_needed(text: str) -> str:
    return text if re.fullmatch(_PLAIN, text, re.ASCII) else quoted(text)


def quoted(text: str) -> str:
    """Quote ``text`` for Hydra's override grammar, without interpolation."""
    text = re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", text)
    text = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + match[2].replace("'", "\\'"), text)
    return f"'{text}'"


def as_argument(key: str, value: str | Path) -> str:
    """Return ``key=value`` quoted for the shell and for Hydra, for any characters in a path: ``"ckpt='a b=c'"``."""
    if re.fullmatch(_PLAIN, str(value), re.ASCII):
        return f"{key}={value}"
    text = f"{key}={quoted(str(value))}"
    return shlex.quote(text) if re.search(r'["$`!\\]', text) else f'"{text}"'
