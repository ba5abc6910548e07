"""EMCaps: geometry, coordinates, options of the class layer, every routing of ``conf/routing``, initial statistics."""

import functools
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from capsule_lab.commands import compose
from capsule_lab.config.folders import conf_dir
from capsule_lab.layers import ConvStack, CoordinateClassCapsules, LinearPrimaryCapsules
from capsule_lab.networks import EMCaps
from capsule_lab.routing import EMRouting
from capsule_lab.types import Capsules
from tests.helpers.closeness import assert_close
from tests.helpers.networks import IMAGE, pictures
from tests.helpers.tiers import whole_but

ROUTINGS = sorted(path.stem for path in (conf_dir() / "routing").glob("*.yaml"))


def build(
    image_shape: tuple[int, int, int] = IMAGE,
    num_classes: int = 4,
    *,
    channels: int = 5,
    primary: Any = None,
    conv: Any = None,
    classes: Any = None,
    **options: Any,
) -> EMCaps:
    """A small network with large transformations, so that capsules above depend on those below."""
    torch.manual_seed(0)
    network = EMCaps(
        image_shape,
        num_classes,
        channels=channels,
        primary=partial(LinearPrimaryCapsules, **{"types": 3, **(primary or {})}),
        conv=partial(ConvStack, **{"types": (4, 2), **(conv or {})}),
        classes=partial(CoordinateClassCapsules, **(classes or {})),
        **options,
    )
    for layer in (*network.conv_capsules, network.classes):
        layer.weight.data *= 5
    return network


@functools.cache
def preset(routing: str) -> dict[str, Any]:
    """Arguments of ``EMCaps`` that ``conf/routing`` calls ``routing``."""
    config = compose("train", ["model=em_caps_paper", f"routing={routing}"])
    model = instantiate(config.model, _convert_="all", _partial_=True).keywords
    return {name: model[name] for name in ("routing", "class_routing")}


def capsules_by_layer(network: EMCaps, images: Tensor) -> dict[str, Capsules]:
    """Capsules of every layer, by name."""
    names = {layer: name for name, layer in network.capsule_layers().items()}
    seen: dict[str, Capsules] = {}

    def keep(layer: nn.Module, _: Any, output: Capsules) -> None:
        seen[names[layer]] = output

    for layer in names:
        layer.register_forward_hook(keep)
    network(images)
    return seen


def test_initial_values_of_the_official_code() -> None:
    torch.manual_seed(0)
    network = EMCaps((2, 32, 32), 5)
    assert torch.equal(network.conv.bias, torch.full((32,), 0.1))
    stds = [0.05, 0.5, 3.0, 0.1, 0.1, 0.01]
    weights = [
        network.conv,
        network.primary.pose,
        network.primary.activation,
        *network.conv_capsules,
        network.classes,
    ]
    for layer, std in zip(weights, stds, strict=True):
        weight = layer.weight
        assert weight.abs().max().item() == pytest.approx(2 * std, rel=0.02), "cut at 2 std"
        assert weight.std().item() == pytest.approx(0.88 * std, rel=0.05)
    betas_u = [layer.routing.beta_u.unique().item() for layer in weights[3:]]
    betas_a = [layer.routing.beta_a.unique().item() for layer in weights[3:]]
    assert betas_u == pytest.approx([0.5, 0.5, 2.0])
    assert betas_a == pytest.approx([0.2, 0.2, 1.0])


@pytest.mark.parametrize("dim", [4, 9, 16])
def test_votes_of_vectors_are_as_large_as_those_of_matrices(dim: int) -> None:
    """Their components are sums of the root of ``dim`` times as many products."""
    matrices = build(pose="matrix", primary={"dim": dim}, num_classes=30)
    vectors = build(pose="vector", primary={"dim": dim}, num_classes=30)
    expected = [std * dim**-0.25 for std in stds_above_primary(matrices)]
    assert stds_above_primary(vectors) == pytest.approx(expected, rel=0.15)


def stds_above_primary(network: EMCaps) -> list[float]:
    layers = *network.conv_capsules, network.classes
    return [layer.weight.std().item() for layer in layers]


