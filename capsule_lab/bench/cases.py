"""What is timed: a layer or a model, in one form, at one precision."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import torch
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from capsule_lab.check import check
from capsule_lab.config import compose, conf_dir, user_message
from capsule_lab.errors import ConfigError
from capsule_lab.kernels.backends import fused_kernels

LAYERS = {"em_window": "textbook_em", "em_all_parents": "textbook_em", "dynamic": "textbook"}
"""Layers, and the file that has their textbook form."""
MODELS = {
    "capsnet": ("textbook", "TextbookCapsNet"),
    "em_caps": ("textbook_em", "TextbookEMCaps"),
    "em_caps_small": ("textbook_em", "TextbookEMCaps"),
}
"""Models that have a textbook form, and its file and class."""
AXES = ("batch", "children", "parents", "iterations", "image_size")
FULL = "32-true"


@dataclass(frozen=True)
class Case:
    """Something to time.

    Attributes:
        kind: ``"layer"`` or ``"model"``.
        name: which.
        form: ``"textbook"``, a backend of the routing, or ``"plain"`` for a model that does not route.
        precision: as of a Trainer.
        device: ``"cpu"`` or ``"cuda"``.
        sizes: of a layer: what ``conf/bench.yaml`` has under its name; of a model: batch, image and classes.
        words: what a model's training configuration has been given.
    """

    kind: str
    name: str
    form: str
    precision: str
    device: str
    sizes: Mapping[str, Any]
    words: tuple[str, ...] = ()


def device_named(name: str) -> torch.device:
    """``cpu``, ``cuda``, or with ``auto`` the faster one that is there."""
    return torch.device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")


def check_bench(config: DictConfig) -> None:
    """Everything that can be told before a process starts.

    Raises:
        ConfigError: for what cannot be timed.
    """
    if config.rounds < 1 or config.steps < 1:
        raise ConfigError(f"rounds is {config.rounds} and steps {config.steps}; expected 1 or more")
    for option, allowed in (
        ("layers", list(LAYERS)),
        ("models", [file.stem for file in (conf_dir() / "model").glob("*.yaml")]),
        ("backends", ["reference", "matmul", "fused"]),
        ("precisions", ["bf16-mixed", FULL]),
    ):
        given = config[option]
        if not OmegaConf.is_list(given) or not set(given) <= set(allowed):
            words = list(given) if OmegaConf.is_list(given) else given
            raise ConfigError(f"{option} is {words}; expected a list of some of {', '.join(sorted(allowed))}")
    if config.device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device is {config.device}; expected auto, cpu or cuda")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but torch finds none; expected cpu or auto")
    if config.scaling not in (None, "all", *AXES):
        raise ConfigError(f"scaling is {config.scaling}; expected one of {', '.join(AXES)}, all, or null")
    if config.scaling and config.profile:
        raise ConfigError(f"scaling is {config.scaling} and profile true; expected one of them")
    if not config.backends or not config.precisions:
        raise ConfigError("backends or precisions is empty; expected one or more of each")
    if config.profile and not config.models:
        raise ConfigError("profile is true, but models is empty; expected one or more")
    if not config.scaling and not config.layers and not config.models:
        raise ConfigError("layers and models are both empty; expected something to time")
    kernels = fused_kernels(device_named(config.device).type)
    if "fused" in config.backends and isinstance(kernels, str):
        raise ConfigError(f"backends has fused, which does not run here: {kernels}; expected backends=[matmul]")


def layer_groups(config: DictConfig) -> list[list[Case]]:
    """One list per layer, its textbook form first; layers compute in float32 anyway."""
    device = str(device_named(config.device))
    return [
        [Case("layer", name, form, FULL, device, sizes_of(config, name)) for form in ["textbook", *config.backends]]
        for name in config.layers
    ]


def model_groups(config: DictConfig, *, textbook: bool = True) -> list[list[Case]]:
    """One list per model, its textbook form, if it has one, first."""
    device = str(device_named(config.device))
    groups = []
    for name in config.models:
        words = (f"model={name}", *map(str, config.options))
        chosen = training_config(words)
        sizes = sizes_of(config, name)
        forms = ["plain"] if chosen.routing is None else list(config.backends)
        group = [Case("model", name, form, each, device, sizes, words) for each in config.precisions for form in forms]
        if textbook and name in MODELS and chosen.model.get("decoder", ()) is not None:  # the ports' always decodes
            group.insert(0, Case("model", name, "textbook", FULL, device, sizes, words))
        groups.append(group)
    return groups


def training_config(words: Sequence[str]) -> DictConfig:
    """The configuration that ``python -m capsule_lab.train`` would have with these words."""
    try:
        config = compose("train", words)
        check(config)
    except (HydraException, ConfigError) as error:
        raise ConfigError(f"options: {user_message(error)}") from error
    return config


def sizes_of(config: DictConfig, name: str) -> dict[str, Any]:
    """Those of ``config.sizes``, but for what the command line says of all of them."""
    if name not in config.sizes:
        raise ConfigError(
            f"sizes has no {name}; expected +sizes.{name}={{batch_size: …, image_shape: …, num_classes: …}}"
        )
    sizes = cast(dict[str, Any], OmegaConf.to_container(config.sizes[name]))
    for option in ("batch_size", "image_shape", "num_classes"):
        if config[option] is not None and option in sizes:
            sizes[option] = OmegaConf.to_container(config[option]) if option == "image_shape" else config[option]
    for option, value in sizes.items():
        numbers = value if isinstance(value, list) else [value]
        if not all(isinstance(number, int) and number > 0 for number in numbers):
            raise ConfigError(f"{option} of {name} is {value}; expected 1 or more")
    return sizes


def load_textbook(file: str) -> ModuleType:
    """The module of this package that holds a textbook form."""
    return importlib.import_module(f"capsule_lab.bench.{file}")
