"""A default stands in the function, in the class and in ``conf/routing``; its source, in the first and the last."""

import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from omegaconf import OmegaConf

from capsule_lab.config.compose import conf_dir
from capsule_lab.routing import AbstractRouting
from tests.helpers.routing_contract import REFERENCES

every_routing = pytest.mark.parametrize("kind", REFERENCES)

OWN_DEFAULTS = {"EMRouting": {"cost"}}
"""Arguments of a class whose default is not that of the function, as its docstring says."""


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def module_of(kind: type[AbstractRouting]) -> ModuleType:
    return importlib.import_module(kind.__module__)


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
    module = module_of(kind)
    of_class = defaults(kind)
    compared = []
    for function in filter(inspect.isfunction, map(vars(module).get, module.__all__)):
        for name, value in defaults(function).items():
            of_both = {value, of_class.get(name)}
            if None not in of_both and name not in OWN_DEFAULTS.get(kind.__name__, ()):
                assert of_both == {value}, f"{name} is {value} in {function.__name__}"
                compared.append(name)
    if kind.__name__ != "RandomCouplings":  # it has no function of its own
        assert "backend" in compared
