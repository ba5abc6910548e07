"""Lower bounds on the time of a case, from its operations and bytes and this machine's rates of both.

The count includes the multiply-adds of convolutions, linear layers and routing, two operations each, and each layer's
inputs, outputs and parameters, moved once for each use. The bound is the longer of the two times; it is the same for a
form that computes votes twice or stores them. torch counts convolutions and linear layers. Routing has formulas here,
since torch counts neither elementwise arithmetic nor fused kernels, and its count would depend on the form. For each
vote of d components, computed from rows of q, and T iterations:

- EM: ``d q`` for the vote, ``2 d T`` for mean and variance, ``2 d (T - 1)`` for its distance;
- dynamic: ``d q`` for the vote, ``d T`` for the sum, ``d (T - 1)`` for the agreement.

The backward pass of routing takes twice the multiply-adds of its forward pass, once per factor. A backward pass reads
the inputs and the outputs' gradients and writes the inputs' gradients. Adam reads four numbers per parameter, writes 3.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import kernels
from benchmarks.cases import FULL, KERNELS, Case, training_config
from benchmarks.layers import POSE, build_layer
from benchmarks.models import as_pairs, build_network, loss_of, random_batch
from capsule_lab.layers import ClassCapsules, ConvCapsules, DenseCapsules
from capsule_lab.routing import AbstractRouting, EMRouting
from capsule_lab.types import Votes

MATRIX = 2048  # ours: rows, large enough for all cores; four times as many on a GPU
ARRAY = 2**26  # ours: numbers, larger than any cache; four times as many on a GPU
PASSES = 3  # forward, and backward for each of two factors
ADAM = 4 + 3  # numbers per parameter, read and written
# votes and their sums are batched products; convolutions and linear layers are not
OF_ROUTING = ("bmm", "baddbmm")


@dataclass(frozen=True)
class Work:
    """The work of a forward and a backward pass and, for a model, of Adam.

    Attributes:
        operations: operations of convolutions and linear layers, which may be in bfloat16.
        routing_operations: operations of routing in float32.
        numbers: numbers moved by convolutions and linear layers.
        full_numbers: numbers moved in float32: by routing, and parameters.
    """

    operations: int = 0
    routing_operations: int = 0
    numbers: int = 0
    full_numbers: int = 0


def beside_roofline(
    row: Mapping[str, Any], work: Work, rates: dict[str, float]
) -> dict[str, float]:
    """Return the lower bounds of a measured case, and its percentage of the roofline."""
    float32_rate = rates["float32_operations_per_second"]
    if row["precision"] == FULL:
        rate = rates.get("tf32_operations_per_second", float32_rate)
        size = 4
    else:
        rate = rates["bfloat16_operations_per_second"]
        size = 2
    moved = work.numbers * size + work.full_numbers * 4
    arithmetic = work.operations / rate + work.routing_operations / float32_rate
    memory = moved / rates["bytes_per_second"]
    return {
        "operations": work.operations + work.routing_operations,
        "bytes": moved,
        "floor_arithmetic_seconds": arithmetic,
        "floor_memory_seconds": memory,
        "roofline_percent": 100 * max(arithmetic, memory) / row["seconds_median"],
    }


def routing_operations(votes: int, dim: int, inner: int, iterations: int, *, em: bool) -> int:
    """Return the operations of routing for ``votes`` votes in a step."""
    for_vote = dim * inner
    for_iterations = dim * iterations + dim * (iterations - 1)
    if em:
        for_iterations *= 2
    return 2 * PASSES * votes * (for_vote + for_iterations)


def votes_of(case: Case) -> int:
    """Return the number of votes of a layer, or of the layer of a kernel."""
    sizes = case.sizes
    if KERNELS.get(case.name, case.name) == "em_all_parents":
        edge = (sizes["grid"] - sizes["kernel_size"]) // sizes["stride"] + 1
        rows = sizes["batch_size"] * edge**2
        children = sizes["kernel_size"] ** 2 * sizes["child_types"]
        return rows * children * sizes["parents"]
    rows = sizes.get("rows", sizes.get("batch_size"))
    return rows * sizes["children"] * sizes["parents"]


def count(case: Case) -> Work:
    """Count the work of a case, which is the same for all of its forms."""
    counters = {"kernel": _of_kernel, "layer": _of_layer, "model": _of_model}
    return counters[case.kind](case)


def _of_kernel(case: Case) -> Work:
    """Count the work of a kernel by calling it once."""
    call, inputs = kernels.build_kernel(case.name, torch.device(case.device), case.sizes)
    result = call()
    outputs = [result] if isinstance(result, Tensor) else result
    multiply_adds = kernels.multiply_adds(case.name, votes_of(case), case.sizes)
    numbers = _numbers(inputs) + _numbers(outputs)
    return Work(routing_operations=2 * multiply_adds, full_numbers=numbers)


def _of_layer(case: Case) -> Work:
    """Count the work of a layer by calling it once."""
    forward, inputs = build_layer(case)
    em = case.name != "dynamic"
    dim, inner = POSE * POSE, POSE
    if not em:
        dim, inner = case.sizes["parent_dim"], case.sizes["child_dim"]
    operations = routing_operations(votes_of(case), dim, inner, case.sizes["iterations"], em=em)
    numbers = 3 * _numbers(inputs) + 2 * _numbers(forward())
    return Work(routing_operations=operations, full_numbers=numbers)


def _of_model(case: Case) -> Work:
    """Count the work of a model by passing one image through the network."""
    module = build_network(case, training_config(case.overrides)).to(case.device)
    totals: Counter[str] = Counter()

    def add_work(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        totals.update(asdict(_of_call(layer, inputs, output)))

    for layer in module.network.modules():
        layer.register_forward_hook(add_work)
    image = as_pairs(random_batch(case, 1), module)
    with FlopCounterMode(display=False) as counter:
        loss_of(module, image).backward()  # also compiles kernels for the workers
    for operator, number in counter.get_flop_counts()["Global"].items():
        if operator.__name__ not in OF_ROUTING:
            totals["operations"] += number
    images = case.sizes["batch_size"]
    parameters = _numbers(module.network.parameters())
    return Work(
        operations=images * totals["operations"],
        routing_operations=images * totals["routing_operations"],
        numbers=images * totals["numbers"],
        full_numbers=images * totals["full_numbers"] + (PASSES + ADAM) * parameters,
    )


def _of_call(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> Work:
    if isinstance(layer, nn.Conv2d | nn.Linear):
        # forward, gradient of the weight, gradient of the input
        passes = 2 + inputs[0].requires_grad
        return Work(numbers=passes * inputs[0].numel() + 2 * output.numel())
    if isinstance(layer, ConvCapsules | DenseCapsules | ClassCapsules):
        parents = output[:2]  # without logits, which come with the activations
        return Work(full_numbers=3 * _numbers(inputs) + 2 * _numbers(parents))
    if isinstance(layer, AbstractRouting) and isinstance(inputs[0], Votes):
        poses, matrices = inputs[0][:2]
        rows, children, pose = poses.shape
        _, inner, parents, columns = matrices.shape
        votes = rows * children * parents
        dim = pose // inner * columns
        iterations = layer.options.get("iterations", 1)
        em = isinstance(layer, EMRouting)
        operations = routing_operations(votes, dim, inner, iterations, em=em)
        return Work(routing_operations=operations)
    return Work()


def _numbers(tensors: Iterable[Any]) -> int:
    return sum(tensor.numel() for tensor in tensors if isinstance(tensor, Tensor))


def measure_roofline(cases: list[Case], bfloat16: bool) -> tuple[dict[str, float], list[Work]]:
    """In a worker: return the rates of the machine, with bfloat16 on request, and the work of each case."""
    rates = machine_rates(torch.device(cases[0].device), bfloat16=bfloat16)
    return rates, [count(case) for case in cases]


def machine_rates(device: torch.device, *, bfloat16: bool) -> dict[str, float]:
    """Measure operations per second in square matrix products, and bytes per second moved in a sum of two arrays.

    On a GPU whose convolutions may compute in TF32, the rate of TF32 is included.
    """
    kinds = {"float32": (torch.float32, "highest")}
    if device.type == "cuda" and torch.backends.cudnn.allow_tf32:
        kinds["tf32"] = (torch.float32, "high")
    if bfloat16:
        kinds["bfloat16"] = (torch.bfloat16, "highest")
    scale = 1 if device.type == "cpu" else 4
    size = scale * MATRIX
    length = scale * ARRAY
    rates = {}
    precision_before = torch.get_float32_matmul_precision()
    for name, (dtype, precision) in kinds.items():
        factor = torch.randn(size, size, device=device).to(dtype)
        torch.set_float32_matmul_precision(precision)
        seconds = _fastest(partial(torch.mm, factor, factor), device)
        rates[f"{name}_operations_per_second"] = 2 * size**3 / seconds
    torch.set_float32_matmul_precision(precision_before)
    first = torch.randn(length, device=device)
    second = torch.randn(length, device=device)
    total = torch.empty(length, device=device)
    seconds = _fastest(partial(torch.add, first, second, out=total), device)
    rates["bytes_per_second"] = 3 * length * first.element_size() / seconds
    return rates


def _fastest(call: Callable[[], object], device: torch.device, times: int = 5) -> float:
    """Return the seconds of the fastest call, after a warm-up; synchronising with a GPU takes negligible time."""
    best = math.inf
    for _ in range(times + 1):
        start_time = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start_time)
    return best
