"""One process per case, and what its failures become."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from capsule_lab.bench import interleave, workers
from capsule_lab.bench.workers import Worker
from capsule_lab.errors import ConfigError
from tests.helpers.bench import small_case


@pytest.mark.integration
def test_real_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (row,) = interleave.time_in_turn([small_case("dynamic")], rounds=2, steps=2)
    assert 0 < row["seconds_fastest"] <= row["seconds_median"] <= row["seconds_slowest"]
    assert 0 < row["forward_seconds_median"] < row["seconds_median"]
    assert 10**8 < row["peak_memory_bytes"] < 10**11
    assert row["memory_above_bytes"] < 10**8


def test_process_that_dies_is_reported() -> None:
    with (
        Worker("capsnet") as worker,
        pytest.raises(ConfigError, match=r"^capsnet could not be timed: its process died \(out of memory\? try "),
    ):
        worker.call(os._exit, 1)  # a process that imports nothing of ours


def refuse(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("9x9 is\n too small"), "capsnet: 9x9 is too small"),
        (RuntimeError("no memory"), "capsnet could not be timed: no memory (out of memory? try batch_size=32)"),
    ],
)
def test_errors_in_a_process_are_one_line(monkeypatch: pytest.MonkeyPatch, error: Any, message: str) -> None:
    monkeypatch.setattr(workers, "ProcessPoolExecutor", lambda number, **_: ThreadPoolExecutor(number))
    with Worker("capsnet") as worker, pytest.raises(ConfigError) as raised:
        worker.call(refuse, error)
    assert str(raised.value) == message


def test_gpu_is_timed_by_events_without_waiting_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, clock = [], iter(range(100))

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.milliseconds = next(clock)

        def elapsed_time(self, other: Event) -> float:
            assert waits
            return other.milliseconds - self.milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(next(clock)))
    timer = object.__new__(workers.CaseTimer)
    timer.device = torch.device("cuda")
    timer.forward, timer.backward = lambda: next(clock), lambda _: next(clock)
    assert timer.run(2) == [(0.002, 0.004), (0.002, 0.004)]
    assert len(waits) == 1
