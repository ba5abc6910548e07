"""Convolutional capsules: equal to loops over windows; who competes for a child. See test_contract for the rest."""

from functools import partial
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab import RandomCouplings, ScaledDistanceAgreement
from capsule_lab.layers import ConvCapsules, ConvStack
from capsule_lab.routing import DynamicRouting, EMRouting, InvertedAttention, UniformRouting
from capsule_lab.types import Capsules, RoutingTrace
from tests.helpers.closeness import assert_close
from tests.reference import em_bridge as bridge
from tests.reference import em_loops as loops
from tests.reference.em_bridge import random
from tests.reference.loops import dynamic_routing_loops

CHILD_TYPES, PARENT_TYPES, KERNEL = 2, 3, 3

exact = partial(assert_close, atol=1e-10)


def build(
    size: tuple[int, int] = (4, 6),
    *,
    child_dim: int = 4,
    parent_dim: int = 4,
    rows: int = 2,
    **options: Any,
) -> ConvCapsules:
    """Float64, with weights large enough for the votes to differ."""
    torch.manual_seed(0)
    options = {"routing": EMRouting, "weight_std": 0.8, **options}
    return ConvCapsules(
        size, CHILD_TYPES, child_dim, PARENT_TYPES, parent_dim, rows=rows, **options
    ).double()


def children(layer: ConvCapsules) -> tuple[Tensor, Tensor]:
    count = layer.windows.child_count
    return random(2, count, 4), random(2, count, seed=1).sigmoid()


def traced(layer: ConvCapsules, *below: Tensor) -> list[RoutingTrace]:
    traces: list[RoutingTrace] = []
    layer(*below, on_iteration=traces.append)
    return traces


def per_child(layer: ConvCapsules, trace: RoutingTrace) -> Tensor:
    """Sum of the couplings of each child that has parents, over all positions, ``(batch, child)``."""
    child = layer.windows.child.flatten()
    total = torch.zeros(2, layer.windows.child_count, dtype=torch.float64)
    total.index_add_(1, child, trace.couplings.sum(2).view(2, -1))
    return total[:, child.unique()]


def layer_and_loops(
    size: tuple[int, int], stride: int, pose: str, parameters: str = "random", **options: Any
) -> tuple[ConvCapsules, Capsules, loops.Record]:
    if pose == "matrix":
        rows, inner, columns = 4, 4, 4
        vote = loops.matrix_vote
    else:
        rows, inner, columns = 1, 3, 5
        vote = loops.vector_vote
    child_dim = rows * inner
    parent_dim = rows * columns
    layer = build(
        size,
        child_dim=child_dim,
        parent_dim=parent_dim,
        rows=rows,
        stride=stride,
        routing=partial(EMRouting, **options),
    )
    weight = 0.5 * random(CHILD_TYPES, KERNEL, KERNEL, inner, columns, PARENT_TYPES, seed=2)
    poses = random(1, CHILD_TYPES, child_dim, *size)
    activations = random(1, CHILD_TYPES, *size, seed=1).sigmoid()
    layer.weight.data = bridge.as_conv_weight(weight)
    if parameters == "random":
        layer.routing.beta_u.data = 0.5 + 0.2 * random(PARENT_TYPES, seed=3)
        layer.routing.beta_a.data = 0.1 * random(PARENT_TYPES, seed=4)
    known = {**layer.routing.options, "normalisation": layer.routing.normalisation}
    records = loops.conv_em_loops(
        poses,
        activations,
        weight,
        *bridge.betas_of_the_loops(layer.routing, PARENT_TYPES, parent_dim),
        stride=stride,
        vote=vote,
        **bridge.in_terms_of_the_loops(known),
    )
    parents = layer(bridge.as_children(poses), bridge.as_children(activations))
    return layer, parents, records[-1]


def check_equal(layer: ConvCapsules, parents: Capsules, record: loops.Record) -> None:
    exact(bridge.as_grid(parents.poses, layer.windows.grid), record.poses)
    exact(bridge.as_grid(parents.activations, layer.windows.grid), record.activations)


