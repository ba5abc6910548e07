from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from capsule_lab.studies.measures import votes as measures
from capsule_lab.types import RoutingTrace
from tests.helpers.golden_votes import golden_traces, golden_votes

GOLDEN = [
    (0, [3.320505748489, 3.296757306535, 3.235555195577], [2.623084513353, 2.613410995016, 2.605868079826]),
    (1, [3.333836464076, 3.346620436445, 3.188002098778], [2.648903950870, 2.588590685147, 2.586789198033]),
    (2, [3.607675785987, 3.973219481533, 2.734192952571], [2.684976544771, 2.197038108642, 2.409895844948]),
]


@pytest.fixture(scope="module")
def em() -> list[RoutingTrace]:
    return golden_traces(em=True)


def close(found: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-11)


def test_golden_distances(em: list[RoutingTrace]) -> None:
    for iteration, distances, means in GOLDEN:
        votes, activations = golden_votes()
        found = measures.vote_distances(votes, em[iteration].poses)
        close(found[0, 0], distances)
        close(measures.mean_distances(found, em[iteration].couplings, activations)[0], means)


def test_couplings_of_the_next_e_step_are_other_numbers(em: list[RoutingTrace]) -> None:
    """A histogram with couplings of the next E-step is a mistake that is easy to make: means would be these."""
    votes, activations = golden_votes()
    found = measures.mean_distances(measures.vote_distances(votes, em[1].poses), em[2].couplings, activations)
    assert ((found[0] - torch.tensor(GOLDEN[1][2], dtype=torch.float64)).abs() > 0.01).any()


def test_cosines_do_not_see_lengths() -> None:
    votes = torch.tensor([[3.0, 4.0], [-6.0, -8.0]]).view(1, 2, 1, 2)
    found = measures.vote_cosines(votes, torch.tensor([0.3, 0.4]).view(1, 1, 2))
    torch.testing.assert_close(found.flatten(), torch.tensor([1.0, -1.0]))


def test_tightness() -> None:
    means = torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
    found = measures.tightness(means, torch.tensor([0, 2]))
    torch.testing.assert_close(found.ratio, torch.tensor([2.0, 0.25]))
    assert found.rank.tolist() == [1, 3]


def test_histogram_has_the_weight_of_its_votes(em: list[RoutingTrace]) -> None:
    votes, _ = golden_votes()
    distances = measures.vote_distances(votes, em[2].poses)[0, :, 1]
    weights = em[2].couplings[0, :, 1]
    found = measures.distance_histogram(
        distances, weights, torch.linspace(0, float(distances.max()), 13, dtype=torch.float64)
    )
    assert float(found.sum()) == pytest.approx(float(weights.sum()))


def test_histogram_leaves_out_what_is_beyond() -> None:
    edges = torch.tensor([0.0, 1.0, 2.0])
    found = measures.distance_histogram(torch.tensor([0.5, 1.0, 2.0, 2.1]), torch.ones(4), edges)
    assert found.tolist() == [1, 2]


def clustered(images: int = 40, noise: float = 0.1) -> tuple[Tensor, RoutingTrace, Tensor, Tensor]:
    """Each image has a pose of its own, which its children's votes for any class are near."""
    generator = torch.Generator().manual_seed(0)
    poses = torch.randn(images, 1, 1, 4, generator=generator)
    votes = poses + noise * torch.randn(images, 8, 2, 4, generator=generator)
    couplings = torch.full((images, 8, 2), 0.5)
    trace = RoutingTrace(0, couplings, votes.mean(1))
    return votes, trace, torch.ones(images, 8), torch.arange(images) % 2


def test_votes_that_cluster_are_told_from_shuffled_ones() -> None:
    assert measures.shuffled_auc(*clustered()) > 0.99


def test_votes_that_do_not_are_not() -> None:
    votes, *others = clustered()
    noise = torch.randn(votes.shape, generator=torch.Generator().manual_seed(1))
    assert 0.3 < measures.shuffled_auc(noise, *others) < 0.7


def test_an_image_without_another_of_its_class_does_not_count() -> None:
    votes, trace, activations, _ = clustered()

    def of(labels: list[int]) -> float:
        first = slice(len(labels))
        part = RoutingTrace(0, trace.couplings[first], trace.poses[first])
        return measures.shuffled_auc(votes[first], part, activations[first], torch.tensor(labels))

    assert math.isnan(of([0, 1]))
    assert of([0] * 9 + [1]) == of([0] * 9) > 0.9


def test_votes_are_shuffled_within_their_class() -> None:
    """Where all images of a class have the same votes, shuffling changes nothing, however the classes differ."""
    votes, trace, activations, labels = clustered()
    of_class = votes[:2][labels]
    assert measures.shuffled_auc(of_class, trace, activations, labels) == 0.5


def test_cluster_that_moves_as_one() -> None:
    before = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    assert measures.common_displacement(before, before + 2, torch.rand(6) + 0.1) == pytest.approx(1)


def test_votes_that_move_apart() -> None:
    before = torch.zeros(2, 1)
    assert measures.common_displacement(before, torch.tensor([[1.0], [-1.0]]), torch.ones(2)) == 0


def test_votes_without_weight_do_not_count() -> None:
    before, after = torch.zeros(2, 1), torch.tensor([[1.0], [-1.0]])
    assert measures.common_displacement(before, after, torch.tensor([1.0, 0.0])) == pytest.approx(1)
