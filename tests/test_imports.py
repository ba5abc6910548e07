"""Public names are there, and importing them imports no more than they need.

The direction of imports is in ``pyproject.toml``; ``make lint`` checks it.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import tomllib

import pytest

import capsule_lab
from tests.helpers.commands import ROOT, interpreter

PLAIN = [
    "",
    ".types",
    ".functional",
    ".schedules",
    ".losses",
    ".routing",
    ".layers",
    ".networks",
    ".analysis",
    ".metrics",
]
HEAVY = ["torch", "lightning", "pytorch_lightning", "hydra", "omegaconf", "matplotlib", "pandas", "wandb"]
ALLOWED = {name: ["torch"] for name in PLAIN} | {
    "": [],
    ".analysis": ["torch", "matplotlib"],
    ".metrics": ["torch", "matplotlib"],  # torchmetrics imports it
}
SCRIPT = """
import importlib, json, sys
plain, heavy = json.loads(sys.argv[1])
found = {}
for name in plain:
    importlib.import_module(f"capsule_lab{name}")
    if name == ".networks":
        from capsule_lab import EMCaps, EMRouting, squash
    found[name] = [each for each in heavy if each in sys.modules]
print(json.dumps(found))
"""
FOR_EXTENSIONS = {
    *("LayerInfo", "Normaliser", "build_routing"),
    *("Windows", "build_normaliser"),
    *("Reconstructs", "reconstructs"),
    *("expects", "duration_in_steps", "check_schedules"),
    *("Images", "ImagePairs", "PublishedFiles"),
}
"""What only a new routing, layer, network, loss or data set uses: imported from its own module."""


@pytest.fixture(scope="module")
def heavy_imports() -> dict[str, list[str]]:
    """For each module, which of the heavy packages are there when it and those before it are imported."""
    ended = interpreter("-c", SCRIPT, json.dumps([list(ALLOWED), HEAVY]), cwd=ROOT)
    assert ended.status == 0, ended.err
    return json.loads(ended.out)


@pytest.mark.integration
@pytest.mark.parametrize("name", ALLOWED)
def test_plain_modules_import_nothing_heavy(heavy_imports: dict[str, list[str]], name: str) -> None:
    assert set(heavy_imports[name]) <= set(ALLOWED[name])


def test_every_module_has_a_layer() -> None:
    """A module that the contract in pyproject.toml does not name could import anything."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    named = {name.strip() for layer in layers for name in layer.split("|")}
    modules = {f"capsule_lab.{module.name}" for module in pkgutil.iter_modules(capsule_lab.__path__)}
    assert named == modules | {"hydra_plugins.capsule_lab_plugins"}


# --- public names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in capsule_lab.__all__ if name != "runs"])
def test_name_is_that_of_a_module(name: str) -> None:
    value = getattr(capsule_lab, name)
    assert value is getattr(importlib.import_module(value.__module__), name)
    assert name in dir(capsule_lab)


@pytest.mark.parametrize("module", ["routing", "layers", "networks", "data", "losses", "schedules"])
def test_no_public_name_is_missing(module: str) -> None:
    names = vars(importlib.import_module(f"capsule_lab.{module}"))
    own = {
        name
        for name in names.get("__all__", names)
        if inspect.isroutine(names[name]) or inspect.isclass(names[name])
        if names[name].__module__.startswith(f"capsule_lab.{module}") and not name.startswith(("_", "Abstract"))
    }
    assert own - FOR_EXTENSIONS - set(capsule_lab.__all__) == set()


def test_runs_is_a_module() -> None:
    assert capsule_lab.runs is importlib.import_module("capsule_lab.runs")


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'capsule_lab' has no attribute 'CapsNets'"):
        capsule_lab.CapsNets  # noqa: B018
