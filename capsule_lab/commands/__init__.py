"""The commands: one file each, found by their configurations ``conf/<name>.yaml``.

A package of another distribution adds its own with an entry point; see ``capsule_lab.config.folders``.
"""

from __future__ import annotations

import functools
import importlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from capsule_lab.config import compose as composing
from capsule_lab.config import folders
from capsule_lab.config.declaration import Command, FinishedRun
from capsule_lab.config.overrides import search_override
from capsule_lab.errors import ConfigError, suggest
from capsule_lab.system.terminal import as_typed


def names() -> list[str]:
    """Return the names of the commands, sorted."""
    return sorted(_packages())


def module_of(name: str) -> str:
    """Return the module of the command with this name; raise a ``ConfigError`` if there is none."""
    package = _packages().get(name) if isinstance(name, str) else None
    if package is None:
        raise ConfigError(f"{name!r} is not a command; {suggest(str(name), names())}")
    return f"{package}.{name}"


def load(name: str) -> Command:
    """Import the command with this name."""
    command: Command = importlib.import_module(module_of(name)).main
    return command


@functools.cache
def measuring() -> dict[str, Command]:
    """Return the commands that measure weights, which a table can have in its rows, by name."""
    commands = {name: load(name) for name in names()}
    return {name: each for name, each in commands.items() if each.measures is not None}


def proposals(run: FinishedRun) -> list[str]:
    """Return the command lines to suggest after a run, sorted by the name of the command."""
    from capsule_lab.runs.trust import trusting  # other commands than train need no runs

    script = as_typed(Path(sys.executable).with_name("capsule-lab"))
    # relative in the environment of `make`; any other is on the PATH
    program = "capsule-lab" if script.is_absolute() else str(script)
    lines = []
    for name in names():
        command = load(name)
        arguments = command.proposes(run) if command.proposes else []
        if not arguments:
            continue
        more = search_override()
        if name != "train" and "trust" in command.own_options:
            more += trusting(run.packages)
        lines.append(f"{program} {name} {' '.join([*arguments, *map(shlex.quote, more)])}")
    return lines


def compose(name: str = "train", overrides: Sequence[str] = ()) -> DictConfig:
    """Compose the configuration of a command, as in a notebook: ``compose("train", ["model=em_caps"])``.

    Args:
        name: of the command.
        overrides: as on the command line.

    Raises:
        ConfigError: if the command or a key does not exist, or a value has the wrong type.
    """
    return composing.compose(load(name), overrides)


def _packages() -> dict[str, str]:
    """Return the package of each command."""
    found: dict[str, str] = {}
    for package, folder in {__name__: folders.conf_dir(), **folders.extensions()}.items():
        found |= dict.fromkeys(_names_in(folder), package)
    return found


def _names_in(folder: Path) -> list[str]:
    return [file.stem for file in folder.glob("[!_]*.yaml")]
