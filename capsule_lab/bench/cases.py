"""What is timed: a layer or a model, in one form, at one precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from capsule_lab.bench.textbook_capsnet import TextbookCapsNet
from capsule_lab.bench.textbook_em_caps import TextbookEMCaps
from capsule_lab.config.build import build_data
from capsule_lab.config.check import check
from capsule_lab.config.compose import compose, options_of, user_message
from capsule_lab.errors import ConfigError
from capsule_lab.kernels.backends import fused_kernels

LAYERS = ("em_window", "em_all_parents", "dynamic")
TEXTBOOK_NETWORKS = {"capsnet": TextbookCapsNet, "em_caps_paper": TextbookEMCaps, "em_caps_small": TextbookEMCaps}
"""The textbook form of the models that have one."""
SIZES = ("batch_size", "image_shape", "num_classes")
"""Of a model."""
AXES = ("batch", "children", "parents", "iterations", "image_size")
FULL = "32-true"


@dataclass(frozen=True)
class Case:
    """Something to time.

    Attributes:
        kind: ``"layer"`` or ``"model"``.
        name: which.
        form: ``"textbook"``, a backend of the routing, ``"compiled"``, which is ``matmul`` under ``torch.compile``, or
            ``"plain"`` for a model that does not route.
        precision: as of a Trainer.
        device: ``"cpu"`` or ``"cuda"``.
        sizes: of a layer: what ``conf/bench.yaml`` has under its name; of a model: batch, image and classes.
        overrides: of a model's training configuration.
    """

    kind: str
    name: str
    form: str
    precision: str
    device: str
    sizes: Mapping[str, Any]
    overrides: tuple[str, ...] = ()

    @property
    def backend(self) -> str:
        """Of the routing."""
        return "matmul" if self.form == "compiled" else self.form

    @property
    def label(self) -> str:
        """Name, form and precision, for messages."""
        return f"{self.name} ({self.form}, {self.precision})"


def device_named(name: str) -> torch.device:
    """``cpu``, ``cuda``, or with ``auto`` a GPU if there is one."""
    return torch.device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")


def check_bench(config: DictConfig) -> None:
    """Everything that can be checked before a process starts.

    Raises:
        ConfigError: for what cannot be timed.
    """
    _check_list("layers", config.layers, LAYERS)
    _check_list("models", config.models, options_of("model"))
    _check_list("backends", config.backends, ("reference", "matmul", "compiled", "fused"))
    _check_list("precisions", config.precisions, ("bf16-mixed", FULL))
    nothing_to_time = not (config.scaling or config.layers or config.models)
    rules = {
        f"device is {config.device}; expected auto, cpu or cuda": config.device not in ("auto", "cpu", "cuda"),
        f"scaling is {config.scaling}; expected one of {', '.join(AXES)}, all, or null": (
            config.scaling not in (None, "all", *AXES)
        ),
        f"scaling is {config.scaling} and profile true; expected one of them": config.scaling and config.profile,
        "backends or precisions is empty; expected one or more of each": not (config.backends and config.precisions),
        "profile is true, but models is empty; expected one or more": config.profile and not config.models,
        "layers and models are both empty; expected something to time": nothing_to_time,
        "device is cuda, but torch finds none; expected cpu or auto": (
            config.device == "cuda" and not torch.cuda.is_available()
        ),
    }
    for message, broken in rules.items():
        if broken:
            raise ConfigError(message)
    kernels = fused_kernels(device_named(config.device).type)
    if "fused" in config.backends and isinstance(kernels, str):
        raise ConfigError(f"backends has fused, which does not run here: {kernels}; expected backends=[matmul]")


def _check_list(option: str, given: Any, choices: Sequence[str]) -> None:
    if OmegaConf.is_list(given):
        given = list(given)
    if not isinstance(given, list) or not set(given) <= set(choices):
        raise ConfigError(f"{option} is {given}; expected a list of some of {', '.join(sorted(choices))}")


def layer_groups(config: DictConfig) -> list[list[Case]]:
    """One list per layer, its textbook form first; layers compute in float32 at every precision."""
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
        overrides = (f"model={name}", *map(str, config.options))
        chosen = training_config(overrides)
        sizes = sizes_of(config, name, chosen)
        forms = ["plain"] if chosen.routing is None else list(config.backends)
        variants = [(form, precision) for precision in config.precisions for form in forms]
        decodes = chosen.model.get("decoder", ()) is not None  # the textbook's always does
        if textbook and name in TEXTBOOK_NETWORKS and decodes:
            variants.insert(0, ("textbook", FULL))
        groups.append([Case("model", name, *variant, device, sizes, overrides) for variant in variants])
    return groups


def training_config(overrides: Sequence[str]) -> DictConfig:
    """The configuration that ``python -m capsule_lab.train`` would have with these overrides."""
    try:
        config = compose("train", overrides)
        check(config)
    except (HydraException, ConfigError) as error:
        raise ConfigError(f"options: {user_message(error)}") from error
    return config


def sizes_of(config: DictConfig, name: str, chosen: DictConfig | None = None) -> dict[str, Any]:
    """Sizes of a layer, or of a model's training step.

    Args:
        config: the first that has a size gives it: ``batch_size`` and the like, then ``sizes``.
        name: which.
        chosen: of a model, its training configuration, whose data have the remaining sizes.
    """
    sizes: dict[str, Any] = {}
    if chosen is not None:
        spec = build_data(chosen).spec
        sizes = dict(zip(SIZES, (chosen.data.batch_size, list(spec.image_shape), spec.num_classes), strict=True))
    if name in config.sizes:
        sizes |= cast(dict[str, Any], OmegaConf.to_container(config.sizes[name]))
    given = cast(dict[str, Any], OmegaConf.to_container(config))
    sizes |= {option: given[option] for option in SIZES if given[option] is not None and option in sizes}
    for option, value in sizes.items():
        numbers = value if isinstance(value, list) else [value]
        if not all(isinstance(number, int) and number > 0 for number in numbers):
            raise ConfigError(f"{option} of {name} is {value}; expected 1 or more")
    return sizes
