"""Sweeps whose processes are signalled, and commands that meet each other."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.campaign.outcomes import (
    Fault,
    NotHitError,
    ended,
    expect_equal,
    expect_nothing_left,
    expect_sentence,
    expect_success,
    outcome,
)
from tests.campaign.processes import STOPPING, Process, command_line_of, forked, status_of
from tests.campaign.small_runs import CONFIGURATIONS, RESUME, fresh_folder, reference, train
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, TINY_DATA
from tests.helpers.tables import write_table

Case = dict[str, Any]
GRACE = 10.0  # seconds: issue 15, nothing lives on
RANK_LIMIT = 120.0  # ours: seconds in which a run of two processes ends when one of them stands still
TWO_PROCESSES = ["trainer.devices=2", "trainer.strategy=ddp"]


def table(folder: Path) -> str:
    """A table of four runs of a second, and of two evaluations."""
    rows = [
        {"name": "one", "overrides": []},
        {"name": "uniform", "overrides": ["routing=uniform"]},
        {"name": "fewer", "of": "one", "evaluate": ["data.eval_images=100"]},
    ]
    base = [*TINY_CAPSNET, *TINY_DATA, "trainer.max_epochs=3", *NO_PICTURES]
    return f"table={write_table(folder, base=base, rows=rows)}"


def sweep(folder: Path) -> Process:
    return Process(forked("capsule_lab.sweep", table(folder), "launcher=gpus", "hydra.launcher.jobs=2"), folder)


def outcomes(folder: Path) -> dict[str, Any]:
    """All results of a table's runs and evaluations, by their directories."""
    found: dict[str, Any] = {}
    for directory in sorted(folder.glob("runs/capsnet-*")):
        found[directory.name] = outcome(directory)
        for file in directory.glob("evaluations/*.json"):
            found[f"{directory.name} {file.name}"] = json.loads(file.read_text())["test"]
    return found


@functools.cache
def uninterrupted() -> tuple[dict[str, Any], float]:
    """What a sweep gives if nothing happens to it, and how long it takes."""
    with fresh_folder() as folder:
        began = time.monotonic()
        expect_success(ended(sweep(folder)))
        return outcomes(folder), time.monotonic() - began


def interrupted_sweeps(seed: int) -> Iterator[Case]:
    draw = random.Random(seed)
    for _ in range(100):
        target = draw.choice(["sweep", "job", "group", "all"])
        name = draw.choice([*STOPPING, signal.SIGKILL]).name
        yield {"target": target, "signal": name, "at": draw.uniform(0, 0.9), "twice": draw.random() < 0.2}


def try_interrupted_sweep(case: Case) -> None:
    signum = signal.Signals[case["signal"]]
    with fresh_folder() as folder:
        expected, seconds = uninterrupted()
        process = sweep(folder)
        targets = _targets(process, case["target"], case["at"] * seconds)
        for pid in targets * (1 + case["twice"]):
            process.send(pid, signum)
        if case["target"] == "sweep" and signum == signal.SIGKILL:
            _nothing_alive(process)
        result = ended(process)
        _nothing_alive(process)
        if result.status != -signum:
            expect_sentence(result, 2, 128 + signum)
        expect_success(ended(sweep(folder)))
        expect_equal(outcomes(folder), expected)
        expect_nothing_left(folder)


def _targets(process: Process, target: str, seconds: float) -> list[int]:
    """The processes of a sweep that are meant, after so many seconds and as soon as there is one."""
    if process.wait(seconds) is not None:
        raise NotHitError
    while process.wait(0.01) is None:
        members = process.members()
        children = [pid for pid in members if status_of(pid)[1] == process.pid]
        jobs = [pid for pid in children if "-m capsule_lab." in command_line_of(pid)]
        group = [pid for pid in members if _group(pid) == process.pid]
        chosen = {"sweep": [process.pid], "job": jobs[:1], "group": group, "all": members}[target]
        if chosen:
            return chosen
    raise NotHitError


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _nothing_alive(process: Process) -> None:
    if left := process.remain(GRACE):
        shown = "; ".join(f"{pid} {status_of(pid)[0]} {command_line_of(pid)[:60]}" for pid in left)
        raise Fault("alive", f"{len(left)} processes after {GRACE} s: {shown}")


def ranks(seed: int) -> Iterator[Case]:
    draw = random.Random(seed)
    for _ in range(100):
        name = draw.choice([*STOPPING, signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]).name
        yield {"rank": draw.randrange(2), "signal": name, "at": draw.uniform(0, 0.9)}


