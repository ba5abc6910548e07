"""torch.compile and torch.export in tests: they cannot trace the shape checks, which only tests have."""

import inspect
from collections.abc import Iterator

import jaxtyping
import pytest
import torch

from capsule_lab.routing import Normaliser


def _kinds(kind: type) -> Iterator[type]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


def without_shape_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the wrappers of jaxtyping, as in training."""
    # of functions that exist already
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    # of functions in functions
    monkeypatch.setattr(jaxtyping, "jaxtyped", lambda **_: lambda function: function)
    for kind in _kinds(Normaliser):  # of objects that are made in a graph
        for name, method in list(vars(kind).items()):
            if inspect.isfunction(method):
                monkeypatch.setattr(kind, name, inspect.unwrap(method))
    for kind in _kinds(torch.autograd.Function):  # of methods that torch's own code calls
        for name, method in list(vars(kind).items()):
            if kind.__module__.startswith("capsule_lab.") and isinstance(method, staticmethod):
                monkeypatch.setattr(kind, name, staticmethod(inspect.unwrap(method.__func__)))
    torch.compiler.reset()
