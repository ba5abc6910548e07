"""Run a paper's table: ``python -m capsule_lab.sweep table=smoke launcher=gpus``."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

from omegaconf import DictConfig

from capsule_lab import runs, train
from capsule_lab.command import command
from capsule_lab.config.compose import compose, module_of
from capsule_lab.evaluate import evaluate_checkpoint
from capsule_lab.runs import lock
from capsule_lab.system.environment import replaced_command_line
from capsule_lab.system.signals import interruptible
from capsule_lab.tables import evaluations
from capsule_lab.tables.arguments import FOR_SWEEP, for_hydra


def run(config: DictConfig) -> None:
    """One job: train as ``config`` says, or evaluate the weights that it gives if a key of ``evaluations`` says so."""
    if by := evaluations.command_of(config):
        evaluate_weights(config, by)
    else:
        train.attempt(config)


def evaluate_weights(config: DictConfig, by: str) -> None:
    """Evaluate the finished run of a configuration, unless that has been done, and write the result beside it.

    Raises:
        RunError: if there is no such run, or another process does the same.
    """
    with (
        lock.train_lock(config),
        interruptible("the evaluation was stopped; the same command starts it again"),
    ):
        overrides, path = evaluations.of_job(config)
        if runs.results.read_evaluation(path) is not None:
            return
        began = time.monotonic()
        with replaced_command_line(module_of(by), overrides):
            result = evaluation(by, overrides)
        if runs.directories.is_first_process():
            runs.files.write_record(path, {**result, "evaluation_seconds": round(time.monotonic() - began, 1)})


def evaluation(by: str, overrides: list[str]) -> dict[str, Any]:
    """The result of a command that evaluates for these overrides."""
    config = compose(by, overrides)
    if by == "evaluate":
        return evaluate_checkpoint(config)[0]
    study = getattr(importlib.import_module(module_of(by)), by)
    result: dict[str, Any] = study(config).result
    return result


def main() -> None:
    """Hydra's multirun of ``run``, whose jobs come from a table; see ``capsule_lab.tables.sweeper``."""
    sys.argv[1:] = for_hydra(sys.argv[1:], FOR_SWEEP, prefix="+")
    command("sweep")(run)()


if __name__ == "__main__":
    main()
