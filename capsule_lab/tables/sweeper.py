"""The sweeper for tables of papers: every cell of a table that has no result yet is a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from capsule_lab.launchers.hydra_internals import launcher_of


class CellSweeper(Sweeper):
    """Hands the cells of a table that are not complete to the chosen launcher.

    Args:
        table: its name in ``sweeps/``, or a file.
        rows: names, or one; ``None`` for all.
        columns: names, or one; ``None`` for all.
        seeds: whole numbers, or one; ``None`` for the table's.
        overrides: for every training run, over the table's.
        dry_run: only print what is to be done.
    """

    def __init__(
        self,
        table: str | None = None,
        rows: Sequence[str] | str | None = None,
        columns: Sequence[str] | str | None = None,
        seeds: Sequence[int] | int | None = None,
        overrides: Sequence[str] = (),
        dry_run: bool = False,
    ) -> None:
        self.table = table
        self.selection: dict[str, Any] = {"rows": rows, "columns": columns, "seeds": seeds}
        self.overrides = list(overrides)
        self.dry_run = dry_run
        self.launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Create the launcher, unless nothing is to be launched."""
        if not self.dry_run:
            self.launcher = launcher_of(config, hydra_context, task_function)

    def sweep(self, arguments: list[str]) -> Any:
        """Run what is left of the table, or with ``dry_run`` print what that is.

        Args:
            arguments: those that are not in ``overrides``: the choice of a launcher, which jobs have to be given too.

        Raises:
            TableError: when all has been tried, if a run failed.
        """
        # imported here, as Hydra imports this module in every command
        from capsule_lab.tables.reader import read, select
        from capsule_lab.tables.scheduler import run_table, show_plan

        table = select(read(self.table), **self.selection)
        if self.launcher is None:
            return show_plan(table, self.overrides)
        return run_table(table, self.overrides, self.launcher.launch, arguments)
