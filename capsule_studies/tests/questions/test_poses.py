from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from torch import Tensor

from capsule_lab.networks import TransformingAutoencoder
from capsule_lab.networks.base import AbstractPairNetwork, TransformedImages
from capsule_studies.questions.poses import poses, shift_scatter
from capsule_studies.subject import Change
from capsule_studies.tests.subjects import moved, quarter_turn, subject


class KnowsWhere(AbstractPairNetwork):
    """One capsule whose pose is the centre of the bright pixels; drawn images are black."""

    capsules = 1
    pose = "translation"
    image_shape = (1, 24, 24)

    def recognise(self, images: Tensor) -> tuple[Tensor, Tensor]:
        light = (images - 0.3).clamp_min(0)
        places = torch.arange(24.0)
        total = light.sum((1, 2, 3))
        x = light.sum((1, 2)) @ places / total
        y = light.sum((1, 3)) @ places / total
        return torch.stack([x, y], 1).unsqueeze(1), torch.ones(len(images), 1)

    def changed(self, poses: Tensor, change: Tensor) -> Tensor:
        return poses + change.unsqueeze(1)

    def energies(self, poses: Tensor, presences: Tensor) -> Tensor:
        return torch.ones_like(presences)

    def forward(self, images: Tensor, change: Tensor) -> TransformedImages:
        return TransformedImages(torch.zeros_like(images), *self.recognise(images))


CHANGES: dict[str, Change] = {"translation": moved, "rotation": quarter_turn}


def test_a_pose_that_knows_where_moves_as_far_as_the_image() -> None:
    for shift in [1, 2]:
        numbers = poses(subject(KnowsWhere(), CHANGES), shifts=(shift,)).numbers
        assert numbers[f"shift_{shift}/slope_right"] == pytest.approx(1, abs=1e-4)
        assert numbers[f"shift_{shift}/slope_down"] == pytest.approx(1, abs=1e-4)
        assert numbers[f"shift_{shift}/shift_r2"] == pytest.approx(1, abs=1e-4)
        assert numbers[f"shift_{shift}/presence_change"] == 0


def test_matrices_are_told_the_turn() -> None:
    """A quarter turn of a position is a matrix of 0 and 1; y points down."""

    class Places(KnowsWhere):
        pose = "matrix"

        def recognise(self, images: Tensor) -> tuple[Tensor, Tensor]:
            centre, there = super().recognise(images)
            matrix = torch.zeros(len(images), 3, 3)
            matrix[:, :2, 2] = centre[:, 0] - 11.5
            matrix[:, 2, 2] = 1
            return matrix.flatten(1).unsqueeze(1), there

        def changed(self, poses: Tensor, change: Tensor) -> Tensor:
            matrices = poses.unflatten(2, (3, 3))
            return (change.unsqueeze(1) @ matrices).flatten(2)

    numbers = poses(subject(Places(), CHANGES), degrees=(90,)).numbers
    assert numbers["rotation_90/matrix_error"] == pytest.approx(0, abs=1e-4)
    assert numbers["rotation_90/matrix_error_unchanged"] > 0.5


OF_MATRICES = {"capsules": 4, "pose": "matrix"}
OF_WINDOWS = {"capsules": None, "window": 12, "stride": 12, "patch": 12}


@pytest.mark.parametrize(
    ("options", "figures"),
    [
        (OF_MATRICES, {"generative_fields"}),
        (OF_WINDOWS, {"scatter", "presence", "images"}),
    ],
)
def test_figures_of_networks(options: dict[str, Any], figures: set[str]) -> None:
    torch.manual_seed(0)
    network = TransformingAutoencoder((1, 24, 24), **options)
    answer = poses(subject(network, CHANGES), shifts=(1,), degrees=(90,))
    assert {*answer.draw()} == figures


def test_scatter_of_images_in_which_a_capsule_is_there() -> None:
    poses = torch.rand(20, 3)
    presences = torch.ones(20, 3)
    presences[:15, 1] = 0.05
    presences[:, 0] = 0
    moved = {-3: poses - 3, 3: poses + 3}
    capsules = torch.tensor([2, 1, 0, 2])
    figure = shift_scatter(poses, moved, presences, capsules)
    of_two, of_one, nowhere = figure.axes[:3]
    below, above = points(of_two)
    assert len(below) == 20
    assert len(above) == 20
    np.testing.assert_allclose(above[:, 1], above[:, 0] + 3, atol=1e-6)
    np.testing.assert_allclose(below[:, 1], below[:, 0] - 3, atol=1e-6)
    assert [len(of_shift) for of_shift in points(of_one)] == [5, 5]
    assert [len(of_shift) for of_shift in points(nowhere)] == [0, 0]
    visible = [axes.get_visible() for axes in figure.axes]
    assert visible == [True, True, True, True, False, False]


def points(axes: Axes) -> list[np.ndarray]:
    """Return the points of each shift; every second line is the ideal one."""
    return [line.get_xydata() for line in axes.lines[::2]]
