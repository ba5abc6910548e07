"""Coordinate addition against section 2.4 of the notes on EM routing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from capsule_lab.layers.coordinates import (
    ReceptiveField,
    coordinate_addition,
    grid_coordinates,
    image_share_coordinates,
    receptive_field_coordinates,
)
from tests.reference import em_golden as golden
from tests.reference.em_loops import receptive_field_centres

close = torch.testing.assert_close


def coordinates(grid: Any, image: Any, layers: Any, outside: Any = (0, 0, 0, 0), of: Any = None) -> Any:
    return (of or receptive_field_coordinates)(grid, ReceptiveField(image, tuple(layers), outside))


@pytest.mark.parametrize("rows", golden.COORDINATES)
def test_receptive_fields_are_where_the_official_code_says(rows: int) -> None:
    for columns in golden.COORDINATES:
        expected = torch.tensor(golden.COORDINATES[rows]), torch.tensor(golden.COORDINATES[columns])
        found = coordinates((len(expected[0]), len(expected[1])), (rows, columns), golden.LAYERS)
        close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("layers", [[(3, 1)], [(5, 2)], [(4, 2), (2, 1)], [(3, 2), (3, 3), (2, 2)]])
def test_receptive_fields_are_means_of_means(layers: list[tuple[int, int]]) -> None:
    for size in (17, 24, 33):
        expected = torch.tensor(receptive_field_centres(size, layers))
        found = coordinates((len(expected), len(expected)), (size, size), layers)
        close(found, (expected, expected), rtol=0, atol=1e-6)


def test_padding_moves_left_and_up() -> None:
    plain = coordinates((3, 3), (9, 9), [(5, 2)])
    rows, columns = coordinates((3, 3), (9, 9), [(5, 2)], (1, 0, 2, 0))  # left, right, top, bottom
    close(rows, plain[0] - 0.02)
    close(columns, plain[1] - 0.01)


@pytest.mark.parametrize(("size", "padding"), [(28, (1, 2, 1, 2)), (32, (0, 0, 0, 0))], ids=["padded", "not"])
def test_centres_as_a_share_of_the_image_are_those_of_the_tutorial(size: int, padding: tuple[int, ...]) -> None:
    first = 8 if size == 28 else 9
    expected = torch.tensor([first, first + 4, first + 8, first + 12]) / size
    axes = coordinates((4, 4), (size, size), [(5, 2), (3, 2), (3, 1)], padding, image_share_coordinates)
    close(axes, (expected, expected))


def test_grid_coordinates_are_middles_of_cells() -> None:
    rows, columns = grid_coordinates((2, 4))
    close(rows, torch.tensor([0.25, 0.75]))
    close(columns, torch.tensor([0.125, 0.375, 0.625, 0.875]))


def test_positions_are_ordered_row_by_row() -> None:
    added = coordinate_addition(axes=(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, 5.0])), entries=(2, 0), dim=4)
    expected = torch.tensor([[3, 0, 1], [4, 0, 1], [5, 0, 1], [3, 0, 2], [4, 0, 2], [5, 0, 2]])
    close(added, torch.nn.functional.pad(expected.float(), (0, 1)))


def test_golden_class_test_has_the_coordinates_of_24_pixels() -> None:
    axes = coordinates((2, 2), (24, 24), golden.LAYERS)
    added = coordinate_addition(axes=axes, entries=(1, 0), dim=16)
    close(added.double(), golden.class_offsets().permute(1, 2, 0).flatten(0, 1), rtol=0, atol=1e-6)
