"""Arguments of functions and classes: names from signatures, types of plain values from annotations."""

from __future__ import annotations

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from omegaconf import DictConfig, ListConfig

from capsule_lab.errors import ConfigError

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    types.NoneType: "null",
}
_SEVERAL = {"a whole number": "whole numbers", "a number": "numbers", "text": "texts"}


@functools.cache
def arguments_of(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return the named arguments of ``target``, through ``**options`` of base classes; ``None`` if any is allowed."""
    layers = [target]
    if inspect.isclass(target):
        layers = [
            vars(c)["__init__"]
            for c in inspect.getmro(target)
            if "__init__" in vars(c) and c is not object
        ]
    names: dict[str, inspect.Parameter] = {}
    for layer in layers:
        try:
            parameters = inspect.signature(layer, eval_str=True).parameters.values()
        except (
            NameError
        ):  # imported only for type checking; such annotations stay text and are not checked
            parameters = inspect.signature(layer).parameters.values()
        arguments = {
            p.name: p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
        }
        names = arguments | names  # the most derived class takes precedence
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return {name: parameter for name, parameter in names.items() if name != "self"}
    return None if layers else names


def check_value(key: str, value: Any, annotation: Any, words: str = "") -> None:
    """Check that a value is finite, and of its annotated type if that is plain; ``words`` describe it instead."""
    accepted = allowed(annotation)
    if accepted and not any(test(value) for test in accepted.values()):
        raise refused(key, value, words or " or ".join(accepted))
    if isinstance(value, float) and not math.isfinite(value):
        raise refused(key, value, "a finite number")


def refused(key: str, value: Any, words: str) -> ConfigError:
    """Return the error for a value that does not match the description ``words``."""
    text = "null" if value is None else "an empty text" if value == "" else str(value)
    text = repr(value) if isinstance(value, str) and words.startswith("'") else text
    return ConfigError(f"{key} is {text}; expected {words}")


def allowed(annotation: Any) -> dict[str, Callable[[Any], bool]]:
    """Return the plain values that an annotation allows, as description and test; empty if it allows any or no value.

    >>> " or ".join(allowed(int | None)), *allowed(Literal["a", "b"]), *allowed(tuple[float, float])
    ('a whole number or null', "'a' or 'b'", 'a list of 2 numbers')
    """
    origin, inside = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return (
            {}
            if Any in inside
            else {words: test for inner in inside for words, test in allowed(inner).items()}
        )
    if origin is Literal:
        *others, last = map(repr, inside)
        words = " or ".join([", ".join(others), last] if others else [last])
        return {
            words: lambda value: any(
                value == literal and type(value) is type(literal) for literal in inside
            )
        }
    if origin in (list, tuple, Sequence):  # of items of one type
        size = len(inside) if origin is tuple and ... not in inside else None
        items = allowed(inside[0]) if inside else {}
        words = " or ".join(
            _SEVERAL.get(item, item.replace("a list", "lists")) for item in items if item != "null"
        )

        def test(value: Any) -> bool:
            is_list = isinstance(value, ListConfig) and size in (None, len(value))
            return is_list and all(
                not items or any(test(item) for test in items.values()) for item in value
            )

        return {f"a list of {f'{size} ' if size else ''}{words or 'values'}": test}
    if origin in (dict, Mapping):
        return {"{key: value}": lambda value: isinstance(value, DictConfig)}
    accepted = {float: (float, int)}.get(
        annotation, (annotation,)
    )  # type(…), because a bool is an instance of int
    return (
        {_WORDS[annotation]: lambda value: type(value) in accepted} if annotation in _WORDS else {}
    )
