"""Tests lie where what they test lies, and share code through ``tests/helpers`` only."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.helpers.commands import ROOT

TESTS = sorted(path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py"))
FILES = sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py"))
WITHOUT_COUNTERPART = {
    "test_ablations.py": "every switch of conf/",
    "test_campaign.py": "tests/campaign/",
    "test_cli.py": "what all commands share",
    "test_docs.py": "README.md, docs/",
    "test_doctests.py": "all docstrings",
    "test_imports.py": "the direction of imports",
    "test_layout.py": "tests/ itself",
    "test_packaging.py": "pyproject.toml",
    "test_claims.py": "README.md, results/ and docs/",
    "test_records.py": "results/",
    "config/test_messages.py": "what all of config/ and the commands say",
    "callbacks/test_mlflow.py": "loggers with MLflow",
    "callbacks/test_wandb.py": "loggers with W&B",
    "callbacks/test_wandb_sweeps.py": "sweeps/wandb/",
    "benchmarks/test_benchmarks.py": "benchmarks/",
    "data/test_hostile_files.py": "readers of the formats of all data sets",
    "data/test_sources.py": "where every data set comes from",
    "helpers/test_compositions.py": "tests/helpers/compositions.py",
    "kernels/test_on_a_gpu.py": "every routing on a GPU, with -m gpu",
    "layers/test_contract.py": "every layer",
    "lit/test_on_a_gpu.py": "training steps on a GPU, with -m gpu",
    "lit/test_synchronisations.py": "steps that wait for the device",
    "networks/test_contract.py": "every network",
    "routing/test_plain.py": "routing, layers and networks with torch, numpy and jaxtyping alone",
    "kernels/test_memory.py": "peak memory of all backends",
    "kernels/cpu/test_kernels.py": "properties of all kernels of a CPU",
    "lit/test_two_labels.py": "images of two labels, in all modules",
    "reference/test_em_loops.py": "tests/reference/",
    "routing/test_contract.py": "every routing algorithm",
    "routing/test_own_routing.py": "tests/templates/my_routing",
    "runs/test_resume.py": "a run that was interrupted, through all files",
    "runs/test_slices.py": "a run in several commands, through all files",
    "studies/attacks/test_every_attack.py": "every option of attack=",
    "studies/questions/test_every_question.py": "every option of what=",
    "tables/test_report.py": "the command",
    "tables/test_sweep.py": "the command",
}
"""Tests that no file of the package corresponds to, and what they are about."""


def test_every_test_has_a_counterpart() -> None:
    """``test_x.py`` or ``test_x_<aspect>.py`` tests ``x.py``, ``__x__.py`` or the folder ``x``."""
    tests = [test for test in TESTS if str(test) not in WITHOUT_COUNTERPART]
    assert [f"tests/{test}" for test in tests if not has_counterpart(test)] == []


def has_counterpart(test: Path) -> bool:
    words = test.stem.removeprefix("test_").split("_")
    names = ["_".join(words[:count]) for count in range(len(words), 0, -1)]
    forms = [form for name in names for form in (f"{name}.py", f"__{name}__.py", name)]
    return any((folder / test.parent / form).exists() for folder in (ROOT / "capsule_lab", ROOT) for form in forms)


def imported_modules(file: Path) -> set[str]:
    """Full names of everything that a file imports."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_nothing_is_imported_from_a_test_or_a_conftest() -> None:
    imported = {(file, name) for file in FILES for name in imported_modules(file) if name.startswith("tests.")}
    of_tests = re.compile(r"\.(test_\w+|conftest)(\.|$)")
    wrong = sorted(f"{file}: {name}" for file, name in imported if of_tests.search(name))
    assert wrong == [], "move what they need to tests/helpers/"
