"""What every layer promises; a layer is a row."""

import inspect
import math
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_lab import (
    InvertedAttention,
    RandomCouplings,
    ScaledDistanceAgreement,
    SelfRouting,
    layers,
)
from capsule_lab.layers.classes import ReceptiveField
from capsule_lab.routing import DynamicRouting, EMRouting, UniformRouting
from capsule_lab.types import RoutingTrace
from tests.reference.em_bridge import random

Options = dict[str, Any]


def inputs_of(options: Options, batch: int) -> tuple[Tensor, ...]:
    """What a layer of these sizes takes: poses and a mask, feature maps, or poses and activations."""
    if "capsules" in options:
        capsules = options["capsules"]
        mask = torch.eye(capsules).double()[:batch]
        return random(batch, capsules, options["dim"]), mask
    if "pose" in options:
        return (random(batch, 2, 7, 8),)
    maps = options.get("in_channels") or options.get("channels")
    if maps:
        return (random(batch, maps, 7, 8),)
    names = ["children", "positions", "child_types"]
    if "positions" in options:
        names.append("parents")
    grid = options.get("grid") or options.get("size", ())
    count = math.prod(grid) * math.prod(options.get(name, 1) for name in names)
    child_dim = options.get("child_dim") or options["dim"]
    return random(batch, count, child_dim), random(batch, count, seed=1).sigmoid()


@dataclass(frozen=True)
class Row:
    """A layer.

    Attributes:
        options: all arguments that have no default, and what is small.
        changed: another value of every argument, with further ones where it does nothing alone.
        wrong: what is refused, and how the message begins.
    """

    layer: Any
    options: Options
    changed: Options
    wrong: list[tuple[Options, str]] = field(default_factory=list)

    def build(self, **options: Any) -> Any:
        """Float64, so that backends and batches can be compared."""
        torch.manual_seed(0)
        layer = self.layer(**{**self.options, **options}).double()
        for parameter in layer.parameters():
            if not parameter.any():
                nn.init.normal_(parameter)  # couplings that start equal would hide what is below
        return layer

    def above(self, layer: Any, images: slice = slice(3), **options: Any) -> list[Tensor]:
        """Everything that the layer gives, from the same random numbers."""
        torch.manual_seed(0)
        inputs = inputs_of({**self.options, **options}, 3)
        output = layer(*[each[images] for each in inputs])
        if isinstance(output, Tensor):
            return [output]
        return [each for each in output if each is not None]


