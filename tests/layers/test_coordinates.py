"""Coordinate addition against section 2.4 of the notes on EM routing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from capsule_lab.layers.coordinates import (
    coordinate_addition,
    grid_coordinates,
    image_share_coordinates,
    receptive_field_coordinates,
)
from capsule_lab.networks.em_caps import EMCaps
from tests.reference import em_golden as golden
from tests.reference.em_loops import receptive_field_centres

close = torch.testing.assert_close
UNPADDED = (0, 0, 0, 0)


@pytest.mark.parametrize("rows", golden.COORDINATES)
@pytest.mark.parametrize("columns", golden.COORDINATES)
def test_receptive_fields_are_where_the_official_code_says(rows: int, columns: int) -> None:
    expected = torch.tensor(golden.COORDINATES[rows]), torch.tensor(golden.COORDINATES[columns])
    grid = len(expected[0]), len(expected[1])
    close(receptive_field_coordinates(grid, (rows, columns), golden.LAYERS, UNPADDED), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("layers", [[(3, 1)], [(5, 2)], [(4, 2), (2, 1)], [(3, 2), (3, 3), (2, 2)]])
@pytest.mark.parametrize("size", [17, 24, 33])
def test_receptive_fields_are_means_of_means(size: int, layers: list[tuple[int, int]]) -> None:
    expected = torch.tensor(receptive_field_centres(size, layers))
    axes = receptive_field_coordinates((len(expected), len(expected)), (size, size), layers, UNPADDED)
    close(axes, (expected, expected), rtol=0, atol=1e-6)


def test_padding_moves_left_and_up() -> None:
    plain = receptive_field_coordinates((3, 3), (9, 9), [(5, 2)], UNPADDED)
    rows, columns = receptive_field_coordinates((3, 3), (9, 9), [(5, 2)], (1, 0, 2, 0))  # left, right, top, bottom
    close(rows, plain[0] - 0.02)
    close(columns, plain[1] - 0.01)


@pytest.mark.parametrize(("size", "padding"), [(28, (1, 2, 1, 2)), (32, UNPADDED)], ids=["same", "valid"])
def test_centres_as_a_share_of_the_image_are_those_of_the_tutorial(size: int, padding: tuple[int, ...]) -> None:
    first = 8 if size == 28 else 9
    expected = torch.tensor([first, first + 4, first + 8, first + 12]) / size
    axes = image_share_coordinates((4, 4), (size, size), [(5, 2), (3, 2), (3, 1)], padding)
    close(axes, (expected, expected))


def test_network_of_the_tutorial_has_them() -> None:
    network = EMCaps((1, 28, 28), 10, channels=1, primary_types=1, conv_types=(1, 1), padding="same",
                     coordinates="image_share")  # fmt: skip
    added = network.classes.coordinates
    assert added is not None
    grid = added.view(4, 4, 16)
    close(grid[0, :, 0], torch.tensor([8.0, 12.0, 16.0, 20.0]) / 28)
    close(grid[:, 0, 1], torch.tensor([8.0, 12.0, 16.0, 20.0]) / 28)


def test_grid_coordinates_are_middles_of_cells() -> None:
    rows, columns = grid_coordinates((2, 4))
    close(rows, torch.tensor([0.25, 0.75]))
    close(columns, torch.tensor([0.125, 0.375, 0.625, 0.875]))


def test_positions_are_ordered_row_by_row() -> None:
    added = coordinate_addition(axes=(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, 5.0])), entries=(2, 0), dim=4)
    expected = torch.tensor([[3, 0, 1], [4, 0, 1], [5, 0, 1], [3, 0, 2], [4, 0, 2], [5, 0, 2]])
    close(added, torch.nn.functional.pad(expected.float(), (0, 1)))


def of_network(**options: str) -> Tensor:
    """What a network of 24 x 32 pixels adds, ``(y 2, x 4, component 16)``."""
    network = EMCaps((1, 24, 32), 2, channels=1, primary_types=1, conv_types=(1, 1), **options)
    assert network.classes.coordinates is not None
    return network.classes.coordinates.view(2, 4, 16)


@pytest.mark.parametrize(("entries", "x", "y"), [("official", 0, 1), ("paper", 7, 3)])
def test_networks_place_coordinates_where_their_model_does(entries: str, x: int, y: int) -> None:
    """The official code: x to the first, y to the second; the paper: row, then column, down the last column."""
    added = of_network(coordinate_entries=entries)
    close(added[..., x], torch.tensor(golden.COORDINATES[32]).expand(2, 4), rtol=0, atol=1e-6)
    close(added[..., y], torch.tensor(golden.COORDINATES[24])[:, None].expand(2, 4), rtol=0, atol=1e-6)
    assert ((added != 0).any(0).any(0).nonzero().flatten() == torch.tensor(sorted((x, y)))).all()


def test_networks_may_use_the_grid() -> None:
    added = of_network(coordinates="grid")
    close(added[..., 0], torch.tensor([0.125, 0.375, 0.625, 0.875]).expand(2, 4))
    close(added[..., 1], torch.tensor([0.25, 0.75])[:, None].expand(2, 4))


def test_networks_may_add_nothing() -> None:
    network = EMCaps((1, 24, 24), 2, channels=1, primary_types=1, conv_types=(1, 1), coordinates="none")
    assert network.classes.coordinates is None


def test_golden_class_test_has_the_coordinates_of_24_pixels() -> None:
    axes = receptive_field_coordinates((2, 2), (24, 24), golden.LAYERS, UNPADDED)
    added = coordinate_addition(axes=axes, entries=(1, 0), dim=16)
    close(added.double(), golden.class_offsets().permute(1, 2, 0).flatten(0, 1), rtol=0, atol=1e-6)
