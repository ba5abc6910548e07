"""Build DataModule, LightningModule and Trainer from a configuration."""

from __future__ import annotations

import functools
import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from capsule_lab.config.composition import to_container
from capsule_lab.config.messages import reason_of, user_message
from capsule_lab.config.signatures import arguments_of
from capsule_lab.errors import CapsuleLabError, ConfigError, one_line
from capsule_lab.system.torch_internals import cpu_computes_bfloat16

log = logging.getLogger(__name__)


@contextmanager
def constructing(what: str) -> Iterator[None]:
    """Turn a constructor's error into a ``ConfigError`` that begins with ``what``, a part of the configuration."""
    # slow to import; --help does not need it
    from capsule_lab.lit.lightning_internals import MisconfigurationException

    try:
        yield
    except (ValueError, TypeError, ImportError, OverflowError, MisconfigurationException) as error:
        raise ConfigError(f"{what}: {reason_of(error)}") from error


def _instantiated(options: Any, **more: Any) -> Any:
    """Build an object of a configuration, or with ``_partial_`` a function that does.

    Raises:
        ConfigError: if its constructor refuses the options; an error of ours keeps its class.
    """
    try:
        return instantiate(options, _convert_="all", **more)
    except InstantiationException as error:
        cause = error.__cause__
        kind = type(cause) if isinstance(cause, CapsuleLabError) else ConfigError
        raise kind(user_message(error)) from error


def build_data(config: DictConfig) -> Any:
    """Build the DataModule of ``config.data``."""
    return _instantiated(config.data)


def build_module(config: DictConfig, spec: Any) -> Any:
    """Build the LightningModule of ``config.module`` with the network of ``config.model``.

    Image size and number of classes come from the ``DataSpec``; they are not options.
    """
    # without interpolations, which Hydra would replace in the groups they name, and these may be read-only
    network, module = (
        _instantiated(OmegaConf.to_container(part, resolve=True), _partial_=True)
        for part in (config.model, config.module)
    )
    with constructing("model"):
        facts = _accepted_arguments(config.model, num_classes=spec.num_classes)
        built_network = network(image_shape=spec.image_shape, **facts)
        # a network of a user may not call set_image_shape
        if not hasattr(built_network, "image_shape"):
            built_network.image_shape = spec.image_shape
    with constructing("module"):
        facts = {"num_classes": spec.num_classes, "labels_per_image": spec.labels_per_image}
        facts = _accepted_arguments(config.module, **facts)
        lit = module(network=built_network, **_plain_partials(module.keywords), **facts)
    with constructing("optimizer"):
        lit.build_optimizer()
    with constructing("loss"), torch.device("cpu"):
        _try_losses(lit, spec)
    return lit


def _accepted_arguments(node: DictConfig, **facts: int) -> dict[str, int]:
    """Return the ``facts`` that a network or module takes as arguments; one for image pairs takes none."""
    arguments = arguments_of(get_object(node["_target_"]))
    return {name: value for name, value in facts.items() if arguments is None or name in arguments}


def _plain_partials(arguments: Mapping[str, Any]) -> dict[str, functools.partial[Any]]:
    """Return the arguments that are partial functions, as those of Python.

    Hydra's own (since 1.3.8) check its policy of targets at every call, which takes longer than the call of a loss.
    They are checked here, where they are built.
    """
    partials = {}
    for name, value in arguments.items():
        if isinstance(value, functools.partial):
            partials[name] = functools.partial(value.func, *value.args, **value.keywords)
    return partials


def _try_losses(module: Any, spec: Any) -> None:
    """Call the losses, functions without constructors, with the first and last values of their schedules."""
    if getattr(module, "reconstruction", None) is not None:
        module.reconstruction(*[torch.zeros(1, *spec.image_shape)] * 2)
    if not hasattr(module, "loss"):
        return
    scores = torch.zeros(1, spec.num_classes)
    labels = torch.arange(spec.labels_per_image)
    if spec.labels_per_image == 0:
        labels = torch.ones_like(scores)
    if spec.labels_per_image > 1:
        labels = labels[None]
    module.loss(scores, labels)
    for step in (0, 1):
        scheduled = {}
        for name in module.scheduled_arguments:
            scheduled[name] = module.schedule[name].for_run(1, 1)(step)
        module.loss(scores, labels, **scheduled)


def build_without_weights(config: DictConfig) -> Any:
    """Run ``build_module`` on torch's meta device, which derives every size without storing or computing values."""
    spec = build_data(config).spec
    with torch.device("meta"):
        return build_module(config, spec)


def check_accelerator(trainer: DictConfig) -> None:
    """Raise a ``ConfigError`` if ``trainer.accelerator`` asks for a GPU and this machine has none."""
    from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator

    asks_for_gpu = trainer.get("accelerator") in ("gpu", "cuda")
    if asks_for_gpu and not (CUDAAccelerator.is_available() or MPSAccelerator.is_available()):
        raise ConfigError(
            f"trainer.accelerator is {trainer.accelerator}, but torch finds no GPU here; expected auto or cpu, or a "
            "torch that is built for the driver of this machine"
        )


def build_loggers(loggers: Mapping[str, DictConfig] | None, directory: Path) -> list[Any]:
    """Build the loggers of ``config.logger``, which write to the directory of a run and have its name."""
    built = []
    for options in _chosen(loggers):
        named = {}
        for key in ("name", "id"):
            if options.get(key, "") is None:
                named[key] = directory.name
        built.append(_instantiated(options, save_dir=str(directory), **named))
    return built


def build_callbacks(callbacks: Mapping[str, DictConfig] | None) -> list[Any]:
    """Build the callbacks of ``config.callbacks``."""
    return [_instantiated(options) for options in _chosen(callbacks)]


