"""Damaged files: each is noticed in a sentence that names it, or changes nothing."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.campaign import sweeps
from tests.campaign.outcomes import Fault, ended, expect_equal, expect_sentence, expect_success, only_run, outcome
from tests.campaign.processes import Process, executed, forked
from tests.campaign.small_runs import (
    CONFIGURATIONS,
    RESUME,
    TEMPORARY,
    at_hook,
    fresh_folder,
    reference,
    signal_here,
    train,
)
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, TINY_CNN, TINY_DATA
from tests.helpers.mnist_files import ARRAYS, idx, md5, write_mnist
from tests.helpers.smallnorb_files import write_standin

Case = dict[str, Any]
LONGER = [*TINY_DATA, *CONFIGURATIONS["epochs"]]


def _flip(content: bytearray, draw: random.Random) -> bytearray:
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return content


def _garble(content: bytearray, draw: random.Random) -> bytearray:
    size = min(64, len(content))
    start = draw.randrange(len(content) - size + 1)
    content[start : start + size] = draw.randbytes(size)
    return content


def _swap(content: bytearray, draw: random.Random) -> bytearray:
    middle = draw.randrange(len(content))
    return content[middle:] + content[:middle]


DAMAGES: dict[str, Callable[[bytearray, random.Random], bytearray]] = {
    "flipped bit": _flip,
    "truncated": lambda content, draw: content[: draw.randrange(len(content))],
    "emptied": lambda content, draw: bytearray(),
    "garbled": _garble,
    "halves swapped": _swap,
}


def _interrupted(folder: Path) -> None:
    """A run that a signal stopped in its third epoch."""
    hooks = reference("epochs").hooks
    at = [number for number, name in enumerate(hooks, 1) if name == "on_train_batch_end"][9]
    ended(train("epochs", folder, prepare=at_hook(at, action=signal_here(signal.SIGTERM))))


def _finished(folder: Path) -> None:
    expect_success(ended(train("epochs", folder)))


def _table(folder: Path) -> None:
    expect_success(ended(sweeps.sweep(folder)))


def _mnist(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        write_mnist(folder, patch)


def _count_as_mnist() -> None:
    from capsule_lab.data.mnist import MNISTFiles

    MNISTFiles.checksums = {name: md5(idx(array)) for name, array in ARRAYS.items()}


def _kernels(folder: Path) -> None:
    from capsule_lab.kernels.cpu import compiler

    expect_success(ended(train("epochs", folder)))
    own = compiler.make_cache_folder()
    assert own is not None
    shutil.copytree(own, folder / "cache" / "capsule_lab" / own.name)
    shutil.rmtree(folder / "runs")


def _run(command: str, *arguments: str, prepare: Callable[[], Any] | None = None) -> Callable[[Path], Process]:
    """A command whose arguments have ``{run}`` for the run's directory and ``{folder}`` for that of the case."""

    def start(folder: Path) -> Process:
        run = next(folder.glob("runs/capsnet-*"), "")
        filled = [argument.format(run=run, folder=folder) for argument in arguments]
        return Process(forked(f"capsule_lab.{command}", *filled, prepare=prepare), folder)

    return start


def _with_kernels(folder: Path) -> Process:
    return Process(executed("capsule_lab.train", *LONGER), folder, NUMBA_CACHE_DIR=str(folder / "cache"))


def _evaluated(folder: Path) -> dict[str, Any]:
    return {file.name: json.loads(file.read_text())["test"] for file in folder.glob("runs/*/evaluations/*.json")}


def _drawn(folder: Path) -> dict[str, Any]:
    return {file.name: file.read_bytes() for file in folder.glob("runs/*/figures/*.png")}


def _reported(folder: Path) -> dict[str, Any]:
    return {file.name: file.read_text().replace(str(folder), "") for file in folder.glob("runs/reports/*.csv")}


def _trained(folder: Path) -> dict[str, Any]:
    return outcome(only_run(folder))


class Use(NamedTuple):
    """A file and what reads it.

    Attributes:
        make: writes the undamaged files into a folder.
        file: a pattern; one of those that match is damaged.
        command: that reads it.
        answer: what the command came to.
    """

    make: Callable[[Path], None]
    file: str
    command: Callable[[Path], Process]
    answer: Callable[[Path], dict[str, Any]]


