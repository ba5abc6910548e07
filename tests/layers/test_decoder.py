from __future__ import annotations

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


def test_the_chosen_capsule_matters_and_no_other() -> None:
    decoder, (poses, mask) = build(), capsules()
    assert torch.equal(decoder(poses * mask.unsqueeze(2), mask), decoder(poses, mask))
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
