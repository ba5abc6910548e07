"""Operations that every capsule layer shares: pure functions of tensors.

Letters used in shapes and einsums throughout the project::

    b  batch                 i  child (a capsule of the layer below)
    h  height, w  width      j  parent (a capsule of this layer)
    k  class                 c  component of a child's pose
                             d  component of a parent's pose, and of a vote for it

A *vote* is what child i predicts for the pose of parent j; a *coupling* is the share of child i that
goes to parent j. The couplings of one child over all its parents sum to one (below one when leaky).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial, wraps
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from capsule_lab.types import Votes

P = ParamSpec("P")
R = TypeVar("R")
HALF = (torch.bfloat16, torch.float16)


def is_transformed() -> bool:
    """Whether this is called within ``torch.func``'s ``vmap``, ``jvp``, ``grad`` or the like.

    There tensors have no values that Python could read, and autograd's functions need rules of their own. ``False``
    while torch compiles.
    """
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def float32_under_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Make ``function`` compute in full precision whatever autocast or half-precision input surrounds it.

    Routing adds many small numbers and exponentiates their sums, which bfloat16 (8 bits of mantissa)
    cannot carry. Half-precision tensor arguments are cast to float32; float32 and float64 stay as they are.
    """

    def full(value: Any) -> Any:
        if isinstance(value, Votes):
            return value.map(full)
        return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> R:
        inputs = (each.poses if isinstance(each, Votes) else each for each in (*args, *kwargs.values()))
        device = next((each.device.type for each in inputs if isinstance(each, Tensor)), "cpu")
        around = torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
        with around:
            return function(*map(full, args), **{name: full(value) for name, value in kwargs.items()})

    return wrapper


@float32_under_autocast
def squash(
    x: Float[Tensor, "*shape"],
    dim: int = -1,
    eps: float = 1e-8,  # ours: inside the root only, so that the gradient at 0 is 0 and not NaN
    added: float = 1.0,  # Sabour 2017, equation 1
) -> Float[Tensor, "*shape"]:
    """Shrink vectors to a length in [0, 1), keeping their direction (Sabour 2017, equation 1).

    ``v = |s|^2 / (1 + |s|^2) * s / |s|``. The official code has no epsilon; with one, the value and the
    gradient are finite at the zero vector. In float32 the length rounds to 1 from 1e4 on, and the square
    overflows beyond 1e19.

    Args:
        x, dim: vectors, and the dimension that holds their components.
        added: to the squared length in the denominator; ports have 0.5, up to twice as long for short vectors.

    >>> squash(torch.tensor([3.0, 4.0])).norm().item()  # 25 / 26
    0.9615...
    """
    squared = x.square().sum(dim, keepdim=True)
    return x * (squared / (added + squared) * torch.rsqrt(squared + eps))


@float32_under_autocast
def squash_logits(x: Float[Tensor, "*shape dim"], eps: float = 1e-8) -> Float[Tensor, "*shape"]:
    """``2 ln |s|``: what the length of ``squash(s)`` is the logistic of; finite at the zero vector."""
    return (x.square().sum(-1) + eps).log()


@float32_under_autocast
def exponential_squash(
    x: Float[Tensor, "*shape"],
    dim: int = -1,
    eps: float = 1e-8,  # ours: as in squash; the official code adds 1e-20 to a norm whose gradient at 0 is NaN
) -> Float[Tensor, "*shape"]:
    """Shrink vectors to a length in [0, 1), keeping their direction (Mazzia 2021).

    ``v = (1 - exp(-|s|)) s / |s|``: steeper at 0 than ``squash``, where the length is ``|s|`` and not its square. In
    float32 the length rounds to 1 from 17 on. Arguments are those of ``squash``.
    """
    size = (x.square().sum(dim, keepdim=True) + eps).sqrt()
    return x * (-torch.expm1(-size) / size)


@float32_under_autocast
def exponential_squash_logits(x: Float[Tensor, "*shape dim"], eps: float = 1e-8) -> Float[Tensor, "*shape"]:
    """``ln(exp(|s|) - 1)``: what the length of ``exponential_squash(s)`` is the logistic of; finite at zero."""
    size = length(x, eps)
    return size + (-torch.expm1(-size)).log()


