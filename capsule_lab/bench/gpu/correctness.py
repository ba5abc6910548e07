"""Every routing, backend and precision on the device against float64 on the CPU, forward and backward.

The judge is the backend ``reference`` in float64 on the CPU, the papers' formulas over the whole tensor of votes: the
tests compare it, there and in float64, with slow loops written from the papers, which are no part of this package.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from capsule_lab.bench.cases import training_config
from capsule_lab.bench.gpu.parts import Size
from capsule_lab.config.compose import options_of
from capsule_lab.errors import one_line
from capsule_lab.layers import ConvCapsules
from capsule_lab.routing import AbstractRouting
from capsule_lab.types import Votes

GRADIENT = "gradient of "
BACKENDS = ("fused", "matmul", "reference")
PRINCIPAL = ("em", "dynamic")
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 2e-2}
"""Of the norm of the difference over the norm; ours. Float32: far above its rounding, and below that of TF32 after
three iterations; bfloat16: of gradients that are rounded to it."""
MOST_PROCESSES = 12  # ours: each takes half a gigabyte of the device
FLOOR = 1e-3  # ours: a gradient that is 0 but for rounding is compared with this share of the largest one's norm


class Shape(NamedTuple):
    """Of votes: rows of the batch, children, parents, and the matrices that a vote is the product of."""

    rows: int
    children: int
    parents: int
    pose_rows: int
    inner: int
    columns: int


SHAPES: dict[Size, list[Shape]] = {
    "small": [Shape(2, 9, 3, 2, 2, 2)],
    "full": [
        Shape(5, 72, 5, 4, 4, 4),  # a layer of EMCaps, but for its numbers
        Shape(3, 72, 10, 1, 8, 16),  # of CapsNet
        Shape(1, 1, 1, 1, 1, 1),
        Shape(2, 40, 5, 2, 3, 1),
        Shape(300, 9, 32, 2, 2, 2),  # more rows and parents than programs
    ],
}
"""Of every routing and backend."""
EDGES: dict[Size, list[Shape]] = {
    "small": [Shape(5, 65, 2, 1, 2, 2)],
    "full": [
        Shape(rows, block + more, 3, 2, 2, 2)
        for block in (32, 64, 128, 256, 512, 1024)
        for rows, more in ((4, -1), (1, 0), (5, 1))
    ],
}
"""Numbers of children and of rows around the sizes of blocks, which are powers of two: of the fused kernels."""


class Case(NamedTuple):
    """What is compared.

    Attributes:
        routing: option of ``conf/routing``.
        backend: of ``BACKENDS``.
        dtype: of the arguments; bfloat16 under autocast, as a convolution gives them.
        shape: of the votes, or of a convolutional layer, ``None``.
        strided: whether the arguments lie in memory in another order, and with gaps.
    """

    routing: str
    backend: str
    dtype: torch.dtype
    shape: Shape | None
    strided: bool = False

    @property
    def precision(self) -> str:
        """Name of the type."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def label(self) -> str:
        """For messages."""
        of = "convolutional layer" if self.shape is None else "x".join(map(str, self.shape))
        strided = ", strided" if self.strided else ""
        return f"{self.routing}, {self.backend}, {self.precision}{strided}, {of}"


def cases(size: Size) -> Iterator[Case]:
    """All of them, the most telling first."""
    routings = PRINCIPAL if size == "small" else [name for name in options_of("routing") if name != "none"]
    em = [name for name in routings if name.startswith("em")]
    both = (torch.float64, torch.float32)
    first, *others = SHAPES[size]
    yield from (Case(name, backend, dtype, first) for backend in BACKENDS for name in routings for dtype in both)
    yield from (Case(name, "fused", dtype, shape) for name in PRINCIPAL for shape in EDGES[size] for dtype in both)
    yield from (Case(name, backend, dtype, None) for backend in BACKENDS for name in em for dtype in both)
    for backend in BACKENDS:
        yield from (Case(name, backend, dtype, first, strided=True) for name in PRINCIPAL for dtype in both)
        yield from (Case(name, backend, torch.bfloat16, first) for name in PRINCIPAL)
        yield from (Case(name, backend, dtype, shape) for name in routings for shape in others for dtype in both)


def check_routings(device: torch.device, size: Size, limit: float) -> dict[str, Any]:
    """A row for each routing, backend and precision: the largest error of its cases, and a sentence for each failure.

    Most of the time goes into compiling a kernel for each shape, so several processes share the cases of a GPU.
    """
    processes = 1 if device.type == "cpu" else max(1, min(MOST_PROCESSES, (os.cpu_count() or 1) - 1))
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,))
    futures = {pool.submit(errors_of, case, device): case for case in cases(size)}
    done, left = wait(futures, timeout=limit)
    pool.shutdown(wait=False, cancel_futures=True)  # a kernel that hangs would be waited for
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    failures = [f"{len(left)} cases were not reached within {limit:.0f} seconds"] if left else []
    for future, case in futures.items():
        if future in done:
            key = case.routing, case.backend, case.precision
            names = dict(zip(("routing", "backend", "precision"), key, strict=True))
            row = rows.setdefault(key, {**names, "cases": 0, "largest_error": 0.0, "in": ""})
            row["cases"] += 1
            failures += _judge(case, future, row)
    facts = {"judge": "reference in float64 on the CPU", "error": "norm of the difference over the norm"}
    return {**facts, "rows": list(rows.values()), "failures": failures}


