"""Kernels release the GIL: as many at a time as torch has threads, each on a part of the rows."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Kernel = Callable[[int, int, int], None]


def in_parts(kernel: Kernel, count: int, *, least: int = 1, multiple: int = 1) -> None:
    """``kernel(part, first, last)`` for parts of ``range(count)`` at the same time.

    Each has at least ``least``, and all but the last end at a multiple of ``multiple``.
    """
    parts = number_of_parts(count, least=least)
    bounds = [count * part // parts // multiple * multiple for part in range(parts)] + [count]
    calls = [functools.partial(kernel, part, *bounds[part : part + 2]) for part in range(parts)]
    if parts == 1:
        calls[0]()
    elif torchs_openmp() is not None:
        _in_torchs_threads(calls)
    else:
        others = [_pool(os.getpid()).submit(call) for call in calls[1:]]
        calls[0]()
        for other in others:
            other.result()


def number_of_parts(count: int, *, least: int = 1) -> int:
    return max(1, min(torch.get_num_threads(), count // least))


def arrays(*tensors: Tensor) -> list[Any]:
    """The tensors as C-contiguous arrays."""
    return [tensor.detach().contiguous().numpy() for tensor in tensors]


def flat(*tensors: Tensor) -> list[Any]:
    """The tensors as arrays of one dimension."""
    return [array.reshape(-1) for array in arrays(*tensors)]


def workspace(count: int, *shape: int, like: Tensor, least: int = 1) -> Any:
    """Room for ``shape`` numbers for each part of ``in_parts``.

    From torch, which aligns memory to a cache line: half the loads of a vector of 64 bytes take twice as long without.
    """
    return like.new_empty(number_of_parts(count, least=least), *shape).numpy()


def _in_torchs_threads(calls: Sequence[Callable[[], None]]) -> None:
    """In the threads that torch's own kernels use.

    Those wait for work in a loop for some milliseconds before they sleep: threads of our own would share the cores
    with them, and take twice as long.
    """
    openmp: Any = torchs_openmp()
    errors: list[BaseException] = []

    def body(_: int | None) -> None:
        try:
            for part in range(openmp.omp_get_thread_num(), len(calls), openmp.omp_get_num_threads()):
                calls[part]()
        except BaseException as error:  # raised again below, in the thread that asked
            errors.append(error)

    openmp.GOMP_parallel(_BODY(body), None, len(calls), 0)
    if errors:
        raise errors[0]


_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@functools.cache
def torchs_openmp() -> Any:
    """GNU's OpenMP library as torch has loaded it, or ``None``."""
    folder = Path(torch.__file__).parent
    for found in sorted([*folder.glob("lib/libgomp*"), *folder.parent.glob("torch.libs/libgomp*")]):
        try:
            library = ctypes.CDLL(str(found), mode=os.RTLD_NOLOAD)
        except OSError:  # not the one that is in use
            continue
        library.GOMP_parallel.argtypes = [_BODY, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        return library
    return None


@functools.cache
def _pool(process: int) -> ThreadPoolExecutor:  # noqa: ARG001 (a fork inherits no threads, so each process has its own)
    return ThreadPoolExecutor(thread_name_prefix="capsule_lab")