@float32_under_autocast
def length(poses: Float[Tensor, "*shape dim"], eps: float = 1e-8) -> Float[Tensor, "*shape"]:
    """Euclidean length of the last dimension: how probable a capsule's entity is (Sabour 2017, section 2).

    The zero vector has length ``sqrt(eps)`` and, unlike that of the plain norm, a gradient.
    """
    return (poses.square().sum(-1) + eps).sqrt()


Squash = Literal["squash", "exponential", "half", "relu", "none"]
"""What is done to the total input of a capsule: a name of ``SQUASHES``."""


class SquashFunctions(NamedTuple):
    """What makes a pose of a capsule's total input ``s``, ``(…, dim)``, and what its length is computed from."""

    poses: Callable[[Tensor], Tensor]
    logits: Callable[[Tensor], Tensor]  # of s, (…,): any real numbers of which the lengths are a rising function
    bounded: bool  # whether lengths are in [0, 1), and so can be taken for probabilities


SQUASHES: Mapping[str, SquashFunctions] = MappingProxyType(
    {
        "squash": SquashFunctions(squash, squash_logits, bounded=True),  # Sabour 2017, equation 1
        "exponential": SquashFunctions(exponential_squash, exponential_squash_logits, bounded=True),  # Mazzia 2021
        "half": SquashFunctions(partial(squash, added=0.5), lambda x: squash_logits(x) + math.log(2), bounded=True),
        "relu": SquashFunctions(torch.relu, lambda x: length(x.relu()), bounded=False),  # ours: of each component
        "none": SquashFunctions(lambda x: x, length, bounded=False),
    }
)
"""By name; ``half`` is that of ports. Without a bound the length itself is the logit, for a softmax cross-entropy."""


@float32_under_autocast
def dense_votes(
    poses: Float[Tensor, "batch child child_dim"],
    weight: Float[Tensor, "child inner parent columns"],
) -> Float[Tensor, "batch child parent parent_dim"]:
    """Votes of every child for every parent (Sabour 2017, equation 2; Hinton 2018, section 2).

    A pose is a vector, ``u_hat[b i j :] = u[b i :] W[i : j :]``, or, when ``weight`` has fewer rows than a pose
    has components, a matrix stored row by row, ``V[b i j] = M[b i] W[i j]``, the pose on the left:
    ``child_dim = rows * inner`` and ``parent_dim = rows * columns``.

    One matrix product per child, nothing tiled. The result is a view of memory ordered
    ``(batch, parent, child, dim)``, in which routing then runs without another copy.
    """
    child, inner, parent, columns = weight.shape
    batch, _, child_dim = poses.shape
    rows, rest = divmod(child_dim, inner)
    if rest:
        raise ValueError(f"poses have {child_dim} components and weights {inner} rows; expected a multiple")
    by_child = poses.transpose(0, 1).reshape(child, batch * rows, inner)
    votes = torch.bmm(by_child, weight.reshape(child, inner, parent * columns))  # [i b·rows j·columns]
    by_parent = votes.view(child, batch, rows, parent, columns).permute(1, 3, 0, 2, 4).contiguous()
    return by_parent.view(batch, parent, child, rows * columns).transpose(1, 2)


def add_to_votes(votes: Votes, added: Float[Tensor, "child parent dim"]) -> Votes:
    """Votes with the same vectors added in every image, without computing them.

    As in homogeneous coordinates: a pose M and a weight W become [M 1] and W over ``added``, so that their product is
    MW plus that.
    """
    child, inner, parent, columns = votes.weight.shape
    rows = votes.poses.shape[2] // inner
    one = torch.eye(rows, dtype=votes.poses.dtype, device=votes.poses.device)
    one = one.expand(*votes.poses.shape[:2], rows, rows)
    poses = torch.cat([votes.poses.unflatten(2, (rows, inner)), one], 3).flatten(2)
    by_row = added.to(votes.weight.dtype).view(child, parent, rows, columns).transpose(1, 2)  # [i r j c]
    return Votes(poses, torch.cat([votes.weight, by_row], 1), plain_poses=votes.child_poses)


def with_dense_votes(function: Callable[P, R]) -> Callable[P, R]:
    """Make ``function``, such as the ``forward`` of a routing, receive the vote tensor in place of a ``Votes`` record.

    In full precision, as ``float32_under_autocast``.
    """

    def dense(value: Any) -> Any:
        return dense_votes(value.poses, value.weight) if isinstance(value, Votes) else value

    @wraps(function)
    @float32_under_autocast
    def wrapper(*args: Any, **kwargs: Any) -> R:
        return function(*map(dense, args), **{name: dense(value) for name, value in kwargs.items()})

    return wrapper


