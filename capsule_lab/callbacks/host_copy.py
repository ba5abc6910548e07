"""Numbers of the device, read without waiting for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class HostCopy:
    """A copy in the host's memory of what a tensor holds once the device has come to it.

    The copy takes its turn among the device's other work: whoever reads it only when it ``is_complete``, never waits.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._copy = tensor.to("cpu", non_blocking=tensor.is_cuda)  # from there into pinned memory
        self._event = torch.cuda.Event() if tensor.is_cuda else None
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(tensor.device))

    def is_complete(self) -> bool:
        """Whether ``tolist`` would return at once; on a CPU it always does."""
        return self._event is None or self._event.query()

    def tolist(self) -> list[float]:
        """The numbers, waiting for them if need be."""
        if self._event is not None:
            self._event.synchronize()
        numbers: list[float] = self._copy.tolist()
        return numbers


class HostCopies:
    """Copies that are read in turn."""

    def __init__(self) -> None:
        self._copies: deque[tuple[Any, HostCopy]] = deque()

    def add(self, facts: Any, tensor: Tensor) -> None:
        """Copy ``tensor``; ``facts`` are what is known of it already."""
        self._copies.append((facts, HostCopy(tensor)))

    def read(self, *, wait: bool) -> Iterator[tuple[Any, list[float]]]:
        """Facts and numbers of those that are complete, or of all of them."""
        while self._copies and (wait or self._copies[0][1].is_complete()):
            facts, copy = self._copies.popleft()
            yield facts, copy.tolist()
