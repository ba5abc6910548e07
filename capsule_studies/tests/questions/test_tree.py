import math
from functools import partial

import pytest
import torch
from torch import Tensor

from capsule_lab.analysis.trace import ChildGrid
from capsule_lab.networks import SelfRoutingNet
from capsule_lab.routing import DynamicRouting, UniformRouting
from capsule_studies.questions.tree import (
    _alike,
    _heaviest,
    _random_of_same_activation,
    silent,
    tree,
)
from capsule_studies.tests.subjects import small_network, subject


def test_heaviest_branches_make_up_what_is_wanted() -> None:
    weights = torch.tensor([[0.1, 0.5, 0.0, 0.4], [0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 0.0, 0.0]])
    targets = torch.tensor([0.6, 0.5, 0.1])
    found = _heaviest(weights, targets)
    assert found[0].tolist() == [False, True, False, True]
    assert found[1].tolist() == [True, True, False, False]
    assert found[2].tolist() == [False, False, False, False]


def test_one_image_of_each_class_is_like_no_other() -> None:
    grid = ChildGrid(1, 1, 3, by_type=True)
    weights = torch.eye(3)
    labels = torch.arange(3)
    found = _alike(weights, grid, labels)
    assert math.isnan(found["alike_within"])
    assert found["alike_between"] == 0


def test_random_others_are_as_active() -> None:
    generator = torch.Generator().manual_seed(1)
    activations = torch.rand(50, 40, generator=generator)
    chosen = torch.zeros(50, 40, dtype=torch.bool)
    chosen[:, :5] = True
    found = _random_of_same_activation(activations, chosen)
    assert not (found & chosen).any()
    of_chosen = (activations * chosen).sum(1)
    of_found = (activations * found).sum(1)
    difference = of_found - of_chosen
    assert (difference >= 0).all()
    assert (difference < 1).all()


def test_silent_children_do_not_count() -> None:
    """Silencing the children of all other images does not change an image's output."""
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


def test_activations_that_the_routing_ignores_do_not_weight_the_tree() -> None:
    """Dynamic routing in EMCaps: nothing trains the layer of activations."""
    network = small_network(routing=DynamicRouting)
    before = tree(subject(network)).numbers
    with torch.no_grad():
        for parameter in network.primary.activation.parameters():
            parameter.add_(torch.randn_like(parameter))
    after = tree(subject(network)).numbers
    assert after == pytest.approx(before, nan_ok=True)


def test_silenced_by_a_share() -> None:
    question = subject(small_network("capsnet", routing=partial(DynamicRouting, bias=False)))
    activations = question.traces["digits"].children.activations

    def scores(share: float) -> Tensor:
        shares = torch.full_like(activations, share)
        with silent(question, "digits", shares):
            return question.outputs().scores

    before = question.outputs().scores
    torch.testing.assert_close(scores(0), before)
    assert (scores(0.5) < before).all()
    largest = scores(1).abs().max()
    assert largest < 1e-3


@pytest.mark.parametrize("favoured", [pytest.param(0, marks=pytest.mark.whole), 3])
def test_equal_couplings_are_no_tree_of_any_class(favoured: int) -> None:
    network = small_network("capsnet", routing=UniformRouting)
    with torch.no_grad():
        network.digits.routing.bias[favoured] += 2
    numbers = tree(subject(network), shown=0).numbers
    assert numbers["digits/mass_in_tree"] == numbers["digits/branches"] == 0
    others = [value for key, value in numbers.items() if key.split("/")[1] not in TREELESS]
    assert others
    assert all(map(math.isnan, others))


TREELESS = ("mass_in_tree", "branches")


@pytest.mark.whole
def test_votes_without_components_have_no_lengths() -> None:
    torch.manual_seed(0)
    network = SelfRoutingNet((1, 24, 24), 4, trunk="convnet", planes=4, types=2, dim=4)
    for parameter in network.classes.parameters():
        torch.nn.init.normal_(parameter)  # couplings are equal before training
    numbers = tree(subject(network), shown=0).numbers
    assert math.isnan(numbers["classes/drop_of_votes"])
    assert math.isfinite(numbers["classes/drop_of_tree"])
