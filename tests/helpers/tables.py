"""Tables of tiny runs, and the files of finished runs and evaluations."""

import functools
import importlib
import io
import json
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from capsule_lab import runs
from capsule_lab.launchers import DEADLINE_VARIABLE, Job
from capsule_lab.runs.lock import LOG_VARIABLE
from capsule_lab.tables import expand
from capsule_lab.tables.cells import EvaluationCell, SeededConfig, TrainingCell
from capsule_lab.tables.evaluations import result_file
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, Ended

TINY = [
    *("debug=smoke", *TINY_CAPSNET, "trainer.accelerator=cpu", "trainer.precision=32-true"),
    *(*NO_PICTURES, "callbacks.routing_stats=null"),
]
RESULT = {
    "status": "finished",
    "test": {"error": 1.0, "novel/error": 2.0},
    "val": {"error": 3.0},
    "parameters": 1234,
    "provenance": {"source": "real", "name": "real MNIST"},
    "training_seconds": 90.0,
    "hardware": "a machine",
    "precision": "32-true",
    "steps": 5,
    "commit": "abc",
    "weights_tested": "best",
}
"""The record of a finished run."""
ATTACKED = {
    "attack": {"0.1/accuracy": 50.0},
    "targeted": False,
    "space": "input",
    "couplings": "trained",
    "source": None,
    "options": {"_target_": "a.fgsm"},
    "split": "test",
    "images": 100,
    "checks": [{"name": "a", "passed": None}],
}
"""Fields of the record of an attack that other evaluations do not have."""


@contextmanager
def shared_compositions() -> Iterator[None]:
    """Within, all expansions of tables share their composed configurations, as those of one command do."""
    shared: expand.Composed = {}
    compose = expand._composed

    @functools.wraps(compose)
    def composed(overrides: tuple[str, ...], _: expand.Composed) -> SeededConfig:
        return compose(overrides, shared)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expand, "_composed", composed)
        yield


def write_table(folder: Path, **content: Any) -> Path:
    """Write ``mine.yaml``: ``write_table(folder, rows=[{"name": "a", "overrides": []}])``."""
    standard = {
        "paper": "a paper",
        "seeds": [0, 1],
        "base": TINY,
        "rows": [{"name": "one", "overrides": []}],
    }
    file = folder / "mine.yaml"
    file.write_text("# Mine.\n" + yaml.safe_dump({**standard, **content}, sort_keys=False))
    return file


def write_run(cell: TrainingCell, *, error: float = 1.0, attempt: str = "", **more: Any) -> Path:
    """Write the files of a finished run of a cell: ``write_run(cell, error=2.5)``."""
    directory = runs.directories.root() / f"capsnet-mnist-{cell.fingerprint}{attempt}"
    directory.mkdir(parents=True)
    result = {**RESULT, "config_hash": cell.fingerprint, **more}
    result["test"] = {**RESULT["test"], "error": error}
    (directory / "metrics.json").write_text(json.dumps(result))
    (directory / "metrics.csv").write_text(
        f"step,train/loss,train/error,val/loss,val/error\n3,0.5,50,,\n3,,,0.6,60\n7,0.4,{error},,\n"
    )
    return directory


def write_evaluation(cell: EvaluationCell, *, error: float, **more: Any) -> Path:
    """Write the record of a finished evaluation into the directory of its finished training run."""
    assert cell.training.finished
    file = result_file(cell.training.finished[0], cell.fingerprint)
    file.parent.mkdir(exist_ok=True)
    content = {
        "test": {"error": error},
        "provenance": RESULT["provenance"],
        "evaluation_seconds": 6.0,
    }
    file.write_text(json.dumps({**content, "hardware": "another machine", "commit": "def", **more}))
    return file


def call(module: ModuleType, *arguments: str) -> Ended:
    """Run a command in this process, for fixtures with a wider scope than ``cli``."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", [module.__name__, *arguments])
        try:
            module.main()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
    return Ended(status, out.getvalue(), err.getvalue())


def launch_here(jobs: Sequence[Job], deadline: float = math.inf) -> dict[str, str | None]:
    """Run jobs in this process, as a replacement for the ``launch`` of a launcher."""
    failures = {}
    for job in jobs:
        hydra, config = GlobalHydra.instance().hydra, HydraConfig.instance().cfg  # of the sweep
        handlers = [*logging.getLogger().handlers]
        GlobalHydra.instance().clear()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**job.environment, LOG_VARIABLE: "a.log"}.items():
                patch.setenv(name, value)
            if deadline < math.inf:
                patch.setenv(DEADLINE_VARIABLE, str(deadline))
            ended = call(importlib.import_module(job.arguments[1]), *job.arguments[2:])
        GlobalHydra.instance().hydra, HydraConfig.instance().cfg = hydra, config
        logging.getLogger().handlers[:] = handlers
        sys.stdout.write(ended.out)
        failures[job.fingerprint] = (
            ended.err.removeprefix("capsule_lab: ").strip() if ended.status else None
        )
    return failures


def contents(folder: Path) -> dict[str, dict[str, tuple[int, bytes]]]:
    """Time stamp and content of every file of every run."""
    return {
        run.name: {
            file.name: (file.stat().st_mtime_ns, file.read_bytes())
            for file in run.rglob("*")
            if file.is_file()
        }
        for run in folder.glob("runs/capsnet-mnist-*")
    }
