"""Convolutional capsules: equal to loops over windows; who competes for a child. See test_contract for the rest."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.layers import ConvCapsules, ConvStack, build_normaliser
from capsule_lab.routing import (
    DynamicRouting,
    EMRouting,
    InvertedAttention,
    RandomCouplings,
    ScaledDistanceAgreement,
    UniformRouting,
)
from capsule_lab.types import Capsules, RoutingTrace
from tests.reference.em_bridge import (
    PRESETS,
    as_children,
    as_conv_weight,
    as_grid,
    betas_of_the_loops,
    in_terms_of_the_loops,
    preset,
    random,
)
from tests.reference.em_loops import Record, conv_em_loops, matrix_vote, vector_vote
from tests.reference.loops import dynamic_routing_loops, squash_loops

CHILD_TYPES, PARENT_TYPES, KERNEL = 2, 3, 3
NORMALISATIONS = ["all_parents", "window", "official_legacy", "official_fast"]
BACKENDS = ["matmul", "fused"]

exact = partial(torch.testing.assert_close, rtol=0, atol=1e-10)


def build(
    size: tuple[int, int] = (4, 6), *, child_dim: int = 4, parent_dim: int = 4, rows: int = 2, **options: Any
) -> ConvCapsules:
    """Float64, with weights large enough for the votes to differ."""
    torch.manual_seed(0)
    options = {"routing": EMRouting, "weight_std": 0.8, **options}
    return ConvCapsules(size, CHILD_TYPES, child_dim, PARENT_TYPES, parent_dim, rows=rows, **options).double()


def children(layer: ConvCapsules, batch: int = 2, dim: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    height, width = layer.size
    count = height * width * layer.windows.types
    return random(batch, count, dim, seed=seed), random(batch, count, seed=seed + 1).sigmoid()


def traced(layer: ConvCapsules, *below: Tensor) -> list[RoutingTrace]:
    traces: list[RoutingTrace] = []
    layer(*below, on_iteration=traces.append)
    return traces


def per_child(layer: ConvCapsules, trace: RoutingTrace, batch: int) -> Tensor:
    """Sum of the couplings of each child over all positions, ``(batch, child)``; -1 for a child without parents."""
    height, width = layer.windows.size
    totals = torch.full((batch, height * width * layer.windows.types), -1.0, dtype=torch.float64)
    positions = layer.windows.positions
    for window, (image, position) in enumerate(product(range(batch), range(positions))):
        for place, child in enumerate(layer.windows.child[position].tolist()):
            totals[image, child] = totals[image, child].clamp_min(0) + trace.couplings[window, place].sum()
    return totals


# -------------------------------------------------------------------------------------------------- the loops


def layer_and_loops(
    size: tuple[int, int], stride: int, pose: str, parameters: str = "random", **options: Any
) -> tuple[ConvCapsules, Capsules, Record]:
    child_dim, parent_dim, rows, inner, columns = (16, 16, 4, 4, 4) if pose == "matrix" else (3, 5, 1, 3, 5)
    layer = build(
        size,
        child_dim=child_dim,
        parent_dim=parent_dim,
        rows=rows,
        stride=stride,
        routing=partial(EMRouting, **options),
    )
    weight = 0.5 * random(CHILD_TYPES, KERNEL, KERNEL, inner, columns, PARENT_TYPES, seed=2)
    poses, activations = random(1, CHILD_TYPES, child_dim, *size), random(1, CHILD_TYPES, *size, seed=1).sigmoid()
    layer.weight.data = as_conv_weight(weight)
    if parameters == "random":
        layer.routing.beta_u.data = 0.5 + 0.2 * random(PARENT_TYPES, seed=3)
        layer.routing.beta_a.data = 0.1 * random(PARENT_TYPES, seed=4)
    known = {**layer.routing.options, "normalisation": layer.routing.normalisation}
    record = conv_em_loops(
        poses,
        activations,
        weight,
        *betas_of_the_loops(layer.routing, PARENT_TYPES, parent_dim),
        stride=stride,
        vote=matrix_vote if pose == "matrix" else vector_vote,
        **in_terms_of_the_loops(known),
    )[-1]
    return layer, layer(as_children(poses), as_children(activations)), record


def check_equal(layer: ConvCapsules, parents: Capsules, record: Record) -> None:
    exact(as_grid(parents.poses, layer.windows.grid), record.poses)
    exact(as_grid(parents.activations, layer.windows.grid), record.activations)


@pytest.mark.parametrize(
    ("normalisation", "initial"),
    [("all_parents", "parents"), ("official_fast", "parents"), *((n, "types") for n in NORMALISATIONS)],
)
def test_layer_equals_the_loops(normalisation: str, initial: str) -> None:
    """On 4x5: no parent of stride 2 sees the last row."""
    for stride, pose in ((1, "vector"), (2, "matrix")):
        check_equal(*layer_and_loops((4, 5), stride, pose, normalisation=normalisation, initial=initial))


@pytest.mark.parametrize(("name", "stride"), [(name, 1 + number % 2) for number, name in enumerate(PRESETS)])
def test_preset_equals_the_loops(name: str, stride: int) -> None:
    check_equal(*layer_and_loops((5, 4), stride, "matrix", parameters="initial", **preset(name)))


@pytest.mark.parametrize(
    "options",
    [
        {"activation": "mixing_proportions"},
        {"activation": "mixing_proportions", "normalisation": "window", "initial": "types"},
        {"cost": "standardised"},
        {"cost": "paper"},
        {"damping": 0.3, "iterations": 2},
    ],
    ids=str,
)
def test_switch_equals_the_loops(options: dict[str, Any]) -> None:
    check_equal(*layer_and_loops((4, 5), 1, "vector", **options))


# ------------------------------------------------------------------------------------------------- couplings


SHARING = [
    *(EMRouting, DynamicRouting, UniformRouting, RandomCouplings),
    partial(InvertedAttention, normalisation="all_parents"),
    partial(ScaledDistanceAgreement, normalisation="all_parents"),
]


@pytest.mark.parametrize(("routing", "stride"), [(each, 1 + number % 3) for number, each in enumerate(SHARING)])
def test_all_parents_share_a_child(routing: Any, stride: int) -> None:
    layer = build((4, 6), routing=routing, stride=stride)
    totals = torch.stack([per_child(layer, trace, batch=2) for trace in traced(layer, *children(layer))])
    seen = totals >= 0
    exact(totals[seen], torch.ones_like(totals[seen]), atol=1e-12)
    assert seen.all() == (stride == 1)


@pytest.mark.parametrize(("initial", "corner", "centre"), [("parents", 1, 1), ("types", 1, 9)])
def test_first_couplings(initial: str, corner: float, centre: float) -> None:
    """Equal shares over the types give a child seen from nine positions nine times its mass."""
    layer = build((5, 5), routing=partial(EMRouting, initial=initial))
    totals = per_child(layer, traced(layer, *children(layer))[0], batch=2).view(2, 5, 5, CHILD_TYPES)
    exact(totals[:, 0, 0], torch.full((2, CHILD_TYPES), float(corner)).double())
    exact(totals[:, 2, 2], torch.full((2, CHILD_TYPES), float(centre)).double())


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_first_couplings_are_equal_among_those_who_compete(normalisation: str) -> None:
    """One over 9 times 3 at most, over the three types of a window, or over the nine positions for the legacy code."""
    stride = 1 + (normalisation in ("window", "official_legacy"))
    layer = build((4, 5), stride=stride, routing=partial(EMRouting, normalisation=normalisation))
    first = traced(layer, *children(layer))[0].couplings.transpose(1, 2)
    exact(first, build_normaliser(normalisation, layer.windows)(torch.zeros_like(first)), atol=1e-15)


def test_in_windows_both_ways_to_start_are_one() -> None:
    parents, types = (
        build(routing=partial(EMRouting, normalisation="window", initial=i)) for i in ("parents", "types")
    )
    exact(parents(*children(parents)), types(*children(types)), atol=1e-12)


def test_uniform_routing_divides_by_all_parents() -> None:
    layer = build((4, 4), routing=partial(UniformRouting, bias=False))
    poses, activations = children(layer)
    seen = layer.windows.child
    times = torch.bincount(seen.flatten(), minlength=poses.shape[1]) * PARENT_TYPES
    shared = (poses / times[:, None])[:, seen].flatten(0, 1).unflatten(2, (2, 2))  # [window place row inner]
    totals = torch.einsum("wpri,pijc->wjrc", shared, layer.weight).flatten(0, 1).flatten(1)
    exact(layer(poses, activations).poses.flatten(0, 1), squash_loops(totals))


def test_dynamic_routing_through_a_window_of_the_whole_grid() -> None:
    layer = build((3, 3), routing=DynamicRouting)
    poses, activations = children(layer)
    votes = torch.einsum("bpri,pijc->bpjrc", poses.unflatten(2, (2, 2)), layer.weight).flatten(3)
    exact(layer(poses, activations).poses, dynamic_routing_loops(votes, bias=layer.routing.bias))


# --------------------------------------------------------------------------------------- children without parents


@pytest.mark.parametrize(
    "routing",
    [
        *(partial(EMRouting, normalisation=n, backend=b) for n, b in zip(NORMALISATIONS, 2 * BACKENDS, strict=True)),
        DynamicRouting,
    ],
)
def test_children_without_parents_take_no_part(routing: Any) -> None:
    """On 4x6 at stride 2 the last row and the last column see no one: what they hold changes nothing."""
    layer = build((4, 6), stride=2, routing=routing)
    poses, activations = children(layer)
    alone = torch.ones(4, 6, CHILD_TYPES, dtype=torch.bool)
    alone[:3, :5] = False
    alone = alone.flatten()
    other_poses, other_activations = poses.clone(), activations.clone()
    other_poses[:, alone] *= 1e6
    other_activations[:, alone] = 0
    other_poses.requires_grad_()
    parents, others = layer(poses, activations), layer(other_poses, other_activations)
    assert torch.equal(parents.poses, others.poses)
    assert torch.equal(parents.activations, others.activations)
    others.poses.square().sum().backward()
    assert torch.equal(other_poses.grad[:, alone], torch.zeros_like(other_poses.grad[:, alone]))
    assert (other_poses.grad[:, ~alone] != 0).all()


@pytest.mark.parametrize(("stride", "batch"), [(1, 3), (2, 1)])
def test_mixing_proportions_sum_to_one_over_an_image(stride: int, batch: int) -> None:
    layer = build((5, 5), stride=stride, routing=partial(EMRouting, activation="mixing_proportions"))
    total = layer(*children(layer, batch)).activations.sum(1)
    exact(total, torch.ones(batch, dtype=torch.float64), atol=1e-12)


def test_a_stack_is_its_layers() -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"types": (3, 2), "strides": (1, 2), "kernel_size": 2, "routing": EMRouting, "rows": 2}
    stack = ConvStack((4, 6), CHILD_TYPES, 4, **sizes, initialise=partial(torch.nn.init.constant_, val=0.3)).double()
    poses, activations = random(2, 4 * 6 * CHILD_TYPES, 4), random(2, 4 * 6 * CHILD_TYPES, seed=1).sigmoid()
    below, above = stack
    assert (below.weight == above.weight.flatten()[0]).all()
    assert (stack.grid, stack.types) == (above.windows.grid, 2) == ((1, 2), 2)
    exact(tuple(stack(poses, activations)), tuple(above(*below(poses, activations)[:2])))
    assert len(ConvStack((4, 6), CHILD_TYPES, 4, types=(), strides=(), routing=EMRouting)) == 0
