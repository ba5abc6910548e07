"""Plain PyTorch projects get neither Lightning nor Hydra; who may import whom is checked by ``make lint``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.helpers.commands import ROOT

PLAIN = ["types", "functional", "schedules", "losses", "routing", "layers", "networks", "metrics", "analysis"]
HEAVY = ["lightning", "pytorch_lightning", "hydra", "omegaconf", "matplotlib", "pandas"]
SCRIPT = """
import importlib, json, sys
plain, heavy = json.loads(sys.argv[1])
found = {}
for name in ["", *plain]:
    importlib.import_module(f"capsule_lab.{name}".rstrip("."))
    found[name] = sorted(set(heavy) & set(sys.modules) - {h for heavies in found.values() for h in heavies})
from capsule_lab.routing import DynamicRouting
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def heavy_imports() -> dict[str, list[str]]:
    """For each module, in this order, which of the heavy packages it was the first to import."""
    command = [sys.executable, "-c", SCRIPT, json.dumps([PLAIN, HEAVY])]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", ["", *PLAIN])
def test_plain_modules_import_neither_lightning_nor_hydra(heavy_imports: dict[str, list[str]], name: str) -> None:
    of_torchmetrics = {"matplotlib"} if name == "metrics" else set()
    assert {*heavy_imports[name]} <= of_torchmetrics
