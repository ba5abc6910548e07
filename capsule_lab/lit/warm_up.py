"""Compilation of the first training step's kernels while Lightning prepares the loop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from capsule_lab.kernels.backends import fused_kernels


def compile_kernels(module: Any) -> None:
    """Compile the kernels that the first training step launches in the background, on a GPU with fused kernels.

    ``module`` is a LightningModule with a ``network`` on its device, in a fit with a DataModule. A copy of the network
    computes one step on zeros; weights, statistics and the state of the random numbers do not change.
    """
    batch_size = getattr(module.trainer.datamodule, "batch_size", None)
    if module.device.type != "cuda" or batch_size is None:
        return
    if isinstance(fused_kernels("cuda"), str):  # the reason why there are none
        return
    # imports Triton, which only a GPU needs
    from capsule_lab.kernels.gpu.warm_up import compile_ahead

    images = torch.zeros(batch_size, *module.network.image_shape, device=module.device)
    autocast = module.trainer.precision_plugin.forward_context
    compile_ahead(partial(first_step, module.network, images, autocast))


def first_step(
    network: nn.Module,
    images: Tensor,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> None:
    """Compute the forward pass of a copy of ``network`` in ``autocast``, and the backward pass outside of it."""
    devices = [images.device] if images.is_cuda else []
    with torch.random.fork_rng(devices), torch.enable_grad():
        with autocast():
            scores = copy.deepcopy(network).train()(images).scores
        scores.sum().backward()
