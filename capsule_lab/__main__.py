"""``capsule-lab <command> …``, the same as ``python -m capsule_lab.<command> …``; without a command, an overview."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterable, Sequence
from itertools import takewhile

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capsule_lab import __version__
from capsule_lab.config import compose
from capsule_lab.config.arguments import own_folders
from capsule_lab.errors import CapsuleLabError, ConfigError, suggest
from capsule_lab.system.terminal import usable_streams


def main() -> None:
    """Run the command in the first argument, or list all commands, options of configuration groups, and tables."""
    with usable_streams():
        try:
            _main(sys.argv[1:])
        except CapsuleLabError as error:
            sys.stderr.write(f"capsule_lab: {error}\n")
            sys.exit(2)


def _main(arguments: Sequence[str]) -> None:
    first = arguments[0] if arguments else ""
    if first in compose.commands():
        sys.argv[1:] = arguments[1:]
        runpy.run_module(compose.module_of(first), run_name="__main__", alter_sys=True)
    elif first == "--version":
        sys.stdout.write(f"capsule-lab {__version__}\n")
    elif (
        first
        and first not in ("--help", "-h")
        and not first.startswith(("--config-dir", "-cd", "hydra.searchpath"))
    ):
        if "=" in first or first.startswith(("-", "~")):
            raise ConfigError(
                f"{first} is not a command; put a command before it, such as capsule-lab train {first}"
            )
        raise ConfigError(f"{first} is not a command; {suggest(first, compose.commands())}")
    else:
        with compose.searching(
            own_folders([argument for argument in arguments if argument not in ("--help", "-h")])
        ):
            _list()


def _list() -> None:
    console = Console(highlight=False)
    heads = {name: compose.head(compose.conf_dir() / f"{name}.yaml") for name in compose.commands()}
    listed = [
        (f"python -m {compose.module_of(name)}", _headline(head)) for name, head in heads.items()
    ]
    console.print(_table("commands", listed))
    options = [
        (f"[bold]{group}[/]" if not number else "", option, _headline(comments))
        for group in compose.groups()
        for number, (option, comments) in enumerate(compose.described_options(group).items())
    ]
    console.print(
        _table("\noptions: python -m capsule_lab.train group=option any.key=value …", options)
    )
    tables = [
        (file.stem, _headline(compose.head(file)))
        for file in sorted(compose.sweeps_dir().glob("*.yaml"))
    ]
    console.print(_table("\ntables: table=", tables))
    console.print(
        "\nEvery key of a configuration: python -m capsule_lab.train model=capsnet --cfg job"
    )


def _table(title: str, rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 2))
    for row in rows:
        table.add_row(*row)
    return table


def _headline(comments: Iterable[str]) -> str:
    """Return the first sentence of the comments at the head of a file, up to an indented line."""
    text = " ".join(takewhile(lambda line: line and not line.startswith(" "), comments))
    return escape(
        re.split(r"(?<!\b[A-Z])\.\s+(?=[A-Z])", text)[0].removesuffix(".")
    )  # not at J. Hui


if __name__ == "__main__":
    main()
