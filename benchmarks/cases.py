"""The cases to time: a kernel, a layer or a model, in one form, at one precision."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from benchmarks import options
from benchmarks.textbook_capsnet import TextbookCapsNet
from benchmarks.textbook_em_caps import TextbookEMCaps
from capsule_lab.commands import compose
from capsule_lab.config.build import build_data
from capsule_lab.config.check import check
from capsule_lab.config.folders import options_of
from capsule_lab.config.messages import user_message
from capsule_lab.errors import ConfigError
from capsule_lab.kernels.backends import fused_kernels
from capsule_lab.runs.files import writing

TEXTBOOK_NETWORKS = {
    "capsnet": TextbookCapsNet,
    "em_caps_paper": TextbookEMCaps,
    "em_caps_small": TextbookEMCaps,
}
"""The textbook form of the models that have one."""
SIZES = ("batch_size", "image_shape", "num_classes")
"""The sizes of a model."""
AXES = {
    "batch": "batch_size", "children": "child_types", "parents": "parents", "iterations": "iterations",
    "image_size": "grid",
}  # fmt: skip
"""The values of ``scaling``, and the size of the layer that each changes."""
KERNELS = {
    "fit": "em_all_parents",
    "fit_backward": "em_all_parents",
    "distances": "em_all_parents",
    "softmax_by_child": "em_all_parents",
    "softmax_by_child_backward": "em_all_parents",
    "weighted_sum": "dynamic",
    "agreement": "dynamic",
    "contraction": "dynamic",
}
"""The kernels, and the layer whose sizes each has."""
FULL = "32-true"


@dataclass(frozen=True)
class Case:
    """A kernel, a layer or a model to time.

    Attributes:
        kind: ``"kernel"``, ``"layer"`` or ``"model"``.
        name: name of the kernel, the layer or the model.
        form: ``"textbook"``, a backend of the routing, ``"compiled"``, which is ``matmul`` under ``torch.compile``, or
            ``"plain"`` for a model without routing; on a GPU also ``"graphs"``, fused steps as CUDA graphs.
        precision: as in a Trainer.
        device: ``"cpu"`` or ``"cuda"``.
        sizes: for a layer the sizes in ``conf/bench.yaml`` under its name, for a kernel those of its layer; for a model
            batch, image and classes.
        overrides: overrides of a model's training configuration.
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
        """The backend of the routing."""
        return {"compiled": "matmul", "graphs": "fused"}.get(self.form, self.form)

    @property
    def label(self) -> str:
        """Name, form and precision, for messages."""
        return f"{self.name} ({self.form}, {self.precision})"

    @property
    def sizes_text(self) -> str:
        """The sizes for a table: ``batch_size 64, image_shape 2x32x32, num_classes 5``."""
        texts = {
            name: "x".join(map(str, size)) if isinstance(size, list) else size
            for name, size in self.sizes.items()
        }
        return ", ".join(f"{name} {text}" for name, text in texts.items())

    @property
    def row(self) -> dict[str, Any]:
        """The columns of a table that describe the case."""
        kind = {
            "kind": self.kind,
            "name": self.name,
            "form": self.form,
            "precision": self.precision,
        }
        return {**kind, "device": self.device, **self.sizes}


def configuration(name: str, overrides: Sequence[str] = ()) -> DictConfig:
    """Load ``conf/<name>.yaml``, for ``"gpu"`` in addition to ``bench.yaml``, and apply overrides ``key=value``.

    Raises:
        ConfigError: if an override is malformed or its key does not exist.
    """
    if name == "host":
        return options.load(["host"], overrides, free=["networks"])
    return options.load(
        [*dict.fromkeys(("bench", name))], overrides, free=["sizes"]
    )  # sizes of any model


def check_writable(path: Path) -> None:
    """Check that ``path`` can be written later."""
    with writing(path):
        tempfile.TemporaryFile(dir=path.parent).close()


def device_named(name: str) -> torch.device:
    """Return the device ``cpu`` or ``cuda``; with ``auto`` a GPU if there is one."""
    return torch.device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")


