"""Batch normalisation over all processes of a run, for Lightning."""

from __future__ import annotations

from lightning.pytorch.plugins.layer_sync import LayerSync
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from capsule_lab.routing.batch_norm import batch_norm_of_all_processes


class SynchronisedBatchNorm(LayerSync):
    """A plugin that normalises by the batches of all processes, so that training equals that of one process.

    Lightning applies it where a run has several processes. Only the class of a module changes: weights and running
    statistics keep their names, and checkpoints do not depend on the number of processes. Unlike torch's
    ``SyncBatchNorm``, it works on every device. Subclasses of torch's modules stay as they are, such as
    ``routing.batch_norm.BatchNorm``, which needs no plugin.
    """

    def apply(self, model: nn.Module) -> nn.Module:
        for module in model.modules():
            module.__class__ = _SYNCHRONISED.get(type(module), type(module))
        return model

    def revert(self, model: nn.Module) -> nn.Module:
        originals = {synchronised: original for original, synchronised in _SYNCHRONISED.items()}
        for module in model.modules():
            module.__class__ = originals.get(type(module), type(module))
        return model


class _OverProcesses(_BatchNorm):
    def forward(self, input: Tensor) -> Tensor:
        if self.training:
            return batch_norm_of_all_processes(self, input)
        return super().forward(input)


class _BatchNorm1d(_OverProcesses, nn.BatchNorm1d):
    pass


class _BatchNorm2d(_OverProcesses, nn.BatchNorm2d):
    pass


class _BatchNorm3d(_OverProcesses, nn.BatchNorm3d):
    pass


_SYNCHRONISED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: _BatchNorm1d,
    nn.BatchNorm2d: _BatchNorm2d,
    nn.BatchNorm3d: _BatchNorm3d,
}