FIELD = ReceptiveField((9, 11), ((5, 2),))
HEADS = {"pose": nn.Conv2d(2, 6, 1), "activation": nn.Conv2d(2, 2, 1)}
ROWS_2 = "poses have 5 and 4 components; expected a multiple of 2"
PRIMARY = "the layer of primary capsules has"
STACK = "the stack of convolutional capsules has"
STEM = "expected [channels, odd kernel size, stride]"
PARTS: dict[str, Any] = {
    "PrimaryCapsules": (
        {"in_channels": 2, "types": 2, "dim": 3, "kernel_size": 3},
        {
            "in_channels": 3,
            "types": 3,
            "dim": 4,
            "kernel_size": 5,
            "stride": 1,
            "padding": "same",
            "bias": False,
            "uniform_coupling": False,
            "leaky": True,
            "relu": True,
            "squash": "none",
            "weight_std": 0.2,
        },
        [
            ({"padding": "full"}, "padding is 'full'; expected 'valid' or 'same'"),
            ({"types": 0}, f"{PRIMARY} types 0; expected 1 or more"),
        ],
    ),
    "DepthwisePrimaryCapsules": (
        {"channels": 6, "size": (7, 8), "dim": 3, "kernel_size": 3},
        {
            "channels": 9,
            "size": {"kernel_size": None, "size": (6, 7)},
            "dim": 2,
            "kernel_size": 2,
            "stride": 2,
        },
        [
            (
                {"channels": 10},
                "there are 10 channels for capsules of 3 components; expected a multiple",
            ),
            (
                {"kernel_size": 8},
                "feature maps are 7x8, smaller than the 8x8 kernel of the primary capsules",
            ),
        ],
    ),
    "LinearPrimaryCapsules": (
        {"in_channels": 2, "types": 2, "dim": 4},
        {
            "in_channels": 3,
            "types": 3,
            "dim": 9,
            "bias": True,
            "offset": 0.5,
            "pose_std": 0.1,
            "activation_std": 0.5,
            "norm": True,
            "norm_per_type": {"norm": True, "norm_per_type": True},
        },
        [({"types": 0}, f"{PRIMARY} types 0; expected 1 or more")],
    ),
    "ComposedPrimaryCapsules": (
        {**HEADS, "types": 2},
        {"pose": nn.Conv2d(2, 8, 1), "activation": nn.Conv2d(2, 2, 1, bias=False), "types": 1},
    ),
    "DenseCapsules": (
        {
            "children": 5,
            "child_dim": 3,
            "parents": 4,
            "parent_dim": 2,
            "routing": DynamicRouting,
            "weight_std": 1.0,
        },
        {
            "children": 6,
            "child_dim": 4,
            "parents": 3,
            "parent_dim": 5,
            "routing": UniformRouting,
            "weight_std": 0.5,
        },
        [
            (
                {"routing": DynamicRouting(4, 2)},
                "routing is a DynamicRouting that is already built; expected the ",
            )
        ],
    ),
    "ClassCapsules": (
        {
            "positions": 6,
            "child_types": 2,
            "child_dim": 4,
            "classes": 4,
            "dim": 4,
            "rows": 2,
            "routing": EMRouting,
            "weight_std": 0.8,
        },
        {
            "positions": 5,
            "child_types": 3,
            "child_dim": 6,
            "classes": 3,
            "dim": 6,
            "routing": partial(EMRouting, beta_a=0.0),
            "rows": 1,
            "coordinates": torch.eye(6)[:, :4],
            "weight_std": 0.5,
        },
        [({"child_dim": 5}, ROWS_2)],
    ),
    "CoordinateClassCapsules": (
        {
            "grid": (2, 3),
            "child_types": 2,
            "dim": 4,
            "classes": 3,
            "field": FIELD,
            "rows": 2,
            "routing": EMRouting,
            "weight_std": 0.8,
        },
        {
            "grid": (3, 3),
            "child_types": 3,
            "dim": 16,
            "classes": 4,
            "field": FIELD._replace(image=(30, 40)),
            "routing": DynamicRouting,
            "rows": 1,
            "coordinates": "grid",
            "entries": "paper",
            "weight_std": 0.5,
        },
        [
            (
                {"coordinates": "polar"},
                "coordinates is 'polar'; expected 'receptive_field', 'image_share', 'grid' or",
            ),
            (
                {"dim": 1, "rows": 1},
                "poses have 1 component; expected 4 or more, or coordinates='none'",
            ),
        ],
    ),
    "ConvCapsules": (
        {
            "size": (4, 6),
            "child_types": 2,
            "child_dim": 4,
            "parent_types": 3,
            "parent_dim": 4,
            "rows": 2,
            "routing": EMRouting,
            "weight_std": 0.8,
        },
        {
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
        },
        [
            ({"child_dim": 5}, ROWS_2),
            (
                {"size": (2, 6)},
                "the grid of children is 2x6, smaller than the 3x3 window of the capsules above; ",
            ),
            ({"stride": 0}, "types, kernel_size and stride are 2, 3, 0; expected 1 or more"),
            (
                {"routing": partial(DynamicRouting, leaky=True)},
                "routing.leaky is true; expected false: convolutional",
            ),
            (
                {"routing": partial(SelfRouting, poses=False)},
                "routing.poses is false; expected true, since the next",
            ),
        ],
    ),
    "ConvStack": (
        {
            "grid": (6, 7),
            "child_types": 2,
            "dim": 4,
            "rows": 2,
            "types": (3, 2),
            "strides": (1, 2),
            "routing": EMRouting,
            "weight_std": 0.8,
        },
        {
            "grid": (7, 7),
            "child_types": 3,
            "dim": 16,
            "routing": DynamicRouting,
            "rows": 1,
            "types": (3, 3),
            "strides": (1, 1),
            "kernel_size": 2,
            "weight_std": 0.5,
            "initialise": nn.init.ones_,
        },
        [
            ({"types": (4,)}, "there are 1 types and 2 strides; expected equal"),
            ({"types": 8}, f"{STACK} types 8; expected a list of whole numbers, such as [64]"),
        ],
    ),
    "UntransformedCapsules": (
        {"positions": 3, "parents": 2, "dim": 4, "routing": DynamicRouting},
        {"positions": 6, "parents": 3, "dim": 2, "routing": UniformRouting},
    ),
    "Decoder": (
        {"capsules": 5, "dim": 4, "image_shape": (1, 4, 5), "hidden": (6, 7)},
        {"capsules": 4, "dim": 8, "image_shape": (2, 4, 5), "hidden": (6,), "weight_std": 0.2},
    ),
    "Stem": (
        {"stem": [[4, 3, 2], [4, 3, 1]], "in_channels": 2, "size": (7, 8), "batch_norm": False},
        {"stem": "conv2", "in_channels": 3, "size": (7, 8), "batch_norm": True},
        [
            (
                {"stem": "conv9"},
                "stem is 'conv9'; expected 'paper', 'padded', 'conv2', 'conv3', 'resnet', 'resnet18.layer2', ",
            ),
            ({"stem": [[8, 4, 2]]}, f"stem has [8, 4, 2]; {STEM}"),
            ({"stem": [[8, 3]]}, f"stem has [8, 3]; {STEM}"),
            ({"stem": [8]}, f"stem has 8; {STEM}"),
            ({"stem": [[8, 3, 0]]}, f"stem has [8, 3, 0]; {STEM}"),
        ],
    ),
}
ROWS = {name: Row(getattr(layers, name), *parts) for name, parts in PARTS.items()}
BACKENDS = ["reference", "matmul", "fused"]


