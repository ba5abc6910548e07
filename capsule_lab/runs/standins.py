"""Runs of ``data.source=auto`` on a stand-in: they count until the real files are here.

Their configuration is that of the real data, and so is its hash: where both were trained, only the real one counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from capsule_lab.runs.checkpoints import read
from capsule_lab.runs.directories import attempts, config_hash
from capsule_lab.runs.results import read_result
from capsule_lab.runs.trust import plain_value


def finished_run(config: DictConfig) -> tuple[Path, dict[str, Any]] | None:
    """The run directory and the result that count for a configuration: the latest on real data, else the latest."""
    finished = [each for each in _finished(config_hash(config)) if not is_superseded(each[1], config)]
    return next(iter(finished), None)


def finished_with_hash(fingerprint: str) -> tuple[Path, dict[str, Any]] | None:
    """As ``finished_run``, for the hash of a configuration."""
    return next(iter(_finished(fingerprint)), None)


def _finished(fingerprint: str) -> list[tuple[Path, dict[str, Any]]]:
    """Those on real data first, the latest first."""
    found = ((directory, read_result(directory, fingerprint)) for directory in attempts(fingerprint))
    finished = [(directory, result) for directory, result in found if result]
    return sorted(finished, key=lambda each: each[1]["provenance"]["source"] != "real")


def is_superseded(record: Mapping[str, Any], config: DictConfig) -> bool:
    """Whether a run was on a stand-in as the real files were not here, which now they are.

    A report asks this of tables that others wrote: nothing that the configuration names is imported or built. A data
    set of ``capsule_lab`` is asked by its name and its directory; of any other, what was trained on counts.

    Args:
        record: of the run, with the provenance of its data.
        config: of the run.
    """
    if config.data.get("source") != "auto" or record["provenance"]["source"] == "real":
        return False
    from capsule_lab import data  # imports torch

    package, _, name = str(plain_value(config, "data._target_")).rpartition(".")
    if package != data.__name__ or not name.endswith("DataModule") or name not in data.__all__:
        return False
    directory = plain_value(config, "data.directory")
    built = getattr(data, name)(directory=directory and str(directory))
    return hasattr(built, "real_source") and bool(built.real_source.is_here())


def holds_superseded(directory: Path, config: DictConfig) -> bool:
    """``is_superseded`` for the run in a directory, finished or not; ``False`` if nothing is saved there."""
    if config.data.get("source") != "auto":
        return False
    result = read_result(directory, config_hash(config))
    last = directory / "checkpoints" / "last.ckpt"
    if result is None and not last.is_file():
        return False
    return is_superseded(result or read(last)["capsule_lab"], config)
