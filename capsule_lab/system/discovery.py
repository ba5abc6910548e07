"""Discovery of classes in the files of a package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil


def classes_in(package: str, *bases: type) -> dict[str, type]:
    """Return, by name, the subclasses of ``bases`` defined in the modules of a package, without subpackages.

    For use in the package's ``__init__``, so that a new file with such a class needs no entry there.
    """
    classes: dict[str, type] = {}
    for file in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        if not file.ispkg:
            module = importlib.import_module(file.name)
            members = inspect.getmembers(module, inspect.isclass)
            classes |= {
                n: value
                for n, value in members
                if value.__module__ == file.name and issubclass(value, bases)
            }
    return classes
