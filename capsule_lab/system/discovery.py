"""Classes that are found in the files of a folder."""

from __future__ import annotations

import importlib
import inspect
import pkgutil


def classes_in(package: str, *bases: type) -> dict[str, type]:
    """The subclasses of ``bases`` that the modules of a package define, without its subpackages, by name.

    For the package's own ``__init__``: a new file with such a class needs no entry there.
    """
    found: dict[str, type] = {}
    for file in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        if not file.ispkg:
            module = importlib.import_module(file.name)
            members = inspect.getmembers(module, inspect.isclass)
            found |= {n: each for n, each in members if each.__module__ == file.name and issubclass(each, bases)}
    return found
