"""What was probably meant by a key that a configuration does not have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from capsule_lab.config.signatures import arguments_of
from capsule_lab.errors import closest

_HABITS = {  # of other programs; the keys here, of which those count that the configuration has
    ("lr", "learning_rate", "base_lr", "learningrate"): (
        *("schedule.learning_rate.initial", "schedule.learning_rate.start", "schedule.learning_rate.value"),
    ),
    ("epochs", "epoch", "n_epochs", "num_epochs", "nepochs"): ("trainer.max_epochs",),
    ("steps", "n_steps", "num_steps", "iters"): ("trainer.max_steps",),
    ("bs", "batch", "batchsize", "batch_size"): ("data.batch_size",),
    ("gpus", "gpu", "ngpu", "n_gpus", "num_gpus"): ("trainer.devices",),
    ("device",): ("trainer.accelerator",),
    ("dataset",): ("data",),
    ("net", "network", "arch", "architecture"): ("model",),
    ("optim",): ("optimizer",),
    ("scheduler", "lr_scheduler"): ("schedule",),
    ("criterion",): ("loss",),
    ("checkpoint", "ckpt_path", "resume_from", "weights"): ("ckpt", "run"),
    ("output", "output_dir", "out", "log_dir", "save_dir", "dir"): ("train.directory",),
    ("data_dir", "data_path", "dataset_path"): ("data.directory", "directory"),
    ("num_routing", "routings", "routing_iterations", "num_iterations"): ("routing.iterations",),
}
_SHOWN = 3  # ours: more would be a list, and that follows


def hint(key: str, config: DictConfig) -> str:
    """What was meant, the options beside which ``key`` was looked for, and whether it can be added.

    Args:
        key: dotted, as it was given; it is not in ``config``.
        config: what the other words of the command compose.
    """
    parent, _, name = key.rpartition(".")
    while parent and not isinstance(OmegaConf.select(config, parent), DictConfig):
        parent, _, name = parent.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    prefix = f"{parent}." if parent else ""
    options = sorted(map(str, node))
    found = meant(key, config)
    addition = "" if found else _addition(key, node)
    if not found and not addition:
        found = [f"{prefix}{close}" for close in [closest(name, options)] if close]
    guess = f"did you mean {' or '.join(found[:_SHOWN])}? " if found else ""
    return f"{guess}Options: {', '.join(f'{prefix}{option}' for option in options)}{addition}"


def habit(name: str) -> str:
    """The key that ``name`` of another program stands for; ``name`` itself if it is not known."""
    return next((keys[0] for names, keys in _HABITS.items() if name in names), name)


def meant(key: str, config: DictConfig) -> list[str]:
    """Keys of ``config`` that mean what ``key`` does: where its value comes from, its name elsewhere, a habit."""
    source = _source(key, config)
    if source != key and OmegaConf.select(config, source, default=_MISSING) is not _MISSING:
        return [source]
    name = key.rpartition(".")[2].casefold()
    habits = next((keys for names, keys in _HABITS.items() if name in names), ())
    there = [each for each in habits if OmegaConf.select(config, each, default=_MISSING) is not _MISSING]
    elsewhere = [path for path in _leaves(config) if path.rpartition(".")[2].casefold() == name]
    return there or sorted(elsewhere, key=lambda path: (path.count("."), path))


_MISSING = object()


def _source(key: str, config: DictConfig) -> str:
    """``key`` with the part before an interpolation replaced: of model.routing.bias, routing is ``${routing}``."""
    parts = key.split(".")
    for length in range(1, len(parts)):
        parent, name = ".".join(parts[: length - 1]), parts[length - 1]
        node = OmegaConf.select(config, parent) if parent else config
        if isinstance(node, DictConfig) and name in node and OmegaConf.is_interpolation(node, name):
            unresolved: Any = OmegaConf.to_container(node, resolve=False)
            if whole := re.fullmatch(r"\$\{([\w.]+)\}", str(unresolved[name])):
                return ".".join([whole[1], *parts[length:]])
    return key


def _leaves(node: Any, path: str = "") -> Iterator[str]:
    """Dotted keys of all values; those that are interpolations have a key of their own elsewhere."""
    for name in map(str, node):
        where = f"{path}.{name}" if path else name
        if OmegaConf.is_interpolation(node, name) or OmegaConf.is_missing(node, name):
            continue
        if isinstance(node[name], DictConfig):
            yield from _leaves(node[name], where)
        else:
            yield where


def _addition(key: str, node: DictConfig) -> str:
    """That a new key can be added, if what the node stands for takes it."""
    name = key.rpartition(".")[2]
    try:
        taken = arguments_of(get_object(node["_target_"])) if "_target_" in node else {}
    except Exception:  # of an import; what is wrong with the target is said by check
        taken = {}
    return f" (+{key}=… adds it)" if taken and name in taken else ""
