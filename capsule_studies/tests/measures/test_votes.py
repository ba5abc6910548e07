import math

import pytest
import torch

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
    distances = measures.vote_distances(votes, iteration.poses)
    assert distances[0, 0].tolist() == pytest.approx(GOLDEN_DISTANCES[number], rel=0, abs=1e-11)
    means = measures.mean_distances(distances, iteration.couplings, activations)
    assert means[0].tolist() == pytest.approx(GOLDEN_MEANS[number], rel=0, abs=1e-11)


def test_tightness() -> None:
    means = torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
    ratio, rank = measures.tightness(means, torch.tensor([0, 2]))
    assert ratio.tolist() == [2.0, 0.25]
    assert rank.tolist() == [1, 3]


def test_votes_that_cluster_are_told_from_shuffled_ones() -> None:
    """All votes of an image are near a pose that differs between images."""
    generator = torch.Generator().manual_seed(0)
    poses = torch.randn(40, 1, 1, 4, generator=generator)
    noise = torch.randn(40, 8, 2, 4, generator=generator)
    votes, labels = poses + 0.1 * noise, torch.arange(40) % 2
    trace = RoutingTrace(0, torch.full((40, 8, 2), 0.5), votes.mean(1))
    assert measures.shuffled_auc(votes, trace, torch.ones(40, 8), labels) > 0.99
    assert 0.3 < measures.shuffled_auc(noise, trace, torch.ones(40, 8), labels) < 0.7
    # the same votes for all of a class: shuffling within it changes nothing
    of_class = votes[:2][labels]
    assert measures.shuffled_auc(of_class, trace, torch.ones(40, 8), labels) == 0.5

    def of_first(labels: list[int]) -> float:
        images = len(labels)
        part = RoutingTrace(0, trace.couplings[:images], trace.poses[:images])
        activations = torch.ones(images, 8)
        return measures.shuffled_auc(votes[:images], part, activations, torch.tensor(labels))

    assert math.isnan(of_first([0, 1])), "an image without another of its class does not count"
    assert of_first([0] * 9 + [1]) == of_first([0] * 9) > 0.9


def test_common_displacement() -> None:
    before = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    together = measures.common_displacement(before, before + 2, torch.rand(6) + 0.1)
    assert together == pytest.approx(1)
    start, apart = torch.zeros(2, 1), torch.tensor([[1.0], [-1.0]])
    assert measures.common_displacement(start, apart, torch.ones(2)) == 0
    only_one_counts = torch.tensor([1.0, 0.0])
    assert measures.common_displacement(start, apart, only_one_counts) == pytest.approx(1)
