"""Checks of the configuration in a checkpoint, which may be a download, before it builds objects.

``hydra.utils.instantiate`` calls whatever ``_target_`` names. To prevent a file from running code, every target is
checked before anything is imported or built: it must be a class or function for configurations, or belong to a package
that the user trusts.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from capsule_lab.config.messages import reason_of_import
from capsule_lab.errors import ConfigError, RunError, is_unicode

BUILT = ("data", "model", "module", "routing", "class_routing", "loss", "schedule", "optimizer")
"""Configuration groups in a checkpoint from which objects are built."""

_WITH_CLASSES = (
    "capsule_lab.data",
    "capsule_lab.layers",
    "capsule_lab.lit",
    "capsule_lab.networks",
    "capsule_lab.routing",
    "capsule_lab.schedules",
    "torch.nn",
    "torch.optim",
)
_WITH_FUNCTIONS = ("capsule_lab.losses", "torch.nn.functional")
# nn.Transformer copies a layer as often as a file asks for. Copies register no parameters, so that the limit in
# `open_run`, which counts the parameters that are registered, would not stop them.
_REFUSED = ("torch.nn.modules.transformer",)
_EXPECTED = "a part of capsule_lab (data set, network, routing, loss, schedule, module), torch.nn or torch.optim"
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_RECORD: dict[str, Any] = {
    "config": dict,
    "config.data": dict,
    "config.model": dict,
    "config.module": dict,
    "provenance": dict,
    "provenance.source": str,
    "provenance.name": str,
    "spec": dict,
    "seconds": (int, float),
    "val": dict,
}
_NONE = type(None)
# of a network that began with the weights of a file; older records have no name
_START: dict[str, Any] = {"start_from.file": str, "start_from.name": (str, _NONE)}
_DATA_OF_START: dict[str, Any] = {"start_from.data.source": str, "start_from.data.name": str}
_PLAIN = (str, bool, int, float, _NONE)
_STANDARD = {*sys.stdlib_module_names, "torch"}
# ours: a configuration has 300; lists that share items can represent billions
_MOST_OPTIONS = 10_000
_MOST_FACTS = 1_000_000  # ours: of data; ImageNet has 21,841 classes
SAFETENSORS = "safetensors"
"""The entry of ``trust`` that refuses every file that must be unpickled, even by a restricted unpickler."""


def check_targets(config: Any, trust: Sequence[str] | str | None, file: Path) -> None:
    """Check that every ``_target_`` in the groups ``BUILT`` of a configuration may be imported and called.

    ``check_record`` must have accepted the configuration of ``file``. Packages in ``trust`` are allowed besides ours.
    """
    packages = [name for name in _entries(trust) if name != SAFETENSORS]
    for name in packages:
        if not _is_name(name) or _top_package(name) in _STANDARD:
            raise ConfigError(
                f"trust contains {name!r}; expected names of your own packages, such as trust=[mine]"
            )
    for target in targets(config):
        if not _is_name(target):
            raise RunError(
                f"{file} has _target_: {str(target)[:80]!r}; expected the name of {_EXPECTED}"
            )
        trusted = [package for package in packages if _is_in(target, [package])]
        try:
            allowed = _is_of(target, trusted[0]) if trusted else is_part(target)
        except Exception as error:  # from the import
            raise RunError(
                f"{file} was trained with {target}, which cannot be imported: {reason_of_import(error)}"
            ) from error
        if not allowed:
            raise RunError(
                f"{file} names {target}; expected {_EXPECTED}: if it is from your own package, set "
                "trust=[<package>], otherwise do not use the file"
            )


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _top_package(name: str) -> str:
    return name.partition(".")[0]


def _entries(trust: Sequence[str] | str | None) -> list[str]:
    return [trust] if isinstance(trust, str) else list(trust or ())


def refuses_pickles(trust: Sequence[str] | str | None) -> bool:
    """Return whether ``trust`` contains ``safetensors``."""
    return SAFETENSORS in _entries(trust)


def check_record(record: dict[str, Any], file: Path) -> None:
    """Check that the record in a file contains only text, numbers, lists and mappings.

    The configuration has no interpolations, because it is stored resolved: ``${oc.env:HOME}`` in a file would read the
    environment of the user. Facts about the data are not interpreted, so that a class may be named ``${x}``. Types must
    match exactly: a pickle can replace methods of an ``OrderedDict``, which would deceive this check.
    """
    facts = {name: value for name, value in record.items() if name != "config"}
    for value in _plain_values(facts, file, _MOST_FACTS):
        if type(value) is str and not is_unicode(value):
            raise RunError(
                f"{file} has the text {value[:80]!a}; expected Unicode: rename where it is from"
            )
    for value in _plain_values(record.get("config"), file, _MOST_OPTIONS):
        if type(value) is str and ("${" in value or not is_unicode(value)):
            raise RunError(
                f"{file} has {value[:80]!a} in its configuration; expected Unicode without interpolation"
            )
    fields = dict(_RECORD)
    if _field(record, "start_from") is not None:
        fields |= _START
    if _field(record, "start_from.data") is not None:
        fields |= _DATA_OF_START
    for name, expected in fields.items():
        if not isinstance(_field(record, name), expected):
            raise RunError(
                f"{file} has no {name} in its record; it is damaged or was changed: use another checkpoint"
            )


def _field(record: Any, name: str) -> Any:
    """Return the field with a dotted name; ``None`` if there is none."""
    for key in name.split("."):
        record = record.get(key) if isinstance(record, dict) else None
    return record


def _plain_values(content: Any, file: Path, most: int) -> Iterator[Any]:
    """Yield the values and keys in nested containers; raise a ``RunError`` if there are many, or others than plain."""
    pending = [content]
    values = 0
    while pending:
        value = pending.pop()
        values += 1
        if values > most:
            raise RunError(
                f"{file} has more than {most} values in its record; expected a few hundred"
            )
        kind = type(value)
        if kind is dict:
            pending += [*value, *value.values()]
        elif kind in (list, tuple):
            pending += value
        elif kind in _PLAIN:
            yield value
        else:
            raise RunError(
                f"{file} has {kind.__name__} in its record; expected text, numbers and lists of them"
            )


def plain_value(config: DictConfig, key: str) -> Any:
    """Return a plain value of a configuration from a file: text, a number or ``None``.

    ``None`` replaces a node, because only ``BUILT`` is checked and a node may have a ``_target_``.
    """
    value = OmegaConf.select(config, key)
    return None if OmegaConf.is_config(value) else value


def targets(config: Any) -> Iterator[Any]:
    """Yield every ``_target_`` in the groups ``BUILT`` of a configuration in plain containers."""
    pending = [config.get(group) for group in BUILT]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if "_target_" in node:
                yield node["_target_"]
            pending += node.values()
        elif isinstance(node, list | tuple):
            pending += node


def packages_of(config: Any) -> list[str]:
    """Return the packages in a configuration, except ours and torch; opening its run requires trust in them."""
    packages = {_top_package(str(target)) for target in targets(config)}
    return sorted(packages - {"capsule_lab", "torch"})


def is_part(target: str) -> bool:
    """Return whether it is a class of a permitted kind or a loss, defined in one of the permitted packages."""
    module, _, name = target.rpartition(".")
    if any(part.startswith("_") for part in target.split(".")):
        return False
    if module != "capsule_lab" and not _is_in(module, (*_WITH_CLASSES, *_WITH_FUNCTIONS)):
        return False
    from lightning import LightningDataModule  # like torch slow to import; --help does not need it
    from torch import nn, optim

    from capsule_lab.schedules import Schedule

    value = _imported(module, name)
    if inspect.isfunction(value):
        return _is_in(value.__module__, _WITH_FUNCTIONS)
    if not inspect.isclass(value) or _is_in(value.__module__, _REFUSED):
        return False
    # their construction writes and starts nothing
    kinds = (nn.Module, optim.Optimizer, Schedule, LightningDataModule)
    return issubclass(value, kinds) and _is_in(value.__module__, _WITH_CLASSES)


def _is_of(target: str, package: str) -> bool:
    """Return whether it is a class or function defined in ``package``, not imported there, such as ``os.system``."""
    module, _, name = target.rpartition(".")
    value = _imported(module, name)
    is_of_a_kind = inspect.isclass(value) or inspect.isfunction(value)
    return is_of_a_kind and _is_in(value.__module__, [package])


def _imported(module: str, name: str) -> Any:
    """Return ``name`` in a module, never an attribute of an object in it, such as ``module.subprocess.run``."""
    return getattr(import_module(module), name)


def _is_in(name: str, packages: Sequence[str]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


def trusting(packages: Sequence[str]) -> list[str]:
    """Return the override with which a command opens a run that has parts of these packages; none without any."""
    return [f"trust=[{','.join(packages)}]"] if packages else []
