"""What only a GPU can tell: ``pytest -m gpu``, before anything is timed or trained there.

The judge of every routing is the backend ``reference`` in float64 on the CPU, the papers' formulas over the whole
tensor of votes, which other tests compare with slow loops written from the papers.
"""

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from capsule_lab.commands import compose
from capsule_lab.config.folders import options_of
from capsule_lab.layers import ConvCapsules, ConvStack, LinearPrimaryCapsules
from capsule_lab.networks import EMCaps
from capsule_lab.routing import AbstractRouting, EMRouting
from capsule_lab.routing.base import LayerInfo, build_routing
from capsule_lab.types import Votes
from tests.helpers import gpu_comparison
from tests.helpers.kernels import backwards, draw

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

DEVICE = torch.device("cuda")
F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
ROUTINGS = [name for name in options_of("routing") if name != "none"]
BACKENDS = ("fused", "matmul", "reference")
TOLERANCE = {F64: 1e-9, F32: 1e-3, BF16: 2e-2}
"""Of the norm of the difference over the norm; ours. Float32: far above its rounding, and below that of TF32 after
three iterations; bfloat16: of gradients that are rounded to it."""
FLOOR = 1e-3  # ours: a gradient that is 0 but for rounding is compared with this share of the largest one's norm


class Shape(NamedTuple):
    """Of votes: rows of the batch, children, parents, and the matrices that a vote is the product of."""

    rows: int
    children: int
    parents: int
    pose_rows: int
    inner: int
    columns: int


EM_CAPS = Shape(5, 72, 5, 4, 4, 4)  # a layer of EMCaps, but for its numbers
CAPSNET = Shape(3, 72, 10, 1, 8, 16)
SMALL = Shape(2, 40, 5, 2, 3, 1)
MANY = Shape(300, 9, 32, 2, 2, 2)  # more rows and parents than programs
SHAPES = [EM_CAPS, CAPSNET, SMALL, MANY, Shape(1, 2, 2, 1, 2, 2)]
EDGES = [Shape(4, 31, 3, 2, 2, 2), Shape(1, 64, 3, 2, 2, 2), Shape(5, 577, 3, 2, 2, 2)]
"""Numbers of children and of rows around the sizes of blocks: 32, 64, and nine times 64 for a fit. The others are
tested in Triton's interpreter, because each number of children is compiled anew."""
COMPARED = ("EM", "float32", "half precision", "no rows")  # of the cases that the interpreter runs
FIRST = ("dynamic", "em", "em_normalised", "heinsen")  # different kernels; the others use the same
BY_WORTH = []
for routing_name in ROUTINGS:
    order = pytest.mark.gpu(order=0 if routing_name in FIRST else 1)
    BY_WORTH.append(pytest.param(routing_name, marks=order))


@functools.cache
def routing_of(name: str) -> partial[AbstractRouting]:
    """What ``conf/routing/<name>.yaml`` builds."""
    model = "em_caps_paper" if name.startswith("em") else "capsnet"
    config = compose("train", [f"model={model}", f"routing={name}"])
    built: partial[AbstractRouting] = instantiate(config.routing)
    return built


def outputs_and_gradients(
    name: str,
    backend: str,
    dtype: torch.dtype,
    shape: Shape | None,
    device: torch.device,
    change: Any = None,
) -> dict[str, Tensor]:
    """Of a routing, without a shape of a convolutional layer; arguments are the same numbers at every precision."""
    factory = partial(routing_of(name), backend=backend)
    torch.manual_seed(0)
    if shape is None:
        module: nn.Module = ConvCapsules(
            (5, 6), 4, 16, 6, 16, rows=4, stride=2, routing=factory, weight_std=0.5
        )
        arguments = {
            "poses": draw(2, 120, 16, seed=0),
            "activations": draw(2, 120, seed=2).sigmoid(),
        }
    else:
        rows, children, parents, pose_rows, inner, columns = shape
        layer = LayerInfo(
            parents, pose_rows * columns, children, pose_rows * inner, False, children
        )
        module = build_routing(factory, layer)
        weight = draw(children, inner, parents, columns if module.poses else 0, seed=1)
        weight = weight / inner**0.5  # votes as large as poses
        poses = draw(rows, children, pose_rows * inner, seed=0)
        arguments = {
            "poses": poses,
            "weight": weight,
            "activations": draw(rows, children, seed=2).sigmoid(),
        }
    module = module.to(device, F32 if dtype == BF16 else dtype)
    inputs = {}
    for key, each in arguments.items():
        changed = (change or torch.clone)(each.bfloat16().to(device, dtype))
        inputs[key] = changed.detach().requires_grad_()
    with torch.autocast(device.type, BF16, enabled=dtype == BF16):
        below = inputs["poses"] if shape is None else Votes(inputs["poses"], inputs["weight"])
        above = module(below, inputs["activations"])
    totals = [(each * draw(*each.shape, seed=9).to(each)).sum() for each in above]
    parameters = dict(module.named_parameters())
    inputs |= {key: each for key, each in parameters.items() if each.requires_grad}
    gradients = torch.autograd.grad(
        torch.stack(totals).sum(), [*inputs.values()], allow_unused=True, materialize_grads=True
    )
    found = {key: each.detach() for key, each in above._asdict().items()}
    for key, gradient in zip(inputs, gradients, strict=True):
        found[f"gradient of {key}"] = gradient.detach()
    return found