@pytest.mark.parametrize("name", ROWS)
def test_batches(name: str) -> None:
    """An image alone is as in a batch, and there may be none; geometry and coordinates are not saved."""
    row = ROWS[name]
    layer = row.build().eval()
    several = row.above(layer, images=slice(3))
    alone = row.above(layer, images=slice(1))
    none = row.above(layer, images=slice(0))
    torch.testing.assert_close(alone, [each[:1] for each in several], rtol=1e-9, atol=1e-9)
    assert {len(each) for each in none} == {0}
    assert layer.state_dict().keys() == {key for key, _ in layer.named_parameters()}


@pytest.mark.parametrize("name", ROWS)
def test_every_argument_does_something(name: str) -> None:
    row = ROWS[name]
    assert row.changed.keys() == inspect.signature(row.layer).parameters.keys()
    layer = row.build()
    above = row.above(layer)
    shapes = [each.shape for each in (*layer.parameters(), *above)]
    idle = []
    for argument, value in row.changed.items():
        options = value if isinstance(value, dict) and argument in value else {argument: value}
        other = row.build(**options)
        found = row.above(other, **options)
        if shapes == [each.shape for each in (*other.parameters(), *found)]:
            pairs = zip(above, found, strict=True)
            if all(torch.allclose(*pair, rtol=1e-4) for pair in pairs):
                idle.append(argument)
    assert idle == (["size"] if name == "Stem" else []), "what a stem says of its sizes: test_stem"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [(name, *each) for name, row in ROWS.items() for each in row.wrong],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.usefixtures("unchecked_types")
