"""The sweeper for tables of papers: every row with every seed, less what is complete already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class CellSweeper(Sweeper):
    """Hands the cells of a table that are not complete to whatever launcher is chosen.

    Args:
        table: its name in ``sweeps/``, or a file.
        rows: names, or one; ``None`` for all.
        columns: names, or one; ``None`` for all.
        seeds: whole numbers, or one; ``None`` for the table's.
        overrides: for every run, over the table's.
        dry_run: only say what is to be done.
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
        self.chosen = {"rows": rows, "columns": columns, "seeds": seeds}
        self.overrides = overrides
        self.dry_run = dry_run
        self.launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Make the launcher, unless nothing is to be launched."""
        if not self.dry_run:
            self.launcher = Plugins.instance().instantiate_launcher(
                hydra_context=hydra_context, task_function=task_function, config=config
            )

    def sweep(self, arguments: list[str]) -> Any:
        """Train what is left of the table, or with ``dry_run`` say what that is.

        Args:
            arguments: the choice of a launcher, whose options are only there together with it.

        Raises:
            TableError: when all has been tried, if a run failed.
        """
        from capsule_lab.tables import scheduler
        from capsule_lab.tables.arguments import of_runs

        table, overrides = scheduler.chosen_table(self.table, self.chosen), of_runs(self.overrides)
        if self.launcher is None:
            return scheduler.show_plan(table, overrides)
        return scheduler.train_all(table, overrides, self.launcher.launch, arguments)
