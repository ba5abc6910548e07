"""Class capsules: equal to loops, shared transformations, coordinates. See test_contract for the rest."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.layers import ClassCapsules
from capsule_lab.routing import DynamicRouting, EMRouting
from capsule_lab.types import RoutingTrace
from tests.reference.em_bridge import (
    PRESETS,
    as_children,
    as_class_weight,
    betas_of_the_loops,
    class_preset,
    in_terms_of_the_loops,
    random,
)
from tests.reference.em_loops import class_votes_loops, dense_em_loops, matrix_vote, vector_vote
from tests.reference.loops import dynamic_routing_loops

HEIGHT, WIDTH, TYPES, CLASSES = 2, 3, 2, 4
POSITIONS = HEIGHT * WIDTH
BACKENDS = ["reference", "matmul", "fused"]

exact = partial(torch.testing.assert_close, rtol=0, atol=1e-10)


def build(*, child_dim: int = 4, dim: int = 4, rows: int = 2, **options: Any) -> ClassCapsules:
    torch.manual_seed(0)
    options = {"routing": EMRouting, "weight_std": 0.8, **options}
    return ClassCapsules(POSITIONS, TYPES, child_dim, CLASSES, dim, rows=rows, **options).double()


def children(batch: int = 2, dim: int = 4) -> tuple[Tensor, Tensor]:
    return random(batch, POSITIONS * TYPES, dim), random(batch, POSITIONS * TYPES, seed=1).sigmoid()


@pytest.mark.parametrize(
    ("name", "pose", "added", "backend"),
    [
        (name, ("matrix", "vector")[(number + shift) % 2], bool(shift), BACKENDS[(number + shift) % 3])
        for number, name in enumerate(PRESETS)
        for shift in (0, 1)
    ],
)
def test_layer_equals_the_loops(name: str, pose: str, added: bool, backend: str) -> None:
    child_dim, dim, rows, inner, columns = (16, 16, 4, 4, 4) if pose == "matrix" else (3, 5, 1, 3, 5)
    poses, activations = random(2, TYPES, child_dim, HEIGHT, WIDTH), random(2, TYPES, HEIGHT, WIDTH, seed=1).sigmoid()
    weight = 0.5 * random(TYPES, inner, columns, CLASSES, seed=2)
    offsets = added * random(dim, HEIGHT, WIDTH, seed=3)
    coordinates = offsets.permute(1, 2, 0).flatten(0, 1) if added else None
    options = {**class_preset(name), "backend": backend}
    layer = build(
        child_dim=child_dim, dim=dim, rows=rows, coordinates=coordinates, routing=partial(EMRouting, **options)
    )
    layer.weight.data = as_class_weight(weight)
    votes = class_votes_loops(poses, weight, offsets=offsets, vote=matrix_vote if pose == "matrix" else vector_vote)
    record = dense_em_loops(
        votes,
        activations.flatten(1),
        *betas_of_the_loops(layer.routing, CLASSES, dim),
        **{**in_terms_of_the_loops(options), "normalisation": "all_parents"},
    )[-1]
    classes = layer(as_children(poses), as_children(activations))
    exact(classes.poses, record.poses)
    exact(classes.activations, record.activations)


def test_dynamic_routing_works_here_too() -> None:
    layer, (poses, activations) = build(routing=DynamicRouting), children()
    by_position = poses.view(2, POSITIONS, TYPES, 2, 2)
    votes = torch.einsum("bptri,tikc->bptkrc", by_position, layer.weight).flatten(4).flatten(1, 2)
    exact(layer(poses, activations).poses, dynamic_routing_loops(votes, bias=layer.routing.bias))


@pytest.mark.parametrize("normalisation", ["window", "official_legacy"])
def test_classes_always_compete(normalisation: str) -> None:
    """In the official code too: its class layer is a softmax over the classes for both of its paths."""
    layer = build(routing=partial(EMRouting, normalisation=normalisation))
    traces: list[RoutingTrace] = []
    layer(*children(), on_iteration=traces.append)
    couplings = torch.stack([trace.couplings for trace in traces])
    assert couplings.shape == (3, 2, POSITIONS * TYPES, CLASSES)
    exact(couplings.sum(3), torch.ones(3, 2, POSITIONS * TYPES, dtype=torch.float64), atol=1e-12)


def test_positions_share_their_transformations() -> None:
    """Without coordinates the position of a child changes nothing; with them it does."""
    poses, activations = children()
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    moved = (tensor.unflatten(1, (POSITIONS, TYPES))[:, order].flatten(1, 2) for tensor in (poses, activations))
    moved_poses, moved_activations = moved
    plain, added = build(), build(coordinates=random(POSITIONS, 4, seed=5))
    exact(plain(moved_poses, moved_activations).poses, plain(poses, activations).poses, atol=1e-12)
    assert not torch.allclose(added(moved_poses, moved_activations).poses, added(poses, activations).poses)


def test_coordinates_move_with_the_layer_and_are_not_saved() -> None:
    layer = build(coordinates=torch.ones(POSITIONS, 4))
    assert layer.coordinates.dtype == torch.float64
    assert set(layer.state_dict()) == {"weight", "routing.beta_u", "routing.beta_a"}
