"""Numbers of the device, read without waiting for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class HostCopies:
    """Copies in the host's memory of what tensors hold once the device has come to them, which are read in turn.

    A copy takes its turn among the device's other work: whoever reads only those that are complete, never waits.
    """

    def __init__(self) -> None:
        self._copies: deque[tuple[Any, Tensor, torch.cuda.Event | None]] = deque()

    def add(self, facts: Any, tensor: Tensor) -> None:
        """Copy ``tensor``; ``facts`` are what is known of it already."""
        copy = tensor.to("cpu", non_blocking=tensor.is_cuda)  # from there into pinned memory
        event = torch.cuda.Event() if tensor.is_cuda else None
        if event is not None:
            event.record(torch.cuda.current_stream(tensor.device))
        self._copies.append((facts, copy, event))

    def read(self, *, wait: bool) -> Iterator[tuple[Any, list[float]]]:
        """Facts and numbers of those that are complete, or of all of them."""
        while self._copies and (wait or _is_complete(self._copies[0][2])):
            facts, copy, event = self._copies.popleft()
            if event is not None:
                event.synchronize()
            yield facts, copy.tolist()


def _is_complete(event: torch.cuda.Event | None) -> bool:
    return event is None or event.query()
