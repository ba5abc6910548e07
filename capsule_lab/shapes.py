"""Check that the tensors of a call belong together: the annotations of a function are what it accepts.

``@checks_shapes`` reads the jaxtyping annotations of a function once. At every call, it compares ranks, sizes and types
of the tensors with them and with each other, which needs no values and is free on every device. ``check_range``
compares values, where Python can read them without waiting for a device.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from capsule_lab.system.torch_internals import is_transformed
from capsule_lab.types import Votes

P = ParamSpec("P")
R = TypeVar("R")
HALF = (torch.bfloat16, torch.float16)
# ours: pixels of 0 to 255 exceed it, a standardised image of up to 100x100 pixels cannot
LARGEST_PIXEL = 100.0
TOLERANCE = 1e-3  # ours: rounding of probabilities, and the steps of a numerical gradient


class Dim(NamedTuple):
    """A dimension of an annotation: its text, and the attribute of the object that is its size, if it is one."""

    text: str
    attribute: tuple[str | int, ...] = ()

    def size(self, owner: Any, sizes: Mapping[str, int]) -> int | None:
        """Return the size that this dimension must have; ``None`` if any."""
        if self.text.isdigit():
            return int(self.text)
        if not self.attribute:
            return sizes.get(self.text)
        return int(_attribute(owner, self.attribute))


class Kind(NamedTuple):
    """One annotation, such as ``Float[Tensor, "batch child"]``."""

    dims: tuple[Dim, ...]
    types: tuple[str, ...]
    """Names of the accepted types, as in ``str(tensor.dtype)`` without ``torch.``."""

    @property
    def is_float(self) -> bool:
        return "float32" in self.types

    def described(self, owner: Any) -> str:
        """Return the expected shape and type, such as ``(batch, 10) of floats``."""
        dims = [str(dim.size(owner, {})) if dim.attribute else dim.text for dim in self.dims]
        comma = "," if len(dims) == 1 else ""
        kind = "floats" if self.is_float else f"torch.{self.types[0]}"
        return f"({', '.join(dims)}{comma}) of {kind}"


VOTES = tuple(Dim(name) for name in ("batch", "child", "parent", "dim"))
"""Dimensions of the votes that a ``Votes`` record determines."""


class Argument(NamedTuple):
    """A tensor argument of a function.

    Attributes:
        position: place among the positional arguments; -1 for an argument that is always a keyword.
        kinds: annotations of which one must fit.
        optional: whether ``None`` is accepted.
        votes: whether a ``Votes`` record is accepted; it stands for the votes that it determines.
    """

    name: str
    position: int
    kinds: tuple[Kind, ...]
    optional: bool
    votes: bool


class Call(NamedTuple):
    """A call that is checked, and what its earlier arguments have determined."""

    name: str
    owner: Any
    sizes: dict[str, int]
    sources: dict[str, str]
    """The argument that determined a size."""
    floats: list[tuple[str, torch.dtype]] | None
    """The first argument of floating type, if all must have one type."""


def checks_shapes(function: Callable[P, R], *, one_type: bool = False) -> Callable[P, R]:
    """Make ``function`` check its tensors against its annotations and each other.

    Dimensions of the same name have the same size. ``{self.child_count}`` is an attribute of the object. A wrong size
    raises ``ValueError``, a wrong type ``TypeError``.

    Args:
        one_type: all floating-point tensors have one type; half precision counts as float32, in which routing computes.
    """
    parameters = inspect.signature(inspect.unwrap(function)).parameters
    is_method = "self" in parameters
    arguments = _arguments(function)

    fast = tuple(_fast(argument) for argument in arguments)

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        owner = args[0] if is_method else None
        if _agrees(fast, owner, args, kwargs, one_type):
            return function(*args, **kwargs)
        name = type(owner).__name__ if is_method else function.__name__
        floats: list[tuple[str, torch.dtype]] | None = [] if one_type else None
        call = Call(name, owner, sizes={}, sources={}, floats=floats)
        for argument in arguments:
            if argument.name in kwargs:
                _check(argument, kwargs[argument.name], call)
            elif 0 <= argument.position < len(args):
                _check(argument, args[argument.position], call)
        return function(*args, **kwargs)

    vars(wrapper)["checked_arguments"] = arguments
    return wrapper


checks_routing = partial(checks_shapes, one_type=True)
"""``checks_shapes`` for functions whose kernels compute in one type."""


FastKind = tuple[tuple[str | int | tuple[str | int, ...], ...], frozenset[torch.dtype]]


class Fast(NamedTuple):
    """An argument as ``_agrees`` needs it: dimensions are names, numbers or attributes."""

    name: str
    position: int
    kind: FastKind | None  # None: several alternatives
    optional: bool


def _fast(argument: Argument) -> Fast:
    kind = _fast_kind(argument.kinds[0]) if len(argument.kinds) == 1 else None
    return Fast(argument.name, argument.position, kind, argument.optional)


def _fast_kind(kind: Kind) -> FastKind | None:
    """Return an annotation as ``_agrees`` needs it; ``None`` if any number of dimensions is accepted."""
    dims: list[str | int | tuple[str | int, ...]] = []
    for dim in kind.dims:
        if dim.text.startswith("*"):
            return None
        if dim.attribute:
            dims.append(dim.attribute)
        else:
            dims.append(int(dim.text) if dim.text.isdigit() else dim.text)
    known = [getattr(torch, name) for name in kind.types if hasattr(torch, name)]
    return tuple(dims), frozenset(known)


def _agrees(
    arguments: tuple[Fast, ...],
    owner: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    one_type: bool,
) -> bool:
    """Return whether a call is valid, in a fraction of the time; ``False`` if only ``_check`` can tell.

    Most calls of a training step are valid, and their checks should not take a hundredth of it.
    """
    sizes: dict[str, int] = {}
    first = None
    for name, position, kind, optional in arguments:
        if name in kwargs:
            value = kwargs[name]
        elif 0 <= position < len(args):
            value = args[position]
        else:
            continue
        if value is None and optional:
            continue
        if kind is None or not isinstance(value, Tensor):
            return False
        dims, dtypes = kind
        dtype, shape = value.dtype, value.shape
        if dtype not in dtypes or len(shape) != len(dims):
            return False
        for dim, size in zip(dims, shape, strict=True):
            expected = dim
            if isinstance(dim, str):
                expected = sizes.setdefault(dim, size)
            elif isinstance(dim, tuple):
                expected = _attribute(owner, dim)
            if expected != size:
                return False
        if one_type:
            first = first or dtype
            if dtype != first:
                return False
    return True


def _attribute(owner: Any, path: tuple[str | int, ...]) -> Any:
    value = owner
    for part in path:
        value = value[part] if isinstance(part, int) else getattr(value, part)
    return value


def check_range(
    owner: str, name: str, values: Tensor, least: float, most: float, expected: str
) -> None:
    """Check that all values are from ``least`` to ``most``; ``ValueError`` if not. NaN is not a wrong value.

    Nothing is checked where reading a value would wait for a device, or where there are no values.
    """
    if not is_readable(values) or not values.numel():
        return
    bounds = values.detach().aminmax()
    lowest, highest = bounds.min.item(), bounds.max.item()
    if lowest < least or highest > most:
        raise ValueError(
            f"{owner} received {name} from {lowest:.4g} to {highest:.4g}; expected {expected}"
        )


def check_probabilities(owner: str, name: str, values: Tensor) -> None:
    """Check that values are probabilities, see ``check_range``."""
    expected = "probabilities, 0 to 1, such as logits.sigmoid()"
    check_range(owner, name, values, -TOLERANCE, 1 + TOLERANCE, expected)


def check_pixels(owner: str, name: str, images: Tensor) -> None:
    """Check that images do not have pixels of 0 to 255, see ``check_range``."""
    expected = "floats in [0, 1], or standardised: divide by 255"
    check_range(owner, name, images, -LARGEST_PIXEL, LARGEST_PIXEL, expected)


def is_readable(tensor: Tensor) -> bool:
    """Return whether Python can read the values without waiting for a device: not while torch compiles or traces."""
    if type(tensor) not in (Tensor, nn.Parameter):  # a fake tensor is a subclass
        return False
    if tensor.device.type != "cpu":
        return False
    return not (torch.compiler.is_compiling() or torch.jit.is_tracing() or is_transformed())


def _arguments(function: Callable[..., Any]) -> tuple[Argument, ...]:
    """Read the annotations of a function; they are text, because modules import ``annotations``."""
    plain = inspect.unwrap(function)
    found = []
    for position, (name, parameter) in enumerate(inspect.signature(plain).parameters.items()):
        annotation = parameter.annotation
        if isinstance(annotation, str):
            annotation = eval(annotation, plain.__globals__)  # noqa: S307 - text of this package
        options = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
        kinds = tuple(_kind(option) for option in options if hasattr(option, "dim_str"))
        is_keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        if kinds or Votes in options:
            place = -1 if is_keyword else position
            optional = types.NoneType in options
            found.append(Argument(name, place, kinds, optional, Votes in options))
    return tuple(found)


def _is_union(annotation: Any) -> bool:
    return isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union


def _kind(annotation: Any) -> Kind:
    return Kind(tuple(_dim(text) for text in annotation.dim_str.split()), tuple(annotation.dtypes))


def _dim(text: str) -> Dim:
    """Read a dimension: ``{self.weight.shape[0]}`` is an attribute."""
    if not text.startswith("{self."):
        return Dim(text)
    parts = re.findall(r"\w+", text)[1:]
    return Dim(text, tuple(int(part) if part.isdigit() else part for part in parts))


def _check(argument: Argument, value: Any, call: Call) -> None:
    if value is None and argument.optional:
        return
    if argument.votes and isinstance(value, Votes):
        _bind(VOTES, _shape_of_votes(value, call), argument.name, call)
        return
    if not isinstance(value, Tensor) or not argument.kinds:
        raise TypeError(
            f"{call.name} received {argument.name} of type {type(value).__name__}; expected {_expected(argument, call)}"
        )
    dtype = str(value.dtype).removeprefix("torch.")
    of_type = [kind for kind in argument.kinds if dtype in kind.types]
    for kind in of_type:
        if _fits(kind.dims, value.shape, call):
            _bind(kind.dims, value.shape, argument.name, call)
            _check_float(argument.name, value, call)
            return
    raise (ValueError if of_type else TypeError)(
        f"{call.name} received {argument.name} {tuple(value.shape)} of {value.dtype}; expected "
        f"{_expected(argument, call)}{_known(argument, call)}"
    )


def _shape_of_votes(votes: Votes, call: Call) -> tuple[int, int, int, int]:
    """Return the shape of the votes that a record determines; raise if its tensors do not fit."""
    for name, tensor in (("poses", votes.poses), ("weight", votes.weight)):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"{call.name} received {name} of {kind}; expected a tensor of floats")
    poses, weight = votes.poses, votes.weight
    if poses.ndim != 3 or weight.ndim != 4 or weight.shape[1] < 1:
        raise ValueError(
            f"{call.name} received poses {tuple(poses.shape)} and weight {tuple(weight.shape)}; expected (batch, "
            "child, rows * inner) and (child, inner, parent, columns), where inner is 1 or more"
        )
    children, inner, parents, columns = weight.shape
    if poses.shape[1] != children or poses.shape[2] % inner:
        raise ValueError(
            f"{call.name} received poses {tuple(poses.shape)} for a weight {tuple(weight.shape)}; expected (batch, "
            f"{children}, a multiple of {inner})"
        )
    _check_float("poses", poses, call)
    _check_float("weight", weight, call)
    return poses.shape[0], children, parents, poses.shape[2] // inner * columns


def _check_float(name: str, tensor: Tensor, call: Call) -> None:
    if call.floats is None or not tensor.is_floating_point():
        return
    dtype = torch.float32 if tensor.dtype in HALF else tensor.dtype
    if not call.floats:
        call.floats.append((name, dtype))
    first, expected = call.floats[0]
    if dtype != expected:
        raise TypeError(
            f"{call.name} received {first} of {expected} and {name} of {tensor.dtype}; expected one type, such as "
            f"{name}.to({first}.dtype)"
        )


def _named(dims: Sequence[Dim]) -> Sequence[Dim]:
    """Return the dimensions behind ``*shape``, which stands for any number of them."""
    return dims[1:] if dims and dims[0].text.startswith("*") else dims


def _fits(dims: Sequence[Dim], shape: Sequence[int], call: Call) -> bool:
    named = _named(dims)
    if len(shape) < len(named) or (len(shape) > len(named) and named is dims):
        return False
    here: dict[str, int] = {}
    for dim, size in zip(named, shape[len(shape) - len(named) :], strict=True):
        expected = dim.size(call.owner, call.sizes)
        if expected is None:
            expected = here.setdefault(dim.text, size)
        if expected != size:
            return False
    return True


def _bind(dims: Sequence[Dim], shape: Sequence[int], source: str, call: Call) -> None:
    named = _named(dims)
    for dim, size in zip(named, shape[len(shape) - len(named) :], strict=True):
        if dim.text not in call.sizes:
            call.sizes[dim.text] = size
            call.sources[dim.text] = source


def _expected(argument: Argument, call: Call) -> str:
    options = [kind.described(call.owner) for kind in argument.kinds]
    if argument.votes:
        options.append("Votes(poses, weight)")
    return " or ".join(options)


def _known(argument: Argument, call: Call) -> str:
    """Say which of the expected sizes earlier arguments have determined."""
    sizes: dict[str, None] = {}  # ordered and without repetitions
    sources: dict[str, None] = {}
    for kind in argument.kinds:
        for dim in kind.dims:
            if dim.text in call.sizes:
                sizes[f"{dim.text} is {call.sizes[dim.text]}"] = None
                sources[call.sources[dim.text]] = None
    return f", where {', '.join(sizes)} as in {' and '.join(sources)}" if sizes else ""


def shares_sum_to_one(shares: Tensor) -> bool:
    """Return whether each row sums to 1, or its values cannot be read."""
    if not is_readable(shares):
        return True
    deviations = (shares.detach().sum(1) - 1).abs()
    return not bool((deviations > TOLERANCE).any())
