"""Tables of tiny runs."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from capsule_lab import runs
from capsule_lab.tables.cells import Cell
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET

TINY = ["debug=smoke", *TINY_CAPSNET, "trainer.accelerator=cpu", *NO_PICTURES, "callbacks.routing_stats=null"]
RESULT = {
    "status": "finished",
    "test": {"error": 1.0, "novel/error": 2.0},
    "validation": {"error": 3.0},
    "provenance": {"source": "real", "name": "real MNIST"},
    "parameters": 1234,
    "training_seconds": 90.0,
    "hardware": "a machine",
    "steps": 5,
    "commit": "abc",
}


def write_table(folder: Path, **content: Any) -> Path:
    """``mine.yaml``: ``write_table(folder, rows=[{"name": "a", "overrides": []}])``."""
    standard = {"paper": "a paper", "seeds": [0, 1], "base": TINY, "rows": [{"name": "one", "overrides": []}]}
    file = folder / "mine.yaml"
    file.write_text("# Mine.\n" + yaml.safe_dump({**standard, **content}, sort_keys=False))
    return file


def write_run(cell: Cell, *, error: float = 1.0, attempt: str = "", **more: Any) -> Path:
    """What a finished run of a cell leaves: ``write_run(cell, error=2.5)``."""
    directory = runs.directories.root() / f"capsnet-mnist-{cell.fingerprint}{attempt}"
    directory.mkdir(parents=True)
    result = {**RESULT, "config_hash": cell.fingerprint, **more}
    result["test"] = {**RESULT["test"], "error": error}
    (directory / "metrics.json").write_text(json.dumps(result))
    (directory / "metrics.csv").write_text(
        f"step,train/loss,train/error,val/loss,val/error\n3,0.5,50,,\n3,,,0.6,60\n7,0.4,{error},,\n"
    )
    return directory


@pytest.fixture
def table_file(tmp_path: Path) -> Callable[..., Path]:
    return functools.partial(write_table, tmp_path)


@pytest.fixture
def finish() -> Callable[..., Path]:
    return write_run
