"""Pure functions of tensors that all capsule layers share.

Letters used in shapes and einsums throughout the project::

    b  batch                 i  child (a capsule of the layer below)
    h  height, w  width      j  parent (a capsule of this layer)
    k  class                 c  component of a child's pose
                             d  component of a parent's pose, and of a vote for it

A *vote* is the prediction of child i for the pose of parent j; a *coupling* is the share of child i that
goes to parent j. The couplings of a child over all its parents sum to one (to less than one if leaky).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from capsule_lab.shapes import HALF, check_range, checks_shapes
from capsule_lab.types import Votes

P = ParamSpec("P")
R = TypeVar("R")


def float32_under_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Make ``function`` compute in full precision, even under autocast or with half-precision arguments.

    Routing adds many small numbers and exponentiates the sums; bfloat16 (8 bits of mantissa) is too
    imprecise for this. Half-precision tensors are cast to float32; float32 and float64 stay unchanged.
    """

    def full(value: Any) -> Any:
        if isinstance(value, Votes):
            return value.map(full)
        return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> R:
        device = _device_type(*args, *kwargs.values())
        full_args = map(full, args)
        full_kwargs = {name: full(value) for name, value in kwargs.items()}
        if not torch.is_autocast_enabled(device):
            return function(*full_args, **full_kwargs)
        with torch.autocast(device, enabled=False):
            return function(*full_args, **full_kwargs)

    return wrapper


def _device_type(*arguments: Any) -> str:
    """Return the type of the first tensor's device, ``cpu`` without tensors."""
    for argument in arguments:
        value = argument.poses if isinstance(argument, Votes) else argument
        if isinstance(value, Tensor):
            return value.device.type
    return "cpu"


@checks_shapes
@float32_under_autocast
def squash(
    x: Float[Tensor, "*shape"],
    dim: int = -1,
    eps: float = 1e-8,  # ours: only inside the root, so that the gradient at 0 is 0 and not NaN
    added: float = 1.0,  # Sabour 2017, equation 1
) -> Float[Tensor, "*shape"]:
    """Shrink vectors to a length in [0, 1) and keep their direction (Sabour 2017, equation 1).

    ``v = |s|^2 / (1 + |s|^2) * s / |s|``. The official code has no epsilon; with it, the value and the
    gradient are finite at the zero vector. In float32 the result has length 1 for vectors longer than 1e4, and
    the square overflows beyond 1e19.

    Args:
        x, dim: vectors, and the dimension of their components.
        added: term beside ``|s|^2`` in the denominator; ports use 0.5, which makes short vectors up to twice as long.

    >>> squash(torch.tensor([3.0, 4.0])).norm().item()  # 25 / 26
    0.9615...
    """
    squared = x.square().sum(dim, keepdim=True)
    return x * (squared / (added + squared) * torch.rsqrt(squared + eps))


@checks_shapes
@float32_under_autocast
def squash_logits(x: Float[Tensor, "*shape dim"], eps: float = 1e-8) -> Float[Tensor, "*shape"]:
    """Return the logits of the lengths of ``squash(s)``, ``2 ln |s|``; finite at the zero vector."""
    return (x.square().sum(-1) + eps).log()


@checks_shapes
@float32_under_autocast
def exponential_squash(
    x: Float[Tensor, "*shape"],
    dim: int = -1,
    eps: float = 1e-8,  # ours: as in squash; the official code adds 1e-20 to a norm whose gradient at 0 is NaN
) -> Float[Tensor, "*shape"]:
    """Shrink vectors to a length in [0, 1) and keep their direction (Mazzia 2021).

    ``v = (1 - exp(-|s|)) s / |s|``: near 0 the result has length ``|s|``, that of ``squash`` its square. In float32 the
    result has length 1 for vectors longer than 17, until the square overflows beyond 1e19: the length is then 0. The
    arguments are those of ``squash``.
    """
    size = (x.square().sum(dim, keepdim=True) + eps).sqrt()
    return x * (-torch.expm1(-size) / size)


@checks_shapes
@float32_under_autocast
def exponential_squash_logits(
    x: Float[Tensor, "*shape dim"], eps: float = 1e-8
) -> Float[Tensor, "*shape"]:
    """Return the logits of the lengths of ``exponential_squash(s)``, ``ln(exp(|s|) - 1)``; finite at zero."""
    size = length(x, eps)
    return size + (-torch.expm1(-size)).log()


@checks_shapes
@float32_under_autocast
def length(poses: Float[Tensor, "*shape dim"], eps: float = 1e-8) -> Float[Tensor, "*shape"]:
    """Compute the Euclidean length along the last dimension, the probability of an entity (Sabour 2017, section 2).

    The zero vector has length ``sqrt(eps)`` and, unlike with the plain norm, a gradient.
    """
    return (poses.square().sum(-1) + eps).sqrt()


Squash = Literal["squash", "exponential", "half", "relu", "none"]
"""Name of the function that turns the total input of a capsule into its pose, see ``SQUASHES``."""


