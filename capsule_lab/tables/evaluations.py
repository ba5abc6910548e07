"""Evaluations of the weights of a table's training runs: their commands, and the files of their results.

A hash identifies an evaluation in files, locks and queues, as for a training run, so that several tables can use one
result. It is the hash of the training run's configuration plus the overrides of the evaluation under the key
``evaluate``, or ``evaluate_by_attack`` and ``evaluate_by_analyse`` for other commands. If an override such as
``source=`` names weights of another row, the hash of their run is its value.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from capsule_lab import runs
from capsule_lab.config.compose import compose
from capsule_lab.config.composition import copied
from capsule_lab.config.declaration import Command
from capsule_lab.config.overrides import quoted
from capsule_lab.runs.trust import packages_of, trusting
from capsule_lab.tables.schema import metrics_of

UNKNOWN = "???"
"""Placeholder for weights that do not exist yet."""


def _key_of(command: Command) -> str:
    """Return the key under which the overrides of a command are hashed."""
    return "evaluate" if "test" in metrics_of(command) else f"evaluate_by_{command.name}"


def fingerprint(training: Mapping[str, Any], command: Command, evaluate: Sequence[str]) -> str:
    """Return the hash of an evaluation, from the training run's configuration and its own overrides."""
    return runs.directories.config_hash({**training, _key_of(command): [*evaluate]})


def command_overrides(
    training: Mapping[str, Any],
    command: Command,
    evaluate: Sequence[str],
    weights: str,
    others: Mapping[str, str],
) -> list[str]:
    """Return the overrides of the command: the checkpoint, the devices of training, then those of the table.

    ``others`` has the weights of other runs by the hash that stands for them. ``data.<option>`` changes the training
    data, unless ``data=`` selects other data. Packages in the training configuration are trusted, because the
    configuration does not come from the checkpoint.
    """
    assert command.measures
    trainer, standard = training["trainer"], _composed(command, ()).trainer
    devices = []
    for key in command.measures.devices:
        if trainer[key] != standard[key]:
            devices.append(f"trainer.{key}={trainer[key]}")
    own_data = not any(override.startswith("data=") for override in evaluate)
    table_overrides = []
    for override in evaluate:
        resolved = _with_weights(override, command, others)
        adds_key = own_data and resolved.startswith("data.")
        table_overrides.append(f"+{resolved}" if adds_key else resolved)
    sets_trust = any(override.startswith("trust=") for override in evaluate)
    trust = [] if sets_trust else trusting(packages_of(training))
    return [f"ckpt={_as_value(weights)}", *devices, *trust, *table_overrides]


def _with_weights(override: str, command: Command, others: Mapping[str, str]) -> str:
    """Replace the hash of a training run in an override by the file of its weights."""
    key, _, value = override.partition("=")
    if key not in command.other_weights:
        return override
    return f"{key}={_as_value(others.get(value, value))}"


def _as_value(path: str) -> str:
    return path if re.fullmatch(r"[\w./?-]+", path) else quoted(path)


def verify(training: DictConfig, command: Command, overrides: Sequence[str]) -> None:
    """Compose the evaluation's configuration with the training data, and check it against the signatures.

    Raise a ``ConfigError`` for an unknown option or an invalid value, or if overrides cannot be composed.
    """
    of_files = tuple(f"{key}=" for key in ("ckpt", *command.other_weights))  # differ by seed
    others = tuple(override for override in overrides if not override.startswith(of_files))
    config = copied(_composed(command, others))
    data_options = config.get("data") or {}
    if "_target_" not in data_options:
        # no struct flag: `check` reports unknown keys
        data = OmegaConf.create(OmegaConf.to_container(training.data))
        with open_dict(config):
            config.data = OmegaConf.merge(data, data_options)
    command.check(config)


@functools.cache
def _composed(command: Command, overrides: tuple[str, ...]) -> DictConfig:
    return compose(command, overrides)


def weights_of(directory: Path, result: dict[str, Any]) -> str:
    """Return the checkpoint that the run tested; without a test its directory, which stands for the best one."""
    tested = result.get("weights_tested")
    return str(directory / "checkpoints" / f"{tested}.ckpt" if tested else directory)


def result_file(directory: Path, fingerprint: str) -> Path:
    """Return the file in a run directory for the result of a table's evaluation."""
    return directory / "evaluations" / f"{fingerprint}.json"
