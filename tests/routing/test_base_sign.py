"""Peer 2021: which routings cannot tell an image from one whose votes are all of the opposite sign."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from capsule_lab.routing import (
    AbstractRouting,
    AttentionOverChildren,
    DynamicRouting,
    EMRouting,
    HeinsenRouting,
    InvertedAttention,
    LayerInfo,
    NormalisedEMRouting,
    RandomCouplings,
    ScaledDistanceAgreement,
    SelfAttentionRouting,
    UniformRouting,
    VariationalBayesRouting,
)
from tests.helpers.changes_of_votes import example

BLIND: list[tuple[type[AbstractRouting], dict[str, Any]]] = [
    (DynamicRouting, {"bias": False}),
    (UniformRouting, {"bias": False}),
    (RandomCouplings, {"bias": False}),
    (ScaledDistanceAgreement, {"bias": False}),
    (EMRouting, {}),
    (NormalisedEMRouting, {}),
    (VariationalBayesRouting, {}),
    (HeinsenRouting, {"bias": False}),
    (SelfAttentionRouting, {}),
    (SelfAttentionRouting, {"prior": False}),
    (InvertedAttention, {}),  # until its layer normalisation has learned a shift
]
SEEING: list[tuple[type[AbstractRouting], dict[str, Any]]] = [
    (DynamicRouting, {}),
    (UniformRouting, {}),
    (RandomCouplings, {}),
    (ScaledDistanceAgreement, {}),
    (HeinsenRouting, {}),
    (InvertedAttention, {}),
    (AttentionOverChildren, {}),
]


def activations_of(kind: type[AbstractRouting], options: dict[str, Any], *, trained: bool) -> list[torch.Tensor]:
    """Activations of the parents for votes, and for their negatives; of ``trained``, with random parameters."""
    votes, present = example()
    torch.manual_seed(0)
    routing = kind(parents=3, dim=16, **options)
    routing.build(LayerInfo(parents=3, dim=16, children=6, child_dim=16, shared=False, child_types=6))
    routing = routing.double().eval()
    if trained:
        with torch.no_grad():
            for parameter in routing.parameters():
                parameter += 0.3 * torch.randn(parameter.shape, dtype=torch.float64)
    return [routing(each, present).activations for each in (votes, -votes)]


@pytest.mark.parametrize(("kind", "options"), BLIND)
def test_cannot_tell(kind: type[AbstractRouting], options: dict[str, Any]) -> None:
    before, after = activations_of(kind, options, trained=False)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-12)


LEARNED = [each for each in BLIND if each[0] is not InvertedAttention]


@pytest.mark.parametrize(("kind", "options"), LEARNED)
def test_learns_nothing_that_could(kind: type[AbstractRouting], options: dict[str, Any]) -> None:
    before, after = activations_of(kind, options, trained=True)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "options"), SEEING)
def test_can_tell_once_it_has_learned(kind: type[AbstractRouting], options: dict[str, Any]) -> None:
    before, after = activations_of(kind, options, trained=True)
    assert (after - before).abs().max() > 1e-4
