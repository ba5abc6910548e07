"""Compilation of the kernels of a training step side by side, before its first launch.

Triton compiles a kernel when it is launched, one after the other. ``compile_ahead`` calls the step once with every
launch replaced by a compilation in a thread, so that Triton itself decides what the kernel is compiled for. Triton
releases Python's lock in its passes, and the assembler is a process of its own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch

from capsule_lab.kernels.gpu import blocks
from capsule_lab.kernels.gpu.blocks import Launch

_LOG = logging.getLogger(__name__)


def compile_ahead(step: Callable[[], object]) -> None:
    """Call ``step`` while its kernels are compiled instead of run; the next launch waits for them.

    Nothing may depend on what ``step`` computes: the results of its kernels are 1. An error, in ``step`` or in a
    compilation, is logged at level debug; what was not compiled is compiled by its launch.
    """
    background = _Background()
    blocks.start = background.compile
    try:
        step()
    except Exception:
        # of any network, and of memory; the same error in training is the one to report
        _LOG.debug("kernels after this error are compiled when they are launched", exc_info=True)
    finally:
        background.pool.shutdown(wait=False)
        blocks.start = background.wait_and_run


class _Background:
    """Compilations in threads, as many at a time as there are processors."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="compile_kernels")
        self.compilations: dict[str, Future[Any]] = {}

    def compile(self, launch: Launch) -> None:
        for tensor in launch.out:
            if tensor is not None:
                tensor.fill_(1)
        tensors = (*launch.given, *launch.out)
        types = [None if tensor is None else tensor.dtype for tensor in tensors]
        arguments = (*types, *launch.numbers)
        key = []
        for value, parameter in zip(arguments, launch.kernel.params, strict=False):
            if not parameter.do_not_specialize:
                # Triton uses the type of a boolean
                key.append(bool if isinstance(value, bool) else value)
        name = f"{launch.kernel.__name__} {key} {launch.constants}"
        if name not in self.compilations:
            device = torch.cuda.current_device() if torch.cuda.is_available() else -1
            without_memory = launch._replace(given=(), out=())
            self.compilations[name] = self.pool.submit(_compile, device, without_memory, arguments)

    def wait_and_run(self, launch: Launch) -> None:
        wait(self.compilations.values())
        for name, compilation in self.compilations.items():
            if compilation.exception() is not None:
                _LOG.debug("the launch compiles %s", name, exc_info=compilation.exception())
        blocks.start = blocks.run
        blocks.run(launch)


def _compile(device: int, launch: Launch, arguments: tuple[Any, ...]) -> None:
    """Compile a kernel for tensors of the types in ``arguments``, aligned as torch allocates them."""
    with torch.cuda.device(device):
        # constants in their order, which is part of Triton's key
        launch.kernel.warmup(*arguments, grid=launch.grid, **launch.constants)
