"""A stand-in for CUDA graphs without a GPU: operators are recorded, and later computed again in the same memory."""

from __future__ import annotations

import cProfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from benchmarks.traffic import tensors_in
from capsule_lab import losses, shapes
from capsule_lab.system import environment

R = TypeVar("R")

READS = (
    "_local_scalar_dense", "equal", "nonzero", "masked_select", "bincount", "_unique2", "repeat_interleave.Tensor",
)  # fmt: skip
"""Operators that wait for the device, so that they cannot be captured."""

COPIES = "lift_fresh"
"""The operator of ``torch.tensor``, which waits for a copy of numbers of Python to the device."""


UNDECLARED = ("running_mean", "running_var")
"""Arguments that operators overwrite, though their schemas do not say it."""


class Operation(NamedTuple):
    """An operator with its arguments and results, in the memory of the capture."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Tensor]


class Recorder(TorchDispatchMode):
    """Records operators below autograd, and keeps what they overwrite."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        self.own: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = str(function).removeprefix("aten.")
        has_mask = any(tensor.dtype == torch.bool for tensor in tensors_in(args))
        if name.startswith((*READS, COPIES)) or (has_mask and name.startswith("index")):
            raise RuntimeError(
                f"CUDA error: operation not permitted when stream is capturing ({function})"
            )
        kwargs = kwargs or {}
        arguments = function._schema.arguments
        named = dict(kwargs)
        for argument, value in zip(arguments, args, strict=False):
            named[argument.name] = value
        for argument in arguments:
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if is_written or argument.name in UNDECLARED:
                for tensor in tensors_in(named.get(argument.name)):
                    self._keep(tensor)
        results = function(*args, **kwargs)
        self.own |= _storages(results) - _storages(named)
        own_args, own_kwargs, own_results = tree_map_only(
            Tensor, _alias, (args, kwargs, tensors_in(results))
        )
        self.operations.append(Operation(function, own_args, own_kwargs, own_results))
        return results

    def _keep(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()._cdata
        if storage not in self.own and storage not in self.before:
            whole = tensor.detach().new_empty(0).set_(tensor.untyped_storage())
            self.before[storage] = whole, whole.clone()

    def undo(self) -> None:
        """Restore what was overwritten: capturing runs nothing."""
        for tensor, before in self.before.values():
            tensor.copy_(before)


def _storages(values: Any) -> set[int]:
    """Return the memory of the tensors in nested containers."""
    return {tensor.untyped_storage()._cdata for tensor in tensors_in(values)}


def _alias(tensor: Tensor) -> Tensor:
    return tensor.detach()  # the same memory, also if the tensor is later resized or freed


class RecordedGraph:
    """Stands in for ``cuda_graphs.Graph``.

    Attributes:
        captures, replays: their numbers, of all graphs.
        seconds: processor time of all replays, which a GPU would take instead.
        profiler: does not see replays.
    """

    captures = 0
    replays = 0
    seconds = 0.0
    profiler: cProfile.Profile | None = None

    def __init__(self, pool: Any) -> None:
        self.operations: list[Operation] = []

    def capture(self, work: Callable[[], R]) -> R:
        assert not torch.is_autocast_enabled("cpu"), (
            "the backward pass would be captured under autocast"
        )
        RecordedGraph.captures += 1
        generator = torch.random.get_rng_state()
        recorder = Recorder()
        try:
            with recorder:
                result = work()
        finally:
            with torch.no_grad():
                recorder.undo()
            torch.random.set_rng_state(generator)
        self.operations = recorder.operations
        return result

    def replay(self) -> None:
        if RecordedGraph.profiler is not None:
            RecordedGraph.profiler.disable()
        start_time = time.process_time()
        self._compute_again()
        RecordedGraph.replays += 1
        RecordedGraph.seconds += time.process_time() - start_time
        if RecordedGraph.profiler is not None:
            RecordedGraph.profiler.enable()

    @torch.no_grad()
    def _compute_again(self) -> None:
        for function, args, kwargs, results in self.operations:
            again = tensors_in(function(*args, **kwargs))
            for old, new in zip(results, again, strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@contextmanager
def recorded_graphs() -> Iterator[type[RecordedGraph]]:
    """Capture and replay on a CPU, where nothing reads values that a GPU would not show."""
    RecordedGraph.captures = RecordedGraph.replays = 0
    with (
        patch("capsule_lab.system.cuda_graphs.Graph", RecordedGraph),
        patch("capsule_lab.system.cuda_graphs.new_pool", lambda: None),
        patch.object(environment, "is_gpu", lambda _: True),
        patch.object(shapes, "is_readable", lambda _: False),
        patch.object(losses, "is_readable", lambda _: False),
    ):
        yield RecordedGraph
