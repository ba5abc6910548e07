from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from capsule_lab.layers.coordinates import receptive_field_coordinates
from capsule_lab.layers.stem import STEMS, Stem

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
    row, column = (n // 2 for n in built.grid)
    built(images)[0, 0, row, column].backward()
    assert images.grad is not None
    seen = images.grad[0, 0].nonzero().double()
    rows, columns = receptive_field_coordinates(built.grid, built.field)
    expected = [rows[row].item() * 100 + 32, columns[column].item() * 100 + 32]
    assert seen.mean(0).tolist() == pytest.approx(expected, abs=1e-4)


def test_named_stems_are_lists_and_batch_norm_is_a_switch() -> None:
    torch.manual_seed(0)
    named = Stem("conv3", 1, (16, 16)).state_dict()
    torch.manual_seed(0)
    listed = Stem(STEMS["conv3"], 1, (16, 16)).state_dict()
    assert all(torch.equal(value, listed[name]) for name, value in named.items())
    for batch_norm in (False, True):
        kinds = {type(layer) for layer in Stem("conv2", 1, (8, 8), batch_norm=batch_norm)}
        assert (nn.BatchNorm2d in kinds) is batch_norm


def test_every_parameter_of_a_resnet_gets_a_gradient() -> None:
    stem = Stem("resnet", 1, (16, 16))
    stem(torch.rand(4, 1, 16, 16)).square().sum().backward()
    assert [name for name, parameter in stem.named_parameters() if parameter.grad is None] == []