def _judge(case: Case, future: Future[dict[str, float]], row: dict[str, Any]) -> list[str]:
    """What is wrong with a case, and its largest error into its row."""
    error = future.exception()
    if error is not None:  # an error of CUDA fails all that its process gets after it, too
        return [f"{case.label}: {type(error).__name__}: {one_line(error)}"]
    tolerance = row["tolerance"] = TOLERANCE[case.dtype]
    failures = []
    for name, found in future.result().items():
        if not found <= tolerance:  # NaN, too
            failures.append(f"{case.label}: {name} differs by {found:.2g} of its norm")
        if not found <= row["largest_error"]:
            row |= {"largest_error": found, "in": f"{name}, {case.label}"}
    return failures


def errors_of(case: Case, device: torch.device) -> dict[str, float]:
    """Of every output and gradient; of the fused kernels also whether a second call gives the same bits."""
    expected = judged(case.routing, case.shape)
    compute = partial(outputs_and_gradients, case, device)
    with poisoned():
        found = compute()
        again = compute() if case.backend == "fused" else {}
    norms = {name: each.norm().item() for name, each in expected.items()}
    largest = max(norm for name, norm in norms.items() if name.startswith(GRADIENT))
    errors = {}
    for name, each in expected.items():
        scale = max(norms[name], FLOOR * largest) if name.startswith(GRADIENT) else norms[name]
        errors[name] = (found[name].double().cpu() - each).norm().item() / (scale or 1.0)
    return errors | {f"{name} of a second call": float((each != found[name]).sum()) for name, each in again.items()}


@functools.cache
def judged(routing: str, shape: Shape | None) -> dict[str, Tensor]:
    """What all backends and precisions are compared with."""
    return outputs_and_gradients(Case(routing, "reference", torch.float64, shape), torch.device("cpu"))


def outputs_and_gradients(case: Case, device: torch.device) -> dict[str, Tensor]:
    """Poses and activations of the parents, and the gradients of a random weighting of both, by name.

    The arguments are the same numbers at every precision, as all of them are bfloat16's.
    """
    factory = partial(routing_of(case.routing), backend=case.backend)
    module, arguments = _layer(factory) if case.shape is None else _routing(factory, case.shape)
    autocast = case.dtype == torch.bfloat16
    module = module.to(device, torch.float32 if autocast else case.dtype)
    leaves = [each.to(device, case.dtype) for each in arguments]
    leaves = [(with_gaps(each) if case.strided else each).detach().requires_grad_() for each in leaves]
    with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
        poses, activations = leaves[0], leaves[-1]
        above = module(poses if case.shape is None else Votes(poses, leaves[1]), activations)
    learned = {name: each for name, each in module.named_parameters() if each.requires_grad}
    outputs = dict(above._asdict())
    loss = torch.stack([(each * draw(*each.shape, seed=9).to(each)).sum() for each in outputs.values()]).sum()
    named = ("poses", "activations") if case.shape is None else ("poses", "weight", "activations")
    inputs = dict(zip(named, leaves, strict=True)) | learned
    gradients = torch.autograd.grad(loss, [*inputs.values()], allow_unused=True, materialize_grads=True)
    computed = outputs | {GRADIENT + name: each for name, each in zip(inputs, gradients, strict=True)}
    return {name: each.detach() for name, each in computed.items()}


@functools.cache
def routing_of(name: str) -> partial[AbstractRouting]:
    """What ``conf/routing/<name>.yaml`` builds."""
    model = "em_caps_paper" if name.startswith("em") else "capsnet"
    made: partial[AbstractRouting] = instantiate(training_config([f"model={model}", f"routing={name}"]).routing)
    return made


def _routing(factory: partial[AbstractRouting], shape: Shape) -> tuple[nn.Module, list[Tensor]]:
    """A routing by itself: every parent sees every child."""
    rows, children, parents, pose_rows, inner, columns = shape
    weight = draw(children, inner, parents, columns, seed=1) / inner**0.5  # votes as large as poses
    arguments = [draw(rows, children, pose_rows * inner, seed=0), weight, draw(rows, children, seed=2).sigmoid()]
    return factory(parents, pose_rows * columns), [each.bfloat16() for each in arguments]


def _layer(factory: partial[AbstractRouting]) -> tuple[nn.Module, list[Tensor]]:
    """A convolutional layer, in which parents at several positions compete for a child."""
    torch.manual_seed(0)
    layer = ConvCapsules((5, 6), 4, 16, 6, 16, rows=4, stride=2, routing=factory, weight_std=0.5)
    children = 5 * 6 * 4
    arguments = [draw(2, children, 16, seed=0), draw(2, children, seed=2).sigmoid()]
    return layer, [each.bfloat16() for each in arguments]


def draw(*shape: int, seed: int) -> Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def with_gaps(tensor: Tensor) -> Tensor:
    """The same numbers with the first dimension innermost in memory, and every second place empty."""
    spread = torch.empty(*tensor.shape[:0:-1], 2 * len(tensor), dtype=tensor.dtype, device=tensor.device)
    view = spread.permute(*range(spread.ndim)[::-1])[::2]
    return view.copy_(tensor)


@contextmanager
def poisoned() -> Iterator[None]:
    """Memory that torch allocates holds NaN, so that what a kernel does not write is seen."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")  # with it, torch.utils.deterministic.fill_uninitialized_memory applies
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of operators without a deterministic form, which is not asked for
            yield
    finally:
        torch.set_deterministic_debug_mode(before)
