"""Transforming auto-encoder: golden forward pass, counts, the order of T and A, and where patches are drawn."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.networks.transforming_autoencoder import TransformingAutoencoder

STEREO: dict[str, Any] = {
    "capsules": None, "window": 11, "recognition": (32, 64), "generation": 128, "pose": "matrix",
    "activation": "relu", "output_bias": "per_capsule",
}  # fmt: skip
CAPSULES, PIXELS, READ, DRAW = 2, 9, 3, 4


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def numbers(*shape: int) -> Tensor:
    count = 1
    for size in shape:
        count *= size
    return torch.arange(count, dtype=torch.float64).view(shape)


def golden() -> TransformingAutoencoder:
    """The network of section 9 of the notes: two capsules, nine pixels."""
    network = TransformingAutoencoder((1, 3, 3), capsules=CAPSULES, recognition=(READ,), generation=DRAW).double()
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
    assert len(values) == len([*network.parameters()])
    return network


def golden_image() -> Tensor:
    return (0.5 + 0.5 * (0.37 * numbers(PIXELS) + 0.1).sin()).view(1, 1, 3, 3)


def test_golden_forward_pass() -> None:
    image = golden_image()
    found = golden()(image, double(1, -2)[None])
    poses = [[0.7766608084343157, 0.9787478707310322], [0.541820606936699, 0.36434339649681824]]
    torch.testing.assert_close(found.poses[0], torch.tensor(poses, dtype=torch.float64), rtol=0, atol=1e-12)
    presences = double(0.6903661369854139, 0.3227726510582815)
    torch.testing.assert_close(found.presences[0], presences, rtol=0, atol=1e-12)
    output = [0.00029239387805940487, 0.10784688163686666, 0.19635059389049844, 0.25094758106968273]
    torch.testing.assert_close(found.images.flatten()[:4], double(*output), rtol=0, atol=1e-12)
    assert (found.images - image).square().sum().item() == pytest.approx(3.8069948915642264, abs=1e-10)


def test_golden_order_of_change_and_pose() -> None:
    """T A, not A T, as a port has it."""
    cos, sin = math.cos(0.3), math.sin(0.3)
    change = torch.tensor([[cos, -sin, 2.0], [sin, cos, -1.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    pose = (0.37 * numbers(9) + 0.1).sin()
    network = TransformingAutoencoder((1, 3, 3), capsules=1, pose="matrix")
    found = network.changed(pose.view(1, 1, 9), change[None])[0, 0, :3]
    expected = [1.2833439596825846, 1.0099492678215345, 0.5998626804470338]
    torch.testing.assert_close(found, double(*expected), rtol=0, atol=1e-12)
    wrong = (pose.view(3, 3) @ change)[0]
    torch.testing.assert_close(
        wrong, double(0.2292115544061033, 0.4031560019279981, 0.49142366788544734), rtol=0, atol=1e-12
    )


def test_changes_follow_each_other() -> None:
    """(T2 T1) A = T2 (T1 A), which A T does not give."""
    network = TransformingAutoencoder((1, 3, 3), capsules=1, pose="matrix").double()
    first, second = torch.randn(2, 1, 3, 3, dtype=torch.float64)
    pose = torch.randn(1, 1, 9, dtype=torch.float64)
    torch.testing.assert_close(
        network.changed(pose, second @ first), network.changed(network.changed(pose, first), second)
    )


@pytest.mark.parametrize(
    ("shape", "options", "parameters"),
    [
        ((1, 28, 28), {}, 709_474),
        ((1, 28, 28), {"output_bias": "per_capsule"}, 732_210),
        ((1, 28, 28), {"capsules": 60, "output_bias": "per_capsule"}, 1_464_420),
        (
            (1, 28, 28),
            {
                "capsules": 25, "recognition": (40,), "generation": 40, "pose": "matrix",
                "output_bias": "per_capsule",
            },
            1_608_850,
        ),
        ((2, 96, 96), STEREO, 123_021_000),
        ((2, 48, 48), STEREO, 196 * 136_690),
        ((2, 48, 48), {**STEREO, "shared": True}, 136_690),
    ],
)  # fmt: skip
def test_parameter_counts(shape: tuple[int, int, int], options: dict[str, Any], parameters: int) -> None:
    with torch.device("meta"):
        network = TransformingAutoencoder(shape, **options)
    assert sum(each.numel() for each in network.parameters()) == parameters


def small_stereo(**options: Any) -> TransformingAutoencoder:
    torch.manual_seed(0)
    sizes = {"recognition": (5, 4), "generation": 6, "window": 5, "stride": 3, "patch": 8}
    return TransformingAutoencoder((2, 14, 12), **{**STEREO, **sizes, **options}).double()


def by_loops(network: TransformingAutoencoder, images: Tensor, change: Tensor) -> Tensor:
    """Window by window, on a canvas that is large enough."""
    rows, columns = network.grid
    left, _, top, _ = network.padding
    margin, window, patch, stride = 20, network.window or 0, network.patch, network.stride
    canvas = torch.zeros(len(images), 2, 14 + 2 * margin, 12 + 2 * margin).double()
    padded = torch.nn.functional.pad(images, (margin,) * 4)
    relu = torch.relu
    for number in range(rows * columns):
        k = number if len(network.where.weight) > 1 else 0
        y, x = number // columns * stride - top + margin, number % columns * stride - left + margin
        units = padded[:, :, y : y + window, x : x + window].flatten(1)
        for layer in network.recognition:
            units = relu(units @ layer.weight[k] + layer.bias[k])
        presence = (units @ network.presence.weight[k] + network.presence.bias[k]).sigmoid()
        pose = (units @ network.where.weight[k] + network.where.bias[k]).view(-1, 3, 3)
        drawn = relu((change @ pose).flatten(1) @ network.generation.weight[k] + network.generation.bias[k])
        picture = presence * (drawn @ network.drawing.weight[k] + network.drawing.bias[k])
        y, x = y - (patch - window) // 2, x - (patch - window) // 2
        canvas[:, :, y : y + patch, x : x + patch] += picture.view(-1, 2, patch, patch)
    return canvas[:, :, margin:-margin, margin:-margin]


@pytest.mark.parametrize("options", [{}, {"shared": True}, {"patch": 5}, {"patch": 9, "stride": 2}], ids=str)
def test_windows_and_patches_equal_the_loops(options: dict[str, Any]) -> None:
    network = small_stereo(**options)
    images, change = torch.rand(3, 2, 14, 12).double(), torch.randn(3, 3, 3).double()
    torch.testing.assert_close(network(images, change).images, by_loops(network, images, change))


def test_windows_cover_the_image() -> None:
    network = TransformingAutoencoder((2, 96, 96), **STEREO, shared=True)
    assert network.grid == (30, 30)
    assert network.padding == (1, 1, 1, 1)
    assert TransformingAutoencoder((2, 48, 48), **STEREO, shared=True).grid == (14, 14)


@pytest.mark.parametrize("pose", ["translation", "matrix"])
def test_the_change_reaches_the_output_through_poses_only(pose: Any) -> None:
    network = TransformingAutoencoder((1, 5, 5), capsules=3, pose=pose).double()
    shape = (2, 2) if pose == "translation" else (2, 3, 3)
    images, change = torch.rand(2, 1, 5, 5).double(), torch.randn(shape).double().requires_grad_()
    (reaches,) = torch.autograd.grad(network(images, change).images.sum(), change)
    assert (reaches != 0).all()
    with torch.no_grad():
        network.generation.weight.zero_()
    (cut,) = torch.autograd.grad(network(images, change).images.sum(), change)
    assert not cut.any()


@pytest.mark.parametrize("output_bias", ["shared", "per_capsule"])
def test_absent_capsules_draw_nothing(output_bias: Any) -> None:
    network = TransformingAutoencoder((1, 5, 5), capsules=3, output_bias=output_bias)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_()
        network.presence.weight.zero_()
        network.presence.bias.fill_(-1e4)
    found = network(torch.rand(2, 1, 5, 5), torch.randn(2, 2)).images
    expected = torch.zeros(2, 1, 5, 5) if network.bias is None else network.bias.expand(2, -1, -1, -1)
    torch.testing.assert_close(found, expected)


def test_capsules_begin_different_from_each_other() -> None:
    network = TransformingAutoencoder((1, 28, 28))
    for part in (*network.recognition, network.where, network.generation, network.drawing):
        assert part.weight.std(0).min() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capsules": None}, "capsules is None and window is None; expected one of them"),
        ({"window": 5}, "capsules is 30 and window is 5; expected one of them"),
        ({"capsules": 0}, "capsules 0; expected 1 or more"),
        ({"recognition": ()}, "recognition is empty"),
        ({"capsules": None, "window": 11, "patch": 10}, "patch is 10 and window is 11; expected a patch at least as"),
        ({"generation": 0}, "generation 0; expected 1 or more"),
        ({"pose": "affine"}, "pose is 'affine'; expected 'translation' or 'matrix'"),
        ({"output_bias": "none"}, "output_bias is 'none'"),
        ({"activation": "tanh"}, "activation is 'tanh'"),
        (
            {"capsules": None, "window": 30, "patch": 30},
            "images are 28x28; TransformingAutoencoder needs at least 30x30",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformingAutoencoder((1, 28, 28), **options)


@pytest.mark.usefixtures("unchecked_types")
def test_change_of_another_kind_is_refused() -> None:
    network = TransformingAutoencoder((1, 5, 5), capsules=2)
    with pytest.raises(ValueError, match=r"the change is of shape \(2, 3, 3\); expected \(batch, 2\) for a network"):
        network(torch.rand(2, 1, 5, 5), torch.eye(3).expand(2, 3, 3))


@pytest.mark.parametrize("output_bias", ["shared", "per_capsule"])
@pytest.mark.parametrize("window", [None, 5])
def test_energies_are_those_of_what_each_capsule_draws_alone(output_bias: str, window: int | None) -> None:
    torch.manual_seed(0)
    network = TransformingAutoencoder(
        (1, 8, 8),
        capsules=None if window else 3,
        window=window,
        patch=6,
        output_bias=output_bias,  # type: ignore[arg-type]
    )
    poses, presences = network.recognise(torch.rand(2, 1, 8, 8))
    units = network.activation(network.generation(poses.transpose(0, 1)))
    drawn = network.drawing(units) * presences.t().unsqueeze(2)  # [k b pixel]
    torch.testing.assert_close(network.energies(poses, presences), drawn.square().sum(2).t(), atol=1e-4, rtol=1e-4)
