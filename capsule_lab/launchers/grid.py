"""Hydra's multirun ``-m``: the chosen launcher runs a command line for every combination of values."""

from __future__ import annotations

import itertools
import shlex
import sys
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from hydra.utils import instantiate
from omegaconf import DictConfig

from capsule_lab.config.compose import compose
from capsule_lab.config.declaration import Command
from capsule_lab.config.overrides import search_override
from capsule_lab.errors import RunError
from capsule_lab.launchers import Job, arguments_for
from capsule_lab.system.terminal import differences


class GridSweeper(Sweeper):
    """Sweeper that checks all configurations before the first run, and prints a table of the runs at the end."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.options = config.hydra
        self.command: Command = task_function.command  # type: ignore[attr-defined]

    def sweep(self, arguments: list[str]) -> Any:
        """Train every combination of these overrides; when all have ended, raise an error if a run failed."""
        # slow imports: Hydra imports this module in every command
        from capsule_lab.runs.directories import config_hash
        from capsule_lab.runs.summary import listed

        of_runs = [argument for argument in arguments if not argument.startswith("launcher=")]
        batch = combinations(of_runs)
        configs = [compose(self.command, overrides) for overrides in batch]
        for config in configs:
            self.command.check(config)
        jobs = []
        for overrides, config in zip(batch, configs, strict=True):
            name = shlex.join(overrides)
            arguments_of_run = arguments_for(self.command.name, [*overrides, *search_override()])
            in_tables = config.ckpt is None and config.train.directory is None
            fingerprint = config_hash(config)
            jobs.append(Job(name, arguments_of_run, config, fingerprint, in_tables=in_tables))
        failures: dict[str, str | None] = {}
        try:
            failures = instantiate(self.options.launcher).launch(jobs)
        finally:
            table, finished = listed(
                [shlex.join(overrides) for overrides in differences(batch)[1]], configs
            )
            sys.stdout.write(f"\n{table}\n")
        missing = [job for job, is_finished in zip(jobs, finished, strict=True) if not is_finished]
        if failed := [
            f"{job.name}: {error}" for job in missing if (error := failures.get(job.fingerprint))
        ]:
            raise RunError(f"{len(failed)} of {len(jobs)} runs failed: {'; '.join(failed)}")


def combinations(arguments: list[str]) -> list[list[str]]:
    """Return every combination of the values: ``a=1,2 b=3`` gives ``[["a=1", "b=3"], ["a=2", "b=3"]]``."""
    choices: dict[str, list[str]] = {}
    for override in OverridesParser.create().parse_overrides(arguments):
        key = override.get_key_element()
        values = override.sweep_string_iterator() if override.is_sweep_override() else None
        choices[key] = (
            [f"{key}={value}" for value in values] if values else [str(override.input_line)]
        )
    return [list(combination) for combination in itertools.product(*choices.values())]