def check_bench(config: DictConfig) -> None:
    """Check the configuration before a process starts.

    Raises:
        ConfigError: if a case cannot be timed.
    """
    choices = {
        "layers": ("dynamic", "em_all_parents", "em_window"),
        "models": options_of("model"),
        "backends": ("compiled", "fused", "matmul", "reference"),
        "precisions": (FULL, "bf16-mixed"),
    }
    for option, names in choices.items():
        value = config[option]
        if not OmegaConf.is_list(value) or not set(value) <= set(names):
            raise ConfigError(
                f"{option} is {value}; expected a list of values from {', '.join(names)}"
            )
    rules = {
        f"device is {config.device}; expected auto, cpu or cuda": config.device
        not in ("auto", "cpu", "cuda"),
        f"scaling is {config.scaling}; expected one of {', '.join(AXES)}, all, or null": (
            config.scaling not in (None, "all", *AXES)
        ),
        f"rounds is {config.rounds} and steps {config.steps}; expected 1 or more": min(
            config.rounds, config.steps
        )
        < 1,
        "backends or precisions is empty; expected one or more of each": not (
            config.backends and config.precisions
        ),
        "layers and models are both empty; expected one or more cases": not (
            config.layers or config.models
        ),
        "device is cuda, but torch finds none; expected cpu or auto": (
            config.device == "cuda" and not torch.cuda.is_available()
        ),
    }
    for message, broken in rules.items():
        if broken:
            raise ConfigError(message)
    kernels = fused_kernels(device_named(config.device).type)
    if "fused" in config.backends and isinstance(kernels, str):
        raise ConfigError(
            f"backends contains fused, which does not run here: {kernels}; expected backends=[matmul]"
        )


def layer_groups(config: DictConfig) -> list[list[Case]]:
    """Return one list per layer, its textbook form first; layers compute in float32 at every precision."""
    device = str(device_named(config.device))
    return [
        [
            Case("layer", name, form, FULL, device, sizes_of(config, name))
            for form in ["textbook", *config.backends]
        ]
        for name in config.layers
    ]


def kernel_cases(config: DictConfig) -> list[Case]:
    """Return a case of each kernel.

    Raises:
        ConfigError: if there is no such kernel.
    """
    if not set(config.kernels) <= KERNELS.keys():
        raise ConfigError(
            f"kernels is {config.kernels}; expected a list of values from {', '.join(KERNELS)}"
        )
    device = str(device_named(config.device))
    return [
        Case("kernel", name, "fused", FULL, device, sizes_of(config, KERNELS[name]))
        for name in config.kernels
    ]


def model_groups(config: DictConfig, *, textbook: bool = True) -> list[list[Case]]:
    """Return one list per model, with the textbook form first if there is one."""
    device = str(device_named(config.device))
    groups = []
    for name in config.models:
        overrides = (f"model={name}", *map(str, config.options))
        chosen = training_config(overrides)
        sizes = sizes_of(config, name, chosen)
        forms = ["plain"] if chosen.routing is None else list(config.backends)
        variants = [(form, precision) for precision in config.precisions for form in forms]
        decodes = (
            "masked_decoder" not in chosen.model or chosen.model.decoder is not None
        )  # the textbook CapsNet does
        if textbook and name in TEXTBOOK_NETWORKS and decodes:
            variants.insert(0, ("textbook", FULL))
        groups.append(
            [Case("model", name, *variant, device, sizes, overrides) for variant in variants]
        )
    return groups


def training_config(overrides: Sequence[str]) -> DictConfig:
    """Compose the configuration of ``capsule-lab train`` with these overrides."""
    try:
        config = compose("train", overrides)
        check(config)
    except (HydraException, ConfigError) as error:
        raise ConfigError(f"options: {user_message(error)}") from error
    return config


def sizes_of(config: DictConfig, name: str, chosen: DictConfig | None = None) -> dict[str, Any]:
    """Return the sizes of a layer, or of a model's training step.

    Args:
        config: keys such as ``batch_size`` take precedence over ``sizes``.
        name: name of the layer or the model.
        chosen: a model's training configuration, whose data determine the remaining sizes.
    """
    sizes: dict[str, Any] = {}
    if chosen is not None:
        spec = build_data(chosen).spec
        sizes = dict(
            zip(
                SIZES,
                (chosen.data.batch_size, list(spec.image_shape), spec.num_classes),
                strict=True,
            )
        )
    options = cast(dict[str, Any], OmegaConf.to_container(config))
    sizes |= options["sizes"].get(name, {})
    sizes |= {
        option: options[option]
        for option in SIZES
        if options[option] is not None and option in sizes
    }
    for option, value in sizes.items():
        numbers = value if isinstance(value, list) else [value]
        if not all(isinstance(number, int) and number > 0 for number in numbers):
            raise ConfigError(f"{option} of {name} is {value}; expected 1 or more")
    return sizes
