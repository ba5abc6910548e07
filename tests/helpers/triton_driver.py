"""Triton without a GPU: it specialises and compiles kernels for Hopper, but runs none."""

import pytest
from triton.runtime.driver import driver

from benchmarks.compile import Driver
from capsule_lab.kernels import gpu


def use_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_active", Driver())
    forget_kernels()


def forget_kernels() -> None:
    """Empty Triton's caches in memory, but not those on disk."""
    for module in (gpu.em, gpu.em_backward, gpu.dynamic, gpu.votes, gpu.child_softmax):
        for value in vars(module).values():
            if hasattr(value, "device_caches"):
                value.device_caches.clear()
