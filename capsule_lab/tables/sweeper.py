"""Sweepers: of tables of papers, where every cell without a result is a job, and of all combinations, ``-m``."""

from __future__ import annotations

import functools
import math
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from capsule_lab.config.compose import check_options
from capsule_lab.errors import ConfigError
from capsule_lab.launchers.gpu_pool import GPUPool
from capsule_lab.launchers.hydra_internals import BasicSweeper, launcher_of, left_out, without_hydra
from capsule_lab.launchers.slurm_array import SlurmArray
from capsule_lab.system.terminal import aligned, as_typed, differences
from capsule_lab.tables.arguments import FOR_SWEEP, SELECTION, budget_seconds


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
    budget    time for training and evaluating, such as 9m; default: until all is done
    ========= ==========================================================
    """

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Create the launcher, unless nothing is to be launched."""
        check_options(config, "sweep")
        self.table: str | None = config.get("table")
        self.selection = {key: config.get(key) for key in SELECTION}
        self.overrides = list(config.get("overrides") or ())
        budget, dry_run = config.get("budget"), config.get("dry_run")
        self.until = math.inf if budget is None else time.time() + budget_seconds(budget)
        task = task_function if budget is None else functools.partial(_run_until, self.until, task_function)
        self.launcher: Launcher | None = None if dry_run else launcher_of(config, hydra_context, task)
        if budget is not None and isinstance(self.launcher, SlurmArray):
            raise ConfigError(
                f"budget={budget} is for launcher=basic and launcher=gpus; the time of SLURM's jobs is "
                "hydra.launcher.timeout_min, after which they are requeued and go on"
            )

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

        table = select(read(self.table, self.overrides), **self.selection)
        if self.launcher is None:
            return show_plan(table, self.overrides)
        own = (*FOR_SWEEP, "overrides")
        more = [argument for argument in arguments if argument.partition("=")[0].lstrip("+") not in own]
        return run_table(table, self.overrides, self._launch, more, lambda: time.time() >= self.until)

    def _launch(self, jobs: Sequence[Sequence[str]], first: int) -> Sequence[Any]:
        """Run jobs, but start none when the budget is spent."""
        assert self.launcher is not None
        if self.until == math.inf:
            return self.launcher.launch(jobs, first)
        if isinstance(self.launcher, GPUPool):
            self.launcher.until = self.until
            return self.launcher.launch(jobs, first)
        ended: list[Any] = []
        for number, job in enumerate(jobs, first):  # one by one, as Hydra's own launcher knows no time
            ended += self.launcher.launch([job], number) if time.time() < self.until else [left_out(job)]
        return ended


class GridSweeper(BasicSweeper):
    """Hydra's own sweeper, which checks all values before the first run, and in the end shows what was trained."""

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Compose and check the configuration of every job.

        Raises:
            ConfigError: see ``check.check``.
        """
        from capsule_lab.config.check import check  # as above

        assert self.hydra_context is not None
        assert self.config is not None
        load = self.hydra_context.config_loader.load_sweep_config
        self.jobs = [without_hydra(load(self.config, list(overrides))) for overrides in batch]
        for config in self.jobs:
            check(config)
        self.batch = batch

    def sweep(self, arguments: list[str]) -> Any:
        """Train every combination.

        Args:
            arguments: of the command.
        """
        try:
            return super().sweep(arguments)
        finally:
            if getattr(self, "batch", ()):
                sys.stdout.write("\n" + "\n".join(self._trained()) + "\n")

    def _trained(self) -> list[str]:
        """A line for each run of the last batch: what it has that others do not, its error and its directory."""
        from capsule_lab import runs  # as above

        rows = [("", "test error", "minutes", "run")]
        for config, own in zip(self.jobs, differences(self.batch)[1], strict=True):
            directory, result = runs.standins.finished_run(config) or (runs.directories.own_directory(config), {})
            error, seconds = result.get("test", {}).get("error"), result.get("training_seconds", 0)
            number = "" if error is None else f"{error:.2f} %"
            where = str(as_typed(directory)) if directory else "not finished"
            rows.append((shlex.join(own), number, f"{seconds / 60:.1f}", where))
        return aligned(rows)


def _run_until(until: float, task: TaskFunction, config: DictConfig) -> Any:
    """Run a job, whose training ends at a time of ``time.time``; nothing if that has come."""
    from capsule_lab.config.build import time_limit  # as above

    left = until - time.time()
    if left <= 0:
        return None
    config.trainer.max_time = {"seconds": min(left, time_limit(config.trainer))}
    return task(config)
