"""Couplings that replace those of an image, in networks with known outputs."""

import copy
import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from capsule_lab.analysis.equal_couplings import equal_couplings
from capsule_lab.routing import DynamicRouting, NormalisedEMRouting, UniformRouting
from capsule_studies.questions.replaced_couplings import (
    _forward,
    _of_others,
    _reestimating,
    replaced_couplings,
)
from capsule_studies.tests.subjects import small_network, subject

ARMS = ("own", "mean", "exchanged", "same_class", "other_class", "equal")


def test_a_routing_without_agreement_has_the_same_error_with_all_couplings() -> None:
    network = small_network("capsnet", routing=UniformRouting)
    numbers = replaced_couplings(subject(network)).numbers
    for arm in ARMS:
        assert numbers[f"{arm}/error"] == numbers["own/error"]
    assert numbers["distance_of_own_from_mean"] == pytest.approx(0, abs=1e-6)
    assert numbers["distance_of_mean_from_equal"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("kind", ["capsnet", "em_caps"])
def test_own_couplings_in_one_pass_and_equal_ones_give_known_outputs(kind: str) -> None:
    asked = subject(small_network(kind))
    images = asked.batches[0].images
    expected = asked.network(images).ranking
    ranking, couplings = _forward(asked.network, images)
    torch.testing.assert_close(ranking, expected)
    with equal_couplings(asked.network):
        equal = asked.network(images).ranking
    ranking, _ = _forward(asked.network, images, ["equal"] * len(couplings))
    torch.testing.assert_close(ranking, equal)
    if kind == "capsnet":  # dynamic routing computes its parents from the last couplings alone
        ranking, _ = _forward(asked.network, images, couplings)
        torch.testing.assert_close(ranking, expected)


def test_mean_of_images_that_are_equal_changes_nothing() -> None:
    asked = subject(small_network("capsnet", routing=partial(DynamicRouting, iterations=3)))
    equal_images = asked.images[:1].expand_as(asked.images)
    same = asked.with_images(equal_images)
    of_same = replace(asked, batches=same, training=lambda _: same)
    numbers = replaced_couplings(of_same).numbers
    for arm in ("mean", "same_class", "other_class"):
        assert numbers[f"{arm}/error"] == numbers["own/error"]
    assert numbers["distance_of_own_from_mean"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    "labels",
    [
        [3, 0, 1, 0, 3, 3, 1, 2],
        [0, 0, 0, 0, 2, 0, 0, 0],  # a class has most of the images
        [1, 0, 1, 2, 1, 1, 2, 1],
    ],
)
def test_others_have_the_same_or_another_label(labels: list[int]) -> None:
    labels = torch.tensor(labels)
    is_alone = (labels.unsqueeze(1) == labels).sum(1) == 1
    couplings = torch.arange(16.0).view(16, 1, 1)  # two rows for each image
    for same in (True, False):
        (found,) = _of_others([couplings], labels, same=same)
        first_row, second_row = found.view(8, 2).unbind(1)
        assert torch.equal(second_row, first_row + 1)
        source = first_row.long() // 2
        is_same = labels[source] == labels
        assert (is_same == same).all()
        is_itself = source == torch.arange(8)
        assert not (is_itself & ~is_alone).any()


@pytest.mark.whole
def test_batches_of_one_class_have_no_couplings_of_another_class() -> None:
    asked = subject(small_network("capsnet"))
    first, last = asked.batches
    of_one = last._replace(labels=torch.zeros_like(last.labels))
    numbers = replaced_couplings(replace(asked, batches=[first, of_one])).numbers
    of_first = replaced_couplings(replace(asked, batches=[first])).numbers
    assert numbers["other_class/error"] == of_first["other_class/error"]
    numbers = replaced_couplings(replace(asked, batches=[of_one])).numbers
    assert math.isnan(numbers["other_class/error"])
    assert math.isfinite(numbers["mean/error"])


def test_leaky_couplings_have_no_equal_shares() -> None:
    asked = subject(small_network("capsnet", routing=partial(DynamicRouting, leaky=True)))
    with pytest.raises(ValueError, match=r"is leaky.*expected a network with routing.leaky=false"):
        replaced_couplings(asked)


@pytest.mark.whole
def test_statistics_are_estimated_again_and_restored() -> None:
    routing = partial(NormalisedEMRouting, iterations=2)
    asked = subject(small_network("em_caps", routing=routing, class_routing={}))
    before = copy.deepcopy(asked.network.state_dict())
    numbers = replaced_couplings(asked).numbers
    for arm in ARMS:
        assert f"{arm}/error_reestimated" in numbers
    for key, value in asked.network.state_dict().items():
        assert torch.equal(value, before[key])


def test_statistics_of_a_norm_are_those_of_the_rows_then_as_before() -> None:
    norm = torch.nn.BatchNorm1d(2).eval()
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(50, 2, generator=generator) + 3
    with _reestimating([norm]) as finish:
        norm(rows)
        finish()
        torch.testing.assert_close(norm.running_mean, rows.mean(0))
        assert not norm.training
    assert torch.equal(norm.running_mean, torch.zeros(2))
