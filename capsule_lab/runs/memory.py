"""An estimate of the memory that training needs, made before it starts by a step on tensors without values."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig

from capsule_lab.config import build
from capsule_lab.errors import ConfigError, size_option
from capsule_lab.system.torch_internals import run_without_values
from capsule_lab.types import DataSpec

log = logging.getLogger(__name__)

OF_CUDA = 1e9
"""Ours: bytes of a GPU that each process needs for CUDA, its libraries and compiled kernels."""

_MUCH = 1e9  # ours: bytes that are mentioned however much is free
# ours: numbers for each pixel of a batch; our networks store at most half as many
_PER_PIXEL = 1500
_SMALLEST = 16  # ours: pixels a side; smaller pictures show little
_MEMINFO = Path("/proc/meminfo")
_STATM = Path("/proc/self/statm")


class Estimate(NamedTuple):
    """Bytes that training needs, besides those of Python and its packages."""

    weights: int  # parameters and buffers
    gradients: int
    optimizer: int  # its state
    activations: int  # all other tensors that exist at the same time during a step

    def __str__(self) -> str:
        parts = [f"{name} {value / 1e9:.1f}" for name, value in self._asdict().items() if value]
        return f"{sum(self) / 1e9:.1f} GB ({', '.join(parts)})"


def estimate(
    module: Any,
    image_shape: tuple[int, int, int],
    batch_size: int,
    context: AbstractContextManager[Any],
) -> Estimate:
    """Estimate the memory of the training steps of a classifier, see ``run_without_values``.

    Of a decoder, weights, gradients and the optimizer's state are included. ``module`` is on the CPU and not changed;
    ``context`` is that of the forward pass, such as the autocast of a precision. A network that cannot run without
    values raises an error of any kind.
    """
    network = module.network
    state = dict(network.named_parameters()) | dict(network.named_buffers())
    need = _need_without_activations(module)
    peaks: list[int] = []

    def step(fake: Any, peak: Any) -> None:
        fakes = {}
        for name, value in state.items():
            fakes[name] = fake(value.detach()).requires_grad_(value.requires_grad)
        images = torch.zeros(batch_size, *image_shape)
        with context:
            output = torch.func.functional_call(network, fakes, (images,))
        peaks.append(peak())
        output.ranking.float().sum().backward()
        peaks.append(peak() - need.gradients)

    was_training = network.training
    network.train()
    try:
        run_without_values(step)
    finally:
        network.train(was_training)
    return need._replace(activations=max(peaks))


def log_need(config: DictConfig, module: Any, spec: DataSpec, trainer: Any) -> None:
    """Log the memory that training needs if it is above 1 GB or a quarter of what is free; on Linux only.

    If it does not fit, a warning names the option that would save most with the least effect on the result.
    """
    if not _MEMINFO.is_file() or not hasattr(module, "loss"):
        return
    free = free_bytes(trainer.strategy.root_device)
    limit = min(_MUCH, free / 4)
    weights = sum(parameter.nbytes for parameter in module.network.parameters())
    with_training = 4 * weights  # with their gradients, and Adam's two states
    if with_training + _most_activations(config, spec) < limit:  # the estimate takes a second
        return
    try:
        context = trainer.precision_plugin.forward_context()
        need = estimate(module, spec.image_shape, config.data.batch_size, context)
    except Exception:  # of any kind, from the user's network
        log.debug("the memory that training needs cannot be estimated", exc_info=True)
        return
    if sum(need) > limit:
        log.info("training needs about %s; %.1f GB are free", need, free / 1e9)
    if sum(need) > free:
        log.warning(
            "this is more than is free; the cheapest change is %s",
            cheapest_change(config, spec, need, free),
        )


def need_of(config: DictConfig, enough: float) -> Estimate | None:
    """Estimate the memory of a run that has not started; ``None`` if its network cannot run without values.

    It is that of float32. An upper bound is returned instead if it is at most ``enough`` bytes: the estimate takes a
    second. Random numbers and the log are not affected.
    """
    try:
        with _silently(), torch.random.fork_rng([]):
            spec = build.build_data(config).spec
            weights = _need_of_weights(config, spec)
            if weights is not None:
                bound = weights._replace(activations=_most_activations(config, spec))
                if sum(bound) <= enough:
                    return bound
            module = build.build_module(config, spec)
            return estimate(module, spec.image_shape, config.data.batch_size, nullcontext())
    except Exception:  # of any kind, from the user's network or data; the run raises it again
        log.debug("the memory of a run cannot be estimated", exc_info=True)
        return None


def check_weights(config: DictConfig, spec: DataSpec) -> None:
    """Check that the weights fit into memory with their gradients and the optimizer's state, before they take it.

    The network is built on torch's meta device, which stores no values. On Linux only, where the kernel may end a
    process that uses more memory than there is.

    Raises:
        ConfigError: if they do not fit; the message names the option that changes the result least.
    """
    if not _MEMINFO.is_file():
        return
    need = _need_of_weights(config, spec)
    on_gpu = config.trainer.accelerator != "cpu" and torch.cuda.is_available()
    free = free_bytes(torch.device("cuda" if on_gpu else "cpu"))
    if need is None or sum(need) <= free:
        return
    change = cheapest_change(config, spec, need, free)
    raise ConfigError(
        f"training needs {need} and activations, but {free / 1e9:.1f} GB are free; the cheapest change is {change}"
    )


def _need_of_weights(config: DictConfig, spec: DataSpec) -> Estimate | None:
    """Estimate the memory of a module without its activations; ``None`` if it cannot be built without values."""
    try:
        with _silently(), torch.random.fork_rng([]), torch.device("meta"):
            return _need_without_activations(build.build_module(config, spec))
    except Exception:  # of any kind, from the user's network; the real one raises it again
        return None


def _need_without_activations(module: Any) -> Estimate:
    parameters = [*module.network.parameters()]
    weights = sum(value.nbytes for value in [*parameters, *module.network.buffers()])
    gradients = sum(value.nbytes for value in parameters if value.requires_grad)
    return Estimate(weights, gradients, gradients * _states(module), 0)


def _most_activations(config: DictConfig, spec: DataSpec) -> int:
    """Return an upper bound in bytes."""
    _, height, width = spec.image_shape
    return int(4 * _PER_PIXEL * config.data.batch_size * height * width)


@contextmanager
def _silently() -> Iterator[None]:
    """Log nothing in this block: a module logs again when it is built for training."""
    disabled = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(disabled)


def _states(module: Any) -> int:
    """Return how many numbers the optimizer stores for each weight: two for Adam and its variants, one for momentum."""
    defaults = module.build_optimizer().defaults
    if "betas" in defaults:
        return 2
    return 1 if defaults.get("momentum") else 0


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a GPU; for any other device that of the machine, within the limit of the process."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import resource  # Unix only

    facts = _MEMINFO.read_text(encoding="utf-8").splitlines()
    (line,) = [fact for fact in facts if fact.startswith("MemAvailable:")]
    available = 1024 * int(line.split()[1])  # in kB
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)  # ulimit -v
    if limit == resource.RLIM_INFINITY:
        return available
    pages, *_ = _STATM.read_text(encoding="utf-8").split()
    used = resource.getpagesize() * int(pages)
    return max(0, min(available, limit - used))


def cheapest_change(config: DictConfig, spec: DataSpec, need: Estimate, free: int) -> str:
    """Return the option that changes the result least, among those that reduce ``need`` to ``free`` bytes."""
    if need.activations > sum(need) / 2 and config.data.batch_size > 1:
        return f"data.batch_size={config.data.batch_size // 2}"
    for option, changed, other in _smaller(config, spec):
        smaller = _need_of_weights(changed, other)
        if smaller is not None and sum(smaller) + need.activations <= free:
            return option
    return "model=em_caps, whose convolutions have strides"


def _smaller(config: DictConfig, spec: DataSpec) -> Iterator[tuple[str, DictConfig, DataSpec]]:
    """Yield options that reduce the number of weights, each with its configuration and specification."""
    if config.model.get("transformation") == "per_pair":
        changed = config.copy()
        changed.model.transformation = "shared"
        yield "model.transformation=shared", changed, spec
    channels, height, width = spec.image_shape
    while config.data.get("size") and min(height, width) > _SMALLEST:
        height //= 2
        width //= 2
        smaller = replace(spec, image_shape=(channels, height, width))
        yield size_option(height, width), config, smaller
