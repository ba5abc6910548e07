"""What layers tell a routing, routings that want the vote tensor, and those that cannot see its sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, einsum, nn

from capsule_lab import routing as routings
from capsule_lab.functional import dense_votes, length, with_dense_votes
from capsule_lab.layers import ClassCapsules, ConvCapsules, DenseCapsules
from capsule_lab.routing import (
    AbstractRouting,
    DynamicRouting,
    EMRouting,
    LayerInfo,
    UniformRouting,
    dynamic_routing,
)
from capsule_lab.types import Capsules, Votes
from tests.helpers.changes_of_votes import example


class LearnedCouplings(AbstractRouting):
    """A logit for every (kind of child, parent): learned, with no routing in the forward pass."""

    def __init__(self, parents: int, dim: int) -> None:
        super().__init__()
        self.sizes = (parents, dim)

    def build(self, layer: LayerInfo) -> None:
        self.layer = layer
        self.logits = nn.Parameter(torch.linspace(-1, 1, layer.parents * layer.child_types).view(layer.parents, -1))

    @with_dense_votes
    def forward(self, votes: Tensor, activations: Tensor | None = None, **_: Any) -> Capsules:
        logits = self.logits.repeat(1, self.layer.children // self.layer.child_types)  # [j i]
        poses = einsum("ji,bijd->bjd", logits.softmax(0), votes)
        return Capsules(poses, length(poses))


LAYERS: dict[str, tuple[Callable[[], Any], LayerInfo]] = {
    "dense": (
        lambda: DenseCapsules(12, 6, 3, 8, routing=LearnedCouplings),
        LayerInfo(parents=3, dim=8, children=12, child_dim=6, shared=False, child_types=12),
    ),
    "convolutional": (
        lambda: ConvCapsules((3, 2), 2, 6, 3, 8, kernel_size=2, routing=LearnedCouplings),
        LayerInfo(parents=3, dim=8, children=8, child_dim=6, shared=True, child_types=8),
    ),
    "class": (
        lambda: ClassCapsules(6, 2, 6, 3, 8, routing=LearnedCouplings, coordinates=torch.rand(6, 8)),
        LayerInfo(parents=3, dim=8, children=12, child_dim=6, shared=True, child_types=2),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_routing_learns_about_its_layer(name: str) -> None:
    build, expected = LAYERS[name]
    layer = build()
    assert layer.routing.layer == expected
    assert layer.routing.sizes == (expected.parents, expected.dim)
    parents = layer(torch.rand(2, 12, 6), torch.rand(2, 12))
    assert parents.poses.shape == (2, 3 * (2 if name == "convolutional" else 1), 8)
    parents.poses.square().sum().backward()
    assert layer.routing.logits.grad.abs().min() > 0
    assert "routing.logits" in dict(layer.named_parameters())


def test_with_dense_votes() -> None:
    votes = Votes(torch.rand(2, 5, 4), torch.rand(5, 4, 3, 8))
    seen: list[Any] = []

    @with_dense_votes
    def keep(*given: Any, **named: Any) -> None:
        seen.extend([*given, *named.values()])

    tensor = dense_votes(*votes[:2])
    keep(votes, tensor, 1, votes=votes, other=None)
    assert all(torch.equal(each, tensor) for each in (seen[0], seen[1], seen[3]))
    assert (seen[2], seen[4]) == (1, None)


def test_dense_votes_of_half_precision_are_float32() -> None:
    votes = Votes(torch.rand(2, 5, 4).bfloat16(), torch.rand(5, 4, 3, 8).bfloat16())
    for given in (votes, dense_votes(*votes[:2]).bfloat16()):
        assert with_dense_votes(lambda votes: votes.dtype)(given) == torch.float32


@pytest.mark.usefixtures("unchecked_types")
def test_votes_of_other_sizes_are_refused() -> None:
    for call, message in [
        (lambda: dynamic_routing(torch.zeros(2, 3, 4)), "votes are of shape (2, 3, 4); expected (batch, child, parent"),
        (lambda: DynamicRouting(10, 16)(torch.zeros(2, 6, 5, 16)), "the routing's bias is of shape (10, 16), and"),
        (lambda: UniformRouting(10, 16)(torch.zeros(2, 6, 10, 8)), "the routing's bias is of shape (10, 16), and"),
        (
            lambda: EMRouting(10, 16)(torch.zeros(2, 6, 5, 16), torch.zeros(2, 6)),
            "the routing's beta_u is of shape (10,), and votes are for 5 parents of 16 components",
        ),
    ]:
        with pytest.raises(ValueError, match="expected") as caught:
            call()
        assert str(caught.value).startswith(message)


# ------------------------------------------------------------------------------------- votes of the opposite sign

BLIND: dict[str, dict[str, Any]] = {
    "DynamicRouting": {"bias": False},
    "UniformRouting": {"bias": False},
    "RandomCouplings": {"bias": False},
    "ScaledDistanceAgreement": {"bias": False},
    "EMRouting": {},
    "NormalisedEMRouting": {},
    "VariationalBayesRouting": {},
    "HeinsenRouting": {"bias": False},
    "SelfAttentionRouting": {},
    "InvertedAttention": {},  # until its layer normalisation has learned a shift
}
SEEING = ("DynamicRouting", "UniformRouting", "RandomCouplings", "ScaledDistanceAgreement", "HeinsenRouting",
          "InvertedAttention", "AttentionOverChildren")  # fmt: skip


def change_of_sign(name: str, *, trained: bool, **options: Any) -> float:
    """How far activations of the parents are from those of the negated votes; ``trained``: with random parameters."""
    votes, active = example()
    torch.manual_seed(0)
    routing = getattr(routings, name)(parents=3, dim=16, **options)
    routing.build(LayerInfo(parents=3, dim=16, children=6, child_dim=16, shared=False, child_types=6))
    routing = routing.double().eval()
    if trained:
        with torch.no_grad():
            for parameter in routing.parameters():
                parameter += 0.3 * torch.randn(parameter.shape, dtype=torch.float64)
    before, after = (routing(each, active).activations for each in (votes, -votes))
    return (after - before).abs().max().item()


def test_routings_that_cannot_tell_votes_from_their_negatives() -> None:
    """Peer 2021: an image and one whose votes are all of the opposite sign; nor do most learn anything that could."""
    for name, options in BLIND.items():
        assert change_of_sign(name, trained=False, **options) < 1e-12, name
        assert change_of_sign(name, trained=True, **options) < 1e-12 or name == "InvertedAttention", name
    assert change_of_sign("SelfAttentionRouting", trained=True, prior=False) < 1e-12
    for name in SEEING:
        assert change_of_sign(name, trained=True) > 1e-4, name
