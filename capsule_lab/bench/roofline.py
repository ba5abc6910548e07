"""What a case takes at the least: operations and bytes, and how many of each this machine does in a second.

Counted are the multiply-adds of convolutions, linear layers and routing, two operations each, and each layer's inputs,
outputs and parameters, moved once wherever they are needed: a form that makes votes twice, or stores them, has the
same floor. Per vote of d components, made from rows of q, and T iterations:

- EM: ``d q`` to make it, ``2 d T`` for mean and variance, ``2 d (T - 1)`` for its distance;
- dynamic: ``d q`` to make it, ``d T`` for the sum, ``d (T - 1)`` for the agreement.

The backward pass takes twice the multiply-adds of the forward pass, once per factor, except where the input asks for
no gradient; it reads the inputs and the outputs' gradients and writes the inputs'. Adam reads four numbers
per parameter and writes three.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn

from capsule_lab.bench.cases import FULL, Case, training_config
from capsule_lab.bench.layers import POSE
from capsule_lab.bench.models import build_network, loss_of, random_batch
from capsule_lab.layers import ClassCapsules, ConvCapsules, DenseCapsules
from capsule_lab.routing import AbstractRouting, EMRouting
from capsule_lab.types import Votes

MATRIX, ARRAY = 2048, 2**26  # ours: large enough for all cores, and for no cache


@dataclass(frozen=True)
class Work:
    """Of a forward and a backward pass, and for a model of Adam.

    Attributes:
        operations: of convolutions and linear layers, which may be in bfloat16.
        routing_operations: in float32.
        numbers: moved by convolutions and linear layers.
        full_numbers: moved in float32: by routing, and parameters.
    """

    operations: int = 0
    routing_operations: int = 0
    numbers: int = 0
    full_numbers: int = 0

    def floors(self, rates: dict[str, float], precision: str) -> dict[str, float]:
        """Seconds at these rates, and what they are made of."""
        half = precision != FULL
        operations = (
            self.operations / rates["bfloat16_operations_per_second" if half else "float32_operations_per_second"]
        )
        moved = self.numbers * (2 if half else 4) + self.full_numbers * 4  # bytes of bfloat16 and of float32
        return {
            "operations": self.operations + self.routing_operations,
            "bytes": moved,
            "floor_arithmetic_seconds": operations + self.routing_operations / rates["float32_operations_per_second"],
            "floor_memory_seconds": moved / rates["bytes_per_second"],
        }


def per_vote(dim: int, inner: int, iterations: int, *, em: bool) -> int:
    """Multiply-adds of a vote in a forward pass."""
    return dim * inner + (2 if em else 1) * dim * (2 * iterations - 1)


def count(case: Case) -> Work:
    """What a case takes, whatever its form."""
    return _of_layer(case) if case.kind == "layer" else _of_model(case)


def votes_of(case: Case) -> int:
    """How many votes a layer has."""
    sizes = case.sizes
    if case.name == "em_all_parents":
        positions = ((sizes["grid"] - sizes["kernel_size"]) // sizes["stride"] + 1) ** 2
        return sizes["batch_size"] * positions * sizes["kernel_size"] ** 2 * sizes["child_types"] * sizes["parents"]
    return sizes.get("rows", sizes.get("batch_size")) * sizes["children"] * sizes["parents"]


def _of_layer(case: Case) -> Work:
    sizes, em = case.sizes, case.name != "dynamic"
    parents, dim = sizes["parents"], POSE * POSE
    if case.name == "em_window":
        rows, children, inner = sizes["rows"], sizes["rows"] * sizes["children"] * (dim + 1), POSE
        parameters = sizes["children"] * POSE * parents * POSE + 2 * parents
    elif case.name == "em_all_parents":
        places = sizes["kernel_size"] ** 2 * sizes["child_types"]
        rows, inner = votes_of(case) // (places * parents), POSE
        children = sizes["batch_size"] * sizes["grid"] ** 2 * sizes["child_types"] * (dim + 1)
        parameters = places * POSE * parents * POSE + 2 * parents
    else:
        rows, inner, dim = sizes["batch_size"], sizes["child_dim"], sizes["parent_dim"]
        children = rows * sizes["children"] * inner
        parameters = sizes["children"] * inner * parents * dim + parents * dim
    multiply_adds = 3 * votes_of(case) * per_vote(dim, inner, sizes["iterations"], em=em)  # 3: forward, two factors
    outputs = rows * parents * (dim + em)
    moved = 3 * (children + parameters) + 2 * outputs  # inputs read, read, their gradients written
    return Work(routing_operations=2 * multiply_adds, full_numbers=moved)


def _of_model(case: Case) -> Work:
    """Counted while one image passes through the network."""
    module = build_network(case, training_config(case.words)).to(case.device)
    found: list[Work] = []

    def record(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        found.append(_of_call(layer, inputs, output))

    for layer in module.network.modules():
        layer.register_forward_hook(record)
    loss_of(module, random_batch(case, 1)).backward()  # so that kernels are compiled, and kept for the workers
    parameters = sum(parameter.numel() for parameter in module.parameters_to_train())
    images = case.sizes["batch_size"]
    return Work(
        operations=images * sum(work.operations for work in found),
        routing_operations=images * sum(work.routing_operations for work in found),
        numbers=images * sum(work.numbers for work in found),
        full_numbers=images * sum(work.full_numbers for work in found) + (3 + 4 + 3) * parameters,  # passes, Adam
    )


def _of_call(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> Work:
    if isinstance(layer, nn.Conv2d | nn.Linear):
        each = layer.weight[0].numel() * output.numel()  # multiply-adds of the forward pass
        factors = 1 + inputs[0].requires_grad  # those that have a gradient
        moved = (1 + factors) * inputs[0].numel() + 2 * output.numel()
        return Work(operations=2 * each * (1 + factors), numbers=moved)
    if isinstance(layer, ConvCapsules | DenseCapsules | ClassCapsules):
        return Work(full_numbers=3 * _numbers(inputs) + 2 * _numbers(output))
    if isinstance(layer, AbstractRouting) and isinstance(inputs[0], Votes):
        (rows, children, pose), (_, inner, parents, columns) = (part.shape for part in inputs[0])
        em = isinstance(layer, EMRouting)
        options: dict[str, Any] = layer.options if isinstance(layer, EMRouting) else vars(layer)
        iterations = options.get("iterations", 1)
        each = rows * children * parents * per_vote(pose // inner * columns, inner, iterations, em=em)
        return Work(routing_operations=2 * 3 * each)  # 3: as in _of_layer
    return Work()


def _numbers(tensors: Iterable[Any]) -> int:
    return sum(tensor.numel() for tensor in tensors if isinstance(tensor, Tensor))


def measure_machine(pipe: Connection, cases: list[Case], half: bool) -> None:
    """In a worker: rates of the machine, with those in bfloat16 if they are wanted, then the work of each case."""
    pipe.send(machine_rates(torch.device(cases[0].device), half=half))
    pipe.send([count(case) for case in cases])


def machine_rates(device: torch.device, *, half: bool) -> dict[str, float]:
    """Operations per second in square matrix products, bytes per second in a sum of two arrays into a third."""
    rates = {}
    for dtype in [torch.float32] + half * [torch.bfloat16]:
        factor = torch.rand(MATRIX, MATRIX, device=device).to(dtype)
        product = torch.empty_like(factor)
        seconds = _fastest(lambda factor=factor, product=product: torch.mm(factor, factor, out=product), device)
        rates[f"{str(dtype).removeprefix('torch.')}_operations_per_second"] = 2 * MATRIX**3 / seconds
    first, second, total = (torch.ones(ARRAY, device=device) for _ in range(3))
    seconds = _fastest(lambda: torch.add(first, second, out=total), device)
    rates["bytes_per_second"] = 3 * ARRAY * first.element_size() / seconds
    return rates


def _fastest(call: Any, device: torch.device, times: int = 5) -> float:
    best = math.inf
    for _ in range(times + 1):  # the first warms up, and is hardly the fastest
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best
