"""The examples in docstrings run and show what they say.

Python's own doctest finder passes over decorated functions, which most of ours are, so they are collected here.
"""

from __future__ import annotations

import doctest
import importlib

import pytest

from tests.helpers.commands import ROOT

SOURCES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): text
    for file in sorted((ROOT / "capsule_lab").rglob("*.py"))
    if ">>> " in (text := file.read_text())
}
FORMULAS = ["functional", "losses", "schedules", "routing.dynamic", "routing.em", "routing.uniform", "networks.capsnet"]
"""Modules that must have an example."""


def documented(module: str) -> dict[str, str]:
    """Docstrings with examples: of the module, of what it defines, and of the methods of its classes."""
    found, objects = {}, vars(importlib.import_module(module))
    own = {name: value for name, value in objects.items() if getattr(value, "__module__", None) == module}
    methods = {f"{k}.{n}": m for k, c in own.items() if isinstance(c, type) for n, m in vars(c).items()}
    for name, value in {"": importlib.import_module(module), **own, **methods}.items():
        docstring = getattr(value, "__doc__", None)
        if isinstance(docstring, str) and ">>>" in docstring:
            found[name] = docstring
    return found


EXAMPLES = [(module, name, text) for module in SOURCES for name, text in documented(module).items()]


@pytest.mark.parametrize("module", sorted({module.split(".")[1] for module in SOURCES}))
def test_examples(module: str) -> None:
    """Of each module or folder of the package."""
    report: list[str] = []
    for file, name, text in EXAMPLES:
        if file.split(".")[1] == module:
            names = dict(vars(importlib.import_module(file)))
            test = doctest.DocTestParser().get_doctest(text, names, f"{file}.{name}", None, None)
            assert test.examples
            doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert not report, "".join(report)


def test_every_example_is_found_and_formulas_have_one() -> None:
    found = {module: sum(text.count(">>> ") for each, _, text in EXAMPLES if each == module) for module in SOURCES}
    assert {module: SOURCES[module].count(">>> ") for module in SOURCES} == found
    assert {f"capsule_lab.{module}" for module in FORMULAS} - {*found} == set()
