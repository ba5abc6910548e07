"""Run a paper's table: ``python -m capsule_lab.sweep table=smoke launcher=gpus``."""

from __future__ import annotations

import sys
import time
from typing import Any

from omegaconf import DictConfig

from capsule_lab import runs, train
from capsule_lab.studies.analyse import analyse
from capsule_lab.studies.attack import attack
from capsule_lab.command import command
from capsule_lab.config import compose
from capsule_lab.environment import replaced_command_line
from capsule_lab.evaluate import evaluate_checkpoint
from capsule_lab.runs import lock
from capsule_lab.signals import interruptible
from capsule_lab.tables import evaluations
from capsule_lab.tables.arguments import FOR_SWEEP, for_hydra
from capsule_lab.tables.schema import EvaluatedBy


def run(config: DictConfig) -> None:
    """One job: train as ``config`` says, or evaluate the weights that it gives if a key of ``evaluations`` says so."""
    if by := evaluations.command_of(config):
        evaluate_weights(config, by)
    else:
        train.attempt(config)


def evaluate_weights(config: DictConfig, by: EvaluatedBy) -> None:
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
        with replaced_command_line(f"capsule_lab.{by}", overrides):
            result = evaluation(by, overrides)
        if runs.directories.is_first_process():
            runs.files.write_record(path, {**result, "evaluation_seconds": round(time.monotonic() - began, 1)})


def evaluation(by: EvaluatedBy, overrides: list[str]) -> dict[str, Any]:
    """The result of a command that evaluates for these overrides."""
    config = compose(by, overrides)
    commands = {"attack": lambda: attack(config).result, "analyse": lambda: analyse(config).result}
    return commands.get(by, lambda: evaluate_checkpoint(config)[0])()


def main() -> None:
    """Hydra's multirun of ``run``, whose jobs come from a table; see ``capsule_lab.tables.sweeper``."""
    sys.argv[1:] = for_hydra(sys.argv[1:], FOR_SWEEP, prefix="+")
    command("sweep")(run)()


if __name__ == "__main__":
    main()
