"""Evaluations of the weights of a table's training runs: their commands, and where their results are.

An evaluation is found, locked and queued by a hash, like a training run, so that one result serves every table that
asks for it. The hash is that of the training run's configuration, plus the overrides of the evaluation under the key
``evaluate``, or ``evaluate_by_attack`` and ``evaluate_by_analyse`` for other commands. Weights of other rows that an
override names, such as ``source=``, stand in it by the hash of their run.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from capsule_lab import runs
from capsule_lab.config.compose import compose, quoted
from capsule_lab.runs.trust import packages_of
from capsule_lab.tables.schema import OF_OTHER_ROWS

UNKNOWN = "???"
"""In place of weights that are not there yet."""
_WEIGHTS = ("ckpt=", *(f"{key}=" for key in OF_OTHER_ROWS))
"""How overrides begin that differ by seed and are files, which composing does not look at."""
_DEVICES = ("accelerator", "devices", "num_nodes", "strategy")


def key_of(by: str) -> str:
    """The key under which the overrides of a command are hashed."""
    return by if by == "evaluate" else f"evaluate_by_{by}"


def fingerprint(training: Mapping[str, Any], by: str, evaluate: Sequence[str]) -> str:
    """The hash of an evaluation: that of the training run's configuration with its overrides beside it."""
    return runs.directories.config_hash({**training, key_of(by): [*evaluate]})


def command_overrides(training: Mapping[str, Any], by: str, evaluate: Sequence[str], weights: str) -> list[str]:
    """Overrides of the command: the checkpoint, devices as in training, then those of the table.

    ``data.<option>`` changes the data of training, unless ``data=`` names other data. Packages that the configuration
    of training names are trusted, as that was not read from the checkpoint.
    """
    standard = _standard_trainer()
    names = _DEVICES if by == "evaluate" else _DEVICES[:1]  # one process attacks or analyses
    trainer = training["trainer"]
    devices = [f"trainer.{key}={trainer[key]}" for key in names if trainer[key] != standard[key]]
    own_data = not any(override.startswith("data=") for override in evaluate)
    found = map(_with_weights, evaluate)
    given = [f"+{override}" if own_data and override.startswith("data.") else override for override in found]
    packages = packages_of(training)
    asked = any(override.startswith("trust=") for override in evaluate)
    trust = [f"trust=[{','.join(packages)}]"] if packages and not asked else []
    return [f"ckpt={_as_value(weights)}", *devices, *trust, *given]


def _with_weights(override: str) -> str:
    """An override with the file of weights in place of the hash of the training run that gave them."""
    key, _, value = override.partition("=")
    if key not in OF_OTHER_ROWS:
        return override
    finished = runs.reuse.finished_with_hash(value)
    return f"{key}={_as_value(weights_of(*finished) if finished else UNKNOWN)}"


def _as_value(path: str) -> str:
    return path if re.fullmatch(r"[\w./?-]+", path) else quoted(path)


def verify(training: DictConfig, by: str, overrides: Sequence[str]) -> None:
    """Compose the evaluation's configuration, with the data of training, and bind it to the signatures behind it.

    Raises:
        ConfigError: for an option that does not exist or a value that cannot be.
        HydraException: for overrides that cannot be composed.
    """
    from capsule_lab.config.check import check, check_evaluation

    config = _composed(by, tuple(each for each in overrides if not each.startswith(_WEIGHTS))).copy()
    check_evaluation(config)
    given = config.get("data") or {}
    if "_target_" not in given:
        data = OmegaConf.create(OmegaConf.to_container(training.data))  # no struct flag: `check` names what is unknown
        with open_dict(config):
            config.data = OmegaConf.merge(data, given)
    check(config)


@functools.cache
def _composed(by: str, overrides: tuple[str, ...]) -> DictConfig:
    return compose(by, overrides)


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
