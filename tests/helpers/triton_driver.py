"""Triton without a GPU: it specialises and compiles kernels for Hopper, but runs none."""

from typing import Any

import pytest
from triton.runtime.driver import driver

from capsule_lab.kernels import gpu
from tests.helpers.hopper import HOPPER


class Driver:
    """What Triton asks a driver for in order to compile."""

    def get_current_target(self) -> Any:
        return HOPPER

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device


def use_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_active", Driver())
    forget_kernels()


def forget_kernels() -> None:
    """Empty Triton's caches in memory, but not those on disk."""
    for module in (gpu.em, gpu.em_backward, gpu.dynamic, gpu.votes, gpu.child_softmax):
        for value in vars(module).values():
            if hasattr(value, "device_caches"):
                value.device_caches.clear()
