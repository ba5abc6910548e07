"""A default stands in the function, in the class and in ``conf/routing``; its source, in the first and the last."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from omegaconf import OmegaConf

from capsule_lab.config.folders import conf_dir
from capsule_lab.routing import AbstractRouting
from tests.helpers.routing_contract import REFERENCES

every_routing = pytest.mark.parametrize("kind", REFERENCES)

OWN_DEFAULTS = {"EMRouting": {"cost"}}
"""Arguments of a class whose default is not that of the function, as its docstring says."""


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not parameter.empty:
            found[name] = parameter.default
    return found


def function_of(kind: type[AbstractRouting]) -> Callable[..., Any] | None:
    """The function in the module of the class; random couplings have that of uniform routing."""
    module = importlib.import_module(kind.__module__)
    for name in module.__all__:
        if name != kind.__name__:
            return getattr(module, name)
    return None


def test_all_but_one_have_a_function() -> None:
    without = [kind.__name__ for kind in REFERENCES if not function_of(kind)]
    assert without == ["RandomCouplings"]


@every_routing
def test_configuration_has_the_defaults_of_the_class(kind: type[AbstractRouting]) -> None:
    name = kind.__module__.rpartition(".")[2]
    file = conf_dir() / "routing" / f"{name}.yaml"
    config = OmegaConf.to_container(OmegaConf.load(file))
    options = dict(config.get("routing", config))
    del options["_target_"], options["_partial_"]
    assert options == defaults(kind)


@every_routing
def test_class_has_the_defaults_of_the_function(kind: type[AbstractRouting]) -> None:
    """``None`` in one of them means another thing in the other, such as a learned bias and its tensor."""
    function = function_of(kind)
    if function is None:
        return
    of_class = defaults(kind)
    own = OWN_DEFAULTS.get(kind.__name__, set())
    for name, value in defaults(function).items():
        other = of_class.get(name)
        if value is not None and other is not None and name not in own:
            assert other == value, f"{name} of {function.__name__}"