def test_wrong_arguments(name: str, options: Options, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{re.escape(message)}.*$"):
        ROWS[name].build(**options)


def test_initial_values_of_the_official_codes() -> None:
    """Truncated normals: none beyond two standard deviations, 0.88 of these wide; of EM's layers see test_em_caps."""
    torch.manual_seed(0)
    found = [
        layers.PrimaryCapsules(16).conv,
        layers.DenseCapsules(100, 3, 4, 2, routing=DynamicRouting),
        layers.Decoder(10, 16, (1, 4, 5), hidden=(50, 60)).layers[2],
    ]
    for layer in found:
        assert layer.weight.abs().max() <= 2 * 0.1
        assert layer.weight.std().item() == pytest.approx(0.88 * 0.1, rel=0.05)
    assert torch.equal(layers.PrimaryCapsules(16).bias, torch.full((32, 8, 1, 1), 0.1))
    assert torch.equal(found[2].bias, torch.full((60,), 0.1))


EM = {
    "all_parents": partial(EMRouting, normalisation="all_parents"),
    "window": partial(EMRouting, normalisation="window"),
    "official_legacy": partial(EMRouting, normalisation="official_legacy"),
    "official_fast": partial(EMRouting, normalisation="official_fast"),
    "types": partial(EMRouting, initial="types"),
    "mixing": partial(EMRouting, activation="mixing_proportions", mass_eps=0.1),
    "damped": partial(EMRouting, damping=0.3, cost="standardised", iterations=4),
}
ROUTINGS = {
    **EM,
    "dynamic": DynamicRouting,
    "uniform": UniformRouting,
    "random": RandomCouplings,
    "inverted attention": partial(InvertedAttention, iterations=3),
    "scaled distance": ScaledDistanceAgreement,
}
LAYERS = [  # of which each routing has two, with one backend each
    ("DenseCapsules", {}),
    ("ConvCapsules", {"stride": 1}),
    ("ClassCapsules", {}),
    ("ConvCapsules", {"stride": 2, "rows": 1}),  # on 4x6 there are children without parents
    ("CoordinateClassCapsules", {}),
    ("ConvCapsules", {"stride": 3, "padding": 1}),
    ("UntransformedCapsules", {}),
    ("ConvCapsules", {"stride": 1, "rows": 1}),
]
PAIRS = []
for number, name_of_routing in enumerate(ROUTINGS):
    for shift in (0, 1, 3):
        layer, options = LAYERS[(2 * number + shift) % len(LAYERS)]
        PAIRS.append((name_of_routing, layer, options, ("fused", "matmul")[(number + shift) % 2]))


def values_gradients_traces(name: str, options: Options, routing: Any) -> list[Tensor]:
    row = ROWS[name]
    layer = row.build(**options, routing=routing)
    inputs = [each.requires_grad_() for each in inputs_of(row.options, 2)]
    traces: list[RoutingTrace] = []
    poses, activations, _ = layer(*inputs, on_iteration=traces.append)
    learned = [each for each in layer.parameters() if each.requires_grad]
    gradients = torch.autograd.grad(
        weighted_total(poses) + weighted_total(activations),
        [*inputs, *learned],
        materialize_grads=True,
        allow_unused=True,
    )
    assert gradients[0].abs().max() > 1e-3
    observed = [each.couplings for each in traces] + [each.poses for each in traces]
    return [poses, activations, *gradients, *observed]


def weighted_total(values: Tensor) -> Tensor:
    """A sum to which every number contributes with a weight of its own."""
    weights = torch.linspace(1, 2, values.numel()).view_as(values)
    return (values * weights).sum()


@pytest.mark.parametrize(("routing", "name", "options", "backend"), PAIRS)
def test_backends_are_equal(routing: str, name: str, options: Options, backend: str) -> None:
    """Traces, values and all gradients."""
    build = ROUTINGS[routing]
    found = values_gradients_traces(name, options, partial(build, backend=backend))
    expected = values_gradients_traces(name, options, partial(build, backend="reference"))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("routing", EM)
def test_extreme_poses_and_activations_stay_finite(routing: str) -> None:
    """At stride 2 on 4x6, in float32: 0, tiny and huge poses of children that are absent or present."""
    row = ROWS["ConvCapsules"]
    for backend in BACKENDS:
        layer = row.build(stride=2, routing=partial(EM[routing], backend=backend)).float()
        poses, activations = inputs_of(row.options, 2)
        for scale, presence in ((0.0, 0.0), (1e-4, 1.0), (1e4, 0.0), (1e4, 1.0), (0.0, 1.0)):
            given = (scale * poses).float().requires_grad_()
            present = torch.full_like(activations, presence).float().requires_grad_()
            parents = layer(given, present)
            layer.zero_grad()
            (parents.poses.sum() + parents.activations.sum()).backward()
            assert parents.poses.isfinite().all()
            assert parents.activations.isfinite().all()
            for tensor in (given, present, *layer.parameters()):
                assert tensor.grad is None or tensor.grad.isfinite().all()


@pytest.mark.parametrize(
    "routing", [EMRouting, InvertedAttention, SelfRouting, partial(SelfRouting, poses=False)]
)
@pytest.mark.parametrize("name", ["DenseCapsules", "ClassCapsules", "UntransformedCapsules"])
def test_routings_of_other_kinds(name: str, routing: Any) -> None:
    row = ROWS[name]
    options = {"rows": 1} if name == "ClassCapsules" else {}
    layer = row.build(routing=routing, **options)
    parents = layer(*inputs_of(row.options, 2))
    assert (parents.poses.shape[2] > 0) == layer.routing.poses
    assert parents.activations.isfinite().all()
