from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

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

exact = partial(torch.testing.assert_close, rtol=0, atol=1e-10)


def build(*, child_dim: int = 4, dim: int = 4, rows: int = 2, **options: Any) -> ClassCapsules:
    torch.manual_seed(0)
    options = {"routing": EMRouting, "weight_std": 0.8, **options}
    return ClassCapsules(POSITIONS, TYPES, child_dim, CLASSES, dim, rows=rows, **options).double()


def children(batch: int = 2, dim: int = 4) -> tuple[Tensor, Tensor]:
    return random(batch, POSITIONS * TYPES, dim), random(batch, POSITIONS * TYPES, seed=1).sigmoid()


@pytest.mark.parametrize("backend", ["reference", "matmul", "fused"])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("pose", ["matrix", "vector"])
@pytest.mark.parametrize("name", PRESETS)
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


@pytest.mark.parametrize("normalisation", ["all_parents", "window", "official_legacy", "official_fast"])
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


def test_images_are_independent() -> None:
    layer, (poses, activations) = build(coordinates=random(POSITIONS, 4)), children(batch=3)
    exact(layer(poses[1:2], activations[1:2]).poses, layer(poses, activations).poses[1:2], atol=1e-12)


@pytest.mark.parametrize("backend", ["auto", "matmul", "fused"])
@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("added", [False, True])
def test_backends_are_equal(added: bool, rows: int, backend: str) -> None:
    """Values and all gradients; with coordinates a pose has one more column for the kernels."""

    def found(backend: str) -> list[Tensor]:
        layer = build(
            child_dim=2 * rows,
            dim=3 * rows,
            rows=rows,
            coordinates=random(POSITIONS, 3 * rows, seed=5) if added else None,
            routing=partial(EMRouting, **{**class_preset("em"), "backend": backend}),
        )
        poses, activations = (tensor.requires_grad_() for tensor in children(dim=2 * rows))
        classes = layer(poses, activations)
        whole = (classes.poses * classes.poses.sin()).sum() + (classes.activations * torch.arange(CLASSES)).sum()
        return [*classes, *torch.autograd.grad(whole, (poses, activations, *layer.parameters()))]

    torch.testing.assert_close(found(backend), found("reference"), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", ["reference", "matmul", "fused"])
def test_gradient(backend: str) -> None:
    layer = build(coordinates=random(POSITIONS, 4, seed=5), routing=partial(EMRouting, backend=backend))
    inputs = *(tensor.requires_grad_() for tensor in children(batch=1)), *layer.parameters()
    assert gradcheck(lambda poses, activations, *_: tuple(layer(poses, activations)), inputs, fast_mode=True)


def test_every_parameter_gets_a_gradient() -> None:
    layer = build()
    classes = layer(*children())
    (classes.poses.square().sum() + classes.activations.square().sum()).backward()
    assert all((parameter.grad != 0).all() for parameter in layer.parameters())


def test_float32_under_autocast() -> None:
    layer = build(coordinates=torch.ones(POSITIONS, 4)).float()
    below = tuple(tensor.float() for tensor in children())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        classes = layer(*below)
    assert classes.poses.dtype == classes.activations.dtype == torch.float32
    torch.testing.assert_close(classes, layer(*below))


def test_initial_values_of_the_official_code() -> None:
    layer = ClassCapsules(4, 50, 16, 5, 16, rows=4, routing=EMRouting)
    assert layer.weight.shape == (50, 4, 5, 4)
    assert layer.weight.abs().max() <= 0.02
    assert layer.weight.std().item() == pytest.approx(0.0088, rel=0.05)  # cut at 2 std of 0.01


CHANGED: dict[str, Any] = {
    "child_dim": 6,
    "dim": 6,
    "routing": partial(EMRouting, beta_a=0.0),
    "rows": 1,
    "coordinates": torch.eye(POSITIONS)[:, :4],
    "weight_std": 0.5,
}


@pytest.mark.parametrize("argument", CHANGED)
def test_every_argument_does_something(argument: str) -> None:
    layer, other = build(), build(**{argument: CHANGED[argument]})
    classes = layer(*children())
    other_classes = other(*children(dim=CHANGED["child_dim"] if argument == "child_dim" else 4))
    same_shape = layer.weight.shape == other.weight.shape
    assert not same_shape or not torch.allclose(classes.activations, other_classes.activations, rtol=1e-4)


def test_sizes_shape_the_weights() -> None:
    assert ClassCapsules(1, 7, 6, 5, 9, rows=3, routing=EMRouting).weight.shape == (7, 2, 5, 3)
    assert set(inspect.signature(ClassCapsules).parameters) == {*CHANGED, "positions", "child_types", "classes"}


@pytest.mark.parametrize(("child_dim", "dim"), [(5, 4), (4, 5)])
def test_poses_are_whole_rows(child_dim: int, dim: int) -> None:
    with pytest.raises(ValueError, match=f"poses have {child_dim} and {dim} components; expected a multiple of 2 rows"):
        build(child_dim=child_dim, dim=dim)
