"""Locks of GPUs: a run keeps its GPUs until its process ends."""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from capsule_lab.errors import DeviceError
from capsule_lab.launchers.gpus import gpus_of_a_run, lock_gpus, visible_gpus


@pytest.fixture(autouse=True)
def _own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))


def test_gpu_is_locked_until_its_process_is_killed() -> None:
    """Either all GPUs of a run are locked, or none."""
    gpus = ["0", "1", "2"]
    locks = lock_gpus(gpus, 2)
    assert list(locks) == ["0", "1"]
    with subprocess.Popen(["sleep", "60"], pass_fds=tuple(locks.values())) as process:
        for descriptor in locks.values():
            os.close(descriptor)
        try:
            assert lock_gpus(gpus, 2) is None
            (last,) = (lock_gpus(gpus, 1) or {}).items()
            assert last[0] == "2", "the failed request for two GPUs released it"
            os.close(last[1])
        finally:
            process.kill()
    again = lock_gpus(gpus, 3) or {}
    assert list(again) == gpus
    for descriptor in again.values():
        os.close(descriptor)


def test_number_of_gpus_follows_accelerator_and_devices() -> None:
    for accelerator, devices, gpus, count in (
        ("gpu", 2, "01", 2),
        ("cuda", "2", "01", 2),
        ("auto", "auto", "01", 2),
        ("auto", -1, "012", 3),
        ("cpu", 2, "0", 0),
        ("auto", 2, "", 0),
    ):
        assert gpus_of_a_run(accelerator, devices, list(gpus)) == count, (
            accelerator,
            devices,
            gpus,
        )
    wrong = (
        r"trainer\.devices is .*; expected the number of GPUs of the run, 1 to 2, or auto for all"
    )
    too_many = r"trainer\.devices is 3, but the sweep sees only 2 GPUs \(0, 1\); expected at most that many, or "
    refused: list[tuple[Any, str]] = [
        ("3", too_many),
        *((value, wrong) for value in ([0], "0,1", 0, True, None)),
    ]
    for devices, message in refused:
        with pytest.raises(DeviceError, match=message):
            gpus_of_a_run("auto", devices, ["0", "1"])


def test_visible_gpus_follow_cuda_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    for count, environment, names in ((2, "", ["0", "1"]), (2, "3, 5", ["3", "5"]), (0, "-1", [])):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", environment)
        assert visible_gpus() == names
