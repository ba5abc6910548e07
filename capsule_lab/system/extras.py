"""Packages that an extra of the distribution installs, because most runs do not need them."""

from __future__ import annotations

from importlib.util import find_spec

from capsule_lab.errors import MissingPackageError


def require(purpose: str, extra: str, *modules: str) -> None:
    """Check that modules can be imported, without importing them, before anything long begins.

    Args:
        purpose: what needs them, such as an option with its value; the beginning of the message.
        extra: name of the extra in ``pyproject.toml`` that installs them.
        modules: top-level modules.

    Raises:
        MissingPackageError: if one is missing.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f'{purpose} needs {", ".join(missing)}; install it with: pip install "capsule-lab[{extra}]"'
        )
