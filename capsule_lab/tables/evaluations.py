"""Evaluations of the weights of a table's training runs: what their jobs run, and where their results are.

The configuration of such a job is that of the training run, plus the overrides of the evaluation under the key
``evaluate``. So it is found, locked and queued by the hash of its configuration, like a training run; and one result
serves every table that asks for it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from capsule_lab import runs
from capsule_lab.check import check
from capsule_lab.config import compose, quoted
from capsule_lab.errors import ConfigError, RunError, suggest
from capsule_lab.runs.trust import packages_of

KEY = "evaluate"
_DEVICES = ("accelerator", "devices", "num_nodes", "strategy")  # a launcher assigns them by the training run's


def job_override(evaluate: Sequence[str]) -> str:
    """The override that makes the job of a training run evaluate its weights instead."""
    return f"+{KEY}=[{','.join(map(quoted, evaluate))}]"


def fingerprint(training: DictConfig, evaluate: Sequence[str]) -> str:
    """The hash of such a job's configuration."""
    config = training.copy()
    with open_dict(config):
        config[KEY] = [override.replace("${", r"\${") for override in evaluate]
    return runs.directories.config_hash(config)


def of_job(config: DictConfig) -> tuple[list[str], Path]:
    """What a job whose configuration has ``evaluate`` is to do.

    Returns:
        Overrides of ``capsule_lab.evaluate``, and the file for the result.

    Raises:
        RunError: if the training run has not finished.
    """
    training = config.copy()
    with open_dict(training):
        evaluate = list(training.pop(KEY))
    finished = runs.standins.finished_run(training)
    if finished is None:
        raise RunError(
            f"no finished run of configuration {runs.directories.config_hash(training)} is in "
            f"{runs.directories.root()}; train it before its evaluation"
        )
    path = result_file(finished[0], runs.directories.config_hash(config))
    return command_overrides(training, evaluate, weights_of(*finished)), path


def command_overrides(training: DictConfig, evaluate: Sequence[str], weights: str) -> list[str]:
    """Overrides of ``capsule_lab.evaluate``: the checkpoint, devices as in training, then those of the table.

    ``data.<option>`` changes the data of training, unless ``data=`` names other data. Packages that the configuration
    of training names are trusted, as that was not read from the checkpoint.
    """
    standard = _standard_trainer()
    devices = [f"trainer.{key}={training.trainer[key]}" for key in _DEVICES if training.trainer[key] != standard[key]]
    own_data = not any(override.startswith("data=") for override in evaluate)
    given = [f"+{override}" if own_data and override.startswith("data.") else override for override in evaluate]
    checkpoint = weights if re.fullmatch(r"[\w./?-]+", weights) else quoted(weights)
    packages = packages_of(OmegaConf.to_container(training, resolve=True))
    asked = any(override.startswith("trust=") for override in evaluate)
    trust = [f"trust=[{','.join(packages)}]"] if packages and not asked else []
    return [f"ckpt={checkpoint}", *devices, *trust, *given]


def verify(training: DictConfig, overrides: Sequence[str]) -> None:
    """Compose the evaluation's configuration, with the data of training, and bind it to the signatures behind it.

    Raises:
        ConfigError: for an option that does not exist or a value that cannot be.
        HydraException: for overrides that cannot be composed.
    """
    config = compose("evaluate", overrides)
    if config.split not in ("test", "val"):
        raise ConfigError(f"split={config.split} does not exist; {suggest(str(config.split), ('test', 'val'))}")
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
