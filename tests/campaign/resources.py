"""Too little disk, too few files, too little memory, places that cannot be written to."""

from __future__ import annotations

import random
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.campaign.outcomes import (
    NotHitError,
    ended,
    expect_equal,
    expect_nothing_left,
    expect_sentence,
    expect_success,
    only_run,
    outcome,
)
from tests.campaign.processes import Process, executed
from tests.campaign.small_runs import CONFIGURATIONS, RESUME, fresh_folder, reference, train
from tests.helpers.commands import TINY_DATA

Case = dict[str, Any]
ENVIRONMENTS: dict[str, dict[str, str | None]] = {
    "no HOME": {"HOME": None},
    "HOME does not exist": {"HOME": "/nonexistent"},
    "TMPDIR does not exist": {"TMPDIR": "/nonexistent"},
    "neither": {"HOME": None, "TMPDIR": "/nonexistent"},
}


def _file_size(amount: float) -> None:
    _lower(resource.RLIMIT_FSIZE, int(10 ** (2 + 4 * amount)))


def _open_files(amount: float) -> None:
    _lower(resource.RLIMIT_NOFILE, 10 + int(60 * amount))  # with fewer, Python cannot even read the command


def _memory(amount: float) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _lower(resource.RLIMIT_AS, used + int(amount * 300 * 2**20))


def _lower(limit: int, value: int) -> None:
    resource.setrlimit(limit, (value, resource.getrlimit(limit)[1]))


LIMITS: dict[str, Callable[[float], None]] = {
    "size of files": _file_size,
    "open files": _open_files,
    "memory": _memory,
}
MOUNTS: dict[str, Callable[[float], str]] = {
    "full disk": lambda amount: f"size={int(8 + 300 * amount)}k",
    "no inodes": lambda amount: f"nr_inodes={2 + int(20 * amount)}",
    "read-only": lambda amount: "ro",
}


def cases(seed: int) -> Iterator[Case]:
    draw = random.Random(seed)
    for _ in range(100):
        kind = draw.choice([*LIMITS, *LIMITS, *MOUNTS, *MOUNTS, "environment"])
        configuration = draw.choice(["epochs", "pictures"])
        yield {"kind": kind, "configuration": configuration, "amount": draw.random()}


def attempt(case: Case) -> None:
    configuration, kind = case["configuration"], case["kind"]
    with fresh_folder() as folder, ExitStack() as mounts:
        if kind == "environment":
            names = [*ENVIRONMENTS]
            environment = ENVIRONMENTS[names[int(case["amount"] * len(names))]]
            overrides = [*TINY_DATA, *CONFIGURATIONS[configuration]]
            expect_success(ended(Process(executed("capsule_lab.train", *overrides), folder, **environment)))
        elif kind in LIMITS:
            limited = train(configuration, folder, prepare=lambda: LIMITS[kind](case["amount"]))
            expect_sentence(ended(limited))
        else:
            runs = folder / "runs"
            runs.mkdir()
            _mount(runs, MOUNTS[kind](case["amount"]))
            mounts.callback(subprocess.run, ["umount", "--lazy", runs], check=False)
            expect_sentence(ended(train(configuration, folder)))
            _mount(runs, "remount,rw,size=100m,nr_inodes=10000")
        expect_success(ended(train(configuration, folder, RESUME)))
        expect_equal(outcome(only_run(folder)), reference(configuration).outcome)
        expect_nothing_left(folder)


def _mount(folder: Path, options: str) -> None:
    """A file system in memory.

    Raises:
        NotHitError: if this process may not mount any.
    """
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        raise NotHitError
