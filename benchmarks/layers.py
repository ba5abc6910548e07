"""Layers to time: their forward pass, and the tensors to differentiate by."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks.cases import Case
from benchmarks.textbook_capsnet import TextbookCapsNet
from benchmarks.textbook_em_caps import saturating, textbook_em_layer, window_index
from capsule_lab.kernels.backends import Backend
from capsule_lab.layers import ConvCapsules
from capsule_lab.routing import DynamicRouting, EMRouting
from capsule_lab.types import Votes

Forward = Callable[[], tuple[Tensor, ...]]

POSE = 4  # Hinton 2018, section 2: rows and columns
FINAL = 0.01  # official code of Hinton 2018: inverse temperature
MIN_VARIANCE = 5e-4  # official code of Hinton 2018
# ours: compiles all kernels
WARM_UP = {"batch_size": 1, "rows": 1, "children": 8, "child_types": 1, "grid": 7}


def small(case: Case) -> dict[str, Any]:
    """Return small sizes of the same layer, for warming up."""
    return {name: min(size, WARM_UP.get(name, size)) for name, size in case.sizes.items()}


def build_layer(case: Case, sizes: dict[str, Any] | None = None) -> tuple[Forward, list[Tensor]]:
    """Return the forward pass of a layer, and its inputs and parameters, which need gradients.

    Args:
        case: the case of the layer.
        sizes: sizes in place of the case's sizes.
    """
    torch.manual_seed(0)
    builders: dict[str, Callable[..., tuple[Forward, list[Tensor]]]]
    builders = {"em_window": _em_window, "em_all_parents": _em_all_parents, "dynamic": _dynamic}
    forward, inputs = builders[case.name](case, torch.device(case.device), **(sizes or case.sizes))
    return torch.compile(forward) if case.form == "compiled" else forward, inputs


def _em_routing(case: Case, iterations: int) -> Any:
    backend: Any = case.backend
    return partial(
        EMRouting, cost="paper", beta_u=0.0, beta_a=0.0, inverse_temperature=FINAL, min_variance=MIN_VARIANCE,
        iterations=iterations, backend=backend,
    )  # fmt: skip


def _em_window(
    case: Case, device: torch.device, *, rows: int, children: int, parents: int, iterations: int
) -> tuple[Forward, list[Tensor]]:
    """EM routing of independent windows."""
    poses = _leaf(torch.randn(rows, children, POSE * POSE, device=device))
    activations = _leaf(torch.rand(rows, children, device=device))
    weight = torch.randn(children, POSE, parents, POSE, device=device) / 2
    if case.form == "textbook":
        weight = _leaf(weight.transpose(1, 2).contiguous())
        beta_u = _leaf(torch.zeros(parents, device=device))
        beta_a = _leaf(torch.zeros(parents, device=device))
        temperatures = saturating(FINAL, iterations)

        def textbook_forward() -> tuple[Tensor, ...]:
            return textbook_em_layer(
                poses, weight, activations, beta_u, beta_a, temperatures, MIN_VARIANCE
            )

        return textbook_forward, [poses, weight, activations, beta_u, beta_a]
    routing = _em_routing(case, iterations)(parents=parents, dim=POSE * POSE).to(device)
    weight = _leaf(weight)

    def forward() -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = routing(Votes(poses, weight), activations)[:2]
        return outputs

    return forward, [poses, weight, activations, *routing.parameters()]


def _em_all_parents(
    case: Case,
    device: torch.device,
    *,
    batch_size: int,
    grid: int,
    child_types: int,
    parents: int,
    kernel_size: int,
    stride: int,
    iterations: int,
) -> tuple[Forward, list[Tensor]]:
    """A convolutional EM layer; the softmax of a child is over all parents at all positions that see it."""
    size = (grid, grid)
    poses = _leaf(torch.randn(batch_size, grid * grid * child_types, POSE * POSE, device=device))
    activations = _leaf(torch.rand(poses.shape[:2], device=device))
    if case.form == "textbook":
        child = window_index(size, child_types, kernel_size, stride).to(device)
        weight = _leaf(torch.randn(child.shape[1], parents, POSE, POSE, device=device) / 2)
        beta_u = _leaf(torch.zeros(parents, device=device))
        beta_a = _leaf(torch.zeros(parents, device=device))
        temperatures = saturating(FINAL, iterations)

        def forward() -> tuple[Tensor, ...]:
            windows = poses[:, child].flatten(0, 1)
            present = activations[:, child].flatten(0, 1)
            return textbook_em_layer(
                windows, weight, present, beta_u, beta_a, temperatures, MIN_VARIANCE, child
            )

        return forward, [poses, activations, weight, beta_u, beta_a]
    layer = ConvCapsules(
        size, child_types, POSE * POSE, parents, POSE * POSE, rows=POSE, kernel_size=kernel_size, stride=stride,
        weight_std=0.5, routing=_em_routing(case, iterations),  # 0.5: votes as large as poses
    ).to(device)  # fmt: skip
    return lambda: layer(poses, activations)[:2], [poses, activations, *layer.parameters()]


def _dynamic(
    case: Case,
    device: torch.device,
    *,
    batch_size: int,
    children: int,
    child_dim: int,
    parents: int,
    parent_dim: int,
    iterations: int,
) -> tuple[Forward, list[Tensor]]:
    """Dynamic routing of the digit capsules of a CapsNet."""
    poses = _leaf(torch.randn(batch_size, children, child_dim, device=device))
    if case.form == "textbook":
        network = TextbookCapsNet(
            (1, 1, 1), parents, channels=1, kernel_size=1, primary_types=children, primary_dim=child_dim,
            class_dim=parent_dim, hidden=(1, 1), iterations=iterations,
        )  # fmt: skip
        network = network.to(device)
        return lambda: (network.digit_capsules(poses),), [poses, network.weight, network.bias]
    routing = DynamicRouting(
        parents, parent_dim, iterations=iterations, backend=cast(Backend, case.backend)
    ).to(device)
    # 0.1: official code
    weight = _leaf(0.1 * torch.randn(children, child_dim, parents, parent_dim, device=device))
    return lambda: (routing(Votes(poses, weight)).poses,), [poses, weight, *routing.parameters()]


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.requires_grad_()
