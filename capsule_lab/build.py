"""From a configuration to objects: DataModule, LightningModule and Trainer."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from capsule_lab.errors import ConfigError, one_line


@contextmanager
def constructing(what: str) -> Iterator[None]:
    """Turn what a constructor refuses into a ``ConfigError``.

    Args:
        what: the part of the configuration, with which the message begins.
    """
    from capsule_lab.lightning_internals import MisconfigurationException  # takes seconds, help needs none

    try:
        yield
    except InstantiationException:
        raise
    except (ValueError, TypeError, MisconfigurationException) as error:
        raise ConfigError(f"{what}: {one_line(error)}") from error


def build_data(config: DictConfig) -> Any:
    """The DataModule of ``config.data``."""
    return instantiate(config.data, _convert_="all")


def build_module(config: DictConfig, spec: Any) -> Any:
    """The LightningModule of ``config.module`` around the network of ``config.model``.

    Args:
        config: the whole configuration.
        spec: the ``DataSpec``: image size and classes are facts of the data, not options.

    Raises:
        ConfigError: if one of them refuses its arguments.
    """
    network = instantiate(config.model, _partial_=True, _convert_="all")
    module = instantiate(config.module, _partial_=True, _convert_="all")
    with constructing("model"):
        built = network(image_shape=spec.image_shape, num_classes=spec.num_classes)
    with constructing("module"):
        lit = module(network=built, num_classes=spec.num_classes, labels_per_image=spec.labels_per_image)
    with constructing("optimizer"):
        lit.optimizer(lit.parameters_to_train(), lr=1.0)
    with constructing("loss"), torch.device("cpu"):
        labels = torch.arange(spec.labels_per_image).reshape(1, -1)
        lit.loss(torch.zeros(1, spec.num_classes), labels if spec.labels_per_image > 1 else labels[0])
    return lit


def build_without_weights(config: DictConfig) -> Any:
    """``build_module`` on torch's meta device: every size is worked out, nothing is computed or stored."""
    spec = build_data(config).spec
    with torch.device("meta"):
        return build_module(config, spec)


def build_trainer(config: DictConfig, directory: Path | None, *extra_callbacks: Any) -> Any:
    """The Trainer with its callbacks and loggers, all writing below ``directory``.

    Raises:
        ConfigError: if Lightning refuses an argument.
    """
    loggers = []
    for logger in (config.get("logger") or {}).values():
        named = {key: directory.name for key in ("name", "id") if directory and logger.get(key, "") is None}
        loggers.append(instantiate(logger, save_dir=str(directory), _convert_="all", **named))
    callbacks = [
        instantiate(callback, _convert_="all") for callback in (config.get("callbacks") or {}).values() if callback
    ]
    arguments: dict[str, Any] = {"default_root_dir": directory, "logger": loggers}
    arguments["max_steps"] = -1  # the module counts them, see AbstractCapsuleModule
    if (config.trainer.get("max_steps") or -1) > 0:
        arguments["max_epochs"] = -1
    if "enable_progress_bar" not in config.trainer:
        arguments["enable_progress_bar"] = False  # callbacks.progress shows it
    if config.trainer.get("precision") == "auto":
        arguments["precision"] = fast_precision(config.trainer.accelerator)
    trainer = instantiate(config.trainer, _partial_=True, _convert_="all")
    from capsule_lab.lightning_internals import leave_signals_alone  # takes seconds, help needs none

    with constructing("trainer"):
        built = trainer(callbacks=[*callbacks, *extra_callbacks], **arguments)
    leave_signals_alone(built)
    return built


def be_quiet() -> None:
    """Keep Lightning to what a user can act on, and all processes but the first to their warnings."""
    from capsule_lab.lightning_internals import HARMLESS_WARNINGS  # takes seconds, help needs none

    if os.environ.get("LOCAL_RANK", "0") != "0":
        logging.getLogger().setLevel(logging.WARNING)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger(name).propagate = False  # it has a handler of its own
    for message in HARMLESS_WARNINGS:
        warnings.filterwarnings("ignore", message)


def fast_precision(accelerator: str) -> str:
    """bfloat16 for convolutions where the processor computes in it, else float32; routing is float32 anyway."""
    if accelerator != "cpu" and torch.cuda.is_available():
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = torch.backends.mkldnn.is_available() and cpu_computes_bfloat16()
    return "bf16-mixed" if fast else "32-true"


def cpu_computes_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16; private functions of torch, read from 2.15."""
    native = (getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile"))
    return any(supported() for supported in native if supported)
