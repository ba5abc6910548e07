import math

import pytest
import torch
from torch import Tensor

from capsule_lab.types import RoutingTrace
from capsule_studies.measures import votes as measures
from tests.helpers.golden_votes import golden_traces, golden_votes

GOLDEN = [
    (
        0,
        [3.320505748489, 3.296757306535, 3.235555195577],
        [2.623084513353, 2.613410995016, 2.605868079826],
    ),
    (
        1,
        [3.333836464076, 3.346620436445, 3.188002098778],
        [2.648903950870, 2.588590685147, 2.586789198033],
    ),
    (
        2,
        [3.607675785987, 3.973219481533, 2.734192952571],
        [2.684976544771, 2.197038108642, 2.409895844948],
    ),
]


@pytest.fixture(scope="module")
def em() -> list[RoutingTrace]:
    return golden_traces(em=True)


def close(found: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-11
    )


def test_golden_distances(em: list[RoutingTrace]) -> None:
    for iteration, distances, means in GOLDEN:
        votes, activations = golden_votes()
        found = measures.vote_distances(votes, em[iteration].poses)
        close(found[0, 0], distances)
        close(measures.mean_distances(found, em[iteration].couplings, activations)[0], means)


def test_tightness() -> None:
    means = torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
    found = measures.tightness(means, torch.tensor([0, 2]))
    torch.testing.assert_close(found[0], torch.tensor([2.0, 0.25]))
    assert found[1].tolist() == [1, 3]


def test_votes_that_cluster_are_told_from_shuffled_ones() -> None:
    """Each image has a pose of its own, which its children's votes for any class are near."""
    generator = torch.Generator().manual_seed(0)
    poses = torch.randn(40, 1, 1, 4, generator=generator)
    noise = torch.randn(40, 8, 2, 4, generator=generator)
    votes, labels = poses + 0.1 * noise, torch.arange(40) % 2
    trace = RoutingTrace(0, torch.full((40, 8, 2), 0.5), votes.mean(1))
    assert measures.shuffled_auc(votes, trace, torch.ones(40, 8), labels) > 0.99
    assert 0.3 < measures.shuffled_auc(noise, trace, torch.ones(40, 8), labels) < 0.7
    of_class = votes[:2][
        labels
    ]  # the same votes for all of a class: shuffling within it changes nothing
    assert measures.shuffled_auc(of_class, trace, torch.ones(40, 8), labels) == 0.5

    def of(labels: list[int]) -> float:
        part = RoutingTrace(0, trace.couplings[: len(labels)], trace.poses[: len(labels)])
        return measures.shuffled_auc(
            votes[: len(labels)], part, torch.ones(len(labels), 8), torch.tensor(labels)
        )

    assert math.isnan(of([0, 1])), "an image without another of its class does not count"
    assert of([0] * 9 + [1]) == of([0] * 9) > 0.9


def test_common_displacement() -> None:
    before = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    assert measures.common_displacement(before, before + 2, torch.rand(6) + 0.1) == pytest.approx(1)
    start, apart = torch.zeros(2, 1), torch.tensor([[1.0], [-1.0]])
    assert measures.common_displacement(start, apart, torch.ones(2)) == 0
    assert measures.common_displacement(start, apart, torch.tensor([1.0, 0.0])) == pytest.approx(
        1
    ), "without weight"
