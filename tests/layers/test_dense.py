from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.kernels import run_routing
from capsule_lab.layers import DenseCapsules
from capsule_lab.routing import DynamicRouting, UniformRouting
from capsule_lab.types import Capsules, RoutingTrace, Votes
from tests.reference.loops import dynamic_routing_loops

CHILDREN, CHILD_DIM, PARENTS, PARENT_DIM = 5, 3, 4, 2


def build(**options: Any) -> DenseCapsules:
    torch.manual_seed(0)
    return DenseCapsules(
        **{
            "children": CHILDREN,
            "child_dim": CHILD_DIM,
            "parents": PARENTS,
            "parent_dim": PARENT_DIM,
            "routing": DynamicRouting,
            **options,
        }
    )


def children(batch: int, dtype: torch.dtype = torch.float32, **sizes: int) -> Tensor:
    shape = (batch, sizes.get("children", CHILDREN), sizes.get("child_dim", CHILD_DIM))
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(1))


class Spy(UniformRouting):
    """Remembers what it was asked to route."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[tuple[Any, Tensor | None]] = []

    def forward(self, votes: Any, activations: Tensor | None = None, **options: Any) -> Capsules:
        self.seen.append((votes, activations))
        return super().forward(votes, activations, **options)


every_backend = pytest.mark.parametrize("backend", ["auto", "reference", "matmul", "fused"])


@every_backend
def test_votes_and_routing_equal_the_loops(backend: Any) -> None:
    layer, poses = build(routing=partial(DynamicRouting, backend=backend)).double(), children(2, torch.float64)
    votes = torch.tensor(
        [
            [
                [
                    [
                        sum(poses[b, i, c].item() * layer.weight[i, c, j, d].item() for c in range(CHILD_DIM))
                        for d in range(PARENT_DIM)
                    ]
                    for j in range(PARENTS)
                ]
                for i in range(CHILDREN)
            ]
            for b in range(2)
        ],
        dtype=torch.float64,
    )
    expected = dynamic_routing_loops(votes, bias=layer.routing.bias)
    torch.testing.assert_close(layer(poses).poses, expected, rtol=0, atol=1e-12)


def test_routing_gets_poses_and_weight() -> None:
    layer, poses, activations = build(routing=Spy), children(3), torch.rand(3, CHILDREN)
    layer(poses, activations)
    (votes, presence), *others = layer.routing.seen
    assert others == []
    assert isinstance(votes, Votes)
    assert votes.poses is poses
    assert votes.weight is layer.weight
    assert presence is activations


BYTES_PER_IMAGE = CHILDREN * PARENTS * PARENT_DIM * 8


@pytest.mark.parametrize("routing", [DynamicRouting, UniformRouting, partial(DynamicRouting, leaky=True)])
@pytest.mark.parametrize(("images_at_a_time", "batch"), [(0, 3), (1, 3), (2, 5), (3, 6), (4, 3)])
def test_few_images_at_a_time_change_nothing(
    routing: Any, images_at_a_time: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = build(routing=partial(routing, backend="matmul")).double()
    poses = children(batch, torch.float64).requires_grad_()
    whole = layer(poses)
    (gradient,) = torch.autograd.grad(whole.poses.square().sum(), poses)

    monkeypatch.setattr(run_routing, "VOTES_IN_CACHE", images_at_a_time * BYTES_PER_IMAGE)
    parts = layer(poses)
    (gradient_of_parts,) = torch.autograd.grad(parts.poses.square().sum(), poses)

    torch.testing.assert_close(parts.poses, whole.poses, rtol=0, atol=1e-12)
    torch.testing.assert_close(parts.activations, whole.activations, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient_of_parts, gradient, rtol=0, atol=1e-12)


@every_backend
def test_on_iteration_gets_the_whole_batch(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_routing, "VOTES_IN_CACHE", 1)
    traces: list[RoutingTrace] = []
    build(routing=partial(DynamicRouting, backend=backend))(children(3), on_iteration=traces.append)
    assert [trace.couplings.shape for trace in traces] == 3 * [(3, CHILDREN, PARENTS)]


def test_image_alone_equals_image_in_a_batch() -> None:
    layer, poses = build(), children(4)
    torch.testing.assert_close(layer(poses[2:3]).poses, layer(poses).poses[2:3])


@pytest.mark.parametrize("on_iteration", [None, lambda _: None])
@every_backend
def test_no_images_give_no_parents(backend: Any, on_iteration: Any) -> None:
    layer, poses = build(routing=partial(DynamicRouting, backend=backend)), children(0).requires_grad_()
    parents = layer(poses, on_iteration=on_iteration)
    assert parents.poses.shape == (0, PARENTS, PARENT_DIM)
    parents.poses.sum().backward()
    assert poses.grad.shape == poses.shape
    assert not layer.weight.grad.any()


def test_initial_values_of_the_official_code() -> None:
    layer = build(children=100, routing=DynamicRouting)
    assert layer.weight.shape == (100, CHILD_DIM, PARENTS, PARENT_DIM)
    assert layer.weight.abs().max() <= 0.2
    assert layer.weight.std().item() == pytest.approx(0.088, rel=0.05)  # cut at 2 std of 0.1


CHANGED = {
    "children": 6,
    "child_dim": 4,
    "parents": 3,
    "parent_dim": 5,
    "routing": UniformRouting,
    "weight_std": 0.5,
}


@pytest.mark.parametrize("argument", list(inspect.signature(DenseCapsules).parameters))
def test_every_argument_does_something(argument: str) -> None:
    layer, other = build(weight_std=1.0), build(**{"weight_std": 1.0, argument: CHANGED[argument]})
    sizes = {argument: CHANGED[argument]} if argument in ("children", "child_dim") else {}
    poses, other_poses = layer(children(1)).poses, other(children(1, **sizes)).poses
    same_shapes = poses.shape == other_poses.shape and layer.weight.shape == other.weight.shape
    assert not same_shapes or not torch.allclose(poses, other_poses)


def test_every_parameter_gets_a_gradient() -> None:
    layer = build()
    layer(children(2)).poses.square().sum().backward()
    assert all((parameter.grad != 0).all() for parameter in layer.parameters())


def test_parents_are_float32_under_autocast() -> None:
    layer, poses = build(), children(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parents = layer(poses.bfloat16())
    assert parents.poses.dtype == parents.activations.dtype == torch.float32
    torch.testing.assert_close(parents.poses, layer(poses.bfloat16().float()).poses)