def try_rank(case: Case) -> None:
    signum, overrides = signal.Signals[case["signal"]], [*TINY_DATA, *CONFIGURATIONS["epochs"], *TWO_PROCESSES]
    with fresh_folder() as folder:
        whole = reference("epochs", *TWO_PROCESSES)
        process = Process(forked("capsule_lab.train", *overrides), folder)
        if process.wait(case["at"] * whole.seconds) is not None:
            raise NotHitError
        while case["rank"] and len(process.members()) < 2 and process.wait(0.05) is None:
            pass  # the second is not there yet
        target = process.pid if case["rank"] == 0 else next(iter(set(process.members()) - {process.pid}), 0)
        if not process.send(target, signum):
            raise NotHitError
        end = time.monotonic() + RANK_LIMIT
        while (left := [pid for pid in process.members() if signum != signal.SIGSTOP or pid != target]) and (
            time.monotonic() < end
        ):
            time.sleep(0.1)
        if left:
            raise Fault("alive", f"{len(left)} processes {RANK_LIMIT} s after {signum.name} to rank {case['rank']}")
        process.send(target, signal.SIGCONT)
        result = ended(process, GRACE)
        if result.status != -signum:
            expect_sentence(result, 2, 128 + signum, most=2)
        expect_success(ended(Process(forked("capsule_lab.train", *overrides, RESUME), folder)))
        (directory,) = folder.glob("runs/capsnet-*")
        expect_equal(outcome(directory), whole.outcome)
        expect_nothing_left(folder)


def at_once(seed: int) -> Iterator[Case]:
    """The same run several times, or reports beside a sweep, or many claims of one lock."""
    draw = random.Random(seed)
    for _ in range(100):
        kind = draw.choice(["runs", "runs", "reports", "locks"])
        yield {"kind": kind, "delays": [round(draw.random(), 2) for _ in range(draw.randint(2, 5))]}


def try_at_once(case: Case) -> None:
    with fresh_folder() as folder:
        trying: dict[str, Callable[[Path, list[float]], None]] = {"runs": _runs, "reports": _reports, "locks": _locks}
        trying[case["kind"]](folder, case["delays"])


def _runs(folder: Path, delays: list[float]) -> None:
    started = []
    for delay in delays:
        started.append(train("epochs", folder))
        time.sleep(delay)
    results = [ended(process) for process in started]
    for result in results:
        expect_sentence(result)
    expect_success(min(results, key=lambda result: result.status))
    for directory in folder.glob("runs/capsnet-*"):
        expect_equal(outcome(directory), reference("epochs").outcome)
    expect_nothing_left(folder)


def _reports(folder: Path, delays: list[float]) -> None:
    process = sweep(folder)
    while process.status is None:
        expect_success(ended(Process(forked("capsule_lab.report", table(folder)), folder)))
        process.wait(delays[0])
    expect_success(ended(process))
    expect_equal(outcomes(folder), uninterrupted()[0])


def _locks(folder: Path, delays: list[float]) -> None:
    for delay in delays:
        claimers = [Process(lambda: _claim(folder, claims=1000), folder) for _ in range(4)]
        time.sleep(1 + delay)
        for claimer in claimers:
            claimer.send(claimer.pid, signal.SIGKILL)
        for result in map(ended, claimers):
            if result.status != -signal.SIGKILL:
                raise Fault("lock", result.err)
    result = ended(Process(lambda: _claim(folder, claims=1), folder), 30)
    if result.status:
        raise Fault("lock", f"cannot be had after its holders were killed: {result.err}")


def _claim(folder: Path, claims: int) -> None:
    """Hold the lock of one configuration so many times, and look at it whether held or not."""
    from capsule_lab.config.compose import compose
    from capsule_lab.errors import RunError
    from capsule_lab.runs import directories, lock

    config, holder = compose("train", [*TINY_DATA]), folder / "holder"
    fingerprint = directories.config_hash(config)
    while claims:
        lock.is_locked(fingerprint)
        lock.read_record(fingerprint)
        try:
            with lock.train_lock(config):
                other = int(holder.read_text() or 0) if holder.is_file() else 0
                assert other in (0, os.getpid()) or status_of(other)[0] in "XZ", f"{other} holds it as well"
                holder.write_text(str(os.getpid()))
                time.sleep(0.002 * random.random())
                holder.write_text("0")
                claims -= 1
        except RunError:
            pass  # another process has it
