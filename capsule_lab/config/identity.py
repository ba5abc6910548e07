"""The hash of a configuration, which names and identifies runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from capsule_lab.config.composition import to_container

_NOT_HASHED = [
    "name",
    "ckpt",
    "trust",
    "train.resume",
    "train.directory",
    "trainer.max_time",
    "logger",
    "data.directory",
    # these only warn
    "callbacks.not_learning",
    "callbacks.variance_floor",
    # these only log
    "callbacks.step_metrics",
    "callbacks.worst_images",
    "callbacks.histograms",
    "trainer.log_every_n_steps",
    # results are the same
    "data.on_device",
    "data.workers",
    "module.cuda_graphs",
]
"""Keys that do not affect the result."""

_HASHED_WHEN_SET: dict[str, Any] = {
    "data.affine_within": False,
    "data.digits": "auto",
    "data.fold": None,
    "data.folds": None,
    "data.groups": None,
    "data.labels": None,
    "data.sampling": None,
    "model.last_initial": "he",
    "model.pooled_coordinates": False,
    "module.class_weights": None,
    "train.freeze": None,
    "train.start_from": None,
}
"""Keys that are newer than recorded runs, and their values without effect, with which a run keeps its hash."""

ABSENT = object()
"""In place of the value of an option that a configuration does not have."""


def config_hash(config: DictConfig | Mapping[str, Any]) -> str:
    """Hash all values in a configuration, or its container, that affect the result: 8 hexadecimal digits."""
    content = _with_effect(to_container(config) if isinstance(config, DictConfig) else config)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def effective_differences(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Return ``differences`` of the values that ``config_hash`` covers."""
    return differences(_with_effect(before), _with_effect(now))


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the dotted key and both values of each option in which two configurations differ.

    An absent option has the value ``ABSENT``. A group of options that the network or the module repeats, such as
    ``model.routing``, is left out.
    """
    one, other = dict(flat(before)), dict(flat(now))
    found = {}
    for key in sorted({*one, *other}):
        is_copy = _is_copy(key, one) and _is_copy(key, other)
        values = one.get(key, ABSENT), other.get(key, ABSENT)
        if not is_copy and values[0] != values[1]:
            found[key] = values
    return found


def flat(node: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings with their dotted keys."""
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{parent}{name}.")
        else:
            yield f"{parent}{name}", value


def _is_copy(key: str, flat_config: Mapping[str, Any]) -> bool:
    """Return whether a group of options in the network or the module repeats a group of its own."""
    parent, _, option = key.partition(".")
    repeated = flat_config.get(option, ABSENT)
    return parent in ("model", "module") and repeated == flat_config.get(key, ABSENT)


def _with_effect(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a copy with the values that affect the result."""
    for key in _NOT_HASHED:
        content = _without(content, key.split("."))
    return without_new_defaults(content)


def without_new_defaults(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a copy without the keys that are newer than recorded runs, where their values have no effect."""
    for key, without_effect in _HASHED_WHEN_SET.items():
        path = key.split(".")
        if _value(content, path) == without_effect:
            content = _without(content, path)
    return content


def _without(content: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    """Return a copy of nested mappings without the item at ``path``; other items are shared, not copied."""
    name, *rest = path
    inner = content.get(name)
    if not rest:
        return {key: value for key, value in content.items() if key != name}
    return {**content, name: _without(inner, rest)} if isinstance(inner, Mapping) else content


def _value(content: Mapping[str, Any], path: Sequence[str]) -> Any:
    """Return the item at ``path``; ``None`` if there is none."""
    value: Any = content
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
