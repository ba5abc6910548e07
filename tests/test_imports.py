"""Plain PyTorch projects get neither Lightning nor Hydra; who may import whom is checked by ``make lint``."""

from __future__ import annotations

import importlib
import inspect
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
    *("expects", "duration_in_steps"),
    *("Images", "PublishedFiles"),
}
"""What only a new routing, layer, network, loss or data set uses: imported from its own module."""


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
