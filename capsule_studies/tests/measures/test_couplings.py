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
    _, activations = golden_votes()
    expected = [0.583413, 0.911878, 0.992487, 0.966747, 0.205296, 0.299890]
    entropy = measures.child_entropy(couplings)
    assert entropy[0].tolist() == pytest.approx(expected, rel=0, abs=1e-6)
    weighted = measures.weighted_entropy(couplings, activations)
    assert weighted.item() == pytest.approx(0.808424970215, abs=1e-11)
    t_score = measures.t_score(couplings)
    assert t_score.item() == pytest.approx(1 - 0.659951777124, abs=1e-11)


def test_entropy_of_couplings_that_do_not_sum_to_one_and_of_one_parent() -> None:
    leaky = torch.full((1, 1, 4), 0.1)
    entropy = measures.child_entropy(leaky)
    assert entropy.item() == pytest.approx(1)
    of_one_parent = measures.child_entropy(torch.ones(1, 1, 1))
    assert of_one_parent.item() == 0


def test_child_that_no_parent_sees_has_no_entropy_and_no_weight() -> None:
    couplings = torch.tensor([[[0.5, 0.5], [0.0, 0.0]]])
    seen = torch.tensor([[True, True], [False, False]])
    entropy = measures.child_entropy(couplings, seen)
    assert entropy[0, 0].item() == pytest.approx(1)
    assert entropy[0, 1].isnan()
    activations = torch.tensor([[0.2, 0.8]])
    weighted = measures.weighted_entropy(couplings, activations, seen)
    assert weighted.item() == pytest.approx(1)  # not 0.2, with the other as 0
    assert measures.t_score(couplings, seen).item() == pytest.approx(0, abs=1e-6)


def test_d_score_is_of_the_whole_set() -> None:
    activations = torch.tensor([[0.0, 0.5], [0.0, 0.5], [1.0, 0.5], [1.0, 0.5]])
    score = measures.d_score(activations)
    assert score.item() == 0.5
    # what a mean over batches would have said
    for batch in activations.split(2):
        of_batch = measures.d_score(batch)
        assert of_batch.item() == 0


def random_couplings(images: int = 200, children: int = 6, parents: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(images, children, parents, generator=generator).softmax(2)


def test_static_share_by_loops() -> None:
    couplings = random_couplings(7)
    within, over = [], []
    for child in range(6):
        of_child = couplings[:, child]
        variance = of_child.flatten().var(correction=0)
        over.append(variance.item())
        for parent in range(4):
            variance = of_child[:, parent].var(correction=0)
            within.append(variance.item())
    expected = 1 - fmean(within) / fmean(over)
    share = measures.static_share(couplings)
    assert share.item() == pytest.approx(expected, rel=1e-5)
    same_for_all = couplings[:1].expand(5, -1, -1)
    share = measures.static_share(same_for_all)
    assert share.item() == pytest.approx(1)


@pytest.mark.parametrize("difference", [0, 1e-6, 1e-4])
def test_static_share_of_couplings_that_hardly_differ(difference: float) -> None:
    """Whether couplings differ is a question of rounding, not of the numbers of children and parents."""
    couplings = torch.full((5, 3, 16), 1 / 16)
    couplings[:, 0, 0] += difference
    share = measures.static_share(couplings).item()
    if difference:
        assert share == pytest.approx(1, abs=1e-4)
    else:
        assert math.isnan(share)


def test_strongest_parent_is_none_where_several_are_equal() -> None:
    third = 1 / 3 + torch.tensor([0, 1e-7, -1e-7])
    couplings = torch.stack([torch.tensor([0.2, 0.2, 0.6]), third, torch.zeros(3)])
    assert measures.strongest_parent(couplings).tolist() == [2, -1, -1]
    of_one_parent = measures.strongest_parent(torch.ones(4, 1))
    assert of_one_parent.tolist() == [0, 0, 0, 0]


def test_changes_are_of_children_with_a_strongest_parent_at_both_times() -> None:
    first, second, equal = torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.5, 0.5]])
    before = torch.stack([first, first, equal, first])
    after = torch.stack([first, second, second, equal])
    share = measures.parent_changes(before[None], after[None])
    assert share.item() == 0.5
    undecided = measures.parent_changes(equal.expand(1, 4, 2), after[None])
    assert undecided.isnan()


def test_class_information_of_a_parent_per_class() -> None:
    labels = torch.arange(4).repeat(5)
    parents = torch.nn.functional.one_hot(labels, 4).float()
    couplings = parents.unsqueeze(1).expand(-1, 3, -1)
    information = measures.class_information(couplings, labels, 4)
    assert information.item() == pytest.approx(2)  # bits


def test_class_information_of_random_couplings_is_the_bias() -> None:
    images = 2000
    labels = torch.arange(images) % 4
    chance = measures.class_information(random_couplings(images), labels, 4)
    bias = 3 * 3 / (2 * images * math.log(2))
    assert chance.item() == pytest.approx(bias, rel=0.5)


def test_starved_parents() -> None:
    mass = torch.tensor([[0.998, 0.002, 0.0], [0.002, 0.998, 0.0]])
    share = measures.starved_share(mass)
    assert share.item() == pytest.approx(1 / 3)


def test_trees_of_two_classes() -> None:
    """The three images of the first class have two trees, those of the second one."""
    one = torch.tensor([[0.9, 0.1]])
    other = torch.tensor([[0.1, 0.9]])
    couplings = torch.stack([one, one + 0.001, other, one, one, one])
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    found = measures.count_trees(couplings, labels)
    entropy = -(math.log2(1 / 3) + 2 * math.log2(2 / 3)) / 3
    assert [*found.values()] == pytest.approx([1.5, entropy / 2, 3])


def test_logit_change_is_what_routing_adds() -> None:
    votes, _ = golden_votes()
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
    distances = []
    for child in range(2):
        for parent in range(3):
            matrix = weight[child, :, parent]
            left, values, right = torch.linalg.svd(matrix)
            nearest = values.mean() * left @ right
            distance = (matrix - nearest).norm() / matrix.norm()
            distances.append(distance.item())
    found = measures.distance_from_orthogonal(weight)
    assert found == pytest.approx(fmean(distances), rel=1e-5)
    orthogonal, _ = torch.linalg.qr(weight[0, :, 0])
    scaled = 3 * orthogonal.view(1, 4, 1, 4)
    assert measures.distance_from_orthogonal(scaled) == pytest.approx(0, abs=1e-6)
