"""Asynchronous copies of numbers from the device to the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class _Copy(NamedTuple):
    facts: Any
    values: Tensor
    event: torch.cuda.Event | None  # None on a CPU, where the copy is complete at once


class HostCopies:
    """A queue of asynchronous copies of tensors in host memory, read in the order in which they were added.

    The device makes each copy in order with its other work; reading only complete copies never waits for the device.
    """

    def __init__(self) -> None:
        self._copies: deque[_Copy] = deque()

    def add(self, facts: Any, tensor: Tensor) -> None:
        """Start a copy of ``tensor``; ``read`` returns ``facts`` with it."""
        copy = tensor.to("cpu", non_blocking=tensor.is_cuda)  # from a GPU into pinned memory
        event = None
        if tensor.is_cuda:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(tensor.device))
        self._copies.append(_Copy(facts, copy, event))

    def read(self, *, wait: bool) -> Iterator[tuple[Any, list[float]]]:
        """Yield the facts and numbers of the complete copies, or of all if ``wait``."""
        while self._copies and (wait or _is_complete(self._copies[0].event)):
            copy = self._copies.popleft()
            if copy.event is not None:
                copy.event.synchronize()
            yield copy.facts, copy.values.tolist()


def _is_complete(event: torch.cuda.Event | None) -> bool:
    return event is None or event.query()
