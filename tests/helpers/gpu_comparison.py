"""The kernels of a GPU, whose module is imported in the process that compares, against the same sums written out."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from capsule_lab.kernels import backends, ops, run_routing
from capsule_lab.kernels.backends import Backend
from capsule_lab.layers import ConvCapsules
from capsule_lab.routing import EMRouting
from capsule_lab.routing.dynamic import dynamic_routing
from capsule_lab.routing.em import em_routing
from capsule_lab.types import Votes
from tests.helpers.kernels import Sizes, assert_near, backwards, draw, kernels_of


class Case(NamedTuple):
    sizes: Sizes
    dtype: torch.dtype = torch.float64
    programs: int = 2048  # of PROGRAMS; if few, each goes through several parents, or rows
    # of VOTES_KEPT; if few, a fit computes votes in each pass over the children
    votes_kept: int = 144
    options: Mapping[str, Any] = MappingProxyType({})


UNMEASURED = {"measure": False}
CASES = {
    "EM": Case(Sizes(2, 2, 17, 2, 2, 2)),
    "matrix capsules": Case(Sizes(3, 2, 17, 4, 4, 4)),
    "CapsNet": Case(Sizes(1, 2, 5, 1, 8, 16), programs=1),
    "class layer": Case(Sizes(2, 5, 35, 2, 3, 1), programs=3),
    "not measured": Case(Sizes(5, 1, 73, 2, 1, 4), options=UNMEASURED),
    "not measured or damped": Case(
        Sizes(1, 5, 3, 1, 4, 2), programs=1, options={"damping": 0.0, **UNMEASURED}
    ),
    "one of each": Case(Sizes(1, 1, 1, 1, 1, 1)),
    "more than a block": Case(Sizes(1, 2, 521, 1, 2, 2), programs=1, votes_kept=1),
    "float32": Case(Sizes(3, 2, 73, 2, 2, 3), torch.float32, programs=2, options={"damping": 0.0}),
    "extreme": Case(Sizes(2, 2, 33, 2, 2, 2), torch.float32, options={"scale": 1e4}),
    "extreme float64": Case(Sizes(2, 2, 17, 2, 2, 2), options={"scale": 1e4}),
    "absent": Case(Sizes(2, 3, 17, 2, 2, 2), torch.float32, options={"absent": True}),
    "half precision": Case(Sizes(2, 2, 17, 2, 2, 2), torch.bfloat16),
    "no rows": Case(Sizes(0, 2, 4, 2, 2, 2)),
}


def compare(name: str, device: str) -> None:
    """Raise, if the result of a kernel of a GPU differs from the same sums written out in float64."""
    from capsule_lab.kernels import gpu

    case = CASES[name]
    with ExitStack() as stack:
        for module in (gpu.blocks, gpu.votes):
            stack.enter_context(patch.object(module, "PROGRAMS", case.programs))
        stack.enter_context(patch.object(gpu.em, "VOTES_KEPT", case.votes_kept))
        for kernel_name, kernel in kernels_of(gpu, case.sizes, **case.options).items():
            given = [each.to(case.dtype) for each in kernel.arguments]
            found = kernel.call(*[each.to(device) for each in given])
            expected = kernel.slow(*[each.double() for each in given])
            assert_near(found, expected, case.dtype, f"{name}, {kernel_name}")


def compare_order(device: str) -> None:
    """Strided arguments have the same results as contiguous ones, and these are contiguous."""
    from capsule_lab.kernels import gpu

    sizes = CASES["EM"].sizes  # of CASES, so that nothing is compiled twice
    for kernel in kernels_of(gpu, sizes).values():
        given = [each.to(device) for each in kernel.arguments]
        expected = kernel.call(*given)
        found = kernel.call(*map(backwards, given))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        for each in [found] if isinstance(found, Tensor) else found:
            assert each.is_contiguous()


@contextmanager
def fused_by_gpu() -> Iterator[None]:
    """The kernels of a GPU for tensors of any device."""
    from capsule_lab.kernels import gpu

    with ExitStack() as stack:
        for module in (backends, ops, run_routing):
            stack.enter_context(patch.object(module, "fused_kernels", lambda _: gpu))
        yield


def outputs_and_gradients(above: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    loss = torch.zeros(())
    for n, each in enumerate(above):
        weights = draw(*each.shape, seed=5 + n).to(each)
        loss = loss + (each * weights).sum()
    return [*above, *torch.autograd.grad(loss, leaves)]


def compare_routing(device: str, algorithm: str, options: dict[str, Any]) -> None:
    """Raise, if a whole routing and its gradients are not those of the plain formulas."""
    batch, child, parent, matrix = 2, 5, 3, 2
    tensors = [
        draw(batch, child, matrix * matrix, seed=0),
        draw(child, matrix, parent, matrix, seed=1),
        draw(batch, child, seed=2).sigmoid(),
        draw(parent, seed=3),
        draw(parent, seed=4),
    ]
    answers = []
    names: tuple[Backend, ...] = ("fused", "reference")
    for backend in names:
        leaves = [tensor.clone().to(device).requires_grad_() for tensor in tensors]
        poses, weight, *others = leaves
        with fused_by_gpu():
            if algorithm == "em":
                above = em_routing(Votes(poses, weight), *others, backend=backend, **options)
            else:
                above = dynamic_routing(Votes(poses, weight), backend=backend, **options)
                leaves = leaves[:2]
            answers.append(outputs_and_gradients(above, leaves))
    torch.testing.assert_close(*answers, rtol=1e-10, atol=1e-10)


def compare_convolutional_routing(device: str) -> None:
    """The same of a layer whose parents compete at all positions."""
    answers = []
    for backend in ("fused", "matmul"):
        torch.manual_seed(0)
        routing = partial(EMRouting, backend=backend, iterations=2)
        layer = ConvCapsules((3, 3), 2, 4, 3, 4, rows=2, kernel_size=2, routing=routing)
        layer.to(device, torch.float64)
        poses = draw(2, 18, 4, seed=0).to(device).requires_grad_()
        activations = draw(2, 18, seed=1).sigmoid().to(device).requires_grad_()
        leaves = [poses, activations, *layer.parameters()]
        with fused_by_gpu():
            answers.append(outputs_and_gradients(layer(poses, activations), leaves))
    torch.testing.assert_close(*answers, rtol=1e-9, atol=1e-9)


ROUTINGS = [
    ("em", {}),
    ("em", {"damping": 0.3, "iterations": 2}),
    ("em", {"iterations": 1, "initial": "types"}),
    ("dynamic", {}),
]
