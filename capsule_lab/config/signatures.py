"""Arguments of functions and classes: names from signatures, types of plain values from annotations."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Lt
from omegaconf import DictConfig, ListConfig

from capsule_lab.config.declaration import Expected
from capsule_lab.errors import ConfigError


@functools.cache
def arguments_of(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return the named arguments of ``target``, through ``**options`` of base classes; ``None`` if any is allowed."""
    names: dict[str, inspect.Parameter] = {}
    for function in _constructors(target):
        takes_any = False
        for each in _parameters(function):
            if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD):
                names.setdefault(each.name, each)  # the most derived class comes first
            takes_any = takes_any or each.kind is each.VAR_KEYWORD
        if not takes_any:
            names.pop("self", None)
            return names
    return None


def _constructors(target: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Return the function, or the constructors of a class and of its bases, the most derived first."""
    if not inspect.isclass(target):
        return [target]
    own = [vars(base).get("__init__") for base in inspect.getmro(target) if base is not object]
    return [constructor for constructor in own if constructor is not None] or [object]


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:  # a type is imported only for type checking: annotations stay text
        signature = inspect.signature(function)
    return list(signature.parameters.values())


def check_value(key: str, value: Any, annotation: Any, words: str = "") -> None:
    """Check that a value is finite, and of its annotated type if that is plain; ``words`` describe it instead."""
    kinds = kinds_of(annotation)
    if kinds and not any(kind.accepts(value) for kind in kinds):
        raise refused(key, value, words or described(kinds))
    if isinstance(value, float) and not math.isfinite(value):
        raise refused(key, value, "a finite number")


def refused(key: str, value: Any, words: str) -> ConfigError:
    """Return the error for a value that does not match the description ``words``."""
    if value is None:
        text = "null"
    elif value == "":
        text = "an empty text"
    else:
        text = repr(value) if isinstance(value, str) and words.startswith("'") else str(value)
    return ConfigError(f"{key} is {text}; expected {words}")


class Kind(NamedTuple):
    """A kind of plain values: its description, and whether a value is of this kind."""

    words: str
    accepts: Callable[[Any], bool]


def described(kinds: Sequence[Kind]) -> str:
    """Return a description of values of any of these kinds.

    >>> [described(kinds_of(each)) for each in (int | None, Literal["a", "b"], tuple[float, float])]
    ['a whole number or null', "'a' or 'b'", 'a list of 2 numbers']
    """
    *others, last = [kind.words for kind in kinds]
    words = ""
    for each in others:
        words += f"{each}, or " if "," in each else f"{each} or "
    return words + last


def kinds_of(annotation: Any) -> list[Kind]:
    """Return the kinds of plain values that an annotation allows; an empty list if it allows any, or none."""
    origin = typing.get_origin(annotation) or annotation
    parts = typing.get_args(annotation)
    if origin is Annotated:
        return _with_marks(kinds_of(parts[0]), parts[1:])
    if origin in (types.UnionType, typing.Union):
        return [] if Any in parts else list(itertools.chain(*map(kinds_of, parts)))
    if origin is Literal:
        return [_one_of(parts)]
    if origin in (list, tuple, Sequence):
        size = len(parts) if origin is tuple and ... not in parts else None
        return [_list_of(kinds_of(parts[0]) if parts else [], size)]
    if origin in (dict, Mapping):
        return [Kind("{key: value}", _is_mapping)]
    return [_SCALARS[annotation]] if annotation in _SCALARS else []


def _is_mapping(value: Any) -> bool:
    return isinstance(value, DictConfig)


def _exactly(*accepted: type) -> Callable[[Any], bool]:
    """Return a test of the type itself, because a bool is an instance of int."""
    return lambda value: type(value) in accepted


_SCALARS = {
    bool: Kind("true or false", _exactly(bool)),
    int: Kind("a whole number", _exactly(int)),
    float: Kind("a number", _exactly(float, int)),
    str: Kind("text", _exactly(str)),
    types.NoneType: Kind("null", _exactly(types.NoneType)),
}
_SEVERAL = {"a whole number": "whole numbers", "a number": "numbers", "text": "texts"}


def _one_of(literals: Sequence[Any]) -> Kind:
    *others, last = map(repr, literals)
    words = f"{', '.join(others)} or {last}" if others else last
    typed = [(type(literal), literal) for literal in literals]
    return Kind(words, lambda value: (type(value), value) in typed)


def _list_of(items: Sequence[Kind], size: int | None) -> Kind:
    """Return the kind of lists of items of these kinds, or of any items."""
    plurals = []
    for kind in items:
        if kind.words != "null":
            plurals.append(_SEVERAL.get(kind.words, kind.words.replace("a list", "lists")))
    count = "" if size is None else f"{size} "

    def accepts(value: Any) -> bool:
        if not isinstance(value, ListConfig) or size not in (None, len(value)):
            return False
        return not items or all(any(kind.accepts(item) for kind in items) for item in value)

    return Kind(f"a list of {count}{' or '.join(plurals) or 'values'}", accepts)


def _with_marks(kinds: Sequence[Kind], marks: Sequence[Any]) -> list[Kind]:
    """Return kinds with the words and limits that an ``Annotated`` type adds."""
    words = [mark.words for mark in marks if isinstance(mark, Expected)]
    if words:
        return [Kind(words[0], kind.accepts) for kind in kinds]
    least: Any = next((mark.ge for mark in marks if isinstance(mark, Ge)), None)
    end: Any = next((mark.lt for mark in marks if isinstance(mark, Lt)), None)
    if least is None:
        return list(kinds)
    limits = f"{least} or more" if end is None else f"{least} to {end - 1}"

    def within(kind: Kind) -> Callable[[Any], bool]:
        return lambda value: kind.accepts(value) and least <= value and not (end and value >= end)

    return [Kind(f"{kind.words}, {limits}", within(kind)) for kind in kinds]
