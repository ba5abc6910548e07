"""Batch normalisation of capsules over the batches of all processes; also defined for a single row."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, distributed, nn


class BatchNorm(nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d`` of rows (Ioffe and Szegedy 2015) with statistics over all processes of a run.

    The last layer of a capsule network has only one row per image, so the statistics of a single process are noisy, and
    only those of process 0 would be saved. ``SyncBatchNorm`` of torch runs only on GPUs. A batch of one row, which has
    no variance, is normalised by the running statistics.
    """

    def forward(self, rows: Float[Tensor, "row feature"]) -> Float[Tensor, "row feature"]:
        processes = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
        assert self.running_mean is not None
        assert self.running_var is not None
        if not self.training or len(rows) * processes == 1:
            return nn.functional.batch_norm(
                rows, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        if processes == 1:
            return super().forward(rows)  # momentum None, set by torch.optim.swa_utils.update_bn, is a plain mean
        assert self.momentum is not None
        count, total = _sums(rows)
        mean = total / count
        _, squares = _sums((rows - mean).square())
        with torch.no_grad():
            assert self.num_batches_tracked is not None
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(squares / (count - 1), self.momentum)
        scale = (squares / count + self.eps).rsqrt()
        normalised = (rows - mean) * scale
        return normalised if self.weight is None else normalised * self.weight + self.bias


def _sums(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of rows of all processes and the sum of these rows."""
    from torch.distributed.nn.functional import all_reduce  # takes 0.5 s; needed only by several processes

    everywhere = all_reduce(torch.cat([rows.new_full((1,), len(rows)), rows.sum(0)]))
    return everywhere[0], everywhere[1:]
