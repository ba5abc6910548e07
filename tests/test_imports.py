"""Public names exist, and importing a module imports no heavy package that it does not need.

The layers of imports are in ``pyproject.toml``; ``make lint`` checks them.
"""

import importlib
import importlib.util
import inspect
import json
import pkgutil
import tomllib
from pathlib import Path

import pytest

import capsule_lab
import capsule_lab.routing
from capsule_lab.commands import module_of, names
from capsule_lab.commands.tables import read_table as read
from capsule_lab.tables.expand import expand
from tests.helpers.commands import ROOT, interpreter
from tests.helpers.tables import write_run, write_table

HEAVY = [
    "torch",
    "lightning",
    "pytorch_lightning",
    "hydra",
    "omegaconf",
    "matplotlib",
    "pandas",
    "wandb",
]
PLAIN = ["types", "functional", "schedules", "losses", "routing", "layers", "networks"]
ALLOWED = {"": []} | {f".{name}": ["torch"] for name in PLAIN}
ALLOWED |= {
    name: ["torch", "matplotlib"] for name in (".analysis", ".metrics")
}  # torchmetrics imports it
SCRIPT = """
import importlib, json, sys
plain, heavy = json.loads(sys.argv[1])
imported = {}
for name in plain:
    importlib.import_module(f"capsule_lab{name}")
    if name == ".networks":
        from capsule_lab import EMCaps, EMRouting, squash
    imported[name] = [package for package in heavy if package in sys.modules]
print(json.dumps(imported))
"""
FOR_EXTENSIONS = {
    "Windows",
    "build_normaliser",
    "expects",
    "duration_in_steps",
    "check_learning_rate",
    "check_schedules",
}
"""Names that only a new layer, loss or schedule uses; they are imported from their own modules."""


@pytest.mark.whole
@pytest.mark.integration
def test_plain_modules_import_no_heavy_package() -> None:
    """Modules are imported in order, in one process."""
    ended = interpreter("-c", SCRIPT, json.dumps([list(ALLOWED), HEAVY]), cwd=ROOT)
    assert ended.status == 0, ended.err
    heavy = json.loads(ended.out)
    assert {name: {*heavy[name]} - {*ALLOWED[name]} for name in ALLOWED} == {
        name: set() for name in ALLOWED
    }


LIGHT = """
import importlib, runpy, sys
modules, table = sys.argv[1:]
for module in modules.split():
    importlib.import_module(module)

def run(module, *arguments):
    sys.argv[1:] = arguments
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        assert not ended.code, module

run("capsule_lab.__main__")
run("capsule_lab.commands.list")
run("capsule_lab.commands.train", "--help")
print("imported:", [name for name in ("torch", "lightning", "scipy", "pandas", "matplotlib") if name in sys.modules])
run("capsule_lab.commands.report", table)
print("imported by report:", [name for name in ("torch", "lightning") if name in sys.modules])
"""


@pytest.mark.whole
@pytest.mark.integration
def test_help_lists_and_reports_import_no_torch(tmp_path: Path) -> None:
    """A report draws curves with matplotlib."""
    modules = [
        "capsule_lab.runs",
        *map(module_of, names()),
    ]
    file = write_table(tmp_path, seeds=[0])
    (cell,) = expand(read(file))
    write_run(cell, error=1.25)
    # -W ignore: runpy warns about modules that are already imported
    arguments = ("-W", "ignore", "-c", LIGHT, " ".join(modules), f"table={file}")
    ended = interpreter(*arguments, cwd=tmp_path, COLUMNS="200")
    assert (ended.status, ended.err) == (0, "")
    text, _, report = ended.out.partition("imported: []\n")
    assert "no matching runs in " in text
    assert "== Config ==" in text
    assert "1.25" in report
    assert report.splitlines()[-1] == "imported by report: []"