def softmax_over_parents(
    logits: Float[Tensor, "batch parent child"], *, leaky: bool = False
) -> Float[Tensor, "batch parent child"]:
    """Couplings of each child over all parents (Sabour 2017, equation 3).

    Args:
        logits: log-couplings up to a constant per child.
        leaky: add one more destination with its logit fixed at 0, "none of the above", and drop its
            share: a child's couplings then sum to less than one (official code; in the paper CIFAR10 only).
    """
    if not leaky:
        return logits.softmax(dim=1)
    return nn.functional.pad(logits, (0, 0, 0, 1)).softmax(dim=1)[:, :-1]


def same_padding(size: tuple[int, int], kernel_size: int, stride: int) -> tuple[int, int, int, int]:
    """Padding ``(left, right, top, bottom)`` that makes a convolution's output ``ceil(size / stride)``.

    TensorFlow's SAME rule: the odd pixel goes to the right and the bottom. torch's own ``padding="same"``
    knows stride 1 only.
    """
    height, width = (max((-(-n // stride) - 1) * stride + kernel_size - n, 0) for n in size)
    return width // 2, width - width // 2, height // 2, height - height // 2


def truncated_normal_(weight: Tensor, std: float) -> Tensor:
    """Fill ``weight`` from a normal redrawn beyond 2 ``std``, as TensorFlow does (effective std 0.88 ``std``)."""
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def he_std(fan_in: int) -> float:
    """What ``truncated_normal_`` needs for weights of variance ``2 / fan_in``: ``he_normal`` of Keras."""
    return math.sqrt(2 / fan_in) / 0.87962566103423978  # std of a standard normal that is cut at 2, as in Keras


def in_unit_range(images: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch channel height width"]:
    """What a decoder, which ends in a sigmoid, can decode: images in [0, 1] as they are, all others stretched.

    Each by itself, its darkest pixel to 0 and its brightest to 1. Standardisation has taken brightness and contrast
    away, so that no capsule can know them; a standardised image always has pixels below 0.
    """
    lowest, highest = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    stretched = (images - lowest) / (highest - lowest).clamp_min(torch.finfo(images.dtype).tiny)
    return torch.where((lowest < 0) | (highest > 1), stretched, images)


@float32_under_autocast
def combine_crops(
    scores: Float[Tensor, "batch crop classes"], *, logits: bool = False
) -> Float[Tensor, "batch classes"]:
    """Scores of an image from those of its crops (the test protocol of Hinton 2018, section 5).

    Every crop has one vote, which it divides among the classes in proportion to their scores, lengths or activations;
    if these are ``logits``, to their softmax. A crop whose scores are all 0 votes for nothing.
    """
    if logits:
        return scores.softmax(2).sum(1)
    return (scores / scores.sum(2, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)).sum(1)


def predicted_labels(
    highest: Int64[Tensor, "batch predicted"], labels: Int64[Tensor, "batch label"]
) -> Bool[Tensor, "batch label predicted"]:
    """Which label each of the highest classes is, of as many of these as there are different labels."""
    ordered = labels.sort(1)[0]
    different = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(1)  # [b]
    counted = torch.arange(highest.shape[1], device=labels.device) < different[:, None]
    return (labels[:, :, None] == highest[:, None, :]) & counted[:, None, :]


def predictions_by_label(
    scores: Float[Tensor, "batch classes"], labels: Int64[Tensor, "batch label"]
) -> Int64[Tensor, "batch label"]:
    """The classes of the highest scores, as many as there are labels, each at the place of the label it stands for.

    Those that are labels are at their places; the others fill the places that are left, the highest score first.
    """
    highest = scores.topk(labels.shape[1]).indices  # [b l]
    same = predicted_labels(highest, labels)  # [b label predicted]
    found = same.any(2)
    wrong_first = highest.gather(1, same.any(1).to(torch.int64).argsort(dim=1, stable=True))
    nth = (~found).cumsum(1).sub(1).clamp_min(0)  # which of the wrong ones a place that is left gets
    return torch.where(found, labels, wrong_first.gather(1, nth))