@pytest.mark.parametrize(
    "options",
    [
        {"normalisation": "all_parents", "activation": "mixing_proportions"},
        {"normalisation": "window", "activation": "mixing_proportions", "initial": "types"},
        {"normalisation": "official_fast", "damping": 0.3},
        {"cost": "standardised"},
        {"normalisation": "all_parents", "initial": "types"},
        {"normalisation": "window", "initial": "types"},
        {"normalisation": "official_legacy", "initial": "types"},
        {"normalisation": "official_fast", "initial": "types"},
    ],
    ids=str,
)
def test_layer_equals_the_loops(options: dict[str, Any]) -> None:
    """On 4x5: no parent of stride 2 sees the last row."""
    for stride, pose in ((1, "vector"), (2, "matrix")):
        check_equal(*layer_and_loops((4, 5), stride, pose, **options))


STRIDES = [*zip(bridge.PRESETS, cycle([1, 2]), strict=False)]


@pytest.mark.parametrize(("name", "stride"), STRIDES)
def test_preset_equals_the_loops(name: str, stride: int) -> None:
    options = bridge.preset(name)
    check_equal(*layer_and_loops((5, 4), stride, "matrix", parameters="initial", **options))


@pytest.mark.parametrize(
    ("routing", "stride"),
    [
        (EMRouting, 1),
        (DynamicRouting, 2),
        (UniformRouting, 3),
        (RandomCouplings, 1),
        (partial(InvertedAttention, normalisation="all_parents"), 2),
        (partial(ScaledDistanceAgreement, normalisation="all_parents"), 3),
    ],
)
def test_all_parents_share_a_child(routing: Any, stride: int) -> None:
    layer = build((4, 6), routing=routing, stride=stride)
    totals = torch.stack([per_child(layer, trace) for trace in traced(layer, *children(layer))])
    exact(totals, torch.ones_like(totals), atol=1e-12)
    assert (totals.shape[2] == layer.windows.child_count) == (stride == 1)


@pytest.mark.parametrize(("initial", "corner", "centre"), [("parents", 1, 1), ("types", 1, 9)])
def test_first_couplings(initial: str, corner: float, centre: float) -> None:
    """Equal shares over the types give a child seen from nine positions nine times its mass."""
    layer = build((5, 5), routing=partial(EMRouting, initial=initial))
    totals = per_child(layer, traced(layer, *children(layer))[0]).view(2, 5, 5, CHILD_TYPES)
    exact(totals[:, 0, 0], torch.full((2, CHILD_TYPES), float(corner)).double())
    exact(totals[:, 2, 2], torch.full((2, CHILD_TYPES), float(centre)).double())


def test_dynamic_routing_through_a_window_of_the_whole_grid() -> None:
    layer = build((3, 3), routing=DynamicRouting)
    poses, activations = children(layer)
    votes = torch.einsum("bpri,pijc->bpjrc", poses.unflatten(2, (2, 2)), layer.weight).flatten(3)
    exact(layer(poses, activations).poses, dynamic_routing_loops(votes, bias=layer.routing.bias))


@pytest.mark.parametrize(
    "routing",
    [
        partial(EMRouting, normalisation="all_parents", backend="matmul"),
        partial(EMRouting, normalisation="window", backend="fused"),
        partial(EMRouting, normalisation="official_legacy", backend="matmul"),
        partial(EMRouting, normalisation="official_fast", backend="fused"),
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
    other_poses = poses.clone()
    other_poses[:, alone] *= 1e6
    other_poses.requires_grad_()
    other_activations = activations.clone()
    other_activations[:, alone] = 0
    parents = layer(poses, activations)
    others = layer(other_poses, other_activations)
    assert torch.equal(parents.poses, others.poses)
    assert torch.equal(parents.activations, others.activations)
    others.poses.square().sum().backward()
    assert (other_poses.grad[:, alone] == 0).all()
    assert (other_poses.grad[:, ~alone] != 0).all()


def test_a_stack_is_its_layers() -> None:
    torch.manual_seed(0)
    stack = ConvStack(
        (4, 6),
        CHILD_TYPES,
        4,
        types=(3, 2),
        strides=(1, 2),
        kernel_size=2,
        routing=EMRouting,
        rows=2,
        initialise=partial(torch.nn.init.constant_, val=0.3),
    ).double()
    children = 4 * 6 * CHILD_TYPES
    poses = random(2, children, 4)
    activations = random(2, children, seed=1).sigmoid()
    below, above = stack
    assert (below.weight == above.weight.flatten()[0]).all()
    assert stack.grid == above.windows.grid == (1, 2)
    assert stack.types == 2
    exact(tuple(stack(poses, activations)), tuple(above(*below(poses, activations)[:2])))
    assert len(ConvStack((4, 6), CHILD_TYPES, 4, types=(), strides=(), routing=EMRouting)) == 0
