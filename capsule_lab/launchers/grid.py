"""Hydra's multirun ``-m``: the chosen launcher runs a command line for every combination of values."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from hydra.utils import instantiate
from omegaconf import DictConfig

from capsule_lab.config.compose import compose
from capsule_lab.config.declaration import Command
from capsule_lab.config.overrides import names_for_loggers, search_override
from capsule_lab.errors import ConfigError, RunError
from capsule_lab.launchers import Job, arguments_for
from capsule_lab.system.terminal import differences

_LONGEST = 128  # W&B's limit of a group's name, in characters


class GridSweeper(Sweeper):
    """Sweeper that checks all configurations before the first run, and prints a table of the runs at the end."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.options = config.hydra
        self.command: Command = task_function.command  # type: ignore[attr-defined]

    def sweep(self, arguments: list[str]) -> Any:
        """Train every combination of these overrides; when all have ended, raise an error if a run failed."""
        from capsule_lab.runs.summary import listed  # slow; Hydra imports this in every command

        of_runs = [argument for argument in arguments if not argument.startswith("launcher=")]
        batch = combinations(of_runs)
        configs = [compose(self.command, overrides) for overrides in batch]
        for config in configs:
            self.command.check(config)
        _check_distinct(batch, configs)
        shared, own = differences(batch)
        swept = [argument for argument in of_runs if argument not in shared]
        jobs = []
        for overrides, config, own_overrides in zip(batch, configs, own, strict=True):
            labels = _names(config, swept, own_overrides)
            jobs.append(self._job(overrides, labels, config))
        failures: dict[str, str | None] = {}
        try:
            failures = instantiate(self.options.launcher).launch(jobs)
        finally:
            names = [shlex.join(overrides) for overrides in own]
            table, finished = listed(names, configs)
            sys.stdout.write(f"\n{table}\n")
        failed = []
        for job, is_finished in zip(jobs, finished, strict=True):
            error = failures.get(job.fingerprint)
            # another process may have finished a run of the tables, or an earlier command one that is resumed
            may_be_older = job.in_tables or job.config.train.resume
            if error and not (is_finished and may_be_older):
                failed.append(f"{job.name}: {error}")
        if failed:
            raise RunError(f"{len(failed)} of {len(jobs)} runs failed: {'; '.join(failed)}")

    def _job(self, overrides: list[str], labels: list[str], config: DictConfig) -> Job:
        from capsule_lab.runs.directories import config_hash
        from capsule_lab.runs.summary import recorded_run

        arguments = arguments_for(self.command.name, [*overrides, *labels, *search_override()])
        in_tables = config.ckpt is None and config.train.directory is None
        fingerprint = config_hash(config)
        to_continue = "the same command continues"
        if not config.train.resume:
            to_continue = "the same command with train.resume=true continues"

        def record() -> Mapping[str, Any]:
            return recorded_run(config)[1]

        return Job(
            shlex.join(overrides),
            arguments,
            config,
            fingerprint,
            in_tables=in_tables,
            record=record,
            to_continue=to_continue,
        )


def _check_distinct(batch: Sequence[list[str]], configs: Sequence[DictConfig]) -> None:
    """Raise a ``ConfigError`` if two runs have the same hash, which identifies their locks, logs and results."""
    from capsule_lab.runs.directories import config_hash

    seen: dict[str, list[str]] = {}
    for overrides, config in zip(batch, configs, strict=True):
        fingerprint = config_hash(config)
        if fingerprint in seen:
            pair = [seen[fingerprint], overrides]
            _, own = differences(pair)
            first, second = map(shlex.join, own if any(own) else pair)
            raise ConfigError(
                f"{first} and {second} have the same configuration hash, which leaves out ckpt, directories, "
                "loggers and what affects no result, so that -m cannot tell their runs apart; expected separate "
                "commands, each with its own train.directory=…"
            )
        seen[fingerprint] = overrides


def _names(config: DictConfig, swept: list[str], own: list[str]) -> list[str]:
    """Return overrides with the names of a run for loggers: runs that differ in their seed have one ``job_type``.

    The group is ``name=…`` of the command or, without it, what the command varies. Names that the user chose remain.
    """
    row = [override for override in own if not override.startswith("seed=")]
    group = config.name or " ".join(swept)
    job_type = " ".join(row) or "train"
    names = {"group": group[:_LONGEST], "job_type": job_type[:_LONGEST]}
    loggers = config.get("logger") or {}
    for options in loggers.values():
        for key in [*names]:
            if options and options.get(key):
                del names[key]
    return names_for_loggers(config, names)


def combinations(arguments: list[str]) -> list[list[str]]:
    """Return every combination of the values: ``a=1,2 b=3`` gives ``[["a=1", "b=3"], ["a=2", "b=3"]]``."""
    choices: dict[str, list[str]] = {}
    for override in OverridesParser.create().parse_overrides(arguments):
        key = override.get_key_element()
        choices[key] = [str(override.input_line)]
        if override.is_sweep_override():
            choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
    return list(map(list, itertools.product(*choices.values())))
