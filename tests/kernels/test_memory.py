"""Memory of a training step: what autograd keeps, and its peak as the operating system sees it."""

import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.layers import ConvCapsules, DenseCapsules
from capsule_lab.routing import EMRouting
from tests.helpers.kernels import draw

STEP = """
import resource
import sys
from functools import partial

import torch

from capsule_lab.networks import EMCaps
from capsule_lab.routing import EMRouting

iterations, backend = int(sys.argv[1]), sys.argv[2]
network = EMCaps((2, 32, 32), 5, routing=partial(EMRouting, iterations=iterations, backend=backend))
network(torch.randn(16, 2, 32, 32)).scores.sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_memory(iterations: int, backend: str) -> int:
    """Of a forward and backward pass of the network of Hinton 2018, section 4, in a process of its own."""
    command = [sys.executable, "-c", STEP, str(iterations), backend]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return int(ended.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no resource module")
def test_does_not_grow_with_iterations() -> None:
    one, five = peak_memory(1, "fused"), peak_memory(5, "fused")
    assert five < 1.3 * one


def sizes_kept(routing: Any, *, conv: bool) -> tuple[list[int], int, int]:
    """Sizes of the tensors that the backward pass keeps, of couplings, and of the poses of all parents."""
    if conv:
        layer: Any = ConvCapsules((5, 5), 8, 4, 24, 4, rows=2, routing=routing)
        batch, child, parent, count = 3, 9 * 8, 24, 25 * 8
        rows = batch * layer.windows.positions
    else:
        batch, child, parent, count = 64, 256, 32, 256
        layer, rows = DenseCapsules(count, 4, parent, 4, routing=routing), batch
    poses = draw(batch, count, 4, seed=0).float()
    activations = draw(batch, count, seed=1).sigmoid().float()
    sizes: dict[int, int] = {}
    held: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        held.append(tensor)  # or its address may be used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        parents = layer(poses.requires_grad_(), activations.requires_grad_())
    nodes = [each.grad_fn for each in parents]
    for node in nodes:  # tensors that a function keeps as attributes
        for value in getattr(node, "__dict__", {}).values():
            if isinstance(value, Tensor):
                keep(value)
        for after, _ in node.next_functions:
            if after is not None and after not in nodes:
                nodes.append(after)
    return sorted(sizes.values()), rows * child * parent, rows * parent * 4


@pytest.mark.parametrize(
    "options", [{}, {"damping": 0.1}, {"activation": "mixing_proportions"}], ids=str
)
@pytest.mark.parametrize("conv", [False, True])
def test_fused_em_keeps_no_couplings(conv: bool, options: dict[str, Any]) -> None:
    """Nothing as large as they are; and an iteration more keeps a few numbers per component of a parent's pose."""
    totals = {}
    for iterations in (2, 3, 6):
        routing = partial(EMRouting, iterations=iterations, backend="fused", **options)
        sizes, couplings, parents = sizes_kept(routing, conv=conv)
        assert 0 < sizes[-1] < couplings / 2
        totals[iterations] = sum(sizes)
    assert totals[3] - totals[2] < min(12 * parents, couplings)
    assert totals[6] - totals[3] <= 3 * (totals[3] - totals[2]) + parents


@pytest.mark.parametrize("conv", [False, True])
def test_matmul_keeps_its_votes(conv: bool) -> None:
    """The count above sees them."""
    sizes, couplings, _ = sizes_kept(partial(EMRouting, backend="matmul"), conv=conv)
    assert sizes[-1] >= 4 * couplings
