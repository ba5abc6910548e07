"""The sweeper for tables of papers: every cell of a table that has no result yet is a job."""

from __future__ import annotations

from typing import Any

from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from capsule_lab.launchers.hydra_internals import launcher_of
from capsule_lab.tables.arguments import FOR_SWEEP, SELECTION


class CellSweeper(Sweeper):
    """Hands the cells of a table that are not complete to the chosen launcher.

    The table and all else is in keys of the configuration that only the command adds, so that jobs, which are composed
    anew, do not have them:

    ========= ==========================================================
    table     its name in ``sweeps/``, or a file
    rows      names, or one; default: all
    columns   names, or one; default: all
    seeds     whole numbers, or one; default: the table's
    overrides for every training run, over the table's
    dry_run   only print what is to be done
    ========= ==========================================================
    """

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Create the launcher, unless nothing is to be launched."""
        self.table: str | None = config.get("table")
        self.selection = {key: config.get(key) for key in SELECTION}
        self.overrides = list(config.get("overrides") or ())
        dry_run = config.get("dry_run")
        self.launcher: Launcher | None = None if dry_run else launcher_of(config, hydra_context, task_function)

    def sweep(self, arguments: list[str]) -> Any:
        """Run what is left of the table, or with ``dry_run`` print what that is.

        Args:
            arguments: of the command. What is not for the sweeper, the choice of a launcher, jobs have to be given too.

        Raises:
            TableError: when all has been tried, if a run failed.
        """
        # imported here, as Hydra imports this module in every command
        from capsule_lab.tables.reader import read, select
        from capsule_lab.tables.scheduler import run_table, show_plan

        table = select(read(self.table), **self.selection)
        if self.launcher is None:
            return show_plan(table, self.overrides)
        own = (*FOR_SWEEP, "overrides")
        more = [argument for argument in arguments if argument.partition("=")[0].lstrip("+") not in own]
        return run_table(table, self.overrides, self.launcher.launch, more)
