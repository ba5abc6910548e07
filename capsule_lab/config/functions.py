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
    """An option.

    Attributes:
        target: the function's full name.
        description: the first line of its docstring.
        defaults: of its keyword-only arguments.
    """

    target: str
    description: str
    defaults: dict[str, Any]

    def node(self) -> dict[str, Any]:
        """The configuration of the option."""
        return {"_target_": self.target, "_partial_": True, **self.defaults}


@functools.cache
def function_options(group: Path) -> dict[str, FunctionOption]:
    """The options of a group that are functions, by name; none for a group of YAML files.

    Args:
        group: its folder in ``conf``.
    """
    if not (group / FILE).is_file():
        return {}
    given = OmegaConf.load(group / FILE)
    spec = find_spec(given.package)
    assert spec is not None
    found = {}
    for file in sorted(Path(next(iter(spec.submodule_search_locations or ()))).glob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and given.decorator in map(_name, node.decorator_list):
                described = (ast.get_docstring(node) or "").partition("\n")[0]
                found[node.name] = FunctionOption(
                    f"{given.package}.{file.stem}.{node.name}", described, _defaults(node)
                )
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
            ConfigStore.instance().store(group=file.parent.name, name=name, node=option.node())
