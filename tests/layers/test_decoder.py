from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_lab.layers import Decoder


def build(**options: Any) -> Decoder:
    torch.manual_seed(0)
    return Decoder(**{"capsules": 10, "dim": 16, "image_shape": (1, 4, 5), "hidden": (6, 7), **options})


def capsules(batch: int = 3, number: int = 10, dim: int = 16) -> tuple[Tensor, Tensor]:
    poses = torch.randn(batch, number, dim, generator=torch.Generator().manual_seed(1))
    return poses, torch.eye(number)[torch.arange(batch) + 2]


def test_sixteen_of_a_hundred_and_sixty_numbers_reach_the_first_layer() -> None:
    seen: list[Tensor] = []
    decoder, (poses, mask) = build(), capsules()
    decoder.layers[0].register_forward_hook(lambda _, inputs, output: seen.append(inputs[0]))
    decoder(poses, mask)
    assert seen[0].shape == (3, 160)
    assert (seen[0] != 0).sum(1).tolist() == [16, 16, 16]
    assert torch.equal(seen[0][1, 3 * 16 : 4 * 16], poses[1, 3])


def test_other_capsules_do_not_matter() -> None:
    decoder, (poses, mask) = build(), capsules()
    assert torch.equal(decoder(poses * mask.unsqueeze(2), mask), decoder(poses, mask))


def test_the_chosen_capsule_matters() -> None:
    decoder, (poses, mask) = build(), capsules()
    assert not torch.allclose(decoder(2 * poses, mask), decoder(poses, mask))


@pytest.mark.parametrize("image_shape", [(1, 28, 28), (3, 5, 7)])
def test_images_have_their_shape_and_range(image_shape: tuple[int, int, int]) -> None:
    images = build(image_shape=image_shape)(*capsules())
    assert images.shape == (3, *image_shape)
    assert 0 <= images.min() <= images.max() <= 1


def test_layers_of_the_paper() -> None:
    decoder = Decoder(10, 16, (1, 28, 28))
    assert [tuple(p.shape) for p in decoder.parameters() if p.ndim == 2] == [(512, 160), (1024, 512), (784, 1024)]
    assert [type(layer) for layer in decoder.layers] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert sum(p.numel() for p in decoder.parameters()) == 1_411_344


@pytest.mark.parametrize("layer", [0, 2, 4])
def test_initial_values_of_the_official_code(layer: int) -> None:
    linear = build(hidden=(50, 60)).layers[layer]
    assert torch.equal(linear.bias, torch.full_like(linear.bias, 0.1))
    assert linear.weight.abs().max() <= 0.2
    assert linear.weight.std().item() == pytest.approx(0.088, rel=0.05)  # cut at 2 std of 0.1


CHANGED = {"capsules": 9, "dim": 8, "image_shape": (2, 4, 5), "hidden": (6,), "weight_std": 0.2}


@pytest.mark.parametrize("argument", list(inspect.signature(Decoder).parameters))
def test_every_argument_does_something(argument: str) -> None:
    decoder, other = build(), build(**{argument: CHANGED[argument]})
    names = {"capsules": "number", "dim": "dim"}
    sizes = {names[argument]: CHANGED[argument]} if argument in names else {}
    images, other_images = decoder(*capsules()), other(*capsules(**sizes))
    shapes, other_shapes = ([p.shape for p in module.parameters()] for module in (decoder, other))
    assert shapes != other_shapes or not torch.allclose(images, other_images)


def test_every_parameter_gets_a_gradient() -> None:
    decoder = build()
    decoder(*capsules()).square().sum().backward()
    assert all(parameter.grad.count_nonzero() > 0 for parameter in decoder.parameters())


def test_images_are_float32_under_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert build()(*capsules()).dtype == torch.float32


def test_one_capsule_alone_equals_it_in_a_batch() -> None:
    decoder, (poses, mask) = build(), capsules()
    torch.testing.assert_close(decoder(poses[1:2], mask[1:2]), decoder(poses, mask)[1:2])