class SquashFunctions(NamedTuple):
    """Functions of a capsule's total input ``s``, ``(…, dim)``: its pose, and the logit of its length."""

    poses: Callable[[Tensor], Tensor]
    # of s, (…,): real numbers; the lengths are an increasing function of them
    logits: Callable[[Tensor], Tensor]
    bounded: bool  # whether lengths are in [0, 1) and can be used as probabilities


_half_squash = partial(squash, added=0.5)


def _half_squash_logits(x: Tensor) -> Tensor:
    return squash_logits(x) + math.log(2)


def _relu_logits(x: Tensor) -> Tensor:
    return length(x.relu())


def _identity(x: Tensor) -> Tensor:
    return x


SQUASHES: Mapping[str, SquashFunctions] = MappingProxyType(
    {
        # Sabour 2017, equation 1
        "squash": SquashFunctions(squash, squash_logits, bounded=True),
        # Mazzia 2021
        "exponential": SquashFunctions(exponential_squash, exponential_squash_logits, bounded=True),
        "half": SquashFunctions(_half_squash, _half_squash_logits, bounded=True),
        # ours: of each component
        "relu": SquashFunctions(torch.relu, _relu_logits, bounded=False),
        "none": SquashFunctions(_identity, length, bounded=False),
    }
)
"""Functions by name; ports use ``half``. An unbounded length is itself the logit of a softmax cross-entropy."""


@checks_shapes
@float32_under_autocast
def dense_votes(
    poses: Float[Tensor, "batch child child_dim"],
    weight: Float[Tensor, "child inner parent columns"],
) -> Float[Tensor, "batch child parent parent_dim"]:
    """Compute the votes of every child for every parent (Sabour 2017, equation 2; Hinton 2018, section 2).

    A pose is a vector, ``u_hat[b i j :] = u[b i :] W[i : j :]``. If ``weight`` has fewer rows than a pose has
    components, a pose is a matrix stored row by row and stands on the left, ``V[b i j] = M[b i] W[i j]``:
    ``child_dim = rows * inner`` and ``parent_dim = rows * columns``.

    Each child needs one matrix product and no tiling. The result is a view of memory ordered
    ``(batch, parent, child, dim)``, so that routing needs no further copy.
    """
    child, inner, parent, columns = weight.shape
    batch, _, child_dim = poses.shape
    if inner < 1 or child_dim % inner:
        raise ValueError(
            f"poses have {child_dim} components and weights {inner} rows; expected a multiple"
        )
    rows = child_dim // inner
    by_child = poses.transpose(0, 1).reshape(child, batch * rows, inner)
    matrices = weight.reshape(child, inner, parent * columns)
    votes = torch.bmm(by_child, matrices)  # [i b·rows j·columns]
    votes = votes.view(child, batch, rows, parent, columns)
    by_parent = votes.permute(1, 3, 0, 2, 4).contiguous()  # [b j i rows columns]
    return by_parent.view(batch, parent, child, rows * columns).transpose(1, 2)


@checks_shapes
def add_to_votes(votes: Votes, added: Float[Tensor, "child parent dim"]) -> Votes:
    """Add the same vectors to the votes of every image without computing the votes.

    As in homogeneous coordinates, a pose M becomes [M 1] and ``added`` is stacked below the weight W, so that the
    product is MW + ``added``.
    """
    child, inner, parent, columns = votes.weight.shape
    rows = votes.poses.shape[2] // inner
    one = torch.eye(rows, dtype=votes.poses.dtype, device=votes.poses.device)
    one = one.expand(*votes.poses.shape[:2], rows, rows)
    poses = torch.cat([votes.poses.unflatten(2, (rows, inner)), one], 3).flatten(2)
    added = added.to(votes.weight.dtype).view(child, parent, rows, columns)
    by_row = added.transpose(1, 2)  # [i rows j columns]
    return Votes(poses, torch.cat([votes.weight, by_row], 1), plain_poses=votes.child_poses)


def with_dense_votes(function: Callable[P, R]) -> Callable[P, R]:
    """Make ``function``, such as the ``forward`` of a routing, receive the vote tensor instead of a ``Votes`` record.

    ``function`` computes in full precision, see ``float32_under_autocast``.
    """

    def dense(value: Any) -> Any:
        return dense_votes(value.poses, value.weight) if isinstance(value, Votes) else value

    @wraps(function)
    @float32_under_autocast
    def wrapper(*args: Any, **kwargs: Any) -> R:
        return function(*map(dense, args), **{name: dense(value) for name, value in kwargs.items()})

    return wrapper


@checks_shapes
def softmax_over_parents(
    logits: Float[Tensor, "batch parent child"], *, leaky: bool = False
) -> Float[Tensor, "batch parent child"]:
    """Compute the couplings of each child over all parents (Sabour 2017, equation 3).

    Args:
        logits: log-couplings up to a constant per child.
        leaky: add a destination "none of the above" with logit 0 and drop its share, so that the
            couplings of a child sum to less than one (official code; in the paper only for CIFAR10).
    """
    if not leaky:
        return logits.softmax(dim=1)
    return nn.functional.pad(logits, (0, 0, 0, 1)).softmax(dim=1)[:, :-1]


