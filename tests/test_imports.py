"""Public names exist, and importing a module imports no heavy package that it does not need.

The layers of imports are in ``pyproject.toml``; ``make lint`` checks them.
"""

import importlib
import inspect
import json
import pkgutil
import tomllib
from pathlib import Path

import pytest

import capsule_lab
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
FOR_EXTENSIONS = {"Windows", "build_normaliser", "expects", "duration_in_steps", "check_schedules"}
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
        f"capsule_lab.{module.name}" for module in pkgutil.iter_modules(capsule_lab.__path__[:1])
    }
    assert modules <= named
    others = {"benchmarks", "capsule_studies", "hydra_plugins.capsule_lab_plugins", "toynorb"}
    assert named - modules == others


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


WITHOUT_OTHERS = """
import sys

OTHERS = set(
    "beartype cloudpickle hydra lightning lightning_fabric llvmlite matplotlib numba omegaconf pandas pooch pydantic "
    "pytorch_lightning requests rich scipy sklearn submitit tensorboard torchmetrics torchvision wandb yaml".split()
)
asked = set()

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OTHERS:
            asked.add(name)
            raise ImportError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())

import torch

asked.clear()
import capsule_lab.routing

print({"torch._dynamo", "sympy"} & {*sys.modules} | {"numba", "scipy"} & asked)

import capsule_lab.layers, capsule_lab.losses, capsule_lab.networks, capsule_lab.schedules
from capsule_lab import ConvCapsules, DenseCapsules, DynamicRouting, EMRouting, margin_loss

poses, activations = torch.rand(2, 32, 6), torch.rand(2, 32)
conv = ConvCapsules((4, 4), 2, 6, 3, 4, rows=2, routing=EMRouting)
for layer in DenseCapsules(32, 6, 3, 4, routing=DynamicRouting), conv:
    margin_loss(layer(poses, activations).activations[:, :3], torch.tensor([1, 2])).backward()
"""


@pytest.mark.whole
@pytest.mark.integration
def test_layers_train_with_torch_alone() -> None:
    """One line on stderr reports the missing numba; votes are then summed by matrix products.

    ``capsule_lab.routing`` does not even try to import numba, and not torch's compiler, each of which takes longer than
    torch itself.
    """
    ended = interpreter("-c", WITHOUT_OTHERS, cwd=ROOT)
    assert (ended.status, ended.out) == (0, "set()\n"), ended.err
    assert (
        ended.err.strip()
        == "routing backend on cpu: matmul (no fused kernels: No module named 'numba')"
    )
