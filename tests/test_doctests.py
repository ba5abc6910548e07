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


@pytest.mark.parametrize(
    ("module", "name", "text"), [pytest.param(*each, id=f"{each[0]}.{each[1]}") for each in EXAMPLES]
)
def test_example(module: str, name: str, text: str) -> None:
    names = dict(vars(importlib.import_module(module)))
    test = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert test.examples
    assert not report, "".join(report)


@pytest.mark.parametrize("module", SOURCES)
def test_every_example_of_a_file_is_found(module: str) -> None:
    assert SOURCES[module].count(">>> ") == sum(text.count(">>> ") for found, _, text in EXAMPLES if found == module)


@pytest.mark.parametrize("module", FORMULAS)
def test_formulas_have_an_example(module: str) -> None:
    assert f"capsule_lab.{module}" in {found for found, *_ in EXAMPLES}
