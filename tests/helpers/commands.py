"""Overrides of tiny runs, and functions that start commands in processes of their own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from tests.helpers import forked_commands

ROOT = Path(__file__).parents[2]

TINY_CAPSNET = [
    "model.channels=4",
    "model.primary.types=2",
    "model.class_dim=4",
    "model.decoder=[8]",
]
TINY_CNN = ["model=cnn_baseline", "model.channels=[4]", "model.hidden=[8]"]
TINY_DATA = [
    "data.source=standin",
    "data.batch_size=64",
    "data.train_images=256",
    "trainer.limit_val_batches=1",
]
TINY_DATA += ["trainer.log_every_n_steps=3", "trainer.accelerator=cpu"]
TINY = [*TINY_CAPSNET, *TINY_DATA, "trainer.max_epochs=2"]
CHOSEN = {"model": "capsnet", "routing": "dynamic", "data": "mnist"}
"""The options of configuration groups in ``TINY``."""
NO_PICTURES = ["callbacks.reconstructions=null", "callbacks.confusion=null"]

ENVIRONMENT_OF_THE_DEVELOPER = (
    *("CAPSULE_LAB_DATA", "CAPSULE_LAB_RUN", "CAPSULE_LAB_RUNS", "HYDRA_FULL_ERROR"),
    *("WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY"),
    *("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"),
)


@dataclass(frozen=True)
class Trained:
    """A finished run and the events in it."""

    directory: Path
    config: DictConfig
    result: dict[str, Any]
    module: Any
    events: list[str]


@dataclass(frozen=True)
class Ended:
    """Status and output of a command."""

    status: int
    out: str
    err: str


Cli = Callable[..., Ended]
"""The fixture ``cli``."""
Tiny = Callable[..., DictConfig]
"""The fixture ``tiny``."""


def environment_of_a_command(**environment: str) -> dict[str, str]:
    """The environment of a command: one thread, and no variables of the developer."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ENVIRONMENT_OF_THE_DEVELOPER
    }
    return {**inherited, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment}


def start(*arguments: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    """Start ``python *arguments`` in a new interpreter."""
    command, env = [sys.executable, *arguments], environment_of_a_command(**environment)
    return subprocess.Popen(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def python(*arguments: str, cwd: Path, limit: float = 300, **environment: str) -> Ended:
    """Run ``python -m …`` or ``python -c …`` in a process of its own to its end, for at most ``limit`` seconds.

    The process is forked with its libraries imported; use ``interpreter`` for tests of imports.
    """
    forked = forked_commands.start(arguments, cwd, environment_of_a_command(**environment))
    return Ended(*forked.end(limit))


def two_processes(*arguments: str, cwd: Path, limit: float = 300) -> Ended:
    """Run ``python -m … trainer.devices=2`` in two forked processes; return how the first one ended.

    Their environment is that of ``torchrun``. Otherwise Lightning starts the second one in a new interpreter, which
    ``tests/runs/test_killed_process.py`` covers.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in ("0", "1"):
        of_a_rank = environment_of_a_command(
            LOCAL_RANK=rank, NODE_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
        )
        ranks.append(forked_commands.start(arguments, cwd, of_a_rank))
    first, second = [Ended(*forked.end(limit)) for forked in ranks]
    assert first.status or not second.status, second.err
    return first


def interpreter(*arguments: str, cwd: Path, limit: float = 300, **environment: str) -> Ended:
    """Run ``python *arguments`` in a new interpreter to its end, for at most ``limit`` seconds."""
    with start(*arguments, cwd=cwd, **environment) as process:
        try:
            out, err = process.communicate(timeout=limit)
        finally:
            process.kill()
    return Ended(process.returncode, out, err)


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Wait until the condition holds; an error after four minutes, or if the process ends before."""
    end = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < end, "the condition does not hold after four minutes"
        if process is not None and process.poll() is not None:
            out, err = process.communicate()
            raise AssertionError(f"the process has ended: {out}{err}")
        time.sleep(0.2)
