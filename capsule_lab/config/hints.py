"""Suggestions for a key that does not exist in a configuration."""

from __future__ import annotations

import re
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from capsule_lab.config.signatures import arguments_of
from capsule_lab.errors import closest

_RATE = ("lr", "learning_rate", "base_lr")
_ALIASES = {
    "schedule.learning_rate.initial": _RATE,
    "schedule.learning_rate.peak": _RATE,
    "schedule.learning_rate.start": _RATE,
    "schedule.learning_rate.value": _RATE,
    "trainer.max_epochs": ("epochs", "num_epochs", "n_epochs", "max_epochs"),
    "trainer.max_steps": ("steps", "num_steps", "iters", "max_steps"),
    "trainer.devices": ("gpus", "num_gpus"),
    "trainer.accelerator": ("device",),
    "data.batch_size": ("batch_size", "bs"),
    "module.class_weights": ("class_weights", "class_weight", "pos_weight"),
    "data.sampling": ("sampler", "oversampling", "weighted_sampler"),
    "data": ("dataset",),
    "model": ("net", "network", "arch"),
    "optimizer": ("optim",),
    "schedule": ("scheduler", "lr_scheduler"),
    "loss": ("criterion",),
    "ckpt": ("checkpoint", "weights"),
    "train.directory": ("output_dir", "out", "log_dir"),
    "data.directory": ("data_dir", "data_path"),
    "routing.iterations": ("iterations", "routings", "num_routing"),
}
"""By key, its names in other programs, or the name of a key elsewhere."""

UNSUPPORTED = {
    "overfit_batches": "debug=overfit trains on one batch, data.train_images=… on a few images",
    "fast_dev_run": "debug=smoke runs two batches of everything",
    "logger": "loggers are a group of their own, logger=…",
    "callbacks": "callbacks are a group of their own, callbacks=…",
    "default_root_dir": "runs are written into train.directory",
    "enable_checkpointing": "runs are written into train.directory",
}
"""Arguments of ``lightning.Trainer`` that do not work here, and the alternative."""


def key_meant(name: str, config: DictConfig | None = None) -> str | None:
    """Return the key, in ``config`` if given, for which other programs use ``name`` or its last part."""
    last = name.rpartition(".")[2].lower()
    for key, names in _ALIASES.items():
        is_here = config is None or OmegaConf.select(config, key, default=0) != 0
        if last in names and is_here:
            return key
    return None


def hint(key: str, config: DictConfig) -> str:
    """Suggest a key for ``key``, which ``config`` lacks; list its siblings, and state whether it can be added."""
    if shared := _shared(key, config):
        part, elsewhere = shared
        return f"{part} is that of {elsewhere}; set {elsewhere}{key.removeprefix(part)}"
    parent, _, name = key.rpartition(".")
    while parent and not isinstance(OmegaConf.select(config, parent), DictConfig):
        parent, _, name = parent.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    prefix = f"{parent}." if parent else ""
    public = sorted(f"{prefix}{name}" for name in map(str, node) if not name.startswith("_"))
    listed = f"Options: {', '.join(public)}"
    other = key_meant(key, config)
    if other and parent != "class_routing":
        return f"did you mean {other}? {listed}"
    if parent == "trainer" and name in UNSUPPORTED:
        return UNSUPPORTED[name]
    known = arguments_of(get_object(node["_target_"])) if "_target_" in node else {}
    if known and key == f"{prefix}{name}" and name in known:
        return f"{listed} (+{key}=… adds it)"
    if parent == "class_routing" and name in (config.get("routing") or ()):
        return f"{listed} (+{key}=… adds it)"
    close = closest(name, map(str, node))
    return f"did you mean {prefix}{close}? {listed}" if close else listed


def _shared(key: str, config: DictConfig) -> tuple[str, str] | None:
    """Return the part of ``key`` that is an interpolation such as ``${routing}``, and the key that it stands for."""
    names = key.split(".")
    for number in range(1, len(names)):
        path, name = ".".join(names[: number - 1]), names[number - 1]
        node = OmegaConf.select(config, path) if path else config
        if not isinstance(node, DictConfig) or name not in node:
            return None
        if OmegaConf.is_interpolation(node, name):
            content: Any = OmegaConf.to_container(node, resolve=False)
            found = re.fullmatch(r"\$\{(\w[\w.]*)\}", content[name])  # no relative key, no resolver
            return (".".join(names[:number]), found[1]) if found else None
    return None
