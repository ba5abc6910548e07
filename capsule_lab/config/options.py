"""Options of a configuration group that have no YAML file: functions, and ``none``.

A package that extends ``capsule_lab`` may have groups of decorated functions: an entry point in the group
``capsule_lab.functions`` names the group, the package of its files, and the decorator: ``attack =
"capsule_studies.attacks:attack"``. The signature of a function is its configuration: ``attack=pgd attack.steps=10``.
Keyword-only arguments are the keys, and their defaults, which are literals, are the values. Files are parsed, not
imported, so that listings and help do not need torch.
"""

from __future__ import annotations

import ast
import functools
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.config_store import ConfigStore

from capsule_lab.system.discovery import entries_of

FUNCTIONS = "capsule_lab.functions"
"""Group of entry points of configuration groups whose options are functions."""

_NONE = {
    "callbacks": "No callbacks: no checkpoints, so nothing is tested and nothing can be resumed.",
    "logger": "No logger: no metrics.csv, so no figures of curves.",
    "routing": "For networks without capsules.",
}
"""The meaning of ``<group>=none``, for groups with this option."""


@functools.cache
def _function_groups() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entries_of(FUNCTIONS)}


def groups_without_file() -> list[str]:
    """Return the groups with options without a file."""
    return [*_function_groups(), *_NONE]


class FunctionOption(NamedTuple):
    """A function's full name, the first line of its docstring, and the defaults of its keyword-only arguments."""

    target: str
    description: str
    defaults: dict[str, Any]


@functools.cache
def function_options(group: str) -> dict[str, FunctionOption]:
    """Return the options of a group of functions by name; an empty dict for other groups."""
    entry = _function_groups().get(group)
    spec = find_spec(entry.module) if entry else None
    options: dict[str, FunctionOption] = {}
    if entry is None or spec is None:
        return options
    (folder,) = spec.submodule_search_locations or [""]
    for file in Path(folder).glob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and entry.attr in map(_name, node.decorator_list):
                options[node.name] = _option(f"{entry.module}.{file.stem}.{node.name}", node)
    return dict(sorted(options.items()))


def _option(target: str, function: ast.FunctionDef) -> FunctionOption:
    description = (ast.get_docstring(function) or "").partition("\n")[0]
    defaults = {}
    for argument, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        defaults[argument.arg] = "???" if value is None else ast.literal_eval(value)
    return FunctionOption(target, description, defaults)


def described_without_file(group: str) -> dict[str, str]:
    """Return a one-sentence description of each option of a group that has no file."""
    none = {"none": _NONE[group]} if group in _NONE else {}
    return none | {name: option.description for name, option in function_options(group).items()}


def _name(decorator: ast.expr) -> str:
    """Return ``attack`` for ``@attack`` and for ``@attack(…)``."""
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


@functools.cache
def store_options_without_file() -> None:
    """Register the options without a file in Hydra, once per process."""
    store = ConfigStore.instance().store
    for group in _function_groups():
        for name, option in function_options(group).items():
            node = {"_target_": option.target, "_partial_": True, **option.defaults}
            store(group=group, name=name, node=node)
    for group in _NONE:
        store(group=group, name="none", node={group: None}, package="_global_")
