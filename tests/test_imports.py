"""Public names are there, and importing them imports no more than they need.

The direction of imports is in ``pyproject.toml``; ``make lint`` checks it.
"""

import importlib
import inspect
import json
import pkgutil
import tomllib
from pathlib import Path

import pytest

import capsule_lab
from capsule_lab.config.compose import commands, module_of
from tests.helpers.commands import ROOT, interpreter

HEAVY = ["torch", "lightning", "pytorch_lightning", "hydra", "omegaconf", "matplotlib", "pandas", "wandb"]
PLAIN = ["types", "functional", "schedules", "losses", "routing", "layers", "networks"]
ALLOWED = {"": []} | {f".{name}": ["torch"] for name in PLAIN}
ALLOWED |= {name: ["torch", "matplotlib"] for name in (".analysis", ".metrics")}  # torchmetrics imports it
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
FOR_EXTENSIONS = {"Windows", "build_normaliser", "expects", "duration_in_steps", "check_schedules"}
"""What only a new layer, loss or schedule uses: imported from its own module."""


@pytest.mark.whole
@pytest.mark.integration
def test_plain_modules_import_nothing_heavy() -> None:
    """For each, which of the heavy packages are there when it and those before it are imported."""
    ended = interpreter("-c", SCRIPT, json.dumps([list(ALLOWED), HEAVY]), cwd=ROOT)
    assert ended.status == 0, ended.err
    heavy = json.loads(ended.out)
    assert {name: {*heavy[name]} - {*ALLOWED[name]} for name in ALLOWED} == {name: set() for name in ALLOWED}


TEXT = """
import importlib, runpy, sys
for module in sys.argv[1].split():
    importlib.import_module(module)
for module in ("capsule_lab.__main__", "capsule_lab.list", "capsule_lab.train"):
    sys.argv[1:] = ["--help"] * (module == "capsule_lab.train")
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        assert not ended.code, module
print([name for name in ("torch", "lightning", "scipy", "pandas", "matplotlib") if name in sys.modules])
"""


@pytest.mark.integration
def test_help_and_lists_are_shown_without_torch(tmp_path: Path) -> None:
    modules = [module_of(name) for name in commands() if name != "bench"]  # torch is the subject of bench
    # -W ignore: runpy warns of modules that are imported already
    ended = interpreter("-W", "ignore", "-c", TEXT, " ".join(modules), cwd=tmp_path)
    assert (ended.status, ended.err) == (0, "")
    assert "no matching runs in " in ended.out
    assert "== Config ==" in ended.out
    assert ended.out.splitlines()[-1] == "[]"


def test_every_module_has_a_layer() -> None:
    """A module that the contract in pyproject.toml does not name could import anything; a new command may."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    named = {name.strip() for layer in layers for name in layer.split("|")}
    modules = {f"capsule_lab.{module.name}" for module in pkgutil.iter_modules(capsule_lab.__path__)}
    assert modules - named <= {module_of(name) for name in commands()}
    assert named - modules == {"benchmarks", "hydra_plugins.capsule_lab_plugins"}


def test_public_names_are_those_of_modules_and_none_is_missing() -> None:
    assert capsule_lab.runs is importlib.import_module("capsule_lab.runs")
    for name in {*capsule_lab.__all__} - {"runs"}:
        value = getattr(capsule_lab, name)
        assert value is getattr(importlib.import_module(value.__module__), name)
        assert name in dir(capsule_lab)
    for module in ("routing", "layers", "networks", "data", "losses", "schedules"):
        names = vars(importlib.import_module(f"capsule_lab.{module}"))
        own = {
            name
            for name in names.get("__all__", names)
            if inspect.isroutine(names[name]) or inspect.isclass(names[name])
            if names[name].__module__.startswith(f"capsule_lab.{module}") and not name.startswith(("_", "Abstract"))
        }
        assert own - FOR_EXTENSIONS - set(capsule_lab.__all__) == set()
    with pytest.raises(AttributeError, match="module 'capsule_lab' has no attribute 'CapsNets'"):
        capsule_lab.CapsNets  # noqa: B018


WITHOUT_OTHERS = """
import sys

OTHERS = set(
    "beartype cloudpickle hydra lightning lightning_fabric llvmlite matplotlib numba omegaconf pandas pooch pydantic "
    "pytorch_lightning requests rich scipy sklearn submitit tensorboard torchmetrics torchvision wandb yaml".split()
)

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OTHERS:
            raise ImportError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())

import torch
import capsule_lab.layers, capsule_lab.losses, capsule_lab.networks, capsule_lab.routing, capsule_lab.schedules
from capsule_lab import ConvCapsules, DenseCapsules, DynamicRouting, EMRouting, margin_loss

poses, activations = torch.rand(2, 32, 6), torch.rand(2, 32)
conv = ConvCapsules((4, 4), 2, 6, 3, 4, rows=2, routing=EMRouting)
for layer in DenseCapsules(32, 6, 3, 4, routing=DynamicRouting), conv:
    margin_loss(layer(poses, activations).activations[:, :3], torch.tensor([1, 2])).backward()
"""


@pytest.mark.integration
def test_numba_and_all_others_may_be_missing() -> None:
    """Votes are then summed by matrix products, which one line says."""
    ended = interpreter("-c", WITHOUT_OTHERS, cwd=ROOT)
    assert (ended.status, ended.out) == (0, ""), ended.err
    assert ended.err.strip() == "routing backend on cpu: matmul (no fused kernels: No module named 'numba')"


@pytest.mark.integration
def test_routing_imports_neither_the_compiler_nor_numba() -> None:
    """Either would take longer than torch itself."""
    script = "import sys, capsule_lab.routing; print({'torch._dynamo', 'sympy', 'numba', 'scipy'} & {*sys.modules})"
    ended = interpreter("-c", script, cwd=ROOT)
    assert ended.out.strip() == "set()", ended.err
