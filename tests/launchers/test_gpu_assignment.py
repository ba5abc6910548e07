"""At most one process has a GPU, for as long as it lives."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from capsule_lab.errors import DeviceError
from capsule_lab.launchers import gpu_assignment


@pytest.fixture(autouse=True)
def _own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")


def _hold(connection, count: int) -> None:
    connection.send((gpu_assignment.assign_gpus(["0", "1", "2"], count), os.environ["CUDA_VISIBLE_DEVICES"]))
    signal.pause()


def received(connection: Any) -> Any:
    assert connection.poll(20), "it took too long"
    return connection.recv()


@pytest.mark.parametrize(
    ("counts", "first", "after"),
    [
        ([1, 1, 1, 1], [("0",), ("1",), ("2",)], {("0",)}),
        ([2, 2], [("0", "1")], {("0", "1")}),
        ([1, 3], [("0",)], {("0", "1", "2")}),
    ],
    ids=str,
)
def test_every_process_has_gpus_of_its_own_until_it_is_killed(counts: list[int], first: list, after: set) -> None:
    """All of those that it asks for, or none."""
    context = multiprocessing.get_context("fork")
    ours, theirs = multiprocessing.Pipe()
    processes = [context.Process(target=_hold, args=(theirs, count)) for count in counts]
    try:
        for process, expected in zip(processes, [*first, None], strict=True):
            process.start()
            if expected:
                assert received(ours) == (expected, ",".join(expected))
        assert not ours.poll(0.7), "there are no more GPUs"
        processes[0].kill()
        assert received(ours)[0] in after
    finally:
        for process in processes:
            process.kill()
            process.join()


def test_gpus_that_are_left_are_not_kept_while_others_are_waited_for() -> None:
    context = multiprocessing.get_context("fork")
    pipes = [multiprocessing.Pipe() for _ in range(3)]
    processes = [
        context.Process(target=_hold, args=(theirs, count)) for (_, theirs), count in zip(pipes, [2, 2, 1], strict=True)
    ]
    try:
        for process in processes[:2]:
            process.start()
            time.sleep(0.2)
        processes[2].start()
        assert [received(ours)[0] for ours, _ in (pipes[0], pipes[2])] == [("0", "1"), ("2",)]
        assert not pipes[1][0].poll(0)
    finally:
        for process in processes:
            process.kill()
            process.join()


@pytest.mark.parametrize(
    ("accelerator", "asked", "gpus", "count"),
    [
        ("auto", 1, "01", 1),
        ("gpu", 2, "01", 2),
        ("cuda", "2", "01", 2),
        ("auto", "auto", "01", 2),
        ("auto", -1, "012", 3),
        ("auto", "-1", "0", 1),
        ("cpu", 2, "0", 0),
        ("auto", 2, "", 0),
        ("cpu", "auto", "01", 0),
    ],
    ids=str,
)
def test_gpus_that_a_run_asks_for(accelerator: str, asked: Any, gpus: str, count: int) -> None:
    assert gpu_assignment.gpus_of_a_run(accelerator, asked, list(gpus)) == count


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (3, r"trainer\.devices is 3, and the sweep sees 2 GPUs \(0, 1\); expected as many or fewer, or launcher=slurm"),
        ("3", "trainer.devices is 3, and the sweep sees 2 GPUs"),
        ([0], r"trainer\.devices is \[0\]; expected how many GPUs the run takes, 1 to 2, or auto for all"),
        ("0,1", "trainer.devices is 0,1; expected how many"),
        (0, "trainer.devices is 0; expected how many"),
        (True, "trainer.devices is True; expected how many"),
        (None, "trainer.devices is None; expected how many"),
    ],
    ids=str,
)
def test_gpus_that_there_are_not_are_refused(asked: Any, sentence: str) -> None:
    with pytest.raises(gpu_assignment.DeviceError, match=sentence):
        gpu_assignment.gpus_of_a_run("auto", asked, ["0", "1"])


@pytest.mark.parametrize(
    ("count", "environment", "names"),
    [(0, "", []), (2, "", ["0", "1"]), (2, "3, 5", ["3", "5"]), (1, "GPU-abc", ["GPU-abc"]), (0, "-1", [])],
)
def test_gpus_that_a_process_would_see(monkeypatch, count: int, environment: str, names: list[str]) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", environment)
    assert gpu_assignment.visible_gpus() == names


def test_without_gpus_nothing_is_assigned() -> None:
    assert gpu_assignment.assign_gpus([], 0) == ()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_more_gpus_than_there_are_are_not_waited_for() -> None:
    with pytest.raises(gpu_assignment.DeviceError, match=r"3 GPUs are wanted of 2 \(0, 1\)"):
        gpu_assignment.assign_gpus(["0", "1"], 3)


def test_file_in_the_place_of_the_folder_of_locks(tmp_path: Path) -> None:
    folder = tmp_path / f"capsule_lab-{os.getuid()}"
    folder.touch()
    assert gpu_assignment.assign_gpus([], 0) == (), "without GPUs there is nothing to lock"
    with pytest.raises(DeviceError, match=rf"cannot be kept in {folder} \(File exists\); remove .*TMPDIR=…"):
        gpu_assignment.assign_gpus(["0"], 1)
