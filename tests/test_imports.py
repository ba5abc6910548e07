"""Imports point downwards, and plain PyTorch projects get neither Lightning nor Hydra."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLAIN = ["types", "functional", "schedules", "losses", "metrics", "routing", "layers", "networks", "analysis"]
HEAVY = ["lightning", "pytorch_lightning", "hydra", "omegaconf"]
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
    words = [sys.executable, "-c", SCRIPT, json.dumps([PLAIN, HEAVY])]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", ["", *PLAIN])
def test_plain_modules_import_neither_lightning_nor_hydra(heavy_imports, name):
    assert heavy_imports[name] == []


def test_import_contracts_hold():
    command = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
