"""Suggestions for a key that does not exist in a configuration."""

from __future__ import annotations

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from capsule_lab.config.signatures import arguments_of
from capsule_lab.errors import closest

_RATE = ("lr", "learning_rate", "base_lr")
_ALIASES = {  # names in other programs, or of a key elsewhere
    **dict.fromkeys(
        (f"schedule.learning_rate.{key}" for key in ("initial", "peak", "start", "value")), _RATE
    ),
    "trainer.max_epochs": ("epochs", "num_epochs", "n_epochs"),
    "trainer.max_steps": ("steps", "num_steps", "iters"),
    "trainer.devices": ("gpus", "num_gpus"),
    "trainer.accelerator": ("device",),
    "data.batch_size": ("batch_size", "bs"),
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


def key_meant(name: str, config: DictConfig | None = None) -> str | None:
    """Return the key, in ``config`` if given, for which other programs use ``name`` or its last part."""
    keys = [key for key, names in _ALIASES.items() if name.rpartition(".")[2].lower() in names]
    return next(
        (key for key in keys if config is None or OmegaConf.select(config, key, default=0) != 0),
        None,
    )


def hint(key: str, config: DictConfig) -> str:
    """Suggest a key for ``key``, which ``config`` lacks; list its siblings, and state whether it can be added."""
    parent, _, name = key.rpartition(".")
    while parent and not isinstance(OmegaConf.select(config, parent), DictConfig):
        parent, _, name = parent.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    prefix = f"{parent}." if parent else ""
    public = sorted(option for option in map(str, node) if not option.startswith("_"))
    listed = f"Options: {', '.join(f'{prefix}{option}' for option in public)}"
    if other := key_meant(key, config):
        return f"did you mean {other}? {listed}"
    known = arguments_of(get_object(node["_target_"])) if "_target_" in node else {}
    if known and key == f"{prefix}{name}" and name in known:
        return f"{listed} (+{key}=… adds it)"
    close = closest(name, map(str, node))
    return f"did you mean {prefix}{close}? {listed}" if close else listed