def same_padding(size: tuple[int, int], kernel_size: int, stride: int) -> tuple[int, int, int, int]:
    """Return the padding ``(left, right, top, bottom)`` for a convolution's output of ``ceil(size / stride)``.

    This is TensorFlow's SAME rule: the odd pixel goes to the right and the bottom. ``padding="same"`` in
    torch supports only stride 1.
    """
    top, bottom = _same_padding_of_side(size[0], kernel_size, stride)
    left, right = _same_padding_of_side(size[1], kernel_size, stride)
    return left, right, top, bottom


def _same_padding_of_side(side: int, kernel_size: int, stride: int) -> tuple[int, int]:
    windows = -(-side // stride)  # rounded up
    total = max((windows - 1) * stride + kernel_size - side, 0)
    return total // 2, total - total // 2


def truncated_normal_(weight: Tensor, std: float) -> Tensor:
    """Fill ``weight`` from a normal truncated at 2 ``std``, as TensorFlow does (effective std 0.88 ``std``)."""
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def he_std(fan_in: int) -> float:
    """Return the ``std`` of ``truncated_normal_`` for weights of variance ``2 / fan_in`` (``he_normal`` of Keras)."""
    std_of_truncated = 0.87962566103423978  # a standard normal truncated at 2, as in Keras
    return math.sqrt(2 / fan_in) / std_of_truncated


@checks_shapes
def in_unit_range(
    images: Float[Tensor, "batch channel height width"],
) -> Float[Tensor, "batch channel height width"]:
    """Return images that a decoder ending in a sigmoid can reconstruct: unchanged if in [0, 1], otherwise stretched.

    Each image is stretched separately, its darkest pixel to 0 and its brightest to 1. Standardised images always have
    pixels below 0; their brightness and contrast are lost, so that no capsule can represent them.
    """
    lowest = images.amin((1, 2, 3), keepdim=True)
    highest = images.amax((1, 2, 3), keepdim=True)
    contrast = (highest - lowest).clamp_min(torch.finfo(images.dtype).tiny)
    stretched = (images - lowest) / contrast
    return torch.where((lowest < 0) | (highest > 1), stretched, images)


@checks_shapes
@float32_under_autocast
def combine_crops(
    scores: Float[Tensor, "batch crop classes"], *, logits: bool = False
) -> Float[Tensor, "batch classes"]:
    """Compute the scores of an image from those of its crops (test protocol of Hinton 2018, section 5).

    The scores of each crop, lengths or activations, are divided by their sum and then added over the crops; if scores
    are ``logits``, their softmax is added. A crop whose scores are all 0 adds nothing.
    """
    if logits:
        return scores.softmax(2).sum(1)
    expected = "lengths or activations, 0 or more, or logits=True"
    check_range("combine_crops", "scores", scores, 0, math.inf, expected)
    total = scores.sum(2, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)
    return (scores / total).sum(1)


def check_label_count(
    owner: str, scores: Float[Tensor, "batch classes"], labels: Int64[Tensor, "batch label"]
) -> None:
    """Check that images do not have more labels than there are classes."""
    if labels.shape[1] > scores.shape[1]:
        raise ValueError(
            f"{owner} received {labels.shape[1]} labels per image and scores of {scores.shape[1]} classes; expected at "
            "most as many labels as classes"
        )


@checks_shapes
def predicted_labels(
    highest: Int64[Tensor, "batch predicted"], labels: Int64[Tensor, "batch label"]
) -> Bool[Tensor, "batch label predicted"]:
    """Return which label equals which of the n highest classes; n is the number of different labels of an image."""
    ordered = labels.sort(1)[0]
    different = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(1)  # [b]
    counted = torch.arange(highest.shape[1], device=labels.device) < different[:, None]
    return (labels[:, :, None] == highest[:, None, :]) & counted[:, None, :]


@checks_shapes
def predictions_by_label(
    scores: Float[Tensor, "batch classes"], labels: Int64[Tensor, "batch label"]
) -> Int64[Tensor, "batch label"]:
    """Return the classes of the highest scores, as many as there are labels, ordered by the labels.

    Classes that are labels stand at the place of the label; the others fill the remaining places, highest score first.
    """
    check_label_count("predictions_by_label", scores, labels)
    highest = scores.topk(labels.shape[1]).indices  # [b l]
    same = predicted_labels(highest, labels)  # [b label predicted]
    recognised = same.any(2)
    wrong_first = highest.gather(1, same.any(1).to(torch.int64).argsort(dim=1, stable=True))
    nth = (~recognised).cumsum(1).sub(1).clamp_min(0)  # which wrong class fills a remaining place
    return torch.where(recognised, labels, wrong_first.gather(1, nth))
