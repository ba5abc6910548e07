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
# which child is where
WINDOWS = torch.tensor([[0, 1, 130, 3], [130, 3, 4, 6], [4, 6, 0, 1], [131, 131, 131, 131]])


def draw(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def weighted_total(values: Tensor) -> Tensor:
    """A sum to which every number contributes with a weight of its own."""
    weights = torch.linspace(1, 2, values.numel()).to(values).view_as(values)
    return (values * weights).sum()


class Kernel(NamedTuple):
    """A kernel, the same computation in plain torch, and arguments of both."""

    call: Callable[..., Any]
    slow: Callable[..., Any]
    arguments: tuple[Tensor, ...]


def kernels_of(
    kernels: Any,
    sizes: Sizes,
    *,
    damping: float = 0.3,
    min_variance: float = 0.1,
    mass_eps: float = 0.5,
    measure: bool = True,
    scale: float = 1.0,
    absent: bool = False,
) -> dict[str, Kernel]:
    """Every kernel of a module in float64; a backward pass is compared with the gradient of the plain computation."""
    options = FitOptions(sizes.inner, damping, min_variance, mass_eps, measure)
    activity = 0.0 if absent else 1.0
    return {
        **kernels_of_fit(kernels, sizes, options, scale, activity),
        **kernels_of_sums(kernels, sizes, scale),
        **kernels_by_child(kernels, sizes, scale),
    }


def poses_and_weight(sizes: Sizes, scale: float) -> tuple[Tensor, Tensor]:
    row, parent, child, rows, inner, columns = sizes
    poses = scale * draw(row, rows * inner, child, seed=0)
    weight = draw(parent, inner * columns, child, seed=1)
    return poses, weight


def parents_and_variances(sizes: Sizes) -> tuple[Tensor, Tensor]:
    dim = sizes.rows * sizes.columns
    parents = draw(sizes.row, sizes.parent, dim, seed=4)
    return parents, parents.square() + 0.1


def couplings_of(sizes: Sizes) -> Tensor:
    logits = draw(sizes.row, sizes.parent, sizes.child, seed=3)
    return logits.softmax(1)


def kernels_of_fit(
    kernels: Any, sizes: Sizes, options: FitOptions, scale: float, activity: float
) -> dict[str, Kernel]:
    parents, _ = parents_and_variances(sizes)
    activations = activity * draw(sizes.row, sizes.child, seed=2).sigmoid()
    inputs = *poses_and_weight(sizes, scale), activations, couplings_of(sizes), parents
    slow = partial(slow_fit, options=options)
    fitted = slow(*inputs)
    grad_fitted = [draw(*each.shape, seed=10 + n) for n, each in enumerate(fitted)]

    def fit(*tensors: Tensor) -> Any:
        return kernels.fit(FitInputs(*tensors), options)

    def fit_backward(*tensors: Tensor) -> Any:
        records = FitInputs(*tensors[:5]), Parents(*tensors[5:8]), FitOutputs(*tensors[8:])
        return kernels.fit_backward(*records, options.inner, options.damping, options.min_variance)

    def slow_backward(*tensors: Tensor) -> Any:
        return gradients(slow, tensors[:5], tensors[8:])

    of_backward = *inputs, *fitted[:3], *grad_fitted
    return {
        "fit": Kernel(fit, slow, inputs),
        "fit_backward": Kernel(fit_backward, slow_backward, of_backward),
    }


def kernels_of_sums(kernels: Any, sizes: Sizes, scale: float) -> dict[str, Kernel]:
    inner = sizes.inner
    votes = poses_and_weight(sizes, scale)
    parents, variances = parents_and_variances(sizes)
    couplings = couplings_of(sizes)
    by_child = draw(sizes.row, sizes.parent, sizes.child, seed=6)
    products = by_child, couplings, by_child.sin(), parents, variances, parents.cos()

    def distances(*tensors: Tensor) -> Tensor:
        return kernels.distances(*tensors, inner)

    def slow_distances(poses: Tensor, weight: Tensor, parents: Tensor, variances: Tensor) -> Tensor:
        errors = dense_votes(poses, weight, inner) - parents[:, :, None]
        quotients = errors**2 / (2 * variances[:, :, None])
        return quotients.sum(3)

    def weighted_sum(*tensors: Tensor) -> Tensor:
        return kernels.weighted_sum(*tensors, inner)

    def slow_weighted_sum(poses: Tensor, weight: Tensor, couplings: Tensor) -> Tensor:
        dense = dense_votes(poses, weight, inner)
        return torch.einsum("nji,njid->njd", couplings, dense)

    def agreement(*tensors: Tensor) -> Tensor:
        return kernels.agreement(*tensors, inner)

    def slow_agreement(poses: Tensor, weight: Tensor, parents: Tensor) -> Tensor:
        dense = dense_votes(poses, weight, inner)
        return torch.einsum("njd,njid->nji", parents, dense)

    def contraction(poses: Tensor, weight: Tensor, *pairs: Tensor) -> Any:
        half = len(pairs) // 2
        of_children = list(pairs[:half])
        of_components = list(pairs[half:])
        return kernels.contraction(poses, weight, of_children, of_components, inner)

    def slow_contraction(poses: Tensor, weight: Tensor, *pairs: Tensor) -> Any:
        half = len(pairs) // 2
        grad_votes = 0
        for of_child, of_component in zip(pairs[:half], pairs[half:], strict=True):
            grad_votes = grad_votes + torch.einsum("nji,njd->njid", of_child, of_component)
        votes_of = partial(dense_votes, inner=inner)
        return gradients(votes_of, (poses, weight), [grad_votes])

    return {
        "distances": Kernel(distances, slow_distances, (*votes, parents, variances)),
        "weighted_sum": Kernel(weighted_sum, slow_weighted_sum, (*votes, by_child)),
        "agreement": Kernel(agreement, slow_agreement, (*votes, parents)),
        "contraction": Kernel(contraction, slow_contraction, (*votes, *products)),
        "contraction, one term": Kernel(contraction, slow_contraction, (*votes, by_child, parents)),
    }


def kernels_by_child(kernels: Any, sizes: Sizes, scale: float) -> dict[str, Kernel]:
    shape = sizes.row * len(WINDOWS), sizes.parent, 4
    logs = scale * draw(*shape, seed=7)
    grad_shares = scale * draw(*shape, seed=8)
    log_height = draw(*shape[:2], seed=9)
    of_backward = slow_softmax(logs), grad_shares

    def softmax(logs: Tensor) -> Tensor:
        return kernels.softmax_by_child(logs, WINDOWS.to(logs.device), CHILDREN)

    def softmax_backward(shares: Tensor, given: Tensor) -> Tensor:
        return kernels.softmax_by_child_backward(shares, given, WINDOWS.to(given.device), CHILDREN)

    def slow_softmax_backward(shares: Tensor, given: Tensor) -> Tensor:
        return gradients(slow_softmax, (shares.log(),), [given])[0]

    def e_step(log_height: Tensor, distances: Tensor) -> Tensor:
        windows = WINDOWS.to(distances.device)
        return kernels.e_step_by_child(log_height, distances, windows, CHILDREN)

    def slow_e_step(log_height: Tensor, distances: Tensor) -> Tensor:
        return slow_softmax(log_height[:, :, None] - distances)

    def e_step_backward(shares: Tensor, given: Tensor) -> Tensor:
        return kernels.e_step_by_child_backward(shares, given, WINDOWS.to(given.device), CHILDREN)

    def slow_e_step_backward(shares: Tensor, given: Tensor) -> Tensor:
        return -slow_softmax_backward(shares, given)

    return {
        "softmax_by_child": Kernel(softmax, slow_softmax, (logs,)),
        "softmax_by_child_backward": Kernel(softmax_backward, slow_softmax_backward, of_backward),
        "e_step_by_child": Kernel(e_step, slow_e_step, (log_height, logs)),
        "e_step_by_child_backward": Kernel(e_step_backward, slow_e_step_backward, of_backward),
    }


def dense_votes(poses: Tensor, weight: Tensor, inner: int) -> Tensor:
    """Votes as a tensor ``(row, parent, child, dim)``."""
    rows = poses.unflatten(1, (-1, inner))
    columns = weight.unflatten(1, (inner, -1))
    return torch.einsum("nrqi,jqci->njirc", rows, columns).flatten(3)


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
    spread = torch.einsum("nji,njid->njd", assigned, squared) / mass[..., None]
    variances = options.min_variance + spread
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
    if isinstance(found, Tensor):
        found, expected = [found], [expected]
    for n, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.dtype == dtype
        largest = other.abs().amax().item() if other.numel() else 0.0
        torch.testing.assert_close(
            one.double().cpu(),
            other,
            rtol=1e-10,
            atol=max(TOLERANCE[dtype] * largest, 1e-10),
            msg=lambda text, n=n: f"{where}, {n}: {text}",
        )


def with_gaps(tensor: Tensor) -> Tensor:
    """The same numbers with gaps between them."""
    return tensor.repeat_interleave(2, -1)[..., ::2]


def backwards(tensor: Tensor) -> Tensor:
    """The same numbers, the last dimension outermost."""
    order = tuple(range(tensor.ndim))[::-1]
    return tensor.permute(order).contiguous().permute(order)
