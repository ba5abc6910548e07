"""``python -m capsule_lab``: the commands, every option of every configuration group, the tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capsule_lab.config import commands, conf_dir, groups, head, options_of, sweeps_dir


def main() -> None:
    """Print what there is."""
    console = Console(highlight=False)
    listed = [(f"python -m capsule_lab.{name}", _headline(conf_dir() / f"{name}.yaml")) for name in commands()]
    console.print(_table("commands", listed))
    options = [
        (f"[bold]{group}[/]" if not number else "", option, _headline(conf_dir() / group / f"{option}.yaml"))
        for group in groups()
        for number, option in enumerate(options_of(group))
    ]
    console.print(_table("\noptions: python -m capsule_lab.train group=option any.key=value …", options))
    tables = [(file.stem, _headline(file)) for file in sorted(sweeps_dir().glob("*.yaml"))]
    console.print(_table("\ntables: table=", tables))
    console.print("\nEvery key of a configuration: python -m capsule_lab.train model=capsnet --cfg job")


def _table(title: str, rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 2))
    for row in rows:
        table.add_row(*row)
    return table


def _headline(file: Path) -> str:
    return escape(next(iter(head(file)), ""))


if __name__ == "__main__":
    main()
