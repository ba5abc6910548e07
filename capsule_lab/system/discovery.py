"""Discovery of classes in the files of a package, and of what other distributions add."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec


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


def entries_of(group: str) -> list[EntryPoint]:
    """Return the entry points of a group by name, without those of packages whose files were removed."""
    entries = sorted(entry_points(group=group), key=lambda entry: entry.name)
    return [entry for entry in entries if find_spec(entry.module.partition(".")[0]) is not None]