@pytest.mark.parametrize(
    ("stem", "side", "positions"),
    [
        ("paper", 17, (7, 3, 1)),
        ("paper", 22, (9, 4, 2)),
        ("paper", 24, (10, 4, 2)),
        ("paper", 28, (12, 5, 3)),
        ("paper", 32, (14, 6, 4)),
        ("paper", 40, (18, 8, 6)),
        ("padded", 13, (7, 3, 1)),
        ("padded", 28, (14, 6, 4)),
        ("padded", 32, (16, 7, 5)),
    ],
)
def test_sizes(stem: str, side: int, positions: tuple[int, int, int]) -> None:
    """Positions below, between and above the convolutional capsules, along a side and along one of 8 pixels more."""
    network = build((1, side, side + 8), stem=stem)
    first, second = network.conv_capsules
    below, between, above = positions
    assert first.windows.size == (below, below + 4)
    assert second.windows.size == (between, between + 2)
    assert network.conv_capsules.grid == (above, above + 2)


def test_weights_fit_images_of_another_size() -> None:
    state = build().state_dict()
    build((2, 32, 32)).load_state_dict(state)


def test_padding_puts_the_odd_pixel_right_and_below() -> None:
    network = build((1, 21, 26), stem="padded")
    images = torch.rand(1, 1, 21, 26)
    padded = nn.functional.pad(images, (1, 2, 2, 2))
    expected = nn.functional.conv2d(padded, network.conv.weight, network.conv.bias, 2)
    torch.testing.assert_close(network.conv(images), expected)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_primary_capsules_see_rectified_features(batch_norm: bool) -> None:
    network = build(batch_norm=batch_norm)
    seen: list[Tensor] = []
    network.primary.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    images = pictures() - 0.5
    network(images)
    features = network.conv(images)
    if batch_norm:
        mean = features.mean((0, 2, 3), keepdim=True)
        variance = features.var((0, 2, 3), correction=0, keepdim=True)
        features = (features - mean) / (variance + network.norm.eps).sqrt()
    assert (features < 0).any()
    torch.testing.assert_close(seen[0], features.clamp_min(0))


@pytest.mark.parametrize("normalisation", ["window", "all_parents"])
@pytest.mark.parametrize("shift", [1, 2])
def test_convolutional_capsules_move_with_the_image(shift: int, normalisation: str) -> None:
    """Knowledge is the same everywhere: capsules move by a position for every four pixels, the product of the strides.

    Positions at the border are left out, where fewer parents compete for a child.
    """
    routing: Any = partial(EMRouting, iterations=2, normalisation=normalisation)
    network = build(
        (1, 48, 48),
        routing=routing,
        conv={"types": (4,), "strides": (2,)},
        stem=[[6, 5, 2]],
        batch_norm=False,
    )
    network.double()
    generator = torch.Generator().manual_seed(0)
    image = torch.zeros(1, 1, 48, 48, dtype=torch.float64)
    image[..., 16:28, 16:28] = torch.rand(12, 12, dtype=torch.float64, generator=generator)
    moved = image.roll((4 * shift, 4 * shift), (2, 3))
    before = capsules_by_layer(network, image)["conv_capsules_1"]
    after = capsules_by_layer(network, moved)["conv_capsules_1"]
    shape = *network.conv_capsules.grid, 4, -1
    here = slice(2, -2 - shift)
    there = slice(2 + shift, -2)
    for name in ("poses", "activations"):
        one = getattr(before, name).view(shape)
        other = getattr(after, name).view(shape)
        expected = one[here, here]
        assert_close(other[there, there], expected)
        assert expected.flatten(0, 1).std(0).min() > 0


def averaged(pixels: int, before: int, after: int, layers: Sequence[tuple[int, int]]) -> Tensor:
    """A coordinate of the pixels, averaged by every layer, as the official code computes it."""
    centres = (torch.arange(-before, pixels + after, dtype=torch.float32) - pixels / 2) / 100
    for kernel, stride in layers:
        centres = nn.functional.avg_pool1d(centres[None], kernel, stride)[0]
    return centres


@pytest.mark.parametrize(
    ("conv", "stem", "pads"),
    [
        ({}, "paper", (0, 0, 0, 0)),
        ({}, "padded", (2, 2, 1, 2)),
        ({"kernel_size": 2, "strides": (1, 2)}, "padded", (2, 2, 1, 2)),
        ({"types": (4, 3, 2), "strides": (1, 2, 1)}, "paper", (0, 0, 0, 0)),
        ({"types": (), "strides": ()}, "padded", (2, 2, 1, 2)),
    ],
)
def test_coordinates_are_the_middles_of_receptive_fields(
    conv: dict[str, Any], stem: str, pads: tuple[int, int, int, int]
) -> None:
    network = build((1, 21, 26), stem=stem, conv=conv)
    kernel_size = conv.get("kernel_size", 3)
    layers = [(5, 2)]
    for stride in conv.get("strides", (2, 1)):
        layers.append((kernel_size, stride))
    left, right, top, bottom = pads
    rows = averaged(21, left, right, layers)
    columns = averaged(26, top, bottom, layers)
    expected = [(x, y) for y in rows for x in columns]
    found = network.classes.coordinates[:, :2]
    assert_close(found, torch.tensor(expected), atol=1e-6)


