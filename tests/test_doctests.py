"""Examples in docstrings run and give the documented output.

Python's own doctest finder skips decorated functions, which most of ours are; this module collects them.
"""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

from tests.helpers.commands import ROOT

SOURCES = sorted((ROOT / "capsule_lab").rglob("*.py"))
FILES = [file for file in SOURCES if ">>> " in file.read_text()]
FORMULAS = [
    "functional",
    "losses",
    "schedules",
    "routing.dynamic",
    "routing.em",
    "routing.uniform",
    "networks.capsnet",
]
"""Modules that must have an example."""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def folder_of(file: Path) -> str:
    return module_of(file).split(".")[1]


def docstrings(file: Path) -> list[str]:
    nodes = ast.walk(ast.parse(file.read_text()))
    return [ast.get_docstring(node) or "" for node in nodes if isinstance(node, DOCUMENTED)]


@pytest.mark.parametrize("folder", sorted(set(map(folder_of, FILES))))
def test_examples_give_their_documented_output(folder: str) -> None:
    report: list[str] = []
    for file in FILES:
        if folder_of(file) == folder:
            name = module_of(file)
            for text in docstrings(file):
                names = dict(vars(importlib.import_module(name)))
                test = doctest.DocTestParser().get_doctest(text, names, name, None, None)
                doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert not report, "".join(report)


def test_modules_of_formulas_have_an_example() -> None:
    with_example = set(map(module_of, FILES))
    for module in FORMULAS:
        assert f"capsule_lab.{module}" in with_example
