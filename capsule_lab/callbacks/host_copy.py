"""Numbers of the device, read without waiting for it."""

from __future__ import annotations

import torch
from torch import Tensor


class HostCopy:
    """A copy in the host's memory of what a tensor holds once the device has come to it.

    The copy takes its turn among the device's other work: whoever reads it only when it ``is_complete``, never waits.

    Args:
        tensor: to copy.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._copy = tensor.to("cpu", non_blocking=tensor.is_cuda)  # from there into pinned memory
        self._copied: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(tensor.device))

    def is_complete(self) -> bool:
        """Whether ``tolist`` would return at once; on a CPU it always does."""
        return self._copied is None or self._copied.query()

    def tolist(self) -> list[float]:
        """The numbers, waiting for them if need be."""
        if self._copied is not None:
            self._copied.synchronize()
        numbers: list[float] = self._copy.tolist()
        return numbers
