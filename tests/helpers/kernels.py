"""Random arguments of the fused kernels, the same sums in plain torch, and tolerances."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from capsule_lab.kernels.em_arguments import FitInputs, FitOptions, FitOutputs, Parents

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1e-2}
assert_exact = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


class Sizes(NamedTuple):
    row: int
    parent: int
    child: int
    rows: int
    inner: int
    columns: int


SIZES = [
    Sizes(1, 1, 1, 1, 1, 1),
    Sizes(2, 3, 17, 1, 3, 2),
    Sizes(3, 2, 73, 2, 2, 2),
    Sizes(2, 1, 72, 4, 4, 4),
    Sizes(3, 4, 3, 4, 5, 3),
    Sizes(10, 2, 5, 2, 1, 5),  # more rows than the backward pass of dynamic routing takes at a time
    Sizes(4, 3, 7, 3, 6, 1),
    Sizes(2, 2, 9, 5, 7, 6),
    Sizes(2, 2, 300, 1, 8, 16),  # more children than the blocks of dynamic routing hold
    Sizes(0, 2, 4, 2, 2, 2),
]
CHILDREN = 132  # more than a block; most are nowhere
WINDOWS = torch.tensor(
    [[0, 1, 130, 3], [130, 3, 4, 6], [4, 6, 0, 1], [131, 131, 131, 131]]
)  # which child is where


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Kernel(NamedTuple):
    """A kernel, the same computation in plain torch, and arguments of both."""

    call: Callable[..., Any]
    slow: Callable[..., Any]
    arguments: tuple[Tensor, ...]


def kernels_of(
    kernels: Any, sizes: Sizes, *, damping: float = 0.3, min_variance: float = 0.1, mass_eps: float = 0.5,
    measure: bool = True, scale: float = 1.0, absent: bool = False,
) -> dict[str, Kernel]:  # fmt: skip
    """Every kernel of a module in float64; a backward pass is compared with the gradient of the plain computation."""
    row, parent, child, rows, inner, columns = sizes
    poses, weight = (
        scale * draw(row, rows * inner, child, seed=0),
        draw(parent, inner * columns, child, seed=1),
    )
    activations = draw(row, child, seed=2).sigmoid() * (not absent)
    couplings = draw(row, parent, child, seed=3).softmax(1)
    parents = draw(row, parent, rows * columns, seed=4)
    variances, by_child = parents.square() + 0.1, draw(row, parent, child, seed=6)
    inputs = poses, weight, activations, couplings, parents
    options = FitOptions(inner, damping, min_variance, mass_eps, measure)
    fitted = slow_fit(*inputs, options=options)
    grad_fitted = tuple(draw(*each.shape, seed=10 + n) for n, each in enumerate(fitted))
    logs, grad_shares = (scale * draw(row * len(WINDOWS), parent, 4, seed=seed) for seed in (7, 8))
    products = by_child, couplings, by_child.sin(), parents, variances, parents.cos()

    def fit_backward(*tensors: Tensor) -> Any:
        records = FitInputs(*tensors[:5]), Parents(*tensors[5:8]), FitOutputs(*tensors[8:])
        return kernels.fit_backward(*records, inner, damping, min_variance)

    def contraction(poses: Tensor, weight: Tensor, *pairs: Tensor) -> Any:
        half = len(pairs) // 2
        return kernels.contraction(poses, weight, list(pairs[:half]), list(pairs[half:]), inner)

    def slow_contraction(poses: Tensor, weight: Tensor, *pairs: Tensor) -> Any:
        each = zip(pairs[: len(pairs) // 2], pairs[len(pairs) // 2 :], strict=True)
        grad_votes = sum(
            torch.einsum("nji,njd->njid", child, component) for child, component in each
        )
        return gradients(
            lambda *tensors: dense_votes(*tensors, inner), (poses, weight), [grad_votes]
        )

    def slow_distances(poses: Tensor, weight: Tensor, parents: Tensor, variances: Tensor) -> Tensor:
        error = dense_votes(poses, weight, inner) - parents[:, :, None]
        return (error**2 / (2 * variances[:, :, None])).sum(3)

    def slow_sum(equation: str) -> Callable[..., Tensor]:
        return lambda poses, weight, given: torch.einsum(
            equation, given, dense_votes(poses, weight, inner)
        )

    log_height = draw(row * len(WINDOWS), parent, seed=9)

    def e_step(log_height: Tensor, distances: Tensor) -> Tensor:
        return kernels.e_step_by_child(
            log_height, distances, WINDOWS.to(distances.device), CHILDREN
        )

    def e_step_backward(shares: Tensor, given: Tensor) -> Tensor:
        return kernels.e_step_by_child_backward(shares, given, WINDOWS.to(given.device), CHILDREN)

    return {
        "fit": Kernel(
            lambda *tensors: kernels.fit(FitInputs(*tensors), options), partial(slow_fit, options=options), inputs
        ),
        "fit_backward": Kernel(
            fit_backward,
            lambda *tensors: gradients(partial(slow_fit, options=options), tensors[:5], tensors[8:]),
            (*inputs, *fitted[:3], *grad_fitted),
        ),
        "distances": Kernel(
            lambda *tensors: kernels.distances(*tensors, inner), slow_distances, (poses, weight, parents, variances)
        ),
        "weighted_sum": Kernel(
            lambda *tensors: kernels.weighted_sum(*tensors, inner), slow_sum("nji,njid->njd"), (poses, weight, by_child)
        ),
        "agreement": Kernel(
            lambda *tensors: kernels.agreement(*tensors, inner), slow_sum("njd,njid->nji"), (poses, weight, parents)
        ),
        "contraction": Kernel(contraction, slow_contraction, (poses, weight, *products)),
        "contraction, one term": Kernel(contraction, slow_contraction, (poses, weight, by_child, parents)),
        "softmax_by_child": Kernel(
            lambda logs: kernels.softmax_by_child(logs, WINDOWS.to(logs.device), CHILDREN), slow_softmax, (logs,)
        ),
        "softmax_by_child_backward": Kernel(
            lambda shares, given: kernels.softmax_by_child_backward(shares, given, WINDOWS.to(given.device), CHILDREN),
            lambda shares, given: gradients(slow_softmax, (shares.log(),), [given])[0],
            (slow_softmax(logs), grad_shares),
        ),
        "e_step_by_child": Kernel(
            e_step, lambda height, distances: slow_softmax(height[:, :, None] - distances), (log_height, logs)
        ),
        "e_step_by_child_backward": Kernel(
            e_step_backward,
            lambda shares, given: -gradients(slow_softmax, (shares.log(),), [given])[0],
            (slow_softmax(logs), grad_shares),
        ),
    }  # fmt: skip


def dense_votes(poses: Tensor, weight: Tensor, inner: int) -> Tensor:
    """Votes as a tensor ``(row, parent, child, dim)``."""
    matrices = poses.unflatten(1, (-1, inner)), weight.unflatten(1, (inner, -1))
    return torch.einsum("nrqi,jqci->njirc", *matrices).flatten(3)


def slow_fit(
    poses: Tensor,
    weight: Tensor,
    activations: Tensor,
    couplings: Tensor,
    previous: Tensor,
    *,
    options: FitOptions,
) -> tuple[Tensor, ...]:
    votes = dense_votes(poses, weight, options.inner)
    assigned = couplings * activations[:, None]
    mass = assigned.sum(2) + options.mass_eps
    mean = torch.einsum("nji,njid->njd", assigned, votes) / mass[..., None]
    parents = (1 - options.damping) * mean + options.damping * previous
    squared = (votes - parents[:, :, None]) ** 2
    variances = (
        options.min_variance + torch.einsum("nji,njid->njd", assigned, squared) / mass[..., None]
    )
    distances = torch.einsum("njid,njd->nji", squared, 0.5 / variances)
    return mass, parents, variances, distances if options.measure else distances[..., :0]


def slow_softmax(log_couplings: Tensor) -> Tensor:
    """Image by image and child by child."""
    images = log_couplings.unflatten(0, (-1, len(WINDOWS)))  # [b y j i]
    shares = torch.zeros_like(images)
    for number, image in enumerate(images):
        for child in WINDOWS.unique():
            here = (child == WINDOWS)[:, None].expand_as(image)
            shares[number][here] = image[here].softmax(0)
    return shares.flatten(0, 1) + 0 * log_couplings


def gradients(function: Callable[..., Any], tensors: Any, given: Any) -> tuple[Tensor, ...]:
    """Gradients of the outputs of ``function`` with respect to ``tensors``."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    outputs = function(*leaves)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    return torch.autograd.grad(
        outputs, leaves, list(given), allow_unused=True, materialize_grads=True
    )


def assert_near(found: Any, expected: Any, dtype: torch.dtype, where: str) -> None:
    """Within a share of the largest number: in float32, a sum of several hundred is rounded to 1e-6 of it or so."""
    found, expected = (
        [each] if isinstance(each, Tensor) else list(each) for each in (found, expected)
    )
    for n, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.dtype == dtype
        atol = max(TOLERANCE[dtype] * other.abs().amax().item() if other.numel() else 0.0, 1e-10)
        torch.testing.assert_close(
            one.double().cpu(),
            other,
            rtol=1e-10,
            atol=atol,
            msg=lambda text, n=n: f"{where}, {n}: {text}",
        )


def with_gaps(tensor: Tensor) -> Tensor:
    """The same numbers with gaps between them."""
    return tensor.repeat_interleave(2, -1)[..., ::2]


def backwards(tensor: Tensor) -> Tensor:
    """The same numbers, the last dimension outermost."""
    order = tuple(range(tensor.ndim))[::-1]
    return tensor.permute(order).contiguous().permute(order)
