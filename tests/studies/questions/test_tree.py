from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from capsule_lab.analysis.trace import ChildGrid
from capsule_lab.studies.questions.tree import _alike, _heaviest, _longest, _random_of_same_activation, silent, tree
from tests.helpers.subjects import small_network, subject


def right(images: Tensor, pixels: float) -> Tensor:
    return images.roll(round(pixels), 3)


def asked(kind: str = "em_caps") -> Any:
    return subject(small_network(kind), {"translation": right})


def test_heaviest_branches_make_up_what_is_wanted() -> None:
    weights = torch.tensor([[0.1, 0.5, 0.0, 0.4], [0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 0.0, 0.0]])
    found = _heaviest(weights, torch.tensor([0.6, 0.5, 0.1]))
    assert found.tolist() == [[False, True, False, True], [True, True, False, False], [False] * 4]


def test_one_image_of_each_class_is_like_no_other() -> None:
    grid, weights = ChildGrid(1, 1, 3, by_type=True), torch.eye(3)
    found = _alike(weights, grid, torch.arange(3))
    assert math.isnan(found["alike_within"])
    assert found["alike_between"] == 0


def test_longest_are_as_many() -> None:
    found = _longest(torch.tensor([[3.0, 1.0, 2.0], [1.0, 2.0, 3.0]]), torch.tensor([2, 1]))
    assert found.tolist() == [[True, False, True], [False, False, True]]


def test_random_others_are_as_active() -> None:
    activations = torch.rand(50, 40, generator=torch.Generator().manual_seed(1))
    chosen = torch.zeros(50, 40, dtype=torch.bool)
    chosen[:, :5] = True
    found = _random_of_same_activation(activations, chosen)
    assert not (found & chosen).any()
    difference = (activations * found).sum(1) - activations[:, :5].sum(1)
    assert (difference >= 0).all()
    assert (difference < 1).all()


def test_silent_children_do_not_count() -> None:
    """Silencing all children but those of one image leaves that image as it is."""
    network = small_network()
    question = subject(network)
    children = question.traces["classes"].children.activations
    chosen = torch.ones_like(children, dtype=torch.bool)
    chosen[3] = False
    with silent(question, "classes", chosen):
        after = question.outputs().ranking
    before = question.outputs().ranking
    torch.testing.assert_close(after[3], before[3])
    assert not torch.allclose(after[4], before[4])


def test_poses_of_silent_children_are_zero() -> None:
    network = small_network("capsnet", routing=_no_bias())
    question = subject(network)
    chosen = torch.ones_like(question.traces["digits"].children.activations, dtype=torch.bool)
    with silent(question, "digits", chosen):
        assert float(question.outputs().scores.abs().max()) < 1e-3


def test_silenced_by_a_share() -> None:
    """Half of all activations and votes of EM routing: the same couplings, half the mass."""
    network = small_network("capsnet", routing=_no_bias())
    question = subject(network)
    children = question.traces["digits"].children.activations
    with silent(question, "digits", torch.full_like(children, 0.5)):
        less = question.outputs().scores
    before = question.outputs().scores
    with silent(question, "digits", torch.zeros_like(children)):
        torch.testing.assert_close(question.outputs().scores, before)
    assert (less < before).all()


def _no_bias() -> Any:
    from functools import partial

    from capsule_lab.routing import DynamicRouting

    return partial(DynamicRouting, bias=False)


def test_figure() -> None:
    figure = tree(asked(), shown=1).draw()["trees"]
    *panels, colours = figure.axes
    assert [axis.get_title().split()[0] for axis in panels[::2]] == ["image"]
    assert colours.get_ylabel() == "type of child"
    assert colours.get_ylim() == (-0.5, 2.5)  # of the layer with most
