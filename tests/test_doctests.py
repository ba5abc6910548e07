"""Examples in docstrings run and give the documented output.

Python's own doctest finder skips decorated functions, which most of ours are; this module collects them.
"""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

from tests.helpers.commands import ROOT

FILES = [
    file for file in sorted((ROOT / "capsule_lab").rglob("*.py")) if ">>> " in file.read_text()
]
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


@pytest.mark.parametrize("folder", sorted({module_of(file).split(".")[1] for file in FILES}))
def test_examples_give_their_documented_output(folder: str) -> None:
    report: list[str] = []
    for file in FILES:
        if module_of(file).split(".")[1] == folder:
            nodes = [
                node
                for node in ast.walk(ast.parse(file.read_text()))
                if isinstance(node, DOCUMENTED)
            ]
            for text in [ast.get_docstring(node) or "" for node in nodes]:
                names = dict(vars(importlib.import_module(module_of(file))))
                test = doctest.DocTestParser().get_doctest(text, names, module_of(file), None, None)
                doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert not report, "".join(report)


def test_modules_of_formulas_have_an_example() -> None:
    assert {f"capsule_lab.{module}" for module in FORMULAS} - set(map(module_of, FILES)) == set()
