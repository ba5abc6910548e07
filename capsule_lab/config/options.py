"""Options of a configuration group that have no YAML file: functions, and ``none``.

Attacks and questions are decorated functions, and the signature of a function is its configuration: ``attack=pgd
attack.steps=10``. Keyword-only arguments are the keys, and their defaults, which are literals, are the values. Files
are parsed, not imported, so that listings and help do not need torch.
"""

from __future__ import annotations

import ast
import functools
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.config_store import ConfigStore

_FUNCTIONS = {
    "attack": ("capsule_lab.studies.attacks", "attack"),
    "what": ("capsule_lab.studies.questions", "question"),
}
"""For each group of functions, their package and their decorator."""

_NONE = {
    "callbacks": "No callbacks: no checkpoints, so nothing is tested and nothing can be resumed.",
    "logger": "No logger: no metrics.csv, so no figures of curves.",
    "routing": "For networks without capsules.",
}
"""The meaning of ``<group>=none``, for groups with this option."""

GROUPS = [*_FUNCTIONS, *_NONE]
"""The groups with options without a file."""


class FunctionOption(NamedTuple):
    """A function's full name, the first line of its docstring, and the defaults of its keyword-only arguments."""

    target: str
    description: str
    defaults: dict[str, Any]


@functools.cache
def function_options(group: str) -> dict[str, FunctionOption]:
    """Return the options of a group of functions by name; an empty dict for other groups."""
    if group not in _FUNCTIONS:
        return {}
    package, decorator = _FUNCTIONS[group]
    spec = find_spec(package)
    options = {}
    for file in Path(((spec and spec.submodule_search_locations) or [""])[0]).glob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and decorator in map(_name, node.decorator_list):
                target, described = (
                    f"{package}.{file.stem}.{node.name}",
                    ast.get_docstring(node) or "",
                )
                arguments = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                defaults = {
                    each.arg: "???" if value is None else ast.literal_eval(value)
                    for each, value in arguments
                }
                options[node.name] = FunctionOption(target, described.partition("\n")[0], defaults)
    return dict(sorted(options.items()))


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
    for group in _FUNCTIONS:
        for name, option in function_options(group).items():
            store(
                group=group,
                name=name,
                node={"_target_": option.target, "_partial_": True, **option.defaults},
            )
    for group in _NONE:
        store(group=group, name="none", node={group: None}, package="_global_")