@pytest.mark.parametrize(
    ("entries", "side", "pose", "row", "column"),
    [
        ("official", 4, "matrix", 1, 0),
        ("paper", 4, "vector", 3, 7),
        ("paper", 3, "matrix", 2, 5),
    ],
)
def test_entries_that_get_coordinates(
    entries: str, side: int, pose: str, row: int, column: int
) -> None:
    classes = {"coordinates": "grid", "entries": entries}
    network = build(classes=classes, primary={"dim": side**2}, pose=pose)
    expected = torch.zeros(2, 3, side**2)
    expected[..., row] = torch.tensor([0.25, 0.75])[:, None]
    expected[..., column] = torch.tensor([1, 3, 5]) / 6
    torch.testing.assert_close(network.classes.coordinates, expected.flatten(0, 1))


def options_of(network: EMCaps) -> list[dict[str, Any]]:
    return [layer.routing.options for layer in (*network.conv_capsules, network.classes)]


CLASS_ROUTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": (
        {},
        {"cost": "official_legacy", "inverse_temperature": 0.0025, "mass_eps": 1e-5},
    ),
    "over a partial": (
        {
            "routing": partial(EMRouting, iterations=2, damping=0.1),
            "class_routing": {"iterations": 5, "damping": 0.3},
        },
        {"iterations": 5, "damping": 0.3},
    ),
    "none": ({"routing": partial(EMRouting, cost="paper"), "class_routing": None}, {}),
}


@pytest.mark.parametrize("name", CLASS_ROUTINGS)
def test_class_routing_reaches_the_class_capsules_and_only_them(name: str) -> None:
    given, expected = CLASS_ROUTINGS[name]
    first, second, classes = options_of(build(**given))
    assert first == second
    assert classes == {**first, **expected}
    for key in expected:
        assert first[key] != classes[key]


@pytest.mark.parametrize(
    "name", whole_but(ROUTINGS, "dynamic", "em", "em_official_legacy", "self_routing")
)
def test_routing_of_every_layer_treats_images_alone(name: str) -> None:
    """Options reach all layers, scores are between 0 and 1, and an image alone gives the same as in a batch."""
    options = preset(name)
    reference = partial(options["routing"], backend="reference")
    network = build(routing=reference, class_routing=options["class_routing"]).eval()
    for layer in (*network.conv_capsules, network.classes):
        assert layer.routing.backend == "reference"
    images = 4 * pictures() - 2
    output = network(images)
    alone = network(images[1:2])
    assert 0 < output.scores.min() <= output.scores.max() < 1
    torch.testing.assert_close(alone.scores, output.scores[1:2])
    poses = output.capsules.poses[1:2]
    torch.testing.assert_close(alone.capsules.poses, poses, rtol=1e-4, atol=1e-6)
    if name not in EQUAL_AT_FIRST:
        flipped = network(images.flip(1))
        assert not torch.allclose(flipped.scores, output.scores, rtol=1e-5)


EQUAL_AT_FIRST = {"heinsen", "self_routing"}  # whose own parameters start at 0


# --- initial statistics ----------------------------------------------------------------------------------------------

# Means of the activations of a fresh network: both layers of convolutional capsules, and the classes. With 32 types of
# each, our notes on the official code have 0.43, 0.41, 0.202 (fast), 0.068, 0.071, 0.155 (legacy) and 0.029, 0.028,
# 0.147 (legacy cost, all parents competing). Other seeds of images and weights move them within these bounds.
FAST = [(0.32, 0.5), (0.35, 0.45), (0.165, 0.21)]
LENGTHS = [(0.13, 0.25), (0.13, 0.15), (0.6, 0.7)]
NORMALISED = [(0.49, 0.54), (0.48, 0.53), (0.48, 0.52)]
SMALL: dict[str, Any] = {"channels": 64, "primary": {"types": 8}, "types": (16, 16)}
WIDER = {"conv_std": 0.3}
WIDEST = {"conv_std": 1.0, "class_std": 1.0}


class Fresh(NamedTuple):
    """A fresh network, and bounds of the mean activations of its layers."""

    routing: str
    bounds: list[tuple[float, float]]
    sizes: dict[str, Any] = SMALL
    changed: Mapping[str, Any] = MappingProxyType({})
    """Arguments of the routing."""


