"""Couplings that replace those of an image, in networks whose answers are known."""

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
    numbers = replaced_couplings(subject(small_network("capsnet", routing=UniformRouting))).numbers
    assert len({numbers[f"{arm}/error"] for arm in ARMS}) == 1
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
    torch.testing.assert_close(
        _forward(asked.network, images, ["equal"] * len(couplings))[0], equal
    )
    if kind == "capsnet":  # dynamic routing computes its parents from the last couplings alone
        torch.testing.assert_close(_forward(asked.network, images, couplings)[0], expected)


def test_mean_of_images_that_are_equal_changes_nothing() -> None:
    asked = subject(small_network("capsnet", routing=partial(DynamicRouting, iterations=3)))
    same = [
        batch._replace(images=asked.batches[0].images[:1].expand_as(batch.images))
        for batch in asked.batches
    ]
    numbers = replaced_couplings(replace(asked, batches=same, training=lambda _: same)).numbers
    assert (
        numbers["mean/error"]
        == numbers["same_class/error"]
        == numbers["other_class/error"]
        == numbers["own/error"]
    )
    assert numbers["distance_of_own_from_mean"] == pytest.approx(0, abs=1e-6)


def test_others_have_the_same_or_another_label() -> None:
    labels = torch.tensor([3, 0, 1, 0, 3, 3, 1, 2])
    couplings = [torch.arange(16.0).view(16, 1, 1)]  # two rows for each image
    for same in (True, False):
        (found,) = _of_others(couplings, labels, same=same)
        source = found.view(8, 2)
        assert torch.equal(source[:, 1], source[:, 0] + 1)
        images = source[:, 0].long() // 2
        assert ((labels[images] == labels) == same).all()
        alone = labels == 2
        assert (images[~alone] != torch.arange(8)[~alone]).all()


def test_statistics_are_estimated_again_and_restored() -> None:
    routing = partial(NormalisedEMRouting, iterations=2)
    asked = subject(small_network("em_caps", routing=routing, class_routing={}))
    before = {key: value.clone() for key, value in asked.network.state_dict().items()}
    numbers = replaced_couplings(asked).numbers
    assert {f"{arm}/error_reestimated" for arm in ARMS} <= numbers.keys()
    assert all(torch.equal(value, before[key]) for key, value in asked.network.state_dict().items())
    norm = torch.nn.BatchNorm1d(2).eval()
    rows = torch.randn(50, 2, generator=torch.Generator().manual_seed(0)) + 3
    with _reestimating([norm]) as finish:
        norm(rows)
        finish()
        torch.testing.assert_close(norm.running_mean, rows.mean(0))
        assert not norm.training
    assert torch.equal(norm.running_mean, torch.zeros(2))