def _chosen(group: Mapping[str, DictConfig] | None) -> list[DictConfig]:
    """Return the options of the objects of a group of several, without those that are left out."""
    return [options for options in (group or {}).values() if options]


def build_trainer(
    options: DictConfig,
    directory: Path | None = None,
    *,
    callbacks: Sequence[Any] = (),
    loggers: Sequence[Any] = (),
) -> Any:
    """Build the Trainer of ``options``; what Lightning writes itself is below ``directory``."""
    # slow to import; --help does not need it
    from lightning.pytorch.callbacks import Checkpoint, ProgressBar

    from capsule_lab.lit.batch_norm import SynchronisedBatchNorm
    from capsule_lab.lit.lightning_internals import disable_signal_handlers, limit_waiting

    arguments: dict[str, Any] = {
        "default_root_dir": directory,
        "logger": [*loggers],
        "max_steps": -1,  # AbstractModule counts the steps
        "max_time": None,  # Lightning would end the run, see `time_limit`
        "precision": _precision(options),
    }
    if (options.get("max_steps") or -1) > 0:
        arguments["max_epochs"] = -1
    if "enable_progress_bar" not in options:
        has_bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
        arguments["enable_progress_bar"] = has_bar  # otherwise callbacks.progress shows it
    if not any(isinstance(callback, Checkpoint) for callback in callbacks):
        arguments["enable_checkpointing"] = False  # otherwise Lightning adds a callback
    describes_nodes = any(name in os.environ for name in _NODE_VARIABLES)
    if (options.get("num_nodes") or 1) > 1 and not describes_nodes:
        raise ConfigError(
            f"trainer.num_nodes is {options.num_nodes}, but no variable describes the nodes; start a process on "
            "each node with torchrun or srun, or set MASTER_ADDR, MASTER_PORT and NODE_RANK"
        )
    trainer = _instantiated(options, _partial_=True)
    # Lightning's works only on GPUs; ours has no effect in a single process
    arguments["sync_batchnorm"] = False
    if options.get("sync_batchnorm", True):
        arguments["plugins"] = [*(trainer.keywords.get("plugins") or []), SynchronisedBatchNorm()]
    with constructing("trainer"):
        try:
            built_trainer = trainer(callbacks=[*callbacks], **arguments)
        except RuntimeError as error:  # from Lightning, for example for unsupported SLURM variables
            raise ValueError(one_line(error)) from error
    _check_processes(built_trainer)
    disable_signal_handlers(built_trainer)
    limit_waiting(built_trainer)
    return built_trainer


def _check_processes(trainer: Any) -> None:
    """Raise a ``ConfigError`` if SLURM or torchrun has another number of processes than the run has devices.

    Lightning then starts none itself, and would train with a part of each batch, on a part of the devices.
    """
    from lightning.pytorch.plugins.environments import SLURMEnvironment, TorchElasticEnvironment

    environment = getattr(trainer.strategy, "cluster_environment", None)
    if not isinstance(environment, (SLURMEnvironment, TorchElasticEnvironment)):
        return
    per_node = trainer.num_devices
    expected = per_node * trainer.num_nodes
    if trainer.world_size == expected:
        return
    raise ConfigError(
        f"trainer.devices is {per_node} and trainer.num_nodes is {trainer.num_nodes}, but SLURM or torchrun has "
        f"{trainer.world_size} processes; expected {expected}, one for each device: start them with "
        f"srun --ntasks-per-node={per_node} or torchrun --nproc-per-node={per_node}, or unset SLURM_NTASKS, and "
        "Lightning starts those of one node"
    )


def _precision(trainer: DictConfig) -> Any:
    """Return ``trainer.precision``, or the fast precision for ``auto``; warn if the processor emulates it."""
    precision, fast = trainer.get("precision"), fast_precision(trainer.accelerator)
    if precision == "bf16-mixed" != fast:
        log.warning(
            "trainer.precision is bf16-mixed, but this processor has no bfloat16 instructions: a step takes many times "
            "as long (CapsNet: 67 s instead of 3.5 s); expected trainer.precision=auto, here %s",
            fast,
        )
    return fast if precision == "auto" else precision


def time_limit(trainer: DictConfig) -> float:
    """Return ``trainer.max_time`` in seconds, after which a run pauses; infinity if it is not set."""
    from lightning.pytorch.callbacks import Timer  # slow to import; --help does not need it

    if (duration := to_container(trainer).get("max_time")) is None:
        return math.inf
    with constructing("trainer.max_time"):
        return float(Timer(duration).time_remaining() or 0)


_NODE_VARIABLES = ("MASTER_ADDR", "SLURM_JOB_ID", "LSB_JOBID", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Variables that SLURM, torchrun and others set in each process; Lightning hangs if none is set."""


def quiet_lightning_logs() -> None:
    """Hide Lightning's info messages and harmless warnings; on later ranks, hide all info messages."""
    # slow to import; --help does not need it
    from capsule_lab.lit.lightning_internals import HARMLESS_WARNINGS

    if os.environ.get("LOCAL_RANK", "0") != "0":
        logging.getLogger().setLevel(logging.WARNING)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger(name).propagate = False  # it has its own handler
    for message in HARMLESS_WARNINGS:
        warnings.filterwarnings("ignore", message)


def fast_precision(accelerator: str) -> str:
    """Return bfloat16 for convolutions if the hardware supports it, else float32; routing is always float32."""
    if accelerator != "cpu" and torch.cuda.is_available():
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = torch.backends.mkldnn.is_available() and cpu_computes_bfloat16()
    return "bf16-mixed" if fast else "32-true"
