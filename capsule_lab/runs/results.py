"""What a run came to: its numbers, and whether it came to its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from capsule_lab.runs.directories import config_hash


def is_finished(directory: Path, config: DictConfig) -> bool:
    """Whether the run in ``directory`` came to the end of this configuration."""
    return result_of(directory, config_hash(config)) is not None


def result_of(directory: Path, fingerprint: str) -> dict[str, Any] | None:
    """What a finished run of that configuration left in its ``metrics.json``; ``None`` if there is none."""
    path = directory / "metrics.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    complete = (result.get("status"), result.get("config_hash")) == ("finished", fingerprint)
    return result if complete else None


def numbers(metrics: Mapping[str, Any], split: str) -> dict[str, float]:
    """Logged quantities of one split, without its name, as plain numbers."""
    return {
        name.removeprefix(f"{split}/"): float(value) for name, value in metrics.items() if name.startswith(f"{split}/")
    }


def data_in_words(provenance: Mapping[str, Any]) -> str:
    """Which data, and how much of the test set, for the last lines of a command."""
    tested = f", tested on {provenance['test_images']} images" if "test_images" in provenance else ""
    return f"{provenance['name']}{tested}"