STATISTICS = {
    "em": Fresh("em", FAST, sizes={}),
    "em, small": Fresh("em", FAST),
    "em_paper, small": Fresh("em_paper", FAST),
    "em_official_fast, small": Fresh("em_official_fast", FAST),
    "em_official_legacy": Fresh(
        "em_official_legacy",
        [(0.05, 0.1), (0.045, 0.11), (0.149, 0.16)],
        sizes=WIDER,
    ),
    # nearly dead
    "em_official_legacy, all parents": Fresh(
        "em_official_legacy",
        [(0.027, 0.033), (0.027, 0.029), (0.145, 0.15)],
        sizes=WIDER,
        changed={"normalisation": "all_parents"},
    ),
    "em_tutorial, small": Fresh(
        "em_tutorial",
        [(0.4, 0.6), (0.35, 0.6), (0.25, 0.65)],
        sizes=SMALL | WIDEST,
    ),
    "dynamic, small": Fresh("dynamic", LENGTHS),
    "uniform, small": Fresh("uniform", LENGTHS),
    "random_couplings, small": Fresh("random_couplings", LENGTHS),
    "scaled_distance, small": Fresh(
        "scaled_distance",
        [(0.26, 0.45), (0.2, 0.3), (0.6, 0.7)],
    ),
    "attention_over_children, small": Fresh(
        "attention_over_children",
        [(0.35, 0.55), (0.1, 0.25), (0.02, 0.06)],
        sizes=SMALL | WIDEST,
    ),
    "inverted_attention, small": Fresh(
        "inverted_attention",
        [(0.58, 0.68), (0.66, 0.73), (0.3, 0.75)],
    ),
    "em_normalised, small": Fresh("em_normalised", NORMALISED),
    "variational_bayes, small": Fresh("variational_bayes", NORMALISED),
    "variational_bayes as published, small": Fresh(
        "variational_bayes",
        NORMALISED,
        changed={"initial": "types", "affine": False},
    ),
    "self_attention, small": Fresh(
        "self_attention",
        [(0.2, 0.36), (0.008, 0.015), (0.76, 0.77)],
    ),
}


def blobs(images: int, seed: int) -> Tensor:
    """Stereo pairs of six blobs each, a little apart for the two eyes, standardised."""
    draw = partial(torch.rand, generator=torch.Generator().manual_seed(seed))
    y, x = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    centre = (draw(2, images, 6, 1, 1) * 0.6 + 0.2) * 32
    width = draw(images, 6, 1, 1) * 4 + 2
    height = draw(images, 6, 1, 1)
    eyes = []
    for shift in (0, 2):
        squared = (y - centre[0]).square() + (x - centre[1] - shift).square()
        each = (2 * height - 0.5) * (-squared / (2 * width**2)).exp()
        eyes.append(each.sum(1))
    pairs = torch.stack(eyes, 1)
    mean = pairs.mean((1, 2, 3), keepdim=True)
    return (pairs - mean) / pairs.std((1, 2, 3), keepdim=True)


FIRST_STATISTICS = ["em", "em, small", "em_paper, small", "em_official_fast, small"]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.whole)])
@pytest.mark.parametrize("name", whole_but(STATISTICS, *FIRST_STATISTICS))
def test_mean_activations_of_a_fresh_network(name: str, seed: int) -> None:
    routing, bounds, sizes, changed = STATISTICS[name]
    options = preset(routing)
    conv = {
        "types": sizes.get("types", (32, 32)),
        "weight_std": sizes.get("conv_std", 0.1),
    }
    torch.manual_seed(seed)
    network = EMCaps(
        (2, 32, 32),
        5,
        routing=partial(options["routing"], **changed),
        class_routing=options["class_routing"],
        channels=sizes.get("channels", 32),
        primary=partial(LinearPrimaryCapsules, **sizes.get("primary", {})),
        conv=partial(ConvStack, **conv),
        classes=partial(CoordinateClassCapsules, weight_std=sizes.get("class_std", 0.01)),
    )
    with torch.no_grad():
        primary, *layers = capsules_by_layer(network, blobs(4, seed)).values()
    means = [layer.activations.mean().item() for layer in layers]
    assert 0.2 < primary.activations.mean() < 0.5
    for mean, (low, high) in zip(means, bounds, strict=True):
        assert low < mean < high, means
    spreads = [layer.activations.std().item() for layer in layers[:2]]
    assert (min(spreads) > 1e-3) == ("all parents" not in name), spreads
    assert layers[2].activations.std(1).min() > 0
