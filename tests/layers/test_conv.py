from __future__ import annotations

import inspect
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from capsule_lab.kernels import run_routing
from capsule_lab.layers import ConvCapsules, build_normaliser
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
every_normalisation = pytest.mark.parametrize("normalisation", NORMALISATIONS)
both_strides = pytest.mark.parametrize("stride", [1, 2])

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
@pytest.mark.parametrize("pose", ["matrix", "vector"])
@both_strides
def test_layer_equals_the_loops(normalisation: str, stride: int, pose: str, initial: str) -> None:
    """On 4x5: no parent of stride 2 sees the last row."""
    check_equal(*layer_and_loops((4, 5), stride, pose, normalisation=normalisation, initial=initial))


@both_strides
@pytest.mark.parametrize("name", PRESETS)
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


@pytest.mark.parametrize(
    "routing",
    [
        EMRouting,
        DynamicRouting,
        UniformRouting,
        RandomCouplings,
        partial(InvertedAttention, normalisation="all_parents"),
        partial(ScaledDistanceAgreement, normalisation="all_parents"),
    ],
)
@pytest.mark.parametrize("stride", [1, 2, 3])
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


@both_strides
@every_normalisation
def test_first_couplings_are_equal_among_those_who_compete(normalisation: str, stride: int) -> None:
    """One over 9 times 3 at most, over the three types of a window, or over the nine positions for the legacy code."""
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


def test_leaky_routing_has_no_place_here() -> None:
    with pytest.raises(ValueError, match=r"routing\.leaky is true; expected false"):
        build(routing=partial(DynamicRouting, leaky=True))


# --------------------------------------------------------------------------------------- children without parents