_RESUMED = _run("train", *LONGER, RESUME)
_EVALUATED = _run("evaluate", "ckpt={run}", "trainer.accelerator=cpu")
_FIGURES = _run("figures", "run={run}", "held_out=50")
_REPORT = _run("report", "table={folder}/mine.yaml")
_SWEEP = _run("sweep", "table={folder}/mine.yaml", "launcher=basic")
_ON_MNIST = _run(
    *("train", *TINY_CAPSNET, *TINY_DATA, *NO_PICTURES, "data.source=real", "data.directory={folder}"),
    *("data.train_images=null", "trainer.max_epochs=2"),
    prepare=_count_as_mnist,
)
_ON_TOYNORB = _run(
    *("train", "data=smallnorb", *TINY_CNN, "data.source=standin", "data.directory={folder}", "data.batch_size=40"),
    *("trainer.accelerator=cpu", "trainer.max_epochs=1", *NO_PICTURES),
)
USES = {
    "last.ckpt, resume": Use(_interrupted, "runs/*/checkpoints/last.ckpt", _RESUMED, _trained),
    "best.ckpt, resume": Use(_interrupted, "runs/*/checkpoints/best.ckpt", _RESUMED, _trained),
    "metrics.csv, resume": Use(_interrupted, "runs/*/metrics.csv", _RESUMED, _trained),
    "config.yaml, resume": Use(_interrupted, "runs/*/config.yaml", _RESUMED, _trained),
    "record, resume": Use(_interrupted, "runs/cells/*.json", _RESUMED, _trained),
    "best.ckpt, evaluate": Use(_finished, "runs/*/checkpoints/best.ckpt", _EVALUATED, _evaluated),
    "best.ckpt, figures": Use(_finished, "runs/*/checkpoints/best.ckpt", _FIGURES, _drawn),
    "metrics.csv, figures": Use(_finished, "runs/*/metrics.csv", _FIGURES, _drawn),
    "metrics.json, resume": Use(_finished, "runs/*/metrics.json", _RESUMED, _trained),
    "metrics.json, report": Use(_table, "runs/*/metrics.json", _REPORT, _reported),
    "metrics.json, sweep": Use(_table, "runs/*/metrics.json", _SWEEP, sweeps.outcomes),
    "metrics.csv, report": Use(_table, "runs/*/metrics.csv", _REPORT, _reported),
    "evaluation, report": Use(_table, "runs/*/evaluations/*.json", _REPORT, _reported),
    "evaluation, sweep": Use(_table, "runs/*/evaluations/*.json", _SWEEP, sweeps.outcomes),
    "MNIST, train": Use(_mnist, "MNIST/raw/*", _ON_MNIST, _trained),
    "toynorb, train": Use(write_standin, "toynorb/48x48/*", _ON_TOYNORB, _trained),
    "numba cache, train": Use(_kernels, "cache/*/*/*/*.nb?", _with_kernels, _trained),
}


def cases(seed: int) -> Iterator[Case]:
    draw = random.Random(seed)
    for _ in range(20):
        for use in draw.sample([*USES], len(USES)):
            yield {"use": use, "damage": draw.choice([*DAMAGES]), "seed": draw.randrange(2**31)}


@functools.cache
def undamaged(make: Callable[[Path], Any]) -> Path:
    """The files of a use, kept to the end of the campaign."""
    with fresh_folder() as folder:
        make(folder)
        kept = TEMPORARY[0] / make.__name__
        return shutil.copytree(folder, kept)


@functools.cache
def answer(use: str) -> dict[str, Any]:
    """What the command of a use comes to with undamaged files."""
    with fresh_folder() as folder:
        _copy(USES[use], folder)
        expect_success(ended(USES[use].command(folder)))
        found = USES[use].answer(folder)
        assert found, f"{use} answers nothing"
        return found


def attempt(case: Case) -> None:
    use, draw = USES[case["use"]], random.Random(case["seed"])
    expected = answer(case["use"])
    with fresh_folder() as folder:
        _copy(use, folder)
        path = draw.choice(sorted(folder.glob(use.file)))
        before = os.stat(path)
        path.write_bytes(DAMAGES[case["damage"]](bytearray(path.read_bytes()), draw))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        result = ended(use.command(folder))
        expect_sentence(result)
        said = result.out + result.err
        named = path.name in said or str(path.parent) in said
        if result.status and not named:
            raise Fault("does not name the file", f"{path.relative_to(folder)}: {result.err}")
        if not result.status and not named:
            expect_equal(use.answer(folder), expected)


def _copy(use: Use, folder: Path) -> None:
    shutil.copytree(undamaged(use.make), folder, dirs_exist_ok=True)
    shutil.rmtree(folder / "runs" / "reports", ignore_errors=True)
