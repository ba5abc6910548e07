"""The kernels of a GPU, whose module is imported in the process that compares, against those of a CPU."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from capsule_lab.kernels import backends, cpu, ops, run_routing
from capsule_lab.kernels.backends import Backend
from capsule_lab.kernels.em_arguments import FitInputs, FitOptions, FitOutputs, Parents
from capsule_lab.layers import ConvCapsules
from capsule_lab.routing import EMRouting
from capsule_lab.routing.dynamic import dynamic_routing
from capsule_lab.routing.em import em_routing
from capsule_lab.types import Votes
from tests.helpers.kernels import backwards, draw

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
TOLERANCE = {F64: 1e-10, F32: 1e-5, BF16: 1e-2}


class Case(NamedTuple):
    row: int
    parent: int
    child: int
    rows: int
    inner: int
    columns: int
    dtype: torch.dtype = F64
    damping: float = 0.0
    measure: bool = True
    scale: float = 1.0
    absent: bool = False
    programs: int = 2048  # of PROGRAMS; if few, each goes through several parents, or rows


CASES = {
    "EM": Case(3, 2, 17, 4, 4, 4),
    "CapsNet": Case(1, 2, 5, 1, 8, 16, programs=1),
    "class layer": Case(2, 5, 35, 2, 3, 1, damping=0.3, programs=3),
    "not measured": Case(5, 1, 73, 2, 1, 4, damping=0.3, measure=False),
    "not measured or damped": Case(1, 5, 3, 1, 4, 2, measure=False, programs=1),
    "one of each": Case(1, 1, 1, 1, 1, 1),
    "more than a block": Case(1, 2, 521, 1, 2, 2, damping=0.3, programs=1),
    "float32": Case(3, 2, 73, 2, 2, 3, dtype=F32, programs=2),
    "extreme": Case(2, 2, 33, 2, 2, 2, dtype=F32, scale=1e4),
    "extreme float64": Case(2, 2, 17, 2, 2, 2, scale=1e4, damping=0.3),
    "absent": Case(2, 3, 17, 2, 2, 2, dtype=F32, absent=True),
    "half precision": Case(2, 2, 17, 2, 2, 2, dtype=BF16, damping=0.3),
    "no rows": Case(0, 2, 4, 2, 2, 2),
}


def results(kernels: Any, case: Case, device: str, dtype: torch.dtype) -> dict[str, tuple[Tensor, ...]]:
    """Results of every kernel for the same numbers in any precision."""

    def given(*shape: int, seed: int) -> Tensor:
        rounded = (draw(*shape, seed=seed) if seed else scaled).to(case.dtype)
        return rounded.to(device, dtype)

    row, parent, child, rows, inner, columns = case[:6]
    scaled = draw(row, rows * inner, child, seed=100) * case.scale
    poses, weight = given(*scaled.shape, seed=0), given(parent, inner * columns, child, seed=1)
    activations = given(row, child, seed=2).sigmoid() * (0 if case.absent else 1)
    couplings, by_child = given(row, parent, child, seed=3).softmax(1), given(row, parent, child, seed=4)
    previous, pose = (given(row, parent, rows * columns, seed=seed) for seed in (5, 6))
    variances = given(row, parent, rows * columns, seed=7).square() + 0.1
    inputs = FitInputs(poses, weight, activations, couplings, previous)
    options = FitOptions(inner, case.damping, 0.01, 1e-3, case.measure)
    # the same parents for both backends, from a fit in float64: their rounding must not matter to the comparison
    fitted = [each.to(device, dtype) for each in cpu.fit(FitInputs(*(each.double().cpu() for each in inputs)), options)]
    grad_outputs = FitOutputs(*(given(*each.shape, seed=10 + n) for n, each in enumerate(fitted)))
    terms = [couplings, by_child], [previous, pose]
    windows = torch.tensor([[0, 1, 130, 3], [130, 3, 4, 6], [4, 6, 0, 1], [131, 131, 131, 131]], device=device)
    logs, grad_shares = (given(4 * row, parent, 4, seed=seed) * case.scale for seed in (20, 21))
    shares = kernels.softmax_by_child(logs, windows, 132)
    fit_backward = kernels.fit_backward(inputs, Parents(*fitted[:3]), grad_outputs, inner, case.damping, 0.01)
    return {
        "fit": kernels.fit(inputs, options),
        "fit_backward": fit_backward,
        "distances": (kernels.distances(poses, weight, pose, variances, inner),),
        "softmax_by_child": (shares,),
        "softmax_by_child_backward": (kernels.softmax_by_child_backward(shares, grad_shares, windows, 132),),
        "weighted_sum": (kernels.weighted_sum(poses, weight, by_child, inner),),
        "agreement": (kernels.agreement(poses, weight, pose, inner),),
        "contraction": (
            *kernels.contraction(poses, weight, *terms, inner),
            *kernels.contraction(poses, weight, terms[0][:1], terms[1][:1], inner),
        ),
    }


def compare(name: str, device: str) -> None:
    """Raise, if the result of a kernel of a GPU differs from that of a CPU."""
    from capsule_lab.kernels import gpu

    case = CASES[name]
    with ExitStack() as stack:
        for module in (gpu.blocks, gpu.votes):
            stack.enter_context(patch.object(module, "PROGRAMS", case.programs))
        found = results(gpu, case, device, case.dtype)
    expected = results(cpu, case, "cpu", F32 if case.dtype == BF16 else case.dtype)
    assert list(found) == list(expected)
    for kernel, each in expected.items():
        assert len(found[kernel]) == len(each)
        for n, (ours, theirs) in enumerate(zip(found[kernel], each, strict=True)):
            assert ours.dtype == case.dtype, kernel
            largest = theirs.abs().max().item() if theirs.numel() else 0.0
            torch.testing.assert_close(
                ours.cpu().to(theirs.dtype),
                theirs,
                rtol=TOLERANCE[case.dtype],
                atol=TOLERANCE[case.dtype] * max(largest, 1.0 if theirs.dtype == F64 else 0.0),
                msg=lambda text, what=f"{kernel}, result {n}": f"{what}: {text}",
            )


def compare_order(device: str) -> None:
    """Strided arguments have the same results as contiguous ones, and these are contiguous."""
    from capsule_lab.kernels import gpu

    class Strided:
        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any) -> Any:
                return getattr(gpu, name)(*map(reordered, arguments))

            return call

    case = Case(3, 2, 17, 2, 1, 3, damping=0.3)
    expected, found = (results(kernels, case, device, F64) for kernels in (gpu, Strided()))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert all(each.is_contiguous() for several in found.values() for each in several)


def reordered(argument: Any) -> Any:
    """Tensors, also those in records and lists, with their last dimension outermost in memory."""
    if isinstance(argument, tuple):
        return type(argument)(*map(reordered, argument))
    if isinstance(argument, list):
        return [reordered(each) for each in argument]
    return backwards(argument) if isinstance(argument, Tensor) else argument


def compare_routing(device: str, algorithm: str, options: dict[str, Any]) -> None:
    """Raise, if a whole routing and its gradients are not those of the plain formulas."""
    from capsule_lab.kernels import gpu

    batch, child, parent, matrix = 2, 5, 3, 2
    tensors = [
        draw(batch, child, matrix * matrix, seed=0),
        draw(child, matrix, parent, matrix, seed=1),
        draw(batch, child, seed=2).sigmoid(),
        draw(parent, seed=3),
        draw(parent, seed=4),
    ]
    answers = []
    with ExitStack() as stack:
        for module in (backends, ops, run_routing):
            stack.enter_context(patch.object(module, "fused_kernels", lambda _: gpu))
        names: tuple[Backend, ...] = ("fused", "reference")
        for backend in names:
            poses, weight, *others = leaves = [tensor.clone().to(device).requires_grad_() for tensor in tensors]
            if algorithm == "em":
                above = em_routing(Votes(poses, weight), *others, backend=backend, **options)
            else:
                above = dynamic_routing(Votes(poses, weight), backend=backend, **options)
                leaves = leaves[:2]
            loss = sum((each * draw(*each.shape, seed=5 + n).to(device)).sum() for n, each in enumerate(above))
            answers.append([*above, *torch.autograd.grad(loss, leaves)])
    torch.testing.assert_close(answers[0], answers[1], rtol=1e-10, atol=1e-10)


def compare_convolutional_routing(device: str) -> None:
    """The same of a layer whose parents compete at all positions."""
    from capsule_lab.kernels import gpu

    torch.manual_seed(0)
    layers = [
        ConvCapsules(
            (3, 3), 2, 4, 3, 4, rows=2, kernel_size=2, routing=partial(EMRouting, backend=backend, iterations=2)
        ).double()
        for backend in ("fused", "matmul")
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    answers = []
    with ExitStack() as stack:
        for module in (backends, ops, run_routing):
            stack.enter_context(patch.object(module, "fused_kernels", lambda _: gpu))
        for layer in layers:
            leaves = [draw(2, 18, 4, seed=0).to(device), draw(2, 18, seed=1).sigmoid().to(device)]
            leaves = [*(leaf.requires_grad_() for leaf in leaves), *layer.to(device).parameters()]
            above = layer(*leaves[:2])
            loss = sum((each * draw(*each.shape, seed=5 + n).to(device)).sum() for n, each in enumerate(above))
            answers.append([*above, *torch.autograd.grad(loss, leaves)])
    torch.testing.assert_close(answers[0], answers[1], rtol=1e-9, atol=1e-9)


ROUTINGS = [
    ("em", {}),
    ("em", {"damping": 0.3, "iterations": 2}),
    ("em", {"iterations": 1, "initial": "types"}),
    ("dynamic", {}),
]
