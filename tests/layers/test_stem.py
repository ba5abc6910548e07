from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from capsule_lab.layers.classes import axes_of
from capsule_lab.layers.stem import Stem

ONE_CONVOLUTION = [[8, 3, 1]]
THREE_CONVOLUTIONS = [[8, 7, 3], [4, 1, 1], [6, 3, 2]]
STEMS = ["conv2", "conv3", "resnet", ONE_CONVOLUTION, THREE_CONVOLUTIONS]


@pytest.mark.parametrize("stem", STEMS, ids=str)
@pytest.mark.parametrize("size", [(32, 32), (13, 20), (1, 1)])
def test_sizes_are_those_of_the_feature_maps(
    stem: str | Sequence[Sequence[int]], size: tuple[int, int]
) -> None:
    built = Stem(stem, 2, size).eval()
    features = built(torch.rand(3, 2, *size))
    assert features.shape == (3, built.channels, *built.grid)


@pytest.mark.parametrize("stem", ["conv2", "conv3", [[4, 3, 1], [4, 5, 2]]], ids=str)
def test_what_a_position_sees(stem: Any) -> None:
    """The middle of the pixels with a gradient is where the receptive field says, away from the edges."""
    built = Stem(stem, 1, (64, 64), batch_norm=False)
    built.double()
    for layer in built:
        if isinstance(layer, nn.Conv2d):
            nn.init.ones_(layer.weight)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    images = torch.ones(1, 1, 64, 64).double().requires_grad_()
    height, width = built.grid
    row = height // 2
    column = width // 2
    features = built(images)
    features[0, 0, row, column].backward()
    seen = images.grad[0, 0].nonzero().double()
    rows, columns = axes_of("receptive_field", built.grid, built.field)
    middle = torch.stack([rows[row], columns[column]])
    expected = 100 * middle + 32
    assert seen.mean(0).tolist() == pytest.approx(expected.tolist(), abs=1e-4)