@pytest.mark.parametrize(
    "routing",
    [partial(EMRouting, normalisation=n, backend=b) for n in NORMALISATIONS for b in ("matmul", "fused")]
    + [DynamicRouting],
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


# ----------------------------------------------------------------------------------- images, chunks, gradients


@pytest.mark.parametrize("activation", ["description_length", "mixing_proportions"])
@every_normalisation
def test_images_are_independent(normalisation: str, activation: str) -> None:
    layer = build(routing=partial(EMRouting, normalisation=normalisation, activation=activation))
    poses, activations = children(layer, batch=3)
    whole = layer(poses, activations)
    alone = [layer(*image) for image in zip(poses.split(1), activations.split(1), strict=True)]
    exact(torch.cat([image.poses for image in alone]), whole.poses, atol=1e-12)
    exact(torch.cat([image.activations for image in alone]), whole.activations, atol=1e-12)


@pytest.mark.parametrize("batch", [1, 3])
@both_strides
def test_mixing_proportions_sum_to_one_over_an_image(stride: int, batch: int) -> None:
    layer = build((5, 5), stride=stride, routing=partial(EMRouting, activation="mixing_proportions"))
    total = layer(*children(layer, batch)).activations.sum(1)
    exact(total, torch.ones(batch, dtype=torch.float64), atol=1e-12)


BYTES_PER_IMAGE = 2 * 4 * 9 * CHILD_TYPES * PARENT_TYPES * 4 * 8
"""Of votes from 4x6: eight positions, nine places, float64."""


def values_and_gradients(layer: ConvCapsules) -> tuple[Tensor, ...]:
    poses, activations = (tensor.requires_grad_() for tensor in children(layer, batch=5))
    parents = layer(poses, activations)
    whole = parents.poses.square().sum() + parents.activations.square().sum()
    asked = poses, activations, *(parameter for parameter in layer.parameters() if parameter.requires_grad)
    return (*parents, *torch.autograd.grad(whole, asked))


@pytest.mark.parametrize("activation", ["description_length", "mixing_proportions"])
@pytest.mark.parametrize("images_at_a_time", [0, 1, 2, 5, 100])
def test_chunks_change_nothing(images_at_a_time: int, activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fits the cache: the positions of an image stay together."""
    layer = build(routing=partial(EMRouting, backend="matmul", activation=activation))
    expected = values_and_gradients(layer)
    monkeypatch.setattr(run_routing, "VOTES_IN_CACHE", images_at_a_time * BYTES_PER_IMAGE)
    exact(values_and_gradients(layer), expected, atol=1e-11)


BACKENDS = ["reference", "matmul", "fused"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_on_iteration_gets_the_whole_batch(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_routing, "VOTES_IN_CACHE", 1)
    layer = build(routing=partial(EMRouting, backend=backend))
    below = children(layer, batch=3)
    traces = traced(layer, *below)
    assert [trace.couplings.shape for trace in traces] == 3 * [(3 * 8, 9 * CHILD_TYPES, PARENT_TYPES)]
    exact(traces[-1].poses.reshape(3, -1, 4), layer(*below).poses, atol=1e-12)


def grows_with_its_result(parents: Capsules) -> Tensor:
    """A number that depends on every component in its own way."""
    weights = (torch.linspace(1, 2, tensor.numel(), dtype=tensor.dtype).view_as(tensor) for tensor in parents)
    return sum((tensor * weight).sum() for tensor, weight in zip(parents, weights, strict=True))


ROUTINGS = {
    **{n: partial(EMRouting, normalisation=n) for n in NORMALISATIONS},
    "types": partial(EMRouting, initial="types"),
    "mixing": partial(EMRouting, activation="mixing_proportions", mass_eps=0.1),
    "damped": partial(EMRouting, damping=0.3, cost="standardised", iterations=4),
    "dynamic": DynamicRouting,
    "uniform": UniformRouting,
    "random": RandomCouplings,
    "inverted attention": partial(InvertedAttention, iterations=3),
    "scaled distance": ScaledDistanceAgreement,
}


@pytest.mark.parametrize("backend", ["matmul", "fused", "auto"])
@pytest.mark.parametrize("pose", ["matrix", "vector"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_backends_are_equal(routing: str, stride: int, pose: str, backend: str) -> None:
    """Traces, values and all gradients; on 4x6, where from stride 2 on there are children without parents."""
    sizes = {"child_dim": 6, "parent_dim": 4, "rows": 2} if pose == "matrix" else {"child_dim": 5, "parent_dim": 3}

    def found(backend: str) -> list[Tensor]:
        layer = build(
            (4, 6), stride=stride, routing=partial(ROUTINGS[routing], backend=backend), **{"rows": 1, **sizes}
        )
        poses, activations = (tensor.requires_grad_() for tensor in children(layer, dim=sizes["child_dim"]))
        traces: list[RoutingTrace] = []
        parents = layer(poses, activations, on_iteration=traces.append)
        asked = [poses, activations, *(p for p in layer.parameters() if p.requires_grad)]
        gradients = torch.autograd.grad(
            grows_with_its_result(parents), asked, materialize_grads=True, allow_unused=True
        )
        return [*parents, *gradients, *(tensor for trace in traces for tensor in (trace.couplings, trace.poses))]

    expected = found("reference")
    assert expected[2].abs().max() > 1e-2
    torch.testing.assert_close(found(backend), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", [(3, 3), (4, 6)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_images_give_no_parents(backend: str, size: tuple[int, int]) -> None:
    layer = build(size, routing=partial(EMRouting, backend=backend))
    poses, activations = (tensor.requires_grad_() for tensor in children(layer, batch=0))
    parents = layer(poses, activations)
    count = layer.windows.positions * PARENT_TYPES
    assert (parents.poses.shape, parents.activations.shape) == ((0, count, 4), (0, count))
    parents.poses.sum().backward()
    assert poses.grad.shape == poses.shape
    assert not layer.weight.grad.any()


def test_layer_can_be_moved() -> None:
    """A module has ``children`` of its own, which ``to`` goes through."""
    layer = build().to(torch.float32)
    assert {tensor.dtype for tensor in (*layer.parameters(),)} == {torch.float32}
    assert [name for name, _ in layer.windows.named_children()] == []


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("size", "kernel_size", "stride"), [((3, 4), 2, 1), ((4, 3), 2, 2)])
@every_normalisation
def test_gradient(normalisation: str, size: tuple[int, int], kernel_size: int, stride: int, backend: str) -> None:
    routing = partial(EMRouting, normalisation=normalisation, backend=backend)
    layer = build(size, routing=routing, kernel_size=kernel_size, stride=stride)
    inputs = *(tensor.requires_grad_() for tensor in children(layer, batch=2)), *layer.parameters()
    assert gradcheck(lambda poses, activations, *_: tuple(layer(poses, activations)), inputs, fast_mode=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("presence", [0.0, 1.0])
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1e4])
@every_normalisation
def test_finite_in_float32(normalisation: str, scale: float, presence: float, backend: str) -> None:
    layer = build((4, 6), stride=2, routing=partial(EMRouting, normalisation=normalisation, backend=backend)).float()
    poses, activations = children(layer)
    poses = (scale * poses).float().requires_grad_()
    activations = torch.full_like(activations, presence, dtype=torch.float32).requires_grad_()
    parents = layer(poses, activations)
    (parents.poses.sum() + parents.activations.sum()).backward()
    tensors = *parents, poses.grad, activations.grad, *(parameter.grad for parameter in layer.parameters())
    assert all(tensor.isfinite().all() for tensor in tensors)


@pytest.mark.parametrize("routing", [EMRouting, DynamicRouting, UniformRouting])
def test_every_parameter_gets_a_gradient(routing: Any) -> None:
    layer = build(routing=routing)
    parents = layer(*children(layer))
    (parents.poses.square().sum() + parents.activations.square().sum()).backward()
    assert all((parameter.grad != 0).all() for parameter in layer.parameters())


def test_float32_under_autocast() -> None:
    layer = build().float()
    below = tuple(tensor.float() for tensor in children(layer))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parents = layer(*below)
    assert parents.poses.dtype == parents.activations.dtype == torch.float32
    torch.testing.assert_close(parents, layer(*below))


# ------------------------------------------------------------------------------------- arguments and errors


def test_initial_values() -> None:
    layer = ConvCapsules((5, 5), 8, 16, 6, 16, rows=4, routing=EMRouting)
    assert layer.weight.shape == (9 * 8, 4, 6, 4)
    assert layer.weight.abs().max() <= 0.2
    assert layer.weight.std().item() == pytest.approx(0.088, rel=0.05)  # cut at 2 std of 0.1


DEFAULTS: dict[str, Any] = {
    "size": (5, 6),
    "child_types": 2,
    "child_dim": 4,
    "parent_types": 3,
    "parent_dim": 4,
    "routing": EMRouting,
    "rows": 2,
    "kernel_size": 3,
    "stride": 1,
    "padding": 0,
    "weight_std": 1.0,
}
CHANGED: dict[str, Any] = {
    "size": (6, 5),
    "child_types": 3,
    "child_dim": 6,
    "parent_types": 2,
    "parent_dim": 6,
    "routing": partial(EMRouting, beta_a=0.0),
    "rows": 1,
    "kernel_size": 2,
    "stride": 2,
    "padding": 1,
    "weight_std": 0.5,
}


@pytest.mark.parametrize("argument", CHANGED)
def test_every_argument_does_something(argument: str) -> None:
    def above(options: dict[str, Any]) -> tuple[Tensor, tuple[Any, ...]]:
        torch.manual_seed(0)
        layer = ConvCapsules(**options).double()
        parents = layer(*children(layer, dim=options["child_dim"]))
        return parents.activations, (layer.weight.shape, layer.windows.grid, parents.poses.shape)

    (activations, shapes), (others, other_shapes) = above(DEFAULTS), above({**DEFAULTS, argument: CHANGED[argument]})
    assert shapes != other_shapes or not torch.allclose(activations, others, rtol=1e-4)


def test_no_argument_is_forgotten() -> None:
    assert set(inspect.signature(ConvCapsules).parameters) == {*CHANGED}


@pytest.mark.parametrize(("child_dim", "parent_dim"), [(5, 4), (4, 5)])
def test_poses_are_whole_rows(child_dim: int, parent_dim: int) -> None:
    with pytest.raises(
        ValueError, match=f"poses have {child_dim} and {parent_dim} components; expected a multiple of 2"
    ):
        build(child_dim=child_dim, parent_dim=parent_dim)


def test_window_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="grid of children is 2x6, smaller than the 3x3 window"):
        build((2, 6))
