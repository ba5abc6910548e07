"""Evaluations of the weights of a table's training runs: what their jobs run, and where their results are.

The configuration of such a job is that of the training run, plus the overrides of the evaluation under the key
``evaluate``, or ``evaluate_by_attack`` and ``evaluate_by_analyse`` for other commands. So it is found, locked and
queued by the hash of its configuration, like a training run; and one result serves every table that asks for it.
Weights of other rows that an override names, such as ``source=``, stand in it by the hash of their run.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from capsule_lab import runs
from capsule_lab.config.check import check, check_evaluation
from capsule_lab.config.compose import compose, evaluators, quoted
from capsule_lab.errors import RunError
from capsule_lab.runs.trust import packages_of
from capsule_lab.tables.schema import OF_OTHER_ROWS

UNKNOWN = "???"
"""In place of weights that are not there yet."""
_DEVICES = ("accelerator", "devices", "num_nodes", "strategy")  # a launcher assigns them by the training run's


def key_of(by: str) -> str:
    """The key of a job's configuration that has the overrides of a command; ``attack`` is a group of options."""
    return by if by == "evaluate" else f"evaluate_by_{by}"


def command_of(config: DictConfig) -> str | None:
    """By which command a job evaluates; ``None`` if it trains."""
    return next((command for command in evaluators() if key_of(command) in config), None)


def job_override(by: str, evaluate: Sequence[str]) -> str:
    """The override that makes the job of a training run evaluate its weights instead."""
    return f"+{key_of(by)}=[{','.join(map(quoted, evaluate))}]"


def fingerprint(training: DictConfig, by: str, evaluate: Sequence[str]) -> str:
    """The hash of such a job's configuration."""
    config = training.copy()
    with open_dict(config):
        config[key_of(by)] = [*evaluate]
    return runs.directories.config_hash(config)


def of_job(config: DictConfig) -> tuple[list[str], Path]:
    """What a job that evaluates is to do.

    Returns:
        Overrides of the command, and the file for the result.

    Raises:
        RunError: if the training run has not finished.
    """
    training = config.copy()
    by = command_of(config)
    assert by is not None
    with open_dict(training):
        evaluate = list(training.pop(key_of(by)))
    finished = runs.standins.finished_run(training)
    if finished is None:
        raise RunError(
            f"no finished run of configuration {runs.directories.config_hash(training)} is in "
            f"{runs.directories.root()}; train it before its evaluation"
        )
    path = result_file(finished[0], runs.directories.config_hash(config))
    return command_overrides(training, by, evaluate, weights_of(*finished)), path


def command_overrides(training: DictConfig, by: str, evaluate: Sequence[str], weights: str) -> list[str]:
    """Overrides of the command: the checkpoint, devices as in training, then those of the table.

    ``data.<option>`` changes the data of training, unless ``data=`` names other data. Packages that the configuration
    of training names are trusted, as that was not read from the checkpoint.
    """
    standard = _standard_trainer()
    names = _DEVICES if by == "evaluate" else _DEVICES[:1]  # one process attacks or analyses
    devices = [f"trainer.{key}={training.trainer[key]}" for key in names if training.trainer[key] != standard[key]]
    own_data = not any(override.startswith("data=") for override in evaluate)
    found = map(_with_weights, evaluate)
    given = [f"+{override}" if own_data and override.startswith("data.") else override for override in found]
    packages = packages_of(OmegaConf.to_container(training, resolve=True))
    asked = any(override.startswith("trust=") for override in evaluate)
    trust = [f"trust=[{','.join(packages)}]"] if packages and not asked else []
    return [f"ckpt={_as_value(weights)}", *devices, *trust, *given]


def _with_weights(override: str) -> str:
    """An override with the file of weights in place of the hash of the training run that gave them."""
    key, _, value = override.partition("=")
    if key not in OF_OTHER_ROWS:
        return override
    finished = runs.standins.finished_with_hash(value)
    return f"{key}={_as_value(weights_of(*finished) if finished else UNKNOWN)}"


def _as_value(path: str) -> str:
    return path if re.fullmatch(r"[\w./?-]+", path) else quoted(path)


def verify(training: DictConfig, by: str, overrides: Sequence[str]) -> None:
    """Compose the evaluation's configuration, with the data of training, and bind it to the signatures behind it.

    Raises:
        ConfigError: for an option that does not exist or a value that cannot be.
        HydraException: for overrides that cannot be composed.
    """
    config = compose(by, overrides)
    check_evaluation(config)
    given = config.get("data") or {}
    if "_target_" not in given:
        data = OmegaConf.create(OmegaConf.to_container(training.data))  # no struct flag: `check` names what is unknown
        with open_dict(config):
            config.data = OmegaConf.merge(data, given)
    check(config)


def weights_of(directory: Path, result: dict[str, Any]) -> str:
    """The checkpoint that the run itself tested; if it did not test, the directory stands for its best."""
    tested = result.get("weights_tested")
    return str(directory / "checkpoints" / f"{tested}.ckpt" if tested else directory)


def result_file(directory: Path, fingerprint: str) -> Path:
    """Where a run directory has the result of an evaluation that a table asks for."""
    return directory / "evaluations" / f"{fingerprint}.json"


@functools.cache
def _standard_trainer() -> DictConfig:
    trainer: DictConfig = compose("evaluate").trainer
    return trainer
