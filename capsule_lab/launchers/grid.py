"""Hydra's multirun ``-m``: every combination of values is a command line for the chosen launcher."""

from __future__ import annotations

import itertools
import shlex
import sys
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from hydra.utils import instantiate
from omegaconf import DictConfig, open_dict

from capsule_lab.config.compose import search_override
from capsule_lab.errors import RunError
from capsule_lab.launchers import Job
from capsule_lab.system.terminal import aligned, as_typed, differences


class GridSweeper(Sweeper):
    """Checks the configurations of all combinations before the first run, and in the end shows what was trained."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what jobs are composed with."""
        self.options, self.load = config, hydra_context.config_loader.load_sweep_config

    def sweep(self, arguments: list[str]) -> Any:
        """Train every combination.

        Args:
            arguments: overrides of the command, some with several values.

        Raises:
            ConfigError: see ``check.check``.
            RunError: when all have ended, if one failed.
        """
        from capsule_lab.config.check import check  # imports much, as the next; Hydra imports this in every command
        from capsule_lab.runs.directories import config_hash
        from capsule_lab.runs.standins import finished_run

        batch = combinations(arguments)
        configs = [self._compose(overrides) for overrides in batch]
        for config in configs:
            check(config)
        jobs = []
        for overrides, config in zip(batch, configs, strict=True):
            arguments = [each for each in overrides if not each.startswith("launcher=")]
            command = ("-m", "capsule_lab.train", *arguments, *search_override())
            in_tables = config.ckpt is None and config.train.directory is None
            name = shlex.join(arguments)
            jobs.append(Job(name, command, config.trainer, config_hash(config), in_tables=in_tables))
        try:
            failures = instantiate(self.options.hydra.launcher).launch(jobs)
        finally:
            sys.stdout.write("\n" + "\n".join(_trained(configs, batch)) + "\n")
        failed = [
            f"{job.name}: {failures[job.fingerprint]}"
            for job, config in zip(jobs, configs, strict=True)
            if failures.get(job.fingerprint) and finished_run(config) is None
        ]
        if failed:
            raise RunError(f"{len(failed)} of {len(jobs)} runs failed: {'; '.join(failed)}")

    def _compose(self, overrides: list[str]) -> DictConfig:
        config = self.load(self.options, overrides)
        with open_dict(config):
            config.pop("hydra")
        return config


def combinations(arguments: list[str]) -> list[list[str]]:
    """Every combination of the values of overrides, ``a=1,2 b=3`` as ``[["a=1", "b=3"], ["a=2", "b=3"]]``."""
    choices: dict[str, list[str]] = {}
    for override in OverridesParser.create().parse_overrides(arguments):
        key = override.get_key_element()
        values = override.sweep_string_iterator() if override.is_sweep_override() else None
        choices[key] = [f"{key}={value}" for value in values] if values else [str(override.input_line)]
    return [list(each) for each in itertools.product(*choices.values())]


def _trained(configs: list[DictConfig], batch: list[list[str]]) -> list[str]:
    """A line for each run: what it has that others do not, its error and its directory."""
    from capsule_lab import runs

    rows = [("", "test error", "minutes", "run")]
    for config, own in zip(configs, differences(batch)[1], strict=True):
        directory, result = runs.standins.finished_run(config) or (runs.directories.own_directory(config), {})
        error, seconds = result.get("test", {}).get("error"), result.get("training_seconds", 0)
        number = "" if error is None else f"{error:.2f} %"
        where = str(as_typed(directory)) if directory else "not finished"
        rows.append((shlex.join(own), number, f"{seconds / 60:.1f}", where))
    return aligned(rows)
