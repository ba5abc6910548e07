"""What the tree promises: imports and names point down, and tests share code only through ``tests/helpers``."""

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from capsule_lab import commands
from tests.helpers.commands import ROOT
from tests.helpers.extensions import HAS_STUDIES

OF_TESTS = re.compile(r"^(?:from|import) tests\.(?:\w+\.)*(?:test_\w+|conftest)\b", re.MULTILINE)
DOTTED = re.compile(r"\b(?:benchmarks|capsule_lab|capsule_studies|hydra_plugins)(?:\.\w+)+")
OTHER_MEANINGS = {
    "train": "a split of a data set, and a node of a run's configuration",
    "figures": "a folder of a run directory",
    "evaluate": "a key of a row of a table",
    "dataset": "what other programs call the key data",
    "export": "an extra of the installation",
}
"""Names of commands that mean something else below."""
ENTRY_POINTS = {"capsule_lab.commands", "capsule_lab.functions"}
"""Names of groups of entry points, which packages above use."""


def test_no_module_imports_from_a_test_or_a_conftest() -> None:
    wrong = []
    for file in sorted((ROOT / "tests").rglob("*.py")):
        if OF_TESTS.search(file.read_text()):
            wrong.append(file.relative_to(ROOT).as_posix())
    assert wrong == [], "move what they need to tests/helpers/"


@functools.cache
def floors() -> dict[str, int]:
    """The floor of each package and module that the import contract names; the ground floor is the largest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    by_name = {each["name"]: each for each in contracts}
    layers = by_name["Imports only point down"]["layers"]
    found = {}
    for number, layer in enumerate(layers):
        for name in layer.split("|"):
            found[name.strip()] = number
    return found


def floor_of(module: str) -> int | None:
    """The floor of a module, or of the package that contains it."""
    while module:
        if module in floors():
            return floors()[module]
        module = module.rpartition(".")[0]
    return None


def texts(file: Path) -> Iterator[str]:
    """The texts in a module, without those that stand alone, such as docstrings."""
    nodes = [*ast.walk(ast.parse(file.read_text()))]
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if not isinstance(node, ast.Constant) or id(node) in alone:
            continue
        if isinstance(node.value, str):
            yield node.value


@functools.cache
def names_of_commands() -> set[str]:
    return {*commands.names()} - OTHER_MEANINGS.keys()


def upper_names(text: str, own_floor: int) -> list[str]:
    """What a text of a module on this floor names above it."""
    above = []
    for name in {*DOTTED.findall(text)} - ENTRY_POINTS:
        floor = floor_of(name)
        if floor is not None and floor < own_floor:
            above.append(name)
    if own_floor > floors()["capsule_lab.commands"]:
        words = {text, *re.findall(r"\b(?:attack|analyse|explorer)\b", text)}
        above += words & names_of_commands()
    return sorted(above)


@pytest.mark.parametrize("package", ["capsule_lab", "hydra_plugins"])
def test_lower_floors_name_no_upper_one_in_a_text(package: str) -> None:
    """Imports point down by import-linter's contract; knowledge would point up in strings."""
    wrong = []
    for file in sorted((ROOT / package).rglob("*.py")):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        own_floor = floor_of(module.removesuffix(".__init__"))
        if own_floor is None:
            continue
        for text in texts(file):
            names = upper_names(text, own_floor)
            if names:
                wrong.append(f"{module}: {', '.join(names)} in {text!r}")
    assert wrong == [], "if a word means something else there, add it to OTHER_MEANINGS"


def test_names_of_upper_floors_would_be_found() -> None:
    config = floors()["capsule_lab.config"]
    assert upper_names("capsule_studies.attacks", config) == ["capsule_studies.attacks"]
    assert upper_names("capsule_lab.runs.open_run", config) == ["capsule_lab.runs.open_run"]
    assert upper_names("predict", config) == ["predict"]
    assert not HAS_STUDIES or upper_names("use analyse with it", config) == ["analyse"]
    assert upper_names("capsule_lab.routing.EMRouting", config) == []
    assert upper_names("train", config) == []


def test_environment_variables_are_named_in_one_file() -> None:
    """``capsule_lab.system.protocol`` describes what a process learns beside its command line."""
    found = set()
    for file in (ROOT / "capsule_lab").rglob("*.py"):
        for text in texts(file):
            if re.fullmatch(r"CAPSULE_LAB_[A-Z_]+", text):
                found.add(file.relative_to(ROOT).as_posix())
    assert found == {"capsule_lab/system/protocol.py"}
