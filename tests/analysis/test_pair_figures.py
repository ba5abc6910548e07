from __future__ import annotations

import numpy as np
import pytest
import torch

from capsule_lab.analysis.pair_figures import generative_fields, image_rows, presence_curve, shift_scatter, strongest
from capsule_lab.networks import TransformingAutoencoder


def test_rows_in_the_range_of_the_last() -> None:
    standardised = torch.tensor([-1.0, 3.0]).view(1, 1, 1, 2).expand(2, 1, 4, 2)
    figure = image_rows({"first": standardised, "drawn": torch.full((2, 1, 4, 2), 7.0), "second": standardised})
    (image,) = figure.axes[0].images
    shown = np.asarray(image.get_array())
    assert shown[0, 0, 0] == 1  # dark on white: the smallest is white
    assert shown[0, 1, 0] == 0
    assert shown[5, 0, 0] == 0  # beyond the range
    assert [each.get_text() for each in figure.axes[0].get_yticklabels()] == ["first", "drawn", "second"]


def test_scatter_of_images_in_which_a_capsule_is_there() -> None:
    poses = torch.rand(20, 3)
    presences = torch.ones(20, 3)
    presences[:15, 1] = 0.05
    figure = shift_scatter(poses, {-3: poses - 3, 3: poses + 3}, presences, torch.tensor([2, 1]))
    of_two, of_one = figure.axes[:2]
    assert [len(line.get_xdata()) for line in of_two.lines[::2]] == [20, 20]
    assert [len(line.get_xdata()) for line in of_one.lines[::2]] == [5, 5]
    below, above = of_two.lines[::2]
    np.testing.assert_allclose(above.get_ydata(), np.asarray(above.get_xdata()) + 3, atol=1e-6)
    np.testing.assert_allclose(below.get_ydata(), np.asarray(below.get_xdata()) - 3, atol=1e-6)
    assert not figure.axes[2].get_visible()


def test_a_capsule_that_is_nowhere_is_drawn_without_points() -> None:
    figure = shift_scatter(torch.rand(5, 1), {3: torch.rand(5, 1)}, torch.zeros(5, 1), torch.tensor([0]))
    assert len(figure.axes[0].lines[0].get_xdata()) == 0


def test_fields_are_rows_of_weights() -> None:
    network = TransformingAutoencoder((1, 6, 5), capsules=3, generation=4)
    figure = generative_fields(network, torch.tensor([1, 0]))
    assert [each.get_text() for each in figure.axes[0].get_yticklabels()] == ["capsule 1", "capsule 0"]
    with pytest.raises(ValueError, match="expected window=null"):
        generative_fields(TransformingAutoencoder((1, 9, 9), capsules=None, window=3, patch=5), torch.tensor([0]))


def test_presences_over_shifts() -> None:
    presences = torch.rand(3, 4)
    figure = presence_curve([-1, 0, 1], presences, torch.tensor([2]))
    one, mean = figure.axes[0].lines
    np.testing.assert_allclose(one.get_ydata(), presences[:, 2])
    np.testing.assert_allclose(mean.get_ydata(), presences.mean(1))


def test_the_strongest_draw_most() -> None:
    assert strongest(torch.tensor([[1.0, 5.0, 2.0], [1.0, 0.0, 9.0]]), 2).tolist() == [2, 1]
