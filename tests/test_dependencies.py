"""The distributions declare what they import, few packages are needed, and bounds admit the tested versions."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import capsule_lab
from tests.helpers.commands import ROOT

MISSION = {"torch", "torchvision", "lightning", "hydra-core", "omegaconf", "torchmetrics", "wandb"}
MOST = 14
PACKAGE_OF = {"hydra": "hydra-core", "sklearn": "scikit-learn"}
"""Distributions by module, where the names differ."""
BROUGHT_BY = {
    "annotated_types": "pydantic",
    "PIL": "torchvision",
    "llvmlite": "numba",
    "requests": "pooch",
    "triton": "torch",
    "yaml": "omegaconf",
}
"""Packages that are imported, by the package that needs them itself."""
BOUNDED = ["torch", "lightning", "hydra-core", "omegaconf", "numba"]


def project(folder: str) -> dict[str, Any]:
    text = (ROOT / folder / "pyproject.toml").read_text()
    found: dict[str, Any] = tomllib.loads(text)["project"]
    return found


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in requirements}


CORE = project(".")
EXTRAS = {extra: names(lines) for extra, lines in CORE["optional-dependencies"].items()}
OF_THE_USER = EXTRAS.keys() - {"dev", "docs"}


def versions_tested() -> dict[str, str]:
    found = {}
    for line in (ROOT / "tested-versions.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        if version:
            found[name] = version
    return found


TESTED = versions_tested()


def sources(package: str) -> Iterator[tuple[Path, ast.Module]]:
    for file in sorted((ROOT / package).rglob("*.py")):
        if "tests" not in file.relative_to(ROOT).parts:
            yield file, ast.parse(file.read_text(encoding="utf-8"))


def imported_by(package: str) -> set[str]:
    """Top-level modules of others that a package imports anywhere."""
    found: set[str] = set()
    for _, tree in sources(package):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - {*sys.stdlib_module_names, package}


def test_every_run_needs_few_packages() -> None:
    needed = names(CORE["dependencies"])
    assert needed >= MISSION
    assert len(needed) <= MOST


@pytest.mark.parametrize("folder", [".", "capsule_studies", "toynorb"])
def test_imported_packages_are_declared(folder: str) -> None:
    declared = names(project(folder)["dependencies"])
    if folder != "toynorb":
        declared |= names(CORE["dependencies"])
    for lines in project(folder).get("optional-dependencies", {}).values():
        declared |= names(lines)
    package = "capsule_lab" if folder == "." else folder
    needed = set()
    for module in imported_by(package) - {"hydra_plugins"}:
        name = BROUGHT_BY.get(module) or PACKAGE_OF.get(module, module)
        needed.add(canonicalize_name(name))
    assert needed - declared == set()


def test_packages_of_messages_are_in_the_named_extra() -> None:
    checked: dict[str, set[str]] = {}
    for file, tree in sources("capsule_lab"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "require":
                _, extra, *modules = node.args
                assert isinstance(extra, ast.Constant), file
                packages = {ast.literal_eval(each).replace("_", "-") for each in modules}
                assert packages <= EXTRAS[extra.value], file
                checked.setdefault(extra.value, set()).update(packages)
    assert checked == {extra: EXTRAS[extra] for extra in OF_THE_USER}


def test_extras_of_the_user_are_in_the_table_of_the_docs() -> None:
    text = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    described = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert {*described} == OF_THE_USER


@pytest.mark.parametrize("folder", [".", "capsule_studies", "toynorb"])
def test_bounds_admit_the_tested_versions(folder: str) -> None:
    declared = project(folder)
    lines = [*declared["dependencies"]]
    for extra in declared.get("optional-dependencies", {}).values():
        lines += extra
    for line in lines:
        requirement = Requirement(line)
        name = requirement.name
        version = TESTED.get(name) or TESTED.get(name.capitalize())
        if version is not None:
            assert requirement.specifier.contains(version), requirement


@pytest.mark.parametrize("name", BOUNDED)
def test_packages_used_by_their_internals_have_an_upper_bound_and_a_tested_version(
    name: str,
) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    line = re.compile(rf'^    "({name}>=[^"]+)",(.*)$', re.MULTILINE)
    ((requirement, comment),) = line.findall(text)
    specifier = Requirement(requirement).specifier
    operators = {each.operator for each in specifier}
    assert "<" in operators, "no upper bound"
    assert f"tested with {TESTED[name]}" in comment
    major, minor, patch = TESTED[name].split(".")
    assert specifier.contains(f"{major}.{minor}.{int(patch) + 1}"), "patch releases are admitted"


def test_torch_of_the_gpu_machine_is_admitted() -> None:
    requirements = [Requirement(line) for line in CORE["dependencies"]]
    by_name = {requirement.name: requirement for requirement in requirements}
    assert by_name["torch"].specifier.contains("2.11.0")


def test_studies_need_the_version_of_the_checkout() -> None:
    studies = project("capsule_studies")
    assert studies["version"] == capsule_lab.__version__
    expected = f"capsule-lab[report]=={capsule_lab.__version__}"
    assert expected in studies["dependencies"]
