import math
from itertools import pairwise
from statistics import fmean

import pytest
import torch
from torch import Tensor

from capsule_lab.routing import dynamic_routing
from capsule_lab.types import RoutingTrace
from capsule_studies.measures import couplings as measures
from tests.helpers.golden_votes import golden_traces, golden_votes


@pytest.fixture(scope="module")
def em() -> list[RoutingTrace]:
    return golden_traces(em=True)


def test_golden_entropy_and_t_score(em: list[RoutingTrace]) -> None:
    couplings = em[2].couplings
    expected = [0.583413, 0.911878, 0.992487, 0.966747, 0.205296, 0.299890]
    entropy = measures.child_entropy(couplings)
    assert entropy[0].tolist() == pytest.approx(expected, rel=0, abs=1e-6)
    _, activations = golden_votes()
    weighted = measures.weighted_entropy(couplings, activations)
    assert float(weighted) == pytest.approx(0.808424970215, abs=1e-11)
    t_score = measures.t_score(couplings)
    assert float(t_score) == pytest.approx(1 - 0.659951777124, abs=1e-11)
    leaky = torch.full((1, 1, 4), 0.1)
    assert float(measures.child_entropy(leaky)) == pytest.approx(1)
    of_one_parent = torch.ones(1, 1, 1)
    assert float(measures.child_entropy(of_one_parent)) == 0


def test_d_score_is_of_the_whole_set() -> None:
    activations = torch.tensor([[0.0, 0.5], [0.0, 0.5], [1.0, 0.5], [1.0, 0.5]])
    assert float(measures.d_score(activations)) == 0.5
    # what a mean over batches would have said
    for batch in activations.split(2):
        assert float(measures.d_score(batch)) == 0


def random_couplings(images: int = 200, children: int = 6, parents: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(images, children, parents, generator=generator).softmax(2)


def test_static_share_by_loops() -> None:
    couplings = random_couplings(7)
    within, over = [], []
    for child in range(6):
        of_child = couplings[:, child]
        over.append(float(of_child.flatten().var(correction=0)))
        for parent in range(4):
            within.append(float(of_child[:, parent].var(correction=0)))
    expected = 1 - fmean(within) / fmean(over)
    assert float(measures.static_share(couplings)) == pytest.approx(expected, rel=1e-5)
    same_for_all = couplings[:1].expand(5, -1, -1)
    assert float(measures.static_share(same_for_all)) == pytest.approx(1)


def test_class_information_of_a_parent_per_class() -> None:
    labels = torch.arange(4).repeat(5)
    parents = torch.nn.functional.one_hot(labels, 4).float()
    couplings = parents.unsqueeze(1).expand(-1, 3, -1)
    information = measures.class_information(couplings, labels, 4)
    assert float(information) == pytest.approx(2)  # bits
    labels = torch.arange(2000) % 4
    chance = measures.class_information(random_couplings(2000), labels, 4)
    bias = 3 * 3 / (2 * 2000 * math.log(2))
    assert float(chance) == pytest.approx(bias, rel=0.5)


def test_starved_parents_and_trees_of_two_classes() -> None:
    mass = torch.tensor([[0.998, 0.002, 0.0], [0.002, 0.998, 0.0]])
    assert float(measures.starved_share(mass)) == pytest.approx(1 / 3)
    one, other = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.1, 0.9]])
    couplings = torch.stack([one, one + 0.001, other, one, one, one])
    found = measures.count_trees(couplings, torch.tensor([0, 0, 0, 1, 1, 1]))
    half_of = -(math.log2(1 / 3) + 2 * math.log2(2 / 3)) / 3
    assert [*found.values()] == pytest.approx([1.5, half_of / 2, 3])


def test_logit_change_is_what_routing_adds() -> None:
    votes = golden_votes()[0]
    traces: list[RoutingTrace] = []
    dynamic_routing(votes, iterations=4, on_iteration=traces.append)
    for before, after in pairwise(traces):
        added = torch.einsum("bijd,bjd->bij", votes, before.poses)
        logits = before.couplings.log() + added
        torch.testing.assert_close(logits.softmax(2), after.couplings)  # the change is this one
        change = measures.logit_change(votes, before.poses)
        torch.testing.assert_close(change, added.abs().mean())


def test_distance_from_orthogonal_is_that_of_the_nearest() -> None:
    weight = torch.randn(2, 4, 3, 4, generator=torch.Generator().manual_seed(0))
    expected = []
    for child in range(2):
        for parent in range(3):
            matrix = weight[child, :, parent]
            left, values, right = torch.linalg.svd(matrix)
            nearest = values.mean() * left @ right
            expected.append(float((matrix - nearest).norm() / matrix.norm()))
    assert measures.distance_from_orthogonal(weight) == pytest.approx(fmean(expected), rel=1e-5)
    orthogonal, _ = torch.linalg.qr(weight[0, :, 0])
    distance = measures.distance_from_orthogonal(3 * orthogonal.view(1, 4, 1, 4))
    assert distance == pytest.approx(0, abs=1e-6), "at any scale"
