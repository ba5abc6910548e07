"""``capsule-lab <command> …``, the same as ``python -m capsule_lab <command> …``; without a command, an overview."""

from __future__ import annotations

import os
import runpy
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence

from capsule_lab import commands
from capsule_lab.config import folders, presets
from capsule_lab.config.arguments import own_folders
from capsule_lab.errors import CapsuleLabError, ConfigError, suggest
from capsule_lab.system import protocol, signals
from capsule_lab.system.environment import package_version
from capsule_lab.system.terminal import cut, shows_tracebacks, usable_streams

_SEARCHES = ("--config-dir", "-cd", "hydra.searchpath")
_OPTIONS = "options"
_TABLE = "table"
"""The argument of ``options`` for the tables in ``sweeps/``, which are no configuration group."""
_WIDTH = 160  # ours: characters in a line, in files and pipes


def main() -> None:
    """Run the command in the first argument, list the options of configuration groups, or list all commands."""
    if protocol.PARENT in os.environ:  # the command itself imports torch, for seconds
        signals.end_with_parent(parent=int(os.environ.pop(protocol.PARENT)))
    with usable_streams():
        try:
            _main(sys.argv[1:])
        except CapsuleLabError as error:
            if shows_tracebacks():
                raise
            sys.stderr.write(f"capsule_lab: {error}\n")
            sys.exit(2)


def _main(arguments: Sequence[str]) -> None:
    first = arguments[0] if arguments else ""
    if first in commands.names():
        sys.argv[1:] = arguments[1:]
        # as a module of its own, so that Lightning can start the same command for other GPUs
        runpy.run_module(commands.module_of(first), run_name="__main__", alter_sys=True)
    elif first == "--version":
        sys.stdout.write(f"capsule-lab {package_version()}\n")
    elif first in ("", _OPTIONS, "--help", "-h") or first.startswith(_SEARCHES):
        with folders.searching(own_folders(arguments)):
            if first == _OPTIONS:
                _show_options(arguments[1:])
            else:
                _list()
    elif "=" in first or first.startswith(("-", "~")):
        raise ConfigError(
            f"{first} is not a command; put a command before it, such as capsule-lab train {first.lstrip('-')}"
        )
    else:
        raise ConfigError(
            f"{first} is not a command; {suggest(first, [*commands.names(), _OPTIONS])}"
        )


def _list() -> None:
    """Print a line for each command, and where the rest is described."""
    listed = {}
    for name in commands.names():
        listed[f"capsule-lab {name}"] = _headline(folders.head(folders.file_of(name)))
    more = {
        "capsule-lab train --help": "options of a command",
        "capsule-lab options": "names of all options and tables",
        "capsule-lab options model": "options of a group, described",
        "capsule-lab train model=em_caps seed=1": "an example",
    }
    _print("commands: capsule-lab <command> key=value …", listed)
    _print("\nmore", more)


def _show_options(arguments: Sequence[str]) -> None:
    """Print the names of all options by group, or the options of some groups with their descriptions."""
    names = []
    for argument in arguments:
        if argument.startswith(_SEARCHES):
            break  # a folder follows
        names.append(argument)
    known = [*folders.groups(), _TABLE]
    if not names:
        options_of = {}
        for group in known:
            options_of[group] = ", ".join(_described_options(group))
        _print("options: capsule-lab train group=option", options_of, wraps=True)
    for name in names:
        if name not in known:
            raise ConfigError(f"{name} is not a configuration group; {suggest(name, known)}")
        _print(f"options: {name}=", _described_options(name), wraps=True)


def _described_options(group: str) -> dict[str, str]:
    """Return the description of each option of a group, or of each table."""
    described = {}
    if group == _TABLE:
        for file in sorted(folders.sweeps_dir().glob("*.yaml")):
            described[file.stem] = _headline(folders.head(file))
    else:
        for option, comments in folders.described_options(group).items():
            described[option] = _described(comments)
    return described


def _print(title: str, described: Mapping[str, str], *, wraps: bool = False) -> None:
    """Print names with descriptions, which are cut to the width of the terminal unless they are wrapped."""
    width = shutil.get_terminal_size(fallback=(_WIDTH, 24)).columns
    start = max(map(len, described)) + 4
    lines = [title]
    for name, text in described.items():
        line = f"  {name}".ljust(start) + text
        if wraps:
            lines += textwrap.wrap(line, width, subsequent_indent=" " * start) or [line]
        else:
            lines.append(cut(line, width))
    sys.stdout.write("\n".join(lines) + "\n")


def _headline(comments: Sequence[str]) -> str:
    """Return the first sentence of the comments at the head of a file."""
    return presets.sentences(comments)[0]


def _described(comments: Sequence[str]) -> str:
    """Return the first sentence, and the one about the difference from the paper if there is one."""
    difference = presets.differs(comments)
    return _headline(comments) + (f"; {difference}" if difference else "")


if __name__ == "__main__":
    main()
