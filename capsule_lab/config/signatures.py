"""What functions and classes take: names from their signatures, plain values from their annotations."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from omegaconf import DictConfig, ListConfig

_EXPECTED: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    types.NoneType: "null",
}
_SEVERAL = {int: "whole numbers", float: "numbers", str: "texts"}
_LISTS = (list, tuple, Sequence)
_MAPPINGS = (dict, Mapping)


@functools.cache
def arguments_of(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """What ``target`` takes by name, following ``**options`` up its base classes; ``None`` if anything."""
    layers = [target]
    if inspect.isclass(target):
        layers = [vars(c)["__init__"] for c in inspect.getmro(target) if "__init__" in vars(c) and c is not object]
    names: dict[str, inspect.Parameter] = {}
    for layer in layers:
        parameters = _signature(layer).parameters.values()
        own = {p.name: p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
        names = own | names  # the most derived class decides
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return {name: parameter for name, parameter in names.items() if name != "self"}
    return None if layers else names


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # names that are imported for type checkers only; such annotations stay text and check nothing
        return inspect.signature(function)


def accepts(annotation: Any, value: Any) -> bool:
    """Whether a value of a configuration is of an annotated type; true of annotations that say nothing of such values.

    >>> accepts(int | None, 3), accepts(int | None, 1.5), accepts(Sequence[int], ListConfig(["a"]))
    (True, False, False)
    """
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return any(accepts(each, value) for each in inside)
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in inside)
    if origin in _LISTS or annotation in _LISTS:
        if not isinstance(value, ListConfig):
            return False
        of_each = inside[:1] * len(value) if origin is not tuple or inside[1:] == (...,) else inside
        return not inside or (len(of_each) == len(value) and all(map(accepts, of_each, value)))
    if origin in _MAPPINGS or annotation in _MAPPINGS:
        return isinstance(value, DictConfig)
    if annotation in _EXPECTED:
        if isinstance(value, bool):  # an int for Python
            return annotation is bool
        return isinstance(value, (float, int) if annotation is float else annotation)
    if inspect.isclass(annotation) and annotation is not object:
        return isinstance(value, DictConfig) and "_target_" in value  # from which an object is built
    return True


def expected(annotation: Any) -> str:
    """What ``accepts`` accepts, for a message.

    >>> expected(int | None), expected(Literal["a", "b"]), expected(tuple[float, float])
    ('a whole number or null', "'a' or 'b'", 'a list of 2 numbers')
    """
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(dict.fromkeys(filter(None, map(expected, inside))))
    if origin is Literal:
        *others, last = map(repr, inside)
        return " or ".join([", ".join(others), last] if others else [last])
    if origin in _LISTS or annotation in _LISTS:
        number = f"{len(inside)} " if origin is tuple and ... not in inside else ""
        kinds = [each for one in inside[:1] for each in (typing.get_args(one) or (one,))]
        if inside and typing.get_origin(inside[0]) in _LISTS:
            return f"a list of lists of {_SEVERAL.get(kinds[0], 'values')}, such as [[…], […]]"
        return f"a list of {number}{next((_SEVERAL[kind] for kind in kinds if kind in _SEVERAL), 'values')}"
    if origin in _MAPPINGS or annotation in _MAPPINGS:
        return "{key: value}"
    return _EXPECTED.get(annotation, "")


def refused(key: str, value: Any, words: str) -> str:
    """The message for a value that is not ``expected``, whose words these are.

    >>> refused("train.resume", "maybe", expected(bool)), refused("split", None, expected(Literal["test", "val"]))
    ('train.resume is maybe; expected true or false', "split is null; expected 'test' or 'val'")
    """
    if not isinstance(value, str):
        shown = "null" if value is None else str(value)
    elif not value:
        shown = "an empty text"
    else:
        shown = repr(value) if words.startswith("'") else value
    return f"{key} is {shown}; expected {words}"
