"""Transforming auto-encoder: golden forward pass, counts, the order of T and A, and where patches are drawn."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.networks import PairAutoencoder, TransformingAutoencoder
from tests.helpers.closeness import assert_close
from tests.helpers.networks import count

STEREO: dict[str, Any] = {
    "capsules": None,
    "window": 11,
    "recognition": (32, 64),
    "generation": 128,
    "pose": "matrix",
    "activation": "relu",
    "output_bias": "per_capsule",
}
CAPSULES, PIXELS, READ, DRAW = 2, 9, 3, 4


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def numbers(*shape: int) -> Tensor:
    return torch.arange(math.prod(shape), dtype=torch.float64).view(shape)


def golden() -> TransformingAutoencoder:
    """The network of section 9 of the notes: two capsules, nine pixels."""
    sizes: Any = {"capsules": CAPSULES, "recognition": (READ,), "generation": DRAW}
    network = TransformingAutoencoder((1, 3, 3), **sizes).double()
    (first,) = network.recognition
    values = {
        first.weight: 0.4 * (0.53 * numbers(CAPSULES, PIXELS, READ) + 0.2).cos(),
        first.bias: 0.1 * numbers(CAPSULES, 1, READ).sin(),
        network.where.weight: 0.7 * (0.29 * numbers(CAPSULES, READ, 2) + 0.3).sin(),
        network.where.bias: 0.05 * numbers(CAPSULES, 1, 2),
        network.presence.weight: 0.6 * (0.61 * numbers(CAPSULES, READ, 1)).cos(),
        network.presence.bias: double(0.1, -0.2).view(CAPSULES, 1, 1),
        network.generation.weight: 0.3 * (0.43 * numbers(CAPSULES, 2, DRAW)).cos(),
        network.generation.bias: 0.1 * numbers(CAPSULES, 1, DRAW).cos(),
        network.drawing.weight: 0.5 * (0.47 * numbers(CAPSULES, DRAW, PIXELS) + 0.3).sin(),
        network.bias: 0.02 * numbers(1, 3, 3),
    }
    with torch.no_grad():
        for parameter, value in values.items():
            parameter.copy_(value)
    return network


def test_golden_forward_pass() -> None:
    pixels = 0.5 + 0.5 * (0.37 * numbers(PIXELS) + 0.1).sin()
    image = pixels.view(1, 1, 3, 3)
    change = double(1, -2)[None]
    found = golden()(image, change)
    first_pose = double(0.7766608084343157, 0.9787478707310322)
    second_pose = double(0.541820606936699, 0.36434339649681824)
    assert_close(found.poses[0], torch.stack([first_pose, second_pose]))
    presences = double(0.6903661369854139, 0.3227726510582815)
    assert_close(found.presences[0], presences)
    output = double(
        0.00029239387805940487,
        0.10784688163686666,
        0.19635059389049844,
        0.25094758106968273,
    )
    assert_close(found.images.flatten()[:4], output)
    difference = (found.images - image).square().sum()
    assert difference.item() == pytest.approx(3.8069948915642264, abs=1e-10)


def test_golden_order_of_change_and_pose() -> None:
    """T A, not A T, as a port has it."""
    cos = math.cos(0.3)
    sin = math.sin(0.3)
    change = double(cos, -sin, 2, sin, cos, -1, 0, 0, 1).view(3, 3)
    pose = (0.37 * numbers(9) + 0.1).sin()
    network = TransformingAutoencoder((1, 3, 3), capsules=1, pose="matrix")
    found = network.changed(pose.view(1, 1, 9), change[None])[0, 0, :3]
    expected = [1.2833439596825846, 1.0099492678215345, 0.5998626804470338]
    assert_close(found, double(*expected))


@pytest.mark.parametrize(
    ("shape", "options", "parameters"),
    [
        ((1, 28, 28), {"capsules": 60, "output_bias": "per_capsule"}, 1_464_420),
        ((2, 96, 96), STEREO, 123_021_000),
        ((2, 48, 48), STEREO, 196 * 136_690),
        ((2, 48, 48), {**STEREO, "shared": True}, 136_690),
    ],
)
def test_parameter_counts(
    shape: tuple[int, int, int], options: dict[str, Any], parameters: int
) -> None:
    with torch.device("meta"):
        network = TransformingAutoencoder(shape, **options)
    assert count(network) == parameters


def by_loops(network: TransformingAutoencoder, images: Tensor, change: Tensor) -> Tensor:
    """Window by window, on a canvas that is large enough."""
    rows, columns = network.grid
    left, _, top, _ = network.padding
    margin = 20
    window = network.window or 0
    patch = network.patch
    beyond = (patch - window) // 2
    canvas = torch.zeros(len(images), 2, 14 + 2 * margin, 12 + 2 * margin).double()
    padded = torch.nn.functional.pad(images, (margin,) * 4)

    for number, (row, column) in enumerate(product(range(rows), range(columns))):
        k = number if len(network.where.weight) > 1 else 0

        def linear(layer: Any, units: Tensor, k: int = k) -> Tensor:
            return units @ layer.weight[k] + layer.bias[k]

        y = row * network.stride - top + margin
        x = column * network.stride - left + margin
        units = padded[:, :, y : y + window, x : x + window].flatten(1)
        for layer in network.recognition:
            units = linear(layer, units).relu()
        presence = linear(network.presence, units).sigmoid()
        pose = change @ linear(network.where, units).view(-1, 3, 3)
        drawn = linear(network.generation, pose.flatten(1)).relu()
        picture = presence * linear(network.drawing, drawn)
        y -= beyond
        x -= beyond
        canvas[:, :, y : y + patch, x : x + patch] += picture.view(-1, 2, patch, patch)
    return canvas[:, :, margin:-margin, margin:-margin]


SMALL_STEREO = {
    **STEREO,
    "recognition": (5, 4),
    "generation": 6,
    "window": 5,
    "stride": 3,
    "patch": 8,
}


@pytest.mark.parametrize(
    "options",
    [{}, {"shared": True}, {"patch": 5}, {"patch": 9, "stride": 2}],
    ids=str,
)
def test_windows_and_patches_equal_the_loops(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    network = TransformingAutoencoder((2, 14, 12), **{**SMALL_STEREO, **options})
    network.double()
    images = torch.rand(3, 2, 14, 12).double()
    change = torch.randn(3, 3, 3).double()
    found = network(images, change).images
    torch.testing.assert_close(found, by_loops(network, images, change))


def test_capsules_begin_different_from_each_other() -> None:
    network = TransformingAutoencoder((1, 9, 9), capsules=5)
    for part in (*network.recognition, network.where, network.generation, network.drawing):
        assert part.weight.std(0).min() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capsules": None}, "capsules is None and window is None; expected one of the two"),
        ({"window": 5}, "capsules is 30 and window is 5; expected one of the two"),
        ({"recognition": ()}, "recognition is empty"),
        ({"capsules": None, "window": 11, "patch": 10}, "patch is 10 and window is 11; expected"),
        ({"capsules": None, "window": 30, "patch": 30}, "images are 28x28; Transforming.* least 3"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformingAutoencoder((1, 28, 28), **options)


@pytest.mark.parametrize("output_bias", ["shared", "per_capsule"])
@pytest.mark.parametrize("window", [None, 5])
def test_images_and_energies_are_those_of_what_each_capsule_draws_alone(
    output_bias: str, window: int | None
) -> None:
    torch.manual_seed(0)
    network = TransformingAutoencoder(
        (1, 8, 8),
        capsules=None if window else 3,
        window=window,
        patch=6,
        output_bias=output_bias,
    )
    poses, presences = network.recognise(torch.rand(2, 1, 8, 8))
    units = network.activation(network.generation(poses.transpose(0, 1)))
    drawn = network.drawing(units) * presences.t().unsqueeze(2)  # [k b pixel]
    energies = drawn.square().sum(2).t()
    found = network.energies(poses, presences)
    torch.testing.assert_close(found, energies, atol=1e-4, rtol=1e-4)
    if window is None:  # with one: by_loops
        images = network.generate(poses, presences)
        if network.bias is not None:
            images = images - network.bias
        torch.testing.assert_close(images.flatten(1), drawn.sum(0))


@pytest.mark.parametrize(
    ("pose", "change", "other"), [("translation", (2,), (3, 3)), ("matrix", (3, 3), (2,))]
)
def test_plain_autoencoder_and_the_change(
    pose: Any, change: tuple[int, ...], other: tuple[int, ...]
) -> None:
    network = PairAutoencoder((1, 8, 8), code=5, hidden=(7, 6), pose=pose)
    images = torch.rand(4, 1, 8, 8)
    changes = torch.randn(4, *change)
    output = network(images, changes)
    assert network.change_shape == change
    assert output.images.shape == images.shape
    assert output.poses.shape == (4, 1, 5)
    assert output.presences.equal(torch.ones(4, 1))
    twice = network(images, 2 * changes)
    assert not torch.allclose(output.images, twice.images)
    assert output.poses.equal(twice.poses)
    message = rf"the change has shape \(4, {other[0]}.*; expected \(batch, {change[0]}"
    with pytest.raises(ValueError, match=message):
        network(images, torch.zeros(4, *other))
    with pytest.raises(ValueError, match="PairAutoencoder has hidden 0; expected 1 or more"):
        PairAutoencoder((1, 8, 8), hidden=(0,), pose=pose)
