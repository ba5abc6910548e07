"""The examples in docstrings run and show what they say.

Python's own doctest finder passes over decorated functions, which most of ours are, so they are collected here.
"""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = [
    "capsule_lab.functional",
    "capsule_lab.losses",
    "capsule_lab.schedules",
    "capsule_lab.routing.dynamic",
    "capsule_lab.routing.uniform",
    "capsule_lab.networks.capsnet",
]
EXAMPLES = [
    pytest.param(module, name, id=f"{module}.{name}")
    for module in MODULES
    for name, value in vars(importlib.import_module(module)).items()
    if getattr(value, "__module__", None) == module and ">>>" in (value.__doc__ or "")
]


@pytest.mark.parametrize(("module", "name"), EXAMPLES)
def test_example(module: str, name: str) -> None:
    names = dict(vars(importlib.import_module(module)))
    test = doctest.DocTestParser().get_doctest(names[name].__doc__, names, name, None, None)
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert test.examples
    assert not report, "".join(report)


@pytest.mark.parametrize("module", MODULES)
def test_every_file_of_formulas_has_an_example(module: str) -> None:
    assert module in {example.values[0] for example in EXAMPLES}
