"""Runs that are killed or signalled: before every change of a file, in every hook, again and again, while importing."""

from __future__ import annotations

import functools
import random
import signal
import time
from collections.abc import Callable, Iterator
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
    stopped_by,
)
from tests.campaign.processes import STOPPING, Process, executed
from tests.campaign.small_runs import (
    CONFIGURATIONS,
    RESUME,
    SAVES_OFTEN,
    at_file_change,
    at_hook,
    fresh_folder,
    reference,
    signal_here,
    train,
)
from tests.helpers.commands import TINY_DATA

Case = dict[str, Any]
ANY_SIGNAL = (*STOPPING, signal.SIGKILL)


def crash_points(seed: int) -> Iterator[Case]:
    """Before every change of a file, in an order of its own."""
    yield from _points(random.Random(seed), "changes", [SAVES_OFTEN])


def try_crash_point(case: Case) -> None:
    with fresh_folder() as folder:
        action = at_file_change(case["at"], folder)
        killed = ended(train(case["configuration"], folder, *case["more"], prepare=action))
        if killed.status != -signal.SIGKILL:
            raise NotHitError
        _finish(case, folder)


def hooks(seed: int) -> Iterator[Case]:
    """A signal in every hook of callbacks; every other run saves after each step."""
    draw = random.Random(seed)
    for case in _points(draw, "hooks", draw.choice([[], [SAVES_OFTEN]])):
        yield {**case, "signal": draw.choice(ANY_SIGNAL).name}


def try_hook(case: Case) -> None:
    signum = signal.Signals[case["signal"]]
    with fresh_folder() as folder:
        action = at_hook(case["at"], action=signal_here(signum))
        stopped_by(ended(train(case["configuration"], folder, *case["more"], prepare=action)), signum)
        _finish(case, folder)


def chains(seed: int) -> Iterator[Case]:
    """Random signals at random times, again and again."""
    draw = random.Random(seed)
    for _ in range(100):
        signals = [(draw.choice(ANY_SIGNAL).name, round(draw.random(), 3)) for _ in range(draw.randint(1, 6))]
        yield {"configuration": draw.choice([*CONFIGURATIONS]), "more": [SAVES_OFTEN], "signals": signals}


def try_chain(case: Case) -> None:
    hit, seconds = 0, reference(case["configuration"]).seconds
    with fresh_folder() as folder:
        for name, moment in case["signals"]:
            process = train(case["configuration"], folder, *case["more"], RESUME)
            hit += _signal_at(process, moment * seconds, name)
            stopped_by(ended(process), signal.Signals[name])
        if not hit:
            raise NotHitError
        _finish(case, folder)


def real_commands(seed: int) -> Iterator[Case]:
    """The command as the shell starts it: signals also hit its imports and its end."""
    draw = random.Random(seed)
    for _ in range(100):
        name = draw.choice(STOPPING).name
        yield {
            "configuration": "epochs",
            "more": [],
            "signal": name,
            "at": draw.random(),
            "twice": draw.random() < 0.25,
        }


def try_real_command(case: Case) -> None:
    with fresh_folder() as folder:
        seconds = case["at"] * _real_seconds(case["configuration"])
        process = Process(_real_command(case["configuration"]), folder)
        hit = _signal_at(process, seconds, case["signal"])
        if case["twice"]:
            _signal_at(process, 0.05, case["signal"])
        if not hit:
            raise NotHitError
        expect_sentence(ended(process), 128 + signal.Signals[case["signal"]])
        _finish(case, folder)


def _real_command(configuration: str) -> Callable[[], Any]:
    return executed("capsule_lab.train", *TINY_DATA, *CONFIGURATIONS[configuration])


@functools.cache
def _real_seconds(configuration: str) -> float:
    with fresh_folder() as folder:
        began = time.monotonic()
        expect_success(ended(Process(_real_command(configuration), folder)))
        return time.monotonic() - began


def _points(draw: random.Random, kind: str, more: list[str]) -> Iterator[Case]:
    """Every point of every configuration; the configurations take turns."""
    names = draw.sample([*CONFIGURATIONS], len(CONFIGURATIONS))
    left: dict[str, list[int]] = {}
    while names:
        for name in [*names]:
            if name not in left:
                labels = getattr(reference(name, *more), kind)
                left[name] = draw.sample(range(1, len(labels) + 1), len(labels))
            if not left[name]:
                names.remove(name)
                continue
            at = left[name].pop()
            label = getattr(reference(name, *more), kind)[at - 1]
            yield {"configuration": name, "more": more, "at": at, "what": label}


def _signal_at(process: Process, seconds: float, name: str) -> bool:
    """Send a signal after so many seconds; ``False`` if the process ends before."""
    return process.wait(seconds) is None and process.send(process.pid, signal.Signals[name])


def _finish(case: Case, folder: Any) -> None:
    """The same command resumes to the same results, and leaves nothing else behind."""
    expect_success(ended(train(case["configuration"], folder, *case["more"], RESUME)))
    expect_equal(outcome(only_run(folder)), reference(case["configuration"]).outcome)
    expect_nothing_left(folder)
