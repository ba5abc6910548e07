"""What there is: ``python -m capsule_lab`` lists the commands and every option of every config group."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from capsule_lab.config import conf_dir, sweeps_dir

COMMANDS = {
    "train": "train a network, test it once, leave a run directory",
    "sweep": "train every row and seed of a paper's table, on one GPU each or on a SLURM cluster; table=",
    "report": "what a table came to, beside what was published; table=",
    "workspace": "the same in W&B, for runs with logger=wandb; table=, upload=true",
    "evaluate": "test a checkpoint; needs nothing but ckpt=",
    "figures": "draw the figures of a run",
    "dataset": "fetch and check a data set, or render toynorb, the stand-in for smallNORB",
    "bench": "time training steps against a textbook implementation",
}


def main() -> None:
    """Show commands and options."""
    console = Console(highlight=False)
    commands = Table(title="commands", title_justify="left", box=None, show_header=False, padding=(0, 2))
    for name, what in COMMANDS.items():
        commands.add_row(f"python -m capsule_lab.{name}", what)
    console.print(commands)
    options = Table(
        title="\noptions: python -m capsule_lab.train group=option any.key=value …",
        title_justify="left",
        box=None,
        show_header=False,
        padding=(0, 2),
    )
    for group in sorted(folder for folder in conf_dir().iterdir() if folder.is_dir() and folder.name != "hydra"):
        for number, option in enumerate(sorted(group.rglob("[!_]*.yaml"))):
            name = option.relative_to(group).with_suffix("").as_posix()
            options.add_row("" if number else f"[bold]{group.name}[/]", name, _headline(option))
    console.print(options)
    tables = Table(title="\ntables: table=", title_justify="left", box=None, show_header=False, padding=(0, 2))
    for file in sorted(sweeps_dir().glob("*.yaml")):
        tables.add_row(file.stem, _headline(file))
    console.print(tables)
    console.print("\nEvery key of a configuration: python -m capsule_lab.train model=capsnet --cfg job")


def _headline(path: Path) -> str:
    """The first comment of a configuration that is not for Hydra."""
    lines = [line for line in path.read_text().splitlines() if line.startswith("#") and "@package" not in line]
    return lines[0].lstrip("# ") if lines else ""


if __name__ == "__main__":
    main()
