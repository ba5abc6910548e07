"""Batch normalisation over the batches of all processes of a run; of capsules, also defined for a single row."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm


class BatchNorm(nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d`` of rows (Ioffe and Szegedy 2015) with statistics over all processes of a run.

    The last layer of a capsule network has only one row per image, so the statistics of a single process are noisy, and
    only those of process 0 would be saved. ``SyncBatchNorm`` of torch runs only on GPUs. A batch of one row, which has
    no variance, is normalised by the running statistics.
    """

    def forward(self, rows: Float[Tensor, "row feature"]) -> Float[Tensor, "row feature"]:
        several = (
            distributed.is_available()
            and distributed.is_initialized()
            and distributed.get_world_size() > 1
        )
        if self.training and several:
            return batch_norm_of_all_processes(self, rows)
        # routing is float32, also in a network after .bfloat16() or .half()
        inputs = rows.to(next(self.buffers()).dtype)  # that of the running mean
        if self.training and len(rows) > 1:
            normalised = super().forward(inputs)
        else:
            normalised = nn.functional.batch_norm(
                inputs,
                self.running_mean,
                self.running_var,
                self.weight,
                self.bias,
                eps=self.eps,
            )
        return normalised.to(rows.dtype)


def batch_norm_of_all_processes(
    norm: _BatchNorm, values: Float[Tensor, "batch feature *position"]
) -> Float[Tensor, "batch feature *position"]:
    """Normalise by mean and variance over the batches of all processes, and update the running statistics of ``norm``.

    The result, its gradient and the statistics are those of one process with the batches of all (Ioffe and Szegedy
    2015, algorithm 1); batches may have different sizes. All processes must call it. Statistics are computed in float32
    or better, the result has the type of ``values``, as in ``torch.nn.BatchNorm2d``.
    """
    numbers = values.to(torch.promote_types(values.dtype, torch.float32))
    others = [0, *range(2, values.ndim)]  # all dimensions except that of the features
    shape = [1, -1] + [1] * (values.ndim - 2)
    of_a_feature = numbers.numel() / numbers.shape[1]
    count, total = _sums(of_a_feature, numbers.sum(others))
    mean = total / count
    deviations = numbers - mean.view(shape)
    _, squares = _sums(of_a_feature, deviations.square().sum(others))
    if norm.running_mean is not None and norm.running_var is not None:
        with torch.no_grad():
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked += 1
            # without a momentum: the mean over all batches
            share = 1 / norm.num_batches_tracked if norm.momentum is None else norm.momentum
            variance = squares / (count - 1)
            norm.running_mean.lerp_(mean.to(norm.running_mean), share)
            norm.running_var.lerp_(variance.to(norm.running_var), share)
    scale = (squares / count + norm.eps).rsqrt()
    normalised = deviations * scale.view(shape)
    if norm.weight is not None:
        normalised = normalised * norm.weight.view(shape) + norm.bias.view(shape)
    return normalised.to(values.dtype)


def _sums(count: float, total: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums over all processes."""
    own = torch.cat([total.new_full((1,), count), total])
    everywhere = _SumOverProcesses.apply(own)
    return everywhere[0], everywhere[1:]


class _SumOverProcesses(torch.autograd.Function):
    """Like ``torch.distributed.nn.functional.all_reduce``, which is deprecated without a public replacement."""

    @staticmethod
    def forward(_: Any, values: Tensor) -> Tensor:
        total = values.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()  # each process contributes the gradient of its own loss
        distributed.all_reduce(total)
        return total
