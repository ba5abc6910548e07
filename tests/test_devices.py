"""At most one process has a GPU, for as long as it lives."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

import pytest
import torch

from capsule_lab import devices


@pytest.fixture(autouse=True)
def _places_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")


def _hold(told) -> None:
    told.send((devices.lease(["0", "1"]), os.environ["CUDA_VISIBLE_DEVICES"]))
    signal.pause()


def test_every_process_has_a_gpu_of_its_own_until_it_is_killed() -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = multiprocessing.Pipe()
    processes = [context.Process(target=_hold, args=(theirs,)) for _ in range(3)]
    try:
        for process in processes[:2]:
            process.start()
        held = [ours.recv(), ours.recv()]
        assert sorted(held) == [("0", "0"), ("1", "1")]
        processes[2].start()
        assert not ours.poll(1), "there is no third GPU"
        processes[0].kill()
        assert ours.recv() in held
    finally:
        for process in processes:
            process.kill()
            process.join()


@pytest.mark.parametrize(
    ("count", "environment", "names"),
    [(0, "", []), (2, "", ["0", "1"]), (2, "3, 5", ["3", "5"]), (1, "GPU-abc", ["GPU-abc"]), (0, "-1", [])],
)
def test_gpus_that_a_process_would_see(monkeypatch, count: int, environment: str, names: list[str]) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", environment)
    assert devices.visible_gpus() == names


def test_without_gpus_nothing_is_leased() -> None:
    assert devices.lease([]) is None
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
