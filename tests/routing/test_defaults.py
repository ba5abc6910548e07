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
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def function_of(kind: type[AbstractRouting]) -> Callable[..., Any] | None:
    """The function in the module of the class; random couplings have that of uniform routing."""
    module = importlib.import_module(kind.__module__)
    functions = [vars(module)[name] for name in module.__all__ if name != kind.__name__]
    return functions[0] if functions else None


def test_all_but_one_have_a_function() -> None:
    assert [kind.__name__ for kind in REFERENCES if not function_of(kind)] == ["RandomCouplings"]


@every_routing
def test_configuration_has_the_defaults_of_the_class(kind: type[AbstractRouting]) -> None:
    name = kind.__module__.rpartition(".")[2]
    config = OmegaConf.to_container(OmegaConf.load(conf_dir() / "routing" / f"{name}.yaml"))
    routing = config.get("routing", config)
    options = {key: value for key, value in routing.items() if not key.startswith("_")}
    assert options == defaults(kind)


@every_routing
def test_class_has_the_defaults_of_the_function(kind: type[AbstractRouting]) -> None:
    """``None`` in one of them means another thing in the other, such as a learned bias and its tensor."""
    of_class = defaults(kind)
    own = OWN_DEFAULTS.get(kind.__name__, set())
    function = function_of(kind)
    for name, value in defaults(function).items() if function else ():
        other = of_class.get(name)
        if value is not None and other is not None and name not in own:
            assert other == value, f"{name} of {function.__name__}"