def test_every_module_has_a_layer() -> None:
    """The contract in pyproject.toml does not check a module that it does not name."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    named = {name.strip() for layer in layers for name in layer.split("|")}
    modules = {
        f"capsule_lab.{module.name}" for module in pkgutil.iter_modules(capsule_lab.__path__)
    }
    assert modules <= named
    others = {"benchmarks", "capsule_studies", "hydra_plugins.capsule_lab_plugins", "toynorb"}
    assert named - modules == others


def test_a_module_of_a_command_has_one_name() -> None:
    """``import capsule_lab.train`` would replace the function ``capsule_lab.train`` by a second copy of its module."""
    assert importlib.util.find_spec("capsule_lab.commands.train") is not None
    assert importlib.util.find_spec("capsule_lab.train") is None
    assert callable(capsule_lab.train)


def test_package_exports_every_public_name_of_its_modules() -> None:
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
            if names[name].__module__.startswith(f"capsule_lab.{module}")
            and not name.startswith(("_", "Abstract"))
        }
        assert own - FOR_EXTENSIONS - set(capsule_lab.__all__) == set()
    with pytest.raises(AttributeError, match="module 'capsule_lab' has no attribute 'CapsNets'"):
        capsule_lab.CapsNets  # noqa: B018


PLAIN_PACKAGES = "torch torchgen functorch triton nvidia cuda jaxtyping numpy"
THEIR_PACKAGES = "filelock fsspec jinja2 markupsafe mpmath networkx setuptools sympy typing_extensions wadler_lindig"
WITHOUT_OTHERS = """
import inspect, sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

PERMITTED = {*sys.stdlib_module_names, "capsule_lab", *sys.argv[1].split()}
missing = set()

class Permitted(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in PERMITTED:
            return super().find_spec(name, path, target)
        missing.add(name)

sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Permitted]

import torch, jaxtyping

missing.clear()
import capsule_lab.routing

print(sorted({"torch._dynamo", "sympy"} & {*sys.modules} | missing))

from capsule_lab import functional, layers, losses, networks, routing, schedules

def backward(module, scores):
    losses.margin_loss(scores[:, :3].sigmoid(), torch.tensor([1, 2])).backward()  # some are logits
    assert all(each.grad is None or each.grad.isfinite().all() for each in module.parameters())
    print(type(getattr(module, "routing", module)).__name__)

poses, activations = torch.rand(2, 32, 6), torch.rand(2, 32)
for kind in map(vars(routing).get, routing.__all__):
    if inspect.isclass(kind) and issubclass(kind, routing.AbstractRouting) and not inspect.isabstract(kind):
        conv = layers.ConvCapsules((4, 4), 2, 6, 3, 4, rows=2, routing=kind)
        for layer in layers.DenseCapsules(32, 6, 3, 4, routing=kind), conv:
            backward(layer, layer(poses, activations).activations)

images = torch.rand(2, 1, 32, 32)
for kind in map(vars(networks).get, networks.__all__):
    if inspect.isclass(kind) and "num_classes" in inspect.signature(kind).parameters:
        try:
            network = kind((1, 32, 32), 3)
        except ModuleNotFoundError as error:
            print(kind.__name__, error)
            continue
        backward(network, network(images).scores)

network = networks.TransformingAutoencoder((1, 22, 22))
print(type(network).__name__, schedules.Linear(0.2, 0.9, 10).for_run(10, 1)(5), functional.squash(poses).shape)
print(sorted(missing))
"""


@pytest.mark.whole
@pytest.mark.integration
def test_routings_layers_and_networks_compute_with_torch_jaxtyping_and_numpy_alone() -> None:
    """One line on stderr reports the missing numba; votes are then summed by matrix products.

    ``capsule_lab.routing`` does not even try to import numba, and not torch's compiler, each of which takes longer than
    torch itself. Only networks with the stem of a ResNet need torchvision.
    """
    permitted = f"{PLAIN_PACKAGES} {THEIR_PACKAGES}"
    ended = interpreter("-c", WITHOUT_OTHERS, permitted, cwd=ROOT)
    assert ended.status == 0, ended.err
    first, *computed, of_others, missing = ended.out.splitlines()
    assert first == "[]"
    routings = {name for name in vars(capsule_lab.routing) if name in computed}
    assert {"DynamicRouting", "EMRouting", "SelfAttentionRouting"} <= routings
    assert {"CapsNet", "EMCaps", "EfficientCapsNet", "HeinsenNet", "VBCaps"} <= {*computed}
    without_torchvision = [
        line for line in computed if line.endswith("No module named 'torchvision'")
    ]
    assert len(without_torchvision) == 3
    assert of_others.startswith("TransformingAutoencoder 0.55 ")
    assert missing == "['numba', 'torchvision']"
    report = "routing backend on cpu: matmul (no fused kernels: No module named 'numba')"
    assert ended.err.strip() == report
