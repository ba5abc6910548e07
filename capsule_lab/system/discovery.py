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
    folders = importlib.import_module(package).__path__
    for file in pkgutil.iter_modules(folders, f"{package}."):
        if file.ispkg:
            continue
        module = importlib.import_module(file.name)
        members = inspect.getmembers(module, inspect.isclass)
        defined = [(name, value) for name, value in members if value.__module__ == file.name]
        classes |= {name: value for name, value in defined if issubclass(value, bases)}
    return classes
