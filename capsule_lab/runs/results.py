"""Results of a run: its quantities, and whether it is finished."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from capsule_lab.runs.directories import config_hash


def is_finished(directory: Path, config: DictConfig) -> bool:
    """Whether the run in ``directory`` finished with this configuration."""
    return read_result(directory, config_hash(config)) is not None


def read_result(directory: Path, fingerprint: str) -> dict[str, Any] | None:
    """The ``metrics.json`` of a finished run of the configuration with that hash; ``None`` if there is none."""
    path = directory / "metrics.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    complete = (result.get("status"), result.get("config_hash")) == ("finished", fingerprint)
    return result if complete else None


def split_metrics(metrics: Mapping[str, Any], split: str) -> dict[str, float]:
    """Logged quantities of one split as plain numbers: ``{"val/error": tensor(3.6)}`` -> ``{"error": 3.6}``."""
    return {
        name.removeprefix(f"{split}/"): float(value) for name, value in metrics.items() if name.startswith(f"{split}/")
    }


def describe_data(provenance: Mapping[str, Any]) -> str:
    """Name of the data, and size of the test set if it was read, for the last lines of a command."""
    tested = f", tested on {provenance['test_images']} images" if "test_images" in provenance else ""
    return f"{provenance['name']}{tested}"


def short_name(provenance: Mapping[str, Any]) -> str:
    """Name of the data without details, for headings: ``stand-in for MNIST``."""
    return str(provenance["name"]).partition(":")[0]
