"""One component of a pose changes, the rest stays."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from capsule_lab.analysis import perturbation
from capsule_lab.analysis.perturbation import (
    PAPER,
    Steps,
    change_of_rows,
    perturbation_figure,
    steps_of,
)
from capsule_lab.analysis.reconstructions import select_images
from capsule_lab.types import CapsuleOutput, Capsules
from tests.helpers.fakes import (
    FakeCapsNet,
    captions,
    decoded_picture,
    fake_output,
    grey_at,
    row_names,
    texts,
)

CLASSES = torch.tensor([4, 0])
# the second is not recognised: its label is perturbed, and not its prediction
OUTPUT = fake_output([[4], [2]])
IN_UNITS = Steps((-1.0, 0.0, 1.0), torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("steps", [PAPER, IN_UNITS])
def test_offset_is_added_to_one_component_of_the_label(steps: Steps) -> None:
    """The sum is not squashed again; all other classes are zeroed."""
    units = torch.ones(3) if steps.units is None else steps.units
    network = FakeCapsNet(OUTPUT)
    decoded = perturbation.perturbed_reconstructions(network, OUTPUT, CLASSES, steps)
    assert decoded.shape == (2, 3, len(steps.values), 1, 5, 3)
    for image, dim in itertools.product(range(2), range(3)):
        label = int(CLASSES[image])
        for offset, added in enumerate(steps.values):
            expected = decoded_picture(OUTPUT, image, label)
            expected[label, dim] += added * float(units[dim])
            found = decoded[image, dim, offset, 0]
            np.testing.assert_allclose(found, expected, atol=1e-6)


def test_change_is_measured_from_the_middle() -> None:
    decoded = torch.zeros(1, 2, 11, 1, 1, 2)
    decoded[0, 0] = 1.0  # the same everywhere
    decoded[0, 1, 10, 0, 0, 1] = 3.0
    expected = torch.tensor([[0.0, 9.0 / 22]])
    torch.testing.assert_close(change_of_rows(decoded), expected)


def test_steps_of_poses_that_are_lengths_and_of_others() -> None:
    generator = torch.Generator().manual_seed(0)
    poses = torch.randn(50, 4, 3, generator=generator)
    poses *= torch.tensor([1.0, 10.0, 0.1])
    scores = torch.zeros(50, 4)
    of_lengths = Capsules(poses, poses.norm(dim=2))
    assert steps_of(CapsuleOutput(scores, of_lengths)) == PAPER
    others = Capsules(poses, torch.full((50, 4), 0.5))
    steps = steps_of(CapsuleOutput(scores, others))
    assert steps.values[5] == pytest.approx(0)
    assert steps.values[-1] == pytest.approx(2)
    deviations = poses.flatten(0, 1).std(0)
    torch.testing.assert_close(steps.units, deviations)


def test_sheet_has_a_row_for_each_dimension_and_a_column_for_each_offset() -> None:
    output = select_images(OUTPUT, torch.tensor([1]))
    figure = perturbation.perturbation_sheet(FakeCapsNet(OUTPUT), output, 0)
    assert row_names(figure) == ["dimension 0", "dimension 1", "dimension 2"]
    offset_of_column = {0: -0.25, 5: 0.0, 9: 0.2}
    for dim, column in itertools.product(range(3), offset_of_column):
        expected = decoded_picture(OUTPUT, 1, 0)
        expected[0, dim] += offset_of_column[column]
        found = grey_at(figure, dim, column)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    subtracted = ["-0.25", "-0.20", "-0.15", "-0.10", "-0.05"]
    added = ["+0.05", "+0.10", "+0.15", "+0.20", "+0.25"]
    assert captions(figure) == [*subtracted, "0", *added]
    assert texts(figure)[:3] == ["subtracted", "unchanged", "added"]
    assert figure.get_suptitle().startswith("class 0")


LABELS = torch.tensor([3, 0, 2, 0, 3])
# of class 3, the first image is not recognised
PREDICTED = fake_output([[1], [0], [2], [0], [3]])
# of each class and dimension in the picture
WEIGHT = torch.tensor(
    [
        [1.0, 3, 2],
        [9, 9, 9],
        [4, 1, 1],
        [1, 1, 2],
        [9, 9, 9],
    ]
)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (6, ["class 0, dimension 1", "class 2, dimension 0", "class 3, dimension 2"]),
        (2, ["class 0, dimension 1", "class 2, dimension 0"]),
        (1, ["class 2, dimension 0"]),
    ],
)
def test_figure_has_the_rows_that_change_most(rows: int, expected: list[str]) -> None:
    network = FakeCapsNet(PREDICTED, WEIGHT)
    figure = perturbation_figure(network, PREDICTED, LABELS, rows=rows)
    assert row_names(figure) == expected
    assert len(captions(figure)) == 11


def test_rows_of_a_figure_have_the_names_of_classes() -> None:
    network = FakeCapsNet(PREDICTED, WEIGHT)
    names = ("cat", "dog", "ship", "car", "bird")
    named = perturbation_figure(network, PREDICTED, LABELS, rows=1, names=names)
    assert row_names(named) == ["class ship, dimension 0"]


def test_figure_shows_the_rows_named() -> None:
    weight = WEIGHT / 10  # pictures in [0, 1]
    network = FakeCapsNet(PREDICTED, weight)
    figure = perturbation_figure(network, PREDICTED, LABELS)
    image_label_dim = [(1, 0, 1), (2, 2, 0), (4, 3, 2)]  # of each row
    offset_of_column = {2: -0.15, 5: 0.0, 6: 0.05}
    for row, column in itertools.product(range(3), offset_of_column):
        image, label, dim = image_label_dim[row]
        expected = decoded_picture(PREDICTED, image, label)
        expected[label, dim] += offset_of_column[column]
        expected *= weight.numpy()
        found = grey_at(figure, row, column)
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("predictions", "labels", "expected"),
    [
        ([[1], [0], [2], [0], [3]], [3, 0, 2, 0, 3], [1, 2, 4]),
        ([[1], [1], [1]], [2, 1, 2], [1, 0]),
        ([[1, 2], [2, 1], [4, 3]], [[1, 3], [1, 2], [3, 4]], [1, 2]),
    ],
)
def test_examples_are_recognised_if_any_is(
    predictions: list[list[int]], labels: list[Any], expected: list[int]
) -> None:
    output = fake_output(predictions)
    examples = perturbation.example_of_each_class(output, torch.tensor(labels))
    assert [*examples.values()] == expected
