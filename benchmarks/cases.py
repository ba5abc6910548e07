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
        texts = []
        for name, size in self.sizes.items():
            text = "x".join(map(str, size)) if isinstance(size, list) else size
            texts.append(f"{name} {text}")
        return ", ".join(texts)

    @property
    def row(self) -> dict[str, Any]:
        """The columns of a table that describe the case."""
        return {
            "kind": self.kind,
            "name": self.name,
            "form": self.form,
            "precision": self.precision,
            "device": self.device,
            **self.sizes,
        }


def configuration(name: str, overrides: Sequence[str] = ()) -> DictConfig:
    """Load ``conf/<name>.yaml``, for ``"gpu"`` in addition to ``bench.yaml``, and apply overrides ``key=value``.

    Raises:
        ConfigError: if an override is malformed or its key does not exist.
    """
    if name == "host":
        return options.load(["host"], overrides, free=["networks"])
    files = ["bench"] if name == "bench" else ["bench", name]
    # sizes of any model
    return options.load(files, overrides, free=["sizes"])


def check_writable(path: Path) -> None:
    """Check that ``path`` can be written later."""
    with writing(path):
        tempfile.TemporaryFile(dir=path.parent).close()


def device_named(name: str) -> torch.device:
    """Return the device ``cpu`` or ``cuda``; with ``auto`` a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


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
    if config.device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device is {config.device}; expected auto, cpu or cuda")
    if config.scaling not in (None, "all", *AXES):
        axes = ", ".join(AXES)
        raise ConfigError(f"scaling is {config.scaling}; expected one of {axes}, all, or null")
    if config.rounds < 1 or config.steps < 1:
        raise ConfigError(f"rounds is {config.rounds} and steps {config.steps}; expected 1 or more")
    if not config.backends or not config.precisions:
        raise ConfigError("backends or precisions is empty; expected one or more of each")
    if not config.layers and not config.models:
        raise ConfigError("layers and models are both empty; expected one or more cases")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but torch finds none; expected cpu or auto")
    kernels = fused_kernels(device_named(config.device).type)
    if "fused" in config.backends and isinstance(kernels, str):
        raise ConfigError(
            f"backends contains fused, which does not run here: {kernels}; expected backends=[matmul]"
        )


def layer_groups(config: DictConfig) -> list[list[Case]]:
    """Return one list per layer, its textbook form first; layers compute in float32 at every precision."""
    device = str(device_named(config.device))
    forms = ["textbook", *config.backends]
    groups = []
    for name in config.layers:
        sizes = sizes_of(config, name)
        groups.append([Case("layer", name, form, FULL, device, sizes) for form in forms])
    return groups


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
        forms = ["plain"] if chosen.routing is None else config.backends
        variants = []
        for precision in config.precisions:
            variants += [(form, precision) for form in forms]
        # the textbook CapsNet has a decoder
        decodes = "masked_decoder" not in chosen.model or chosen.model.decoder is not None
        if textbook and name in TEXTBOOK_NETWORKS and decodes:
            variants.insert(0, ("textbook", FULL))
        group = []
        for form, precision in variants:
            group.append(Case("model", name, form, precision, device, sizes, overrides))
        groups.append(group)
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
        sizes = {
            "batch_size": chosen.data.batch_size,
            "image_shape": list(spec.image_shape),
            "num_classes": spec.num_classes,
        }
    options = cast(dict[str, Any], OmegaConf.to_container(config))
    sizes |= options["sizes"].get(name, {})
    for option in SIZES:
        if option in sizes and options[option] is not None:
            sizes[option] = options[option]
    for option, value in sizes.items():
        numbers = value if isinstance(value, list) else [value]
        if not all(isinstance(number, int) and number > 0 for number in numbers):
            raise ConfigError(f"{option} of {name} is {value}; expected 1 or more")
    return sizes
