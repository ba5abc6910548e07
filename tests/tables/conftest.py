"""Tables of tiny runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from capsule_lab import runs
from capsule_lab.tables.cells import Cell
from tests.conftest import NO_PICTURES, TINY_CAPSNET

TINY = ["debug=smoke", *TINY_CAPSNET, "trainer.accelerator=cpu", *NO_PICTURES, "callbacks.routing_stats=null"]
RESULT = {
    "status": "finished",
    "test": {"error": 1.0, "novel/error": 2.0},
    "validation": {"error": 3.0},
    "provenance": {"source": "real", "name": "genuine MNIST"},
    "parameters": 1234,
    "training_seconds": 90.0,
    "hardware": "a machine",
    "steps": 5,
    "commit": "abc",
}


@pytest.fixture
def table_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes ``mine.yaml``: ``table_file(rows=[{"name": "a", "overrides": []}])``."""

    def write(**content: Any) -> Path:
        standard = {"paper": "a paper", "seeds": [0, 1], "base": TINY, "rows": [{"name": "one", "overrides": []}]}
        file = tmp_path / "mine.yaml"
        file.write_text("# Mine.\n" + yaml.safe_dump({**standard, **content}, sort_keys=False))
        return file

    return write


@pytest.fixture
def finish() -> Callable[..., Path]:
    """Leaves what a finished run of a cell leaves: ``finish(cell, error=2.5, source="stand-in")``."""

    def write(cell: Cell, *, error: float = 1.0, attempt: str = "", **more: Any) -> Path:
        directory = runs.root() / f"capsnet-mnist-{cell.fingerprint}{attempt}"
        directory.mkdir(parents=True)
        result = {**RESULT, "config_hash": cell.fingerprint, **more}
        result["test"] = {**RESULT["test"], "error": error}
        (directory / "metrics.json").write_text(json.dumps(result))
        (directory / "metrics.csv").write_text(
            f"step,train/loss,train/error,val/loss,val/error\n3,0.5,50,,\n3,,,0.6,60\n7,0.4,{error},,\n"
        )
        return directory

    return write
