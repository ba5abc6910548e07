import math

import pytest
import torch
from torch import Tensor

from capsule_lab.types import RoutingTrace
from capsule_studies.measures import votes as measures
from tests.helpers.golden_votes import golden_traces, golden_votes

GOLDEN_DISTANCES = [
    [3.320505748489, 3.296757306535, 3.235555195577],
    [3.333836464076, 3.346620436445, 3.188002098778],
    [3.607675785987, 3.973219481533, 2.734192952571],
]
GOLDEN_MEANS = [
    [2.623084513353, 2.613410995016, 2.605868079826],
    [2.648903950870, 2.588590685147, 2.586789198033],
    [2.684976544771, 2.197038108642, 2.409895844948],
]


@pytest.fixture(scope="module")
def em() -> list[RoutingTrace]:
    return golden_traces(em=True)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_golden_distances(em: list[RoutingTrace], number: int) -> None:
    votes, activations = golden_votes()
    iteration = em[number]
    expected = GOLDEN_DISTANCES[number]
    distances = measures.vote_distances(votes, iteration.poses)
    assert distances[0, 0].tolist() == pytest.approx(expected, rel=0, abs=1e-11)
    expected = GOLDEN_MEANS[number]
    means = measures.mean_distances(distances, iteration.couplings, activations)
    assert means[0].tolist() == pytest.approx(expected, rel=0, abs=1e-11)


def test_tightness() -> None:
    means = torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
    labels = torch.tensor([0, 2])
    ratio, rank = measures.tightness(means, labels)
    assert ratio.tolist() == [2.0, 0.25]
    assert rank.tolist() == [1, 3]


def auc(votes: Tensor, labels: Tensor) -> float:
    """The area for equal couplings and activations."""
    images, children, parents, _ = votes.shape
    couplings = torch.full((images, children, parents), 0.5)
    trace = RoutingTrace(0, couplings, votes.mean(1))
    activations = torch.ones(images, children)
    return measures.shuffled_auc(votes, trace, activations, labels)


def test_votes_that_cluster_are_told_from_shuffled_ones() -> None:
    """All votes of an image are near a pose that differs between images."""
    generator = torch.Generator().manual_seed(0)
    poses = torch.randn(40, 1, 1, 4, generator=generator)
    noise = torch.randn(40, 8, 2, 4, generator=generator)
    votes = poses + 0.1 * noise
    labels = torch.arange(40) % 2
    assert auc(votes, labels) > 0.99
    assert 0.3 < auc(noise, labels) < 0.7
    # the same votes for all of a class: shuffling within it changes nothing
    of_class = votes[:2][labels]
    assert auc(of_class, labels) == 0.5
    # an image without another of its class does not count
    assert math.isnan(auc(votes[:2], torch.tensor([0, 1])))
    of_nine = auc(votes[:9], torch.tensor([0] * 9))
    with_one_more = auc(votes[:10], torch.tensor([0] * 9 + [1]))
    assert of_nine > 0.9
    assert with_one_more == of_nine


def test_votes_that_move_together() -> None:
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(6, 3, generator=generator)
    weights = torch.rand(6, generator=generator) + 0.1
    share = measures.common_displacement(before, before + 2, weights)
    assert share == pytest.approx(1)


def test_votes_that_move_apart() -> None:
    before = torch.zeros(2, 1)
    after = torch.tensor([[1.0], [-1.0]])
    both_count = torch.ones(2)
    assert measures.common_displacement(before, after, both_count) == 0
    only_one_counts = torch.tensor([1.0, 0.0])
    share = measures.common_displacement(before, after, only_one_counts)
    assert share == pytest.approx(1)
