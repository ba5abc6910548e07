"""What every layer promises; a layer is a row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from capsule_lab.kernels import run_routing
from capsule_lab.layers import (
    ClassCapsules,
    ComposedPrimaryCapsules,
    ConvCapsules,
    ConvStack,
    CoordinateClassCapsules,
    Decoder,
    DenseCapsules,
    DepthwisePrimaryCapsules,
    LinearPrimaryCapsules,
    PrimaryCapsules,
    Stem,
    UntransformedCapsules,
)
from capsule_lab.layers.coordinates import ReceptiveField
from capsule_lab.routing import (
    DynamicRouting,
    EMRouting,
    InvertedAttention,
    RandomCouplings,
    ScaledDistanceAgreement,
    SelfRouting,
    UniformRouting,
)
from capsule_lab.types import RoutingTrace

Options = dict[str, Any]
Inputs = tuple[Tensor, ...]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def below(count: Callable[[Options], int], dim: str = "child_dim") -> Callable[[Options, int], Inputs]:
    """Poses and activations of so many children."""

    def draw(options: Options, batch: int) -> Inputs:
        children = count(options)
        return random(batch, children, options[dim]), random(batch, children, seed=1).sigmoid()

    return draw


def features(options: Options, batch: int) -> Inputs:
    return (random(batch, options.get("in_channels", options.get("channels", 2)), 7, 8),)


def decoded(options: Options, batch: int) -> Inputs:
    return random(batch, options["capsules"], options["dim"]), torch.eye(options["capsules"]).double()[:batch]


@dataclass(frozen=True)
class Row:
    """A layer.

    Attributes:
        layer: its class.
        options: of its constructor, all that have no default and what is small.
        inputs: what ``forward`` takes, from the options and the number of images.
        changed: another value of every argument, with further ones where it does nothing alone.
        wrong: arguments that are refused, and how the message begins.
    """

    layer: Any
    options: Options
    inputs: Callable[[Options, int], Inputs]
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
        output = layer(*(each[images] for each in self.inputs({**self.options, **options}, 3)))
        return [output] if isinstance(output, Tensor) else [each for each in output if each is not None]


FIELD = ReceptiveField((9, 11), ((5, 2),))
HEADS = {"pose": nn.Conv2d(2, 6, 1), "activation": nn.Conv2d(2, 2, 1)}
ROWS_2 = "poses have 5 and 4 components; expected a multiple of 2"
PRIMARY = "the layer of primary capsules has"
STACK = "the stack of convolutional capsules has"
ROWS = {
    "PrimaryCapsules": Row(
        PrimaryCapsules,
        {"in_channels": 2, "types": 2, "dim": 3, "kernel_size": 3},
        features,
        {
            "in_channels": 3, "types": 3, "dim": 4, "kernel_size": 5, "stride": 1, "padding": "same", "bias": False,
            "uniform_coupling": False, "leaky": True, "relu": True, "squash": "none", "weight_std": 0.2,
        },
        [
            ({"padding": "full"}, "padding is 'full'; expected 'valid' or 'same'"),
            ({"squash": "tanh"}, "squash is 'tanh'; expected 'squash', 'exponential', 'half', 'relu' or 'none'"),
            ({"types": 0}, f"{PRIMARY} types 0; expected 1 or more"),
            ({"weight_std": 0}, "weight_std is 0; expected more than 0"),
        ],
    ),
    "DepthwisePrimaryCapsules": Row(
        DepthwisePrimaryCapsules,
        {"channels": 6, "size": (7, 8), "dim": 3, "kernel_size": 3},
        features,
        {"channels": 9, "size": {"kernel_size": None, "size": (6, 7)}, "dim": 2, "kernel_size": 2, "stride": 2},
        [
            ({"channels": 10}, "there are 10 channels for capsules of 3 components; expected a multiple"),
            ({"kernel_size": 8}, "feature maps are 7x8, smaller than the 8x8 kernel of the primary capsules"),
            ({"kernel_size": 0}, f"{PRIMARY} kernel_size 0; expected 1 or more"),
        ],
    ),
    "LinearPrimaryCapsules": Row(
        LinearPrimaryCapsules,
        {"in_channels": 2, "types": 2, "dim": 4},
        features,
        {
            "in_channels": 3, "types": 3, "dim": 9, "bias": True, "offset": 0.5, "pose_std": 0.1, "activation_std": 0.5,
            "norm": True, "norm_per_type": {"norm": True, "norm_per_type": True},
        },
        [
            ({"types": 0}, f"{PRIMARY} types 0; expected 1 or more"),
            ({"activation_std": -1.0}, "activation_std is -1.0; expected more than 0"),
            ({"offset": float("nan")}, "offset is nan; expected a finite number"),
        ],
    ),
    "ComposedPrimaryCapsules": Row(
        ComposedPrimaryCapsules,
        {**HEADS, "types": 2},
        features,
        {"pose": nn.Conv2d(2, 8, 1), "activation": nn.Conv2d(2, 2, 1, bias=False), "types": 1},
    ),
    "DenseCapsules": Row(
        DenseCapsules,
        {"children": 5, "child_dim": 3, "parents": 4, "parent_dim": 2, "routing": DynamicRouting, "weight_std": 1.0},
        below(lambda options: options["children"]),
        {"children": 6, "child_dim": 4, "parents": 3, "parent_dim": 5, "routing": UniformRouting, "weight_std": 0.5},
        [({"routing": DynamicRouting(4, 2)}, "routing is a DynamicRouting that is built already; expected what")],
    ),
    "ClassCapsules": Row(
        ClassCapsules,
        {
            "positions": 6, "child_types": 2, "child_dim": 4, "classes": 4, "dim": 4, "rows": 2, "routing": EMRouting,
            "weight_std": 0.8,
        },
        below(lambda options: options["positions"] * options["child_types"]),
        {
            "positions": 5, "child_types": 3, "child_dim": 6, "classes": 3, "dim": 6,
            "routing": partial(EMRouting, beta_a=0.0), "rows": 1, "coordinates": torch.eye(6)[:, :4], "weight_std": 0.5,
        },
        [({"child_dim": 5}, ROWS_2)],
    ),
    "CoordinateClassCapsules": Row(
        CoordinateClassCapsules,
        {
            "grid": (2, 3), "child_types": 2, "dim": 4, "classes": 3, "field": FIELD, "rows": 2, "routing": EMRouting,
            "weight_std": 0.8,
        },
        below(lambda options: options["grid"][0] * options["grid"][1] * options["child_types"], "dim"),
        {
            "grid": (3, 3), "child_types": 3, "dim": 16, "classes": 4, "field": FIELD._replace(image=(30, 40)),
            "routing": DynamicRouting, "rows": 1, "coordinates": "grid", "entries": "paper", "weight_std": 0.5,
        },
        [
            ({"coordinates": "polar"}, "coordinates is 'polar'; expected 'receptive_field', 'image_share', 'grid' or"),
            ({"entries": "last"}, "entries is 'last'; expected 'official' or 'paper'"),
            ({"weight_std": 0.0}, "weight_std is 0.0; expected more than 0"),
            ({"dim": 1, "rows": 1}, "poses have 1 component; expected 4 or more, or coordinates='none'"),
        ],
    ),
    "ConvCapsules": Row(
        ConvCapsules,
        {
            "size": (4, 6), "child_types": 2, "child_dim": 4, "parent_types": 3, "parent_dim": 4, "rows": 2,
            "routing": EMRouting, "weight_std": 0.8,
        },
        below(lambda options: options["size"][0] * options["size"][1] * options["child_types"]),
        {
            "size": (6, 5), "child_types": 3, "child_dim": 6, "parent_types": 2, "parent_dim": 6,
            "routing": partial(EMRouting, beta_a=0.0), "rows": 1, "kernel_size": 2, "stride": 2, "padding": 1,
            "weight_std": 0.5,
        },
        [
            ({"child_dim": 5}, ROWS_2),
            ({"size": (2, 6)}, "the grid of children is 2x6, smaller than the 3x3 window of the capsules above; "),
            ({"padding": -1}, "padding is -1; expected 0 or more"),
            ({"stride": 0}, "types, kernel_size and stride are 2, 3, 0; expected 1 or more"),
            ({"routing": partial(DynamicRouting, leaky=True)}, "routing.leaky is true; expected false: convolutional"),
            ({"routing": partial(SelfRouting, poses=False)}, "routing.poses is false; expected true, since capsules"),
        ],
    ),
    "ConvStack": Row(
        ConvStack,
        {
            "grid": (6, 7), "child_types": 2, "dim": 4, "rows": 2, "types": (3, 2), "strides": (1, 2),
            "routing": EMRouting, "weight_std": 0.8,
        },
        below(lambda options: options["grid"][0] * options["grid"][1] * options["child_types"], "dim"),
        {
            "grid": (7, 7), "child_types": 3, "dim": 16, "routing": DynamicRouting, "rows": 1, "types": (3, 3),
            "strides": (1, 1), "kernel_size": 2, "weight_std": 0.5, "initialise": nn.init.ones_,
        },
        [
            ({"types": (4,)}, "there are 1 types and 2 strides; expected as many"),
            ({"types": (4, 0)}, f"{STACK} types 0; expected 1 or more"),
            ({"strides": (0, 1)}, f"{STACK} strides 0; expected 1 or more"),
            ({"kernel_size": 0}, f"{STACK} kernel_size 0; expected 1 or more"),
            ({"types": 8}, f"{STACK} types 8; expected a list of whole numbers, such as [64]"),
            ({"weight_std": 0}, "weight_std is 0; expected more than 0"),
        ],
    ),
    "UntransformedCapsules": Row(
        UntransformedCapsules,
        {"positions": 3, "parents": 2, "dim": 4, "routing": DynamicRouting},
        below(lambda options: options["positions"] * options["parents"], "dim"),
        {"positions": 6, "parents": 3, "dim": 2, "routing": UniformRouting},
    ),
    "Decoder": Row(
        Decoder,
        {"capsules": 5, "dim": 4, "image_shape": (1, 4, 5), "hidden": (6, 7)},
        decoded,
        {"capsules": 4, "dim": 8, "image_shape": (2, 4, 5), "hidden": (6,), "weight_std": 0.2},
    ),
    "Stem": Row(
        Stem,
        {"stem": [[4, 3, 2], [4, 3, 1]], "in_channels": 2, "size": (7, 8), "batch_norm": False},
        features,
        {"stem": "conv2", "in_channels": 3, "size": (7, 8), "batch_norm": True},
        [
            ({"stem": "conv9"}, "stem is 'conv9'; expected 'paper', 'padded', 'conv2', 'conv3' or 'resnet'"),
            *(
                ({"stem": [each]}, f"stem has {each}; expected [channels, odd kernel size, stride]")
                for each in ([8, 4, 2], [8, 3], 8, [8, 3, 0])
            ),
        ],
    ),
}  # fmt: skip
ROUTED = [name for name, row in ROWS.items() if "routing" in row.options]
BACKENDS = ["reference", "matmul", "fused"]


@pytest.mark.parametrize("name", ROWS)
def test_batches_and_dtypes(name: str) -> None:
    """An image alone is as in a batch, there may be none, and autocast ends in the layer."""
    row = ROWS[name]
    layer = row.build().eval()
    several, alone, none = (row.above(layer, images=slice(count)) for count in (3, 1, 0))
    torch.testing.assert_close(alone, [each[:1] for each in several], rtol=1e-9, atol=1e-9)
    assert {len(each) for each in none} == {0}

    layer = layer.to(torch.float32)
    assert {each.dtype for each in layer.parameters()} == {torch.float32} or name == "UntransformedCapsules"
    inputs = [each.float() for each in row.inputs(row.options, 3)]
    expected = layer(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(*inputs)
    if name == "Stem":  # whose features the next layer takes in half precision
        assert found.dtype == torch.bfloat16
    else:
        assert {each.dtype for each in ([found] if name == "Decoder" else found) if each is not None} == {torch.float32}
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", ROWS)
def test_every_parameter_and_every_input_gets_a_gradient(name: str) -> None:
    row = ROWS[name]
    layer = row.build()
    inputs = [each.requires_grad_() for each in row.inputs(row.options, 3)]
    output = layer(*inputs)
    sum(each.square().sum() for each in ([output] if isinstance(output, Tensor) else output[:2])).backward()
    learned = dict(layer.named_parameters())
    assert [key for key, each in learned.items() if each.grad is None or not each.grad.any()] == []
    assert inputs[0].grad.any()
    assert layer.state_dict().keys() == learned.keys(), "geometry and coordinates are not saved"


@pytest.mark.parametrize("name", ROWS)
def test_every_argument_does_something(name: str) -> None:
    row, idle = ROWS[name], []
    assert row.changed.keys() == inspect.signature(row.layer).parameters.keys()
    layer = row.build()
    shapes = [each.shape for each in (*layer.parameters(), *row.above(layer))]
    for argument, value in row.changed.items():
        options = value if isinstance(value, dict) and argument in value else {argument: value}
        other = row.build(**options)
        found = row.above(other, **options)
        if shapes == [each.shape for each in (*other.parameters(), *found)]:
            same = all(torch.allclose(*pair, rtol=1e-4) for pair in zip(row.above(layer), found, strict=True))
            idle += [argument] if same else []
    assert idle == (["size"] if name == "Stem" else []), "what a stem says of its sizes: test_stem"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [(name, *each) for name, row in ROWS.items() for each in row.wrong],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.usefixtures("unchecked_types")
def test_wrong_arguments(name: str, options: Options, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        ROWS[name].build(**options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_initial_values_of_the_official_codes() -> None:
    """Truncated normals: none beyond two standard deviations, and 0.88 of these wide."""
    torch.manual_seed(0)
    layers = {
        0.1: [
            PrimaryCapsules(16).conv,
            DenseCapsules(100, 3, 4, 2, routing=DynamicRouting),
            ConvCapsules((5, 5), 8, 16, 6, 16, rows=4, routing=EMRouting),
            Decoder(10, 16, (1, 4, 5), hidden=(50, 60)).layers[2],
        ],
        0.01: [ClassCapsules(4, 50, 16, 5, 16, rows=4, routing=EMRouting)],
        0.5: [LinearPrimaryCapsules(16).pose],
        3.0: [LinearPrimaryCapsules(64).activation],
    }
    for std, each in layers.items():
        for layer in each:
            assert layer.weight.abs().max() <= 2 * std
            assert layer.weight.std().item() == pytest.approx(0.88 * std, rel=0.05)
    assert torch.equal(PrimaryCapsules(16).bias, torch.full((32, 8, 1, 1), 0.1))
    assert torch.equal(layers[0.1][3].bias, torch.full((60,), 0.1))


# --- layers that route -----------------------------------------------------------------------------------------------

EM = {
    **{n: partial(EMRouting, normalisation=n) for n in ("all_parents", "window", "official_legacy", "official_fast")},
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
PAIRS = [
    (routing, *LAYERS[(2 * number + shift) % len(LAYERS)], ("fused", "matmul")[(number + shift) % 2])
    for number, routing in enumerate(ROUTINGS)
    for shift in (0, 1, 3)
]


def grows_with_its_result(parents: list[Tensor]) -> Tensor:
    """A number that depends on every component in its own way."""
    weights = (torch.linspace(1, 2, tensor.numel(), dtype=tensor.dtype).view_as(tensor) for tensor in parents)
    return torch.stack([(tensor * weight).sum() for tensor, weight in zip(parents, weights, strict=True)]).sum()


def values_gradients_traces(name: str, options: Options, routing: Any) -> list[Tensor]:
    row, traces = ROWS[name], list[RoutingTrace]()
    layer = row.build(**options, routing=routing)
    inputs = [each.requires_grad_() for each in row.inputs(row.options, 2)]
    parents = [each for each in layer(*inputs, on_iteration=traces.append)[:2] if each is not None]
    learned = [each for each in layer.parameters() if each.requires_grad]
    total = grows_with_its_result(parents)
    gradients = torch.autograd.grad(total, [*inputs, *learned], materialize_grads=True, allow_unused=True)
    assert gradients[0].abs().max() > 1e-3
    return [*parents, *gradients, *(tensor for trace in traces for tensor in (trace.couplings, trace.poses))]


@pytest.mark.parametrize(("routing", "name", "options", "backend"), PAIRS)
def test_backends_are_equal(routing: str, name: str, options: Options, backend: str) -> None:
    """Traces, values and all gradients."""
    found, expected = (
        values_gradients_traces(name, options, partial(ROUTINGS[routing], backend=each))
        for each in (backend, "reference")
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [name for name in ROUTED if name not in ("ConvStack", "CoordinateClassCapsules")])
def test_gradient(name: str, backend: str) -> None:
    row = ROWS[name]
    layer = row.build(routing=partial(row.options["routing"], backend=backend))
    inputs = *(each.requires_grad_() for each in row.inputs(row.options, 1)), *layer.parameters()
    assert gradcheck(lambda poses, activations, *_: tuple(layer(poses, activations))[:2], inputs, fast_mode=True)


@pytest.mark.parametrize("routing", EM)
def test_extreme_poses_and_activations_stay_finite(routing: str) -> None:
    """At stride 2 on 4x6, in float32: 0, tiny and huge poses of children that are absent or present."""
    row = ROWS["ConvCapsules"]
    for backend in BACKENDS:
        layer = row.build(stride=2, routing=partial(EM[routing], backend=backend)).float()
        poses, activations = (each.float() for each in row.inputs(row.options, 2))
        for scale, presence in ((0.0, 0.0), (1e-4, 1.0), (1e4, 0.0), (1e4, 1.0), (0.0, 1.0)):
            inputs = [(scale * poses).requires_grad_(), torch.full_like(activations, presence).requires_grad_()]
            parents = layer(*inputs)
            layer.zero_grad()
            (parents.poses.sum() + parents.activations.sum()).backward()
            tensors = *parents[:2], *(each.grad for each in (*inputs, *layer.parameters()))
            assert all(each is None or each.isfinite().all() for each in tensors)


@pytest.mark.parametrize("name", ["DenseCapsules", "ConvCapsules"])
def test_chunks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fits the cache; ``on_iteration`` gets the whole batch."""
    routing = partial(ROWS[name].options["routing"], backend="matmul")
    expected = values_gradients_traces(name, {}, routing)
    for votes in (1, 1_000, 4_000, 2**40):
        monkeypatch.setattr(run_routing, "VOTES_IN_CACHE", votes)
        torch.testing.assert_close(values_gradients_traces(name, {}, routing), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("routing", [EMRouting, InvertedAttention, SelfRouting, partial(SelfRouting, poses=False)])
@pytest.mark.parametrize("name", ["DenseCapsules", "ClassCapsules", "UntransformedCapsules"])
def test_routings_of_other_kinds(name: str, routing: Any) -> None:
    row = ROWS[name]
    layer = row.build(routing=routing, **({"rows": 1} if name == "ClassCapsules" else {}))
    parents = layer(*row.inputs(row.options, 2))
    assert (parents.poses.shape[2] > 0) == layer.routing.poses
    assert parents.activations.isfinite().all()
