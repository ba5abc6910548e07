"""Options of a configuration group that are functions: the signature is the configuration, there is no YAML file.

``conf/<group>/_functions.yaml`` names a package and a decorator. Every function of the package that has this decorator
is an option of the group: ``attack=pgd attack.steps=10``. Its keyword-only arguments are the keys, and their defaults,
which are literals, the values. Files are parsed and not imported, so that listings and help do not need torch.
"""

from __future__ import annotations

import ast
import functools
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

FILE = "_functions.yaml"


class FunctionOption(NamedTuple):
    """The function's full name, the first line of its docstring, and the defaults of its keyword-only arguments."""

    target: str
    description: str
    defaults: dict[str, Any]


@functools.cache
def function_options(group: Path) -> dict[str, FunctionOption]:
    """The options of a group, a folder in ``conf``, that are functions, by name; none for a group of YAML files."""
    if not (group / FILE).is_file():
        return {}
    given = OmegaConf.load(group / FILE)
    spec = find_spec(given.package)
    found = {}
    for file in Path(((spec and spec.submodule_search_locations) or [""])[0]).glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and given.decorator in map(_name, node.decorator_list):
                target, described = f"{given.package}.{file.stem}.{node.name}", ast.get_docstring(node) or ""
                found[node.name] = FunctionOption(target, described.partition("\n")[0], _defaults(node))
    return dict(sorted(found.items()))


def _name(decorator: ast.expr) -> str:
    """``attack`` of ``@attack`` and of ``@attack(…)``."""
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _defaults(function: ast.FunctionDef) -> dict[str, Any]:
    arguments = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return {each.arg: "???" if default is None else ast.literal_eval(default) for each, default in arguments}


@functools.cache
def store_function_options(conf: Path) -> None:
    """Tell Hydra of the options of all groups that are functions, once in a process."""
    for file in conf.glob(f"*/{FILE}"):
        for name, option in function_options(file.parent).items():
            node = {"_target_": option.target, "_partial_": True, **option.defaults}
            ConfigStore.instance().store(group=file.parent.name, name=name, node=node)