@functools.cache
def judged(name: str, shape: Shape | None) -> dict[str, Tensor]:
    return outputs_and_gradients(name, "reference", F64, shape, torch.device("cpu"))


@contextmanager
def poisoned() -> Iterator[None]:
    """Memory that torch allocates holds NaN, so that what a kernel does not write is seen."""
    before = torch.get_deterministic_debug_mode()
    # with it, torch.utils.deterministic.fill_uninitialized_memory applies
    torch.set_deterministic_debug_mode("warn")
    try:
        with warnings.catch_warnings():
            # of operators without a deterministic form, which is not asked for
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_deterministic_debug_mode(before)


def check(
    name: str, backend: str, dtype: torch.dtype, shape: Shape | None, change: Any = None
) -> None:
    """Compare every output and gradient; of the fused kernels a second call gives the same bits."""
    expected = judged(name, shape)
    compute = partial(outputs_and_gradients, name, backend, dtype, shape, DEVICE, change)
    with poisoned():
        found = compute()
        again = compute() if backend == "fused" else found
    norms = {key: each.norm().item() for key, each in expected.items()}
    largest = max(norm for key, norm in norms.items() if key.startswith("gradient"))
    for key, each in expected.items():
        scale = max(norms[key], FLOOR * largest) if key.startswith("gradient") else norms[key]
        error = (found[key].double().cpu() - each).norm().item() / (scale or 1.0)
        case = f"({dtype}, {shape})"
        assert error <= TOLERANCE[dtype], f"{key} differs by {error:.2g} of its norm {case}"
        assert torch.equal(again[key], found[key]), f"{key} of a second call differs {case}"


@pytest.mark.parametrize("name", BY_WORTH)
def test_fused_routing_at_the_sizes_of_a_paper(name: str) -> None:
    """Those of Hinton 2018 in a convolutional layer as well, where parents at several positions compete."""
    for shape in (EM_CAPS, None) if name.startswith("em") else (CAPSNET,):
        check(name, "fused", F32, shape)


@pytest.mark.gpu(order=1)
@pytest.mark.parametrize("name", ROUTINGS)
def test_fused_routing_in_float64(name: str) -> None:
    check(name, "fused", F64, SMALL)


@pytest.mark.gpu(order=1)
@pytest.mark.parametrize("shape", EDGES)
@pytest.mark.parametrize("name", ["em", "dynamic"])
def test_fused_routing_at_the_edges_of_blocks(name: str, shape: Shape) -> None:
    check(name, "fused", F64, shape)


@pytest.mark.gpu(order=1)
@pytest.mark.parametrize("name", ["em", "dynamic"])
def test_fused_routing_of_many_rows(name: str) -> None:
    check(name, "fused", F32, MANY)


@pytest.mark.gpu(order=1)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "shape"), [("em", EM_CAPS), ("dynamic", CAPSNET)])
def test_routing_strided_and_in_bfloat16(name: str, shape: Shape, backend: str) -> None:
    check(name, backend, F32, shape, backwards)
    check(name, backend, BF16, shape)


@pytest.mark.gpu(order=2)
@pytest.mark.parametrize("backend", ["matmul", "reference"])
@pytest.mark.parametrize("name", ROUTINGS)
def test_routing_without_kernels(name: str, backend: str) -> None:
    shapes: list[Shape | None] = [*SHAPES]
    if name.startswith("em"):
        shapes.append(None)
    for dtype in (F64, F32):
        for shape in shapes:
            check(name, backend, dtype, shape)


@pytest.mark.gpu(order=2)
@pytest.mark.parametrize("name", COMPARED)
def test_kernels_are_those_of_a_cpu(name: str) -> None:
    gpu_comparison.compare(name, "cuda")


@pytest.mark.gpu(order=2)
def test_kernels_in_any_memory_order() -> None:
    gpu_comparison.compare_order("cuda")


@pytest.mark.gpu(order=1)
def test_memory_does_not_grow_with_iterations() -> None:
    peaks = []
    for iterations in (1, 5):
        routing = partial(EMRouting, iterations=iterations, backend="fused")
        primary, conv = partial(LinearPrimaryCapsules, types=8), partial(ConvStack, types=[8, 8])
        network = EMCaps((2, 32, 32), 5, primary=primary, conv=conv, routing=routing).to(DEVICE)
        torch.cuda.reset_peak_memory_stats()
        network(torch.randn(16, 2, 32, 32, device=DEVICE)).scores.sum().backward()
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] < 1.3 * peaks[0]
