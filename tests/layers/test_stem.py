from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from capsule_lab.layers.classes import axes_of
from capsule_lab.layers.stem import Stem

LISTED: list[Any] = ["conv2", "conv3", "resnet", [[8, 3, 1]], [[8, 7, 3], [4, 1, 1], [6, 3, 2]]]


@pytest.mark.parametrize("stem", LISTED, ids=str)
def test_sizes_are_those_of_the_feature_maps(stem: str | Sequence[Sequence[int]]) -> None:
    for size in ((32, 32), (13, 20), (1, 1)):
        built = Stem(stem, 2, size).eval()
        assert built(torch.rand(3, 2, *size)).shape == (3, built.channels, *built.grid)


@pytest.mark.parametrize("stem", ["conv2", "conv3", [[4, 3, 1], [4, 5, 2]]], ids=str)
def test_what_a_position_sees(stem: Any) -> None:
    """The middle of the pixels with a gradient is where the receptive field says, away from the edges."""
    built = Stem(stem, 1, (64, 64), batch_norm=False).double()
    for layer in built:
        if isinstance(layer, nn.Conv2d):
            nn.init.ones_(layer.weight)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    images = torch.ones(1, 1, 64, 64, dtype=torch.float64, requires_grad=True)
    row = built.grid[0] // 2
    column = built.grid[1] // 2
    built(images)[0, 0, row, column].backward()
    seen = images.grad[0, 0].nonzero().double()
    rows, columns = axes_of("receptive_field", built.grid, built.field)
    expected = [rows[row].item() * 100 + 32, columns[column].item() * 100 + 32]
    assert seen.mean(0).tolist() == pytest.approx(expected, abs=1e-4)
