"""Threads of the kernels, which release the GIL: as many as torch has, each for a part of the rows.

Only this file calls libgomp through ctypes. The kernels of torch run in the threads of libgomp, which wait actively for
some milliseconds before they sleep; threads of a second pool would compete with them for the cores. Read from torch
2.14, which contains libgomp in ``torch/lib`` or ``torch.libs``, and from ``libgomp/parallel.c`` of GCC
(``GOMP_parallel``, unchanged since GCC 4.9); tested by ``tests/kernels/cpu/test_threads.py``. If torch contains no
libgomp, kernels run in a ``ThreadPoolExecutor``.
"""

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

_LIBGOMP_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def parallel_for(kernel: Kernel, count: int, *, grain: int = 1, multiple: int = 1) -> None:
    """Run ``kernel(part, first, last)`` for parts of ``range(count)`` in parallel.

    Each part has at least ``grain`` entries, and all except the last end at a multiple of ``multiple``.
    """
    parts = number_of_parts(count, grain=grain)
    starts = [count * part // parts // multiple * multiple for part in range(parts)]
    ends = [*starts[1:], count]
    calls = [functools.partial(kernel, part, starts[part], ends[part]) for part in range(parts)]
    if parts == 1:
        calls[0]()
    elif libgomp() is not None:
        _run_in_libgomp(calls)
    else:
        others = [_pool(os.getpid()).submit(call) for call in calls[1:]]
        calls[0]()
        for other in others:
            other.result()


def number_of_parts(count: int, *, grain: int = 1) -> int:
    return max(1, min(torch.get_num_threads(), count // grain))


def arrays(*tensors: Tensor) -> list[Any]:
    """Return the tensors as C-contiguous arrays."""
    return [tensor.detach().contiguous().numpy() for tensor in tensors]


def flat(*tensors: Tensor) -> list[Any]:
    """Return the tensors as one-dimensional arrays."""
    return [array.reshape(-1) for array in arrays(*tensors)]


def workspace(count: int, *shape: int, like: Tensor, grain: int = 1) -> Any:
    """Return uninitialised memory for each part of ``parallel_for``, ``(part, *shape)``.

    torch aligns memory to a cache line; without this, half the loads of 64-byte vectors take twice as long.
    """
    return like.new_empty(number_of_parts(count, grain=grain), *shape).numpy()


def _run_in_libgomp(calls: Sequence[Callable[[], None]]) -> None:
    """Run the calls in a parallel region of OpenMP."""
    openmp: Any = libgomp()
    errors: list[BaseException] = []

    def body(_: int | None) -> None:
        thread, threads = openmp.omp_get_thread_num(), openmp.omp_get_num_threads()
        try:
            for part in range(thread, len(calls), threads):
                calls[part]()
        except BaseException as error:  # ctypes would print and drop it; raised below
            errors.append(error)

    openmp.GOMP_parallel(_LIBGOMP_BODY(body), None, len(calls), 0)
    if errors:
        raise errors[0]


@functools.cache
def libgomp() -> Any:
    """Return the OpenMP library of GCC that torch has loaded, or ``None``."""
    folder = Path(torch.__file__).parent
    for file in sorted([*folder.glob("lib/libgomp*"), *folder.parent.glob("torch.libs/libgomp*")]):
        try:
            library = ctypes.CDLL(str(file), mode=os.RTLD_NOLOAD)
        except OSError:  # not the loaded one
            continue
        unsigned = ctypes.c_uint
        library.GOMP_parallel.argtypes = [_LIBGOMP_BODY, ctypes.c_void_p, unsigned, unsigned]
        return library
    return None


@functools.cache
def _pool(process: int) -> ThreadPoolExecutor:  # noqa: ARG001 (a fork inherits no threads, so each process needs one)
    return ThreadPoolExecutor(thread_name_prefix="capsule_lab")
