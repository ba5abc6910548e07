"""``capsule-lab <command> …``, the same as ``python -m capsule_lab <command> …``; without a command, an overview."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capsule_lab import commands
from capsule_lab.config import folders, presets
from capsule_lab.config.arguments import own_folders
from capsule_lab.errors import CapsuleLabError, ConfigError, suggest
from capsule_lab.system import protocol, signals
from capsule_lab.system.environment import package_version
from capsule_lab.system.terminal import usable_streams

_SEARCHES = ("--config-dir", "-cd", "hydra.searchpath")


def main() -> None:
    """Run the command in the first argument, or list all commands, options of configuration groups, and tables."""
    if protocol.PARENT in os.environ:  # the command itself imports torch, for seconds
        signals.end_with_parent(parent=int(os.environ.pop(protocol.PARENT)))
    with usable_streams():
        try:
            _main(sys.argv[1:])
        except CapsuleLabError as error:
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
    elif first in ("", "--help", "-h") or first.startswith(_SEARCHES):
        others = [argument for argument in arguments if argument not in ("--help", "-h")]
        with folders.searching(own_folders(others)):
            _list()
    elif "=" in first or first.startswith(("-", "~")):
        raise ConfigError(
            f"{first} is not a command; put a command before it, such as capsule-lab train {first.lstrip('-')}"
        )
    else:
        raise ConfigError(f"{first} is not a command; {suggest(first, commands.names())}")


def _list() -> None:
    console = Console(highlight=False)
    listed = []
    for name in commands.names():
        listed.append((f"capsule-lab {name}", _headline(folders.head(folders.file_of(name)))))
    console.print(_table("commands", listed))
    options = []
    for group in folders.groups():
        title = f"[bold]{group}[/]"
        for option, comments in folders.described_options(group).items():
            options.append((title, option, _described(comments)))
            title = ""
    console.print(_table("\noptions: capsule-lab train group=option any.key=value …", options))
    tables = []
    for file in sorted(folders.sweeps_dir().glob("*.yaml")):
        tables.append((file.stem, _headline(folders.head(file))))
    console.print(_table("\ntables: table=", tables))
    console.print("\nEvery key of a configuration: capsule-lab train model=capsnet --cfg job")


def _table(title: str, rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 2))
    for row in rows:
        table.add_row(*row)
    return table


def _headline(comments: Sequence[str]) -> str:
    """Return the first sentence of the comments at the head of a file."""
    return escape(presets.sentences(comments)[0])


def _described(comments: Sequence[str]) -> str:
    """Return the first sentence, and the one about the difference from the paper if there is one."""
    difference = presets.differs(comments)
    return _headline(comments) + (f"; [dim]{escape(difference)}[/]" if difference else "")


if __name__ == "__main__":
    main()
