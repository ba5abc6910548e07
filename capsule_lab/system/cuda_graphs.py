"""CUDA graphs: work on a GPU that is captured once and then replayed with one launch.

A small network launches hundreds of kernels in a step, and launching them from Python takes longer than they run. A
graph launches them together, always on the same memory, and with the shapes and the Python numbers of its capture.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from capsule_lab.errors import one_line

log = logging.getLogger(__name__)

R = TypeVar("R")
Tensors = tuple[Tensor | None, ...]

# ours: the first call compiles kernels, the second one shows that memory does not move
EAGER_CALLS = 2


def use_side_stream(device: torch.device) -> None:
    """Continue on another stream, after the work of the default one, which cannot be captured."""
    if device.type != "cuda":
        return
    _continue_on(torch.cuda.Stream(device), device)


def use_default_stream(device: torch.device) -> None:
    """Continue on the default stream, after the work of the current one."""
    if device.type != "cuda":
        return
    _continue_on(torch.cuda.default_stream(device), device)


def _continue_on(stream: torch.cuda.Stream, device: torch.device) -> None:
    stream.wait_stream(torch.cuda.current_stream(device))
    torch.cuda.set_stream(stream)


def new_pool() -> Any:
    """Return a pool of memory for graphs that are replayed in the order of their capture."""
    return torch.cuda.graph_pool_handle()


class Graph:
    """One CUDA graph.

    Args:
        pool: see ``new_pool``.
    """

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, work: Callable[[], R]) -> R:
        """Record the kernels of ``work``, which do not run; the result is in memory that every replay writes.

        Raises:
            RuntimeError: if ``work`` reads a value of the device, or allocates memory outside of the pool.
        """
        stream = torch.cuda.current_stream()
        # thread_local: threads that copy to the host, such as those of loggers, may go on
        with torch.cuda.graph(self._graph, self.pool, stream, capture_error_mode="thread_local"):
            return work()

    def replay(self) -> None:
        """Run the recorded kernels."""
        self._graph.replay()


class Replayed:
    """A function of tensors that is called normally at first and then replayed as a CUDA graph.

    It must do the same work at every call, without random numbers from a generator. The result of a replay is always
    the same object, in memory that the next call overwrites. A function that cannot be captured is called normally.

    Args:
        what: the name of the function in the log.
        function: takes and returns a tuple of tensors and ``None``, also a named tuple.
    """

    def __init__(self, what: str, function: Callable[[Any], Any]) -> None:
        self.what = what
        self.function = function
        self.calls = 0
        self.is_possible = True
        self._graph: Graph | None = None
        self._inputs: Any = None
        self._outputs: Any = None

    def __call__(self, inputs: Any) -> Any:
        if self._graph is not None and shapes_of(inputs) == self._shapes:
            copy_tensors(inputs, self._inputs)
            self._graph.replay()
            return self._outputs
        self.calls += 1
        if self._graph is None and self.is_possible and self.calls > EAGER_CALLS:
            return self._capture(inputs)
        return self.function(inputs)

    def _capture(self, inputs: Any) -> Any:
        static = copied(inputs)
        graph = Graph(new_pool())
        try:
            outputs = graph.capture(lambda: self.function(static))
        except Exception as error:  # of any kind, from the user's transform
            log.info("%s runs without CUDA graphs: %s", self.what, one_line(error)[:200])
            self.is_possible = False
            return self.function(inputs)
        self._graph = graph
        self._inputs = static
        self._outputs = outputs
        self._shapes = shapes_of(inputs)
        return self(inputs)


def shapes_of(tensors: Tensors) -> tuple[Any, ...]:
    """Return the shape and type of each tensor."""
    return tuple(None if tensor is None else (tensor.shape, tensor.dtype) for tensor in tensors)


def copied(tensors: Any) -> Any:
    """Return a tuple, or a named tuple, with copies of its tensors."""
    copies = [None if tensor is None else tensor.clone() for tensor in tensors]
    return type(tensors)(*copies) if hasattr(tensors, "_fields") else tuple(copies)


def copy_tensors(sources: Tensors, targets: Tensors) -> None:
    """Copy each tensor that is not already in the memory of its target."""
    for source, target in zip(sources, targets, strict=True):
        if source is not None and target is not None and source is not target:
            target.copy_(source)
