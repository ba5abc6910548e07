"""What editors and type checkers see of a package that finds its modules itself is what it exports."""

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest


def exported_lines(package: str) -> set[str]:
    """One import for each class that the package exports; one for each module of ``routing``."""
    module = importlib.import_module(package)
    lines = set()
    if package.endswith(".routing"):
        for file in pkgutil.iter_modules(module.__path__):
            name = f"{package}.{file.name}"
            if hasattr(importlib.import_module(name), "__all__"):
                lines.add(f"from {name} import *")
        return lines
    for name in module.__all__:
        value = getattr(module, name)
        if value.__module__.startswith(package):
            lines.add(f"from {value.__module__} import {value.__name__}")
    return lines


def imported_lines(statements: list[ast.stmt], package: str) -> set[str]:
    lines = set()
    for statement in statements:
        if isinstance(statement, ast.ImportFrom) and statement.module.startswith(package):
            for alias in statement.names:
                lines.add(f"from {statement.module} import {alias.name}")
    return lines


def advice(package: str, text: str) -> str:
    """The lines to add below ``if TYPE_CHECKING`` and those to remove; empty if there are none."""
    statements = ast.parse(text).body
    (block,) = [each for each in statements if isinstance(each, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    for_checkers = imported_lines(block.body, package)
    exported = exported_lines(package)
    missing = exported - for_checkers - imported_lines(statements, package)
    file = f"{package.replace('.', '/')}/__init__.py"
    changes = [f"{file}: add {line}" for line in sorted(missing)]
    changes += [f"{file}: remove {line}" for line in sorted(for_checkers - exported)]
    return "\n".join(changes)


def source_of(package: str) -> str:
    return Path(inspect.getfile(importlib.import_module(package))).read_text()


@pytest.mark.parametrize("package", ["routing", "networks", "data"])
def test_type_checkers_see_what_the_package_exports(package: str) -> None:
    name = f"capsule_lab.{package}"
    found = advice(name, source_of(name))
    assert not found, f"in the block of TYPE_CHECKING of {found}"


@pytest.mark.parametrize(
    ("package", "module", "name"),
    [("routing", "em", "*"), ("networks", "vb_caps", "VBCaps"), ("data", "svhn", "SVHNDataModule")],
)
def test_message_names_the_line(package: str, module: str, name: str) -> None:
    line = f"from capsule_lab.{package}.{module} import {name}"
    other = f"from capsule_lab.{package}.removed import {name}"
    text = source_of(f"capsule_lab.{package}")
    assert line in text
    file = f"capsule_lab/{package}/__init__.py"
    expected = f"{file}: add {line}\n{file}: remove {other}"
    assert advice(f"capsule_lab.{package}", text.replace(line, other)) == expected
