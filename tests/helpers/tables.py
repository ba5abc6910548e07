"""Tables of tiny runs, and the files of finished runs and evaluations."""

import functools
import io
import json
import logging
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from capsule_lab import runs
from capsule_lab.__main__ import main
from capsule_lab.commands import load
from capsule_lab.commands.tables import read_table
from capsule_lab.config.declaration import Command
from capsule_lab.launchers import Job
from capsule_lab.system import protocol
from capsule_lab.tables import expand
from capsule_lab.tables.cells import Cell, EvaluationCell, SeededConfig, TrainingCell
from capsule_lab.tables.evaluations import result_file
from capsule_lab.tables.summary import Entry, summarise
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, Ended

TINY = [
    "debug=smoke",
    *TINY_CAPSNET,
    "trainer.accelerator=cpu",
    "trainer.precision=32-true",
    *NO_PICTURES,
    "callbacks.routing_stats=null",
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
    def composed(training: Command, overrides: tuple[str, ...], _: expand.Composed) -> SeededConfig:
        return compose(training, overrides, shared)

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


def call(name: str, *arguments: str) -> Ended:
    """Run a command in this process, for fixtures with a wider scope than ``cli``; without a name, the overview."""
    out = io.StringIO()
    err = io.StringIO()
    status = 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["capsule-lab", *arguments])
        try:
            (load(name) if name else main)()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
    return Ended(status, out.getvalue(), err.getvalue())


def launch_here(jobs: Sequence[Job], deadline: float = math.inf) -> dict[str, str | None]:
    """Run jobs in this process, as a replacement for the ``launch`` of a launcher."""
    failures = {}
    for job in jobs:
        hydra = GlobalHydra.instance().hydra  # of the sweep
        config = HydraConfig.instance().cfg
        handlers = [*logging.getLogger().handlers]
        GlobalHydra.instance().clear()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**job.environment, protocol.LOG: "a.log"}.items():
                patch.setenv(name, value)
            if deadline < math.inf:
                patch.setenv(protocol.DEADLINE, str(deadline))
            ended = call(*job.arguments[2:])
        GlobalHydra.instance().hydra = hydra
        HydraConfig.instance().cfg = config
        logging.getLogger().handlers[:] = handlers
        sys.stdout.write(ended.out)
        message = ended.err.removeprefix("capsule_lab: ").strip()
        failures[job.fingerprint] = message if ended.status else None
    return failures


def contents(folder: Path) -> dict[str, dict[str, tuple[int, bytes]]]:
    """Time stamp and content of every file of every run."""
    found = {}
    for run in folder.glob("runs/capsnet-mnist-*"):
        found[run.name] = {}
        for file in run.rglob("*"):
            if file.is_file():
                found[run.name][file.name] = (file.stat().st_mtime_ns, file.read_bytes())
    return found


def cells_of(file: Path, overrides: Sequence[str] = (), **options: Any) -> list[Any]:
    """The cells of a table in a file, as its runs are now; ``options`` are those of ``expand``."""
    return expand.expand(read_table(file), overrides, **options)


def entries_of(file: Path, overrides: Sequence[str] = ()) -> list[Entry]:
    """The lines of the report of a table in a file, as its runs are now."""
    return summarise(read_table(file), overrides)


def statuses(cells: Sequence[Cell]) -> list[str]:
    """The status of every cell."""
    return [cell.status for cell in cells]


def names(parts: Iterable[Any]) -> list[str]:
    """The names of rows, columns or cells."""
    return [part.name for part in parts]
