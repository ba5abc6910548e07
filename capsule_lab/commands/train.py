"""Train a network: ``capsule-lab train model=capsnet data=mnist anything.else=…``."""

from __future__ import annotations

import logging
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import environ
from pathlib import Path
from typing import Any, Literal

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from capsule_lab import runs
from capsule_lab.commands import proposals
from capsule_lab.commands.declare import command
from capsule_lab.config.check import check_run
from capsule_lab.config.check_options import check_options
from capsule_lab.config.compose import overrides_of
from capsule_lab.config.composition import to_container
from capsule_lab.config.declaration import (
    FinishedRun,
    Group,
    Options,
    Seed,
    TrainedRun,
    Weights,
)
from capsule_lab.errors import RunError
from capsule_lab.runs.summary import summary
from capsule_lab.system import protocol
from capsule_lab.system.files import expanded
from capsule_lab.system.signals import interruptible
from capsule_lab.system.slurm import was_requeued
from capsule_lab.system.terminal import as_typed

log = logging.getLogger(__name__)


class RunOptions(Options):
    """Options of where a run starts, what it trains, and how it is stored."""

    start_from: Weights | None = None
    """Initial weights: the name of ready weights, a run or a file; what does not fit its network is new."""
    freeze: list[str] | None = None
    """Modules of the network that are not trained, such as [conv,primary]."""
    resume: bool = False
    """Continue the last run with this configuration."""
    directory: str | None = None
    """Default: <name>-<model>-<data>-<hash of the configuration> in $CAPSULE_LAB_RUNS or runs."""
    test: Literal["best", "last", "none"] = "best"
    """Weights to test at the end: best (on validation), last, or none."""


class TrainOptions(Options):
    """Options of ``train`` outside configuration groups."""

    name: Any = None
    """A prefix of the name of the run directory: letters, digits, _ - and a point."""
    seed: Seed = 0
    """The seed of the weights, the order of the images, and their split."""
    class_routing: dict[str, Any] | None = None
    """Options of the class layer that differ from routing; routing=em… sets some."""
    ckpt: TrainedRun | None = None
    """Continue from this checkpoint; last: that of the latest finished run."""
    trust: Literal["safetensors"] | None = None
    """safetensors: refuse files that must be unpickled, such as ckpt= and CIFAR10's; does not affect results."""
    train: RunOptions = RunOptions()
    """Where the run starts, what it trains, and how it is stored."""
    module: Group


def check_training(config: DictConfig) -> None:
    """Raise a ``ConfigError`` if a training run of this configuration cannot work."""
    from capsule_lab.callbacks.check import check_callbacks  # Lightning

    check_run(config)
    check_callbacks(config)
    runs.initial_weights.check(config)


def _without_routing(run: FinishedRun) -> list[str]:
    """Return the overrides of the same network without routing, for comparison."""
    if not run.routes or run.chosen["routing"] == "uniform":
        return []
    of_the_routing = ("routing", "class_routing", "name=", "train.directory=")
    others = _without(run.overrides, *of_the_routing)
    return [shlex.join([*others, "routing=uniform"])]


@command("train", TrainOptions, check=check_training, proposes=_without_routing)
def main(options: TrainOptions) -> None:
    """Train and test, and write ``metrics.json``; raise an error if another process trains this configuration."""
    start_time = time.monotonic()
    in_sweep = protocol.LOG in environ
    resume_requested = options.train.resume
    config = _resumed(options.config)
    hydra = HydraConfig.get()
    overrides = _without(hydra.overrides.task, "launcher=", "train.resume=")
    with (
        runs.lock.train_lock(config),
        interruptible("stopped before training started; the checkpoints are unchanged"),
    ):
        directory = directory_for(config, "{model}-{data}".format_map(hydra.runtime.choices))
        if config.train.resume and is_finished(directory, config):
            log.info(
                "%s has finished, there is nothing to resume; its results are in metrics.json",
                directory,
            )
            return
        if resume_requested and not in_sweep and not (directory / "config.yaml").exists():
            log.warning("NOTHING TO RESUME for this configuration: new run in %s", directory)
        differences = _without(overrides, "name=", "logger", "train.directory=")
        with runs.lock.directory_lock(config, directory):
            result = _train(config, directory, differences, start_time)
    if result and "test" in result:  # not of a paused run that was not tested
        choices = hydra.runtime.choices
        next_commands: list[str] = []
        if not in_sweep and result["status"] != runs.results.PAUSED:
            has_weights = any(directory.glob("checkpoints/*.ckpt"))
            packages = runs.trust.packages_of(to_container(config))
            place = as_typed(directory)
            run = FinishedRun(result, place, has_weights, choices, overrides, packages)
            next_commands = proposals(run)
        text = summary(result, directory, choices, next_commands)
        Console(highlight=False).print("", text, sep="\n", soft_wrap=True)  # commands to copy
    if result.get("new_steps") == 0 and not in_sweep:
        raise RunError(
            f"trainer.max_time={config.trainer.max_time} ran out after {time.monotonic() - start_time:.0f} s, before "
            "the first step or the end of the test; expected more, as the same command starts at the same point"
        )


