"""The memory that training needs, estimated before it starts from a step without values."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig

from capsule_lab.system.torch_internals import run_without_values
from capsule_lab.types import DataSpec

log = logging.getLogger(__name__)

_MUCH = 1e9  # ours: bytes that are mentioned however much is free
_PER_PIXEL = 1500  # ours: numbers for each pixel of a batch; our networks store at most half as many
_MEMINFO = Path("/proc/meminfo")


class Estimate(NamedTuple):
    """Bytes that training needs, besides those of Python and its packages."""

    weights: int  # parameters and buffers
    gradients: int
    optimizer: int  # its state
    activations: int  # all other tensors that exist at the same time during a step

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {value / 1e9:.1f}" for name, value in self._asdict().items())
        return f"{sum(self) / 1e9:.1f} GB ({parts})"


def estimate(
    module: Any, image_shape: tuple[int, int, int], batch_size: int, context: AbstractContextManager[Any]
) -> Estimate:
    """Estimate the memory of the training steps of a classifier, see ``run_without_values``.

    Of a decoder, weights, gradients and the optimizer's state are included. ``module`` is on the CPU and not changed;
    ``context`` is that of the forward pass, such as the autocast of a precision. A network that cannot run without
    values raises an error of any kind.
    """
    network = module.network
    state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    weights = sum(value.nbytes for value in state.values())
    gradients = sum(value.nbytes for value in network.parameters() if value.requires_grad)
    peaks: list[int] = []

    def step(fake: Any, peak: Any) -> None:
        fakes = {name: fake(value.detach()).requires_grad_(value.requires_grad) for name, value in state.items()}
        images = torch.zeros(batch_size, *image_shape)
        with context:
            output = torch.func.functional_call(network, fakes, (images,))
        peaks.append(peak())
        output.ranking.float().sum().backward()
        peaks.append(peak() - gradients)

    was_training = network.training
    network.train()
    try:
        run_without_values(step)
    finally:
        network.train(was_training)
    defaults = module.build_optimizer().defaults
    states = 2 if "betas" in defaults else 1 if defaults.get("momentum") else 0  # per weight: Adam's kind, momentum
    return Estimate(weights, gradients, gradients * states, max(peaks))


def log_need(config: DictConfig, module: Any, spec: DataSpec, trainer: Any) -> None:
    """Log the memory that training needs if it is above 1 GB or a quarter of what is free; on Linux only.

    If it does not fit, a warning names the option that would save most with the least effect on the result.
    """
    if not _MEMINFO.is_file() or not hasattr(module, "loss"):
        return
    free = free_bytes(trainer.strategy.root_device)
    limit = min(_MUCH, free / 4)
    weights = sum(parameter.nbytes for parameter in module.network.parameters())
    pixels = config.data.batch_size * spec.image_shape[1] * spec.image_shape[2]
    if 4 * weights + 4 * _PER_PIXEL * pixels < limit:  # the estimate takes a second; 4 bytes, and Adam's two states
        return
    try:
        context = trainer.precision_plugin.forward_context()
        need = estimate(module, spec.image_shape, config.data.batch_size, context)
    except Exception:  # of any kind, from a network of the user's
        log.debug("the memory that training needs cannot be estimated", exc_info=True)
        return
    if sum(need) > limit:
        log.info("training needs about %s; %.1f GB are free", need, free / 1e9)
    if sum(need) > free:
        log.warning("this is more than is free; the cheapest change is %s", cheapest_change(config, need))


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a GPU, or of the machine for any other device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    line = next(line for line in _MEMINFO.read_text(encoding="utf-8").splitlines() if line.startswith("MemAvailable:"))
    return 1024 * int(line.split()[1])  # in kB


def cheapest_change(config: DictConfig, need: Estimate) -> str:
    """Return the option that saves memory with the least effect on the result."""
    if need.activations > sum(need) / 2 and config.data.batch_size > 1:
        return f"data.batch_size={config.data.batch_size // 2}"
    if config.model.get("transformation") == "per_pair":
        return "model.transformation=shared"
    if "size" in config.data:
        return f"data.size={config.data.size // 2}"
    return "model=em_caps, whose convolutions have strides"
