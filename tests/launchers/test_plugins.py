"""Hydra finds our launchers and our sweepers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hydra.core.plugins import Plugins
from hydra.plugins.plugin import Plugin

from hydra_plugins import capsule_lab_plugins

OURS = {"GPULauncher", "GridSweeper", "SlurmLauncher", "TableSweeper"}
LIST = "from hydra.core.plugins import Plugins; print(*(f'{c.__module__}.{c.__name__}' for c in Plugins().discover()))"


def test_the_namespace_holds_only_the_classes_that_hydra_looks_for() -> None:
    classes = {name for name, value in vars(capsule_lab_plugins).items() if isinstance(value, type)}
    assert classes == OURS


def test_hydra_finds_them_and_no_others_of_ours() -> None:
    found = [kind for kind in Plugins.instance().discover(Plugin) if "capsule_lab" in kind.__module__]
    assert {kind.__name__ for kind in found} == OURS
    assert {kind.__module__ for kind in found} == {capsule_lab_plugins.__name__}


def test_hydra_finds_them_from_outside_of_the_checkout(tmp_path: Path) -> None:
    """By the installation alone: an editable one, or that of a wheel."""
    ended = subprocess.run(
        [sys.executable, "-c", LIST], cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True, check=True
    )
    assert {f"hydra_plugins.capsule_lab_plugins.{name}" for name in OURS} <= {*ended.stdout.split()}, ended.stderr