def _resumed(config: DictConfig) -> DictConfig:
    """Return the configuration, with ``train.resume`` if SLURM has started this job again."""
    if not was_requeued():
        return config
    resumed = config.copy()
    resumed.train.resume = True
    return resumed


def _without(overrides: Sequence[str], *prefixes: str) -> list[str]:
    return [override for override in overrides if not override.startswith(prefixes)]


def directory_for(config: DictConfig, name: str) -> Path:
    """Return the directory for the run: a new one, or that of the run to resume."""

    def is_superseded(directory: Path) -> bool:
        return runs.select_run.is_outdated(directory, config)

    return runs.directories.choose_directory(config, name, is_superseded)


def is_finished(directory: Path, config: DictConfig) -> bool:
    """Return whether the run in this directory has finished, and counts."""
    has_finished = runs.results.is_finished(directory, config)
    return has_finished and not runs.select_run.is_outdated(directory, config)


def train(
    config: DictConfig,
    directory: Path | str,
    overrides: Sequence[str] | None = None,
    start_time: float | None = None,
) -> dict[str, Any]:
    """Train and test in ``directory``; return the content of ``metrics.json``, or ``{}`` on later ranks.

    When ``trainer.max_time`` runs out, the run is saved, and the result contains ``status`` ``"paused"``, ``steps``,
    ``planned_steps``, and the ``new_steps`` of this call; a call with ``train.resume`` continues the run. With
    ``train.test=last``, the weights so far are tested, and the result, which is in ``status.json``, contains what that
    of a finished run contains.

    Args:
        config: the whole configuration, as ``capsule_lab.compose`` returns it.
        directory: the run directory.
        overrides: the overrides of the defaults, for the records and the log; by default those passed to
            ``compose``.
        start_time: start of ``trainer.max_time``, from ``time.monotonic``; by default now.

    Raises:
        ConfigError, DataError, RunError: for a configuration that cannot work, before anything is written; and for a
            run that cannot be continued or whose results are not finite.
    """
    start_time = time.monotonic() if start_time is None else start_time
    overrides = overrides_of(config) if overrides is None else overrides
    check_options(config, main)
    check_training(config)
    with _logging_to_stdout_if_nowhere():
        return _train(config, expanded(directory).absolute(), overrides, start_time)


def _train(
    config: DictConfig, directory: Path, overrides: Sequence[str], start_time: float
) -> dict[str, Any]:
    """Train with a checked configuration; the names of its loggers are completed, then it is read-only."""
    from capsule_lab import callbacks
    from capsule_lab.commands.training import Training

    named = callbacks.with_names(config, directory, overrides)
    OmegaConf.set_readonly(named, True)
    return Training(named, directory, overrides, start_time).run()


@contextmanager
def _logging_to_stdout_if_nowhere() -> Iterator[None]:
    """Print log messages to stdout in a notebook; in a command, Hydra has configured a handler."""
    root, package_logger = logging.getLogger(), logging.getLogger("capsule_lab")
    if root.handlers:
        yield
        return
    handler, level = logging.StreamHandler(sys.stdout), package_logger.level
    root.addHandler(handler)
    package_logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        package_logger.setLevel(level)


if __name__ == "__main__":
    main()
