"""``LayerInfo`` that layers give a routing, ``with_dense_votes``, and routings that cannot see the sign of votes."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, einsum, nn

from capsule_lab import routing as routings
from capsule_lab.functional import dense_votes, length, with_dense_votes
from capsule_lab.layers import ClassCapsules, ConvCapsules, DenseCapsules
from capsule_lab.routing import AbstractRouting, LayerInfo
from capsule_lab.types import Capsules, Votes
from tests.helpers.changes_of_votes import example
from tests.helpers.closeness import assert_close


class LearnedCouplings(AbstractRouting):
    """A learned logit for every (child type, parent), without routing in the forward pass."""

    def __init__(self, parents: int, dim: int) -> None:
        super().__init__()

    def build(self, layer: LayerInfo) -> None:
        self.layer = layer
        logits = torch.linspace(-1, 1, layer.parents * layer.child_types)
        self.logits = nn.Parameter(logits.view(layer.parents, -1))

    @with_dense_votes
    def forward(self, votes: Tensor, activations: Tensor | None = None, **_: Any) -> Capsules:
        logits = self.logits.repeat(1, self.layer.children // self.layer.child_types)  # [j i]
        poses = einsum("ji,bijd->bjd", logits.softmax(0), votes)
        return Capsules(poses, length(poses))


LAYERS: list[tuple[Callable[[], Any], int, LayerInfo]] = [
    (
        lambda: DenseCapsules(12, 6, 3, 8, routing=LearnedCouplings),
        3,
        LayerInfo(parents=3, dim=8, children=12, child_dim=6, shared=False, child_types=12),
    ),
    (
        lambda: ConvCapsules((3, 2), 2, 6, 3, 8, kernel_size=2, routing=LearnedCouplings),
        6,
        LayerInfo(parents=3, dim=8, children=8, child_dim=6, shared=True, child_types=8),
    ),
    (
        lambda: ClassCapsules(
            6, 2, 6, 3, 8, routing=LearnedCouplings, coordinates=torch.rand(6, 8)
        ),
        3,
        LayerInfo(parents=3, dim=8, children=12, child_dim=6, shared=True, child_types=2),
    ),
]


@pytest.mark.parametrize(("build", "capsules", "expected"), LAYERS)
def test_routing_gets_the_sizes_of_its_layer(
    build: Callable[[], Any], capsules: int, expected: LayerInfo
) -> None:
    layer = build()
    assert layer.routing.layer == expected
    parents = layer(torch.rand(2, 12, 6), torch.rand(2, 12))
    assert parents.poses.shape == (2, capsules, 8)
    parents.poses.square().sum().backward()
    assert layer.routing.logits.grad.abs().min() > 0


def test_with_dense_votes_gives_float32_tensors() -> None:
    votes = Votes(torch.rand(2, 5, 4).bfloat16(), torch.rand(5, 4, 3, 8).bfloat16())
    seen: list[Any] = []

    @with_dense_votes
    def keep(*given: Any, **named: Any) -> None:
        seen.extend([*given, *named.values()])

    tensor = dense_votes(*votes[:2])
    keep(votes, tensor.bfloat16(), 1, votes=votes, other=None)
    assert_close(seen, [tensor, tensor.bfloat16().float(), 1, tensor, None], atol=0)


@pytest.mark.usefixtures("unchecked_types")
def test_votes_of_wrong_shape_are_refused() -> None:
    """Also by routings that are built for seven children."""
    for name, votes, message in [
        (
            "DynamicRouting",
            (2, 3, 4),
            "received votes (2, 3, 4) of torch.float32; expected (batch, child, parent",
        ),
        (
            "DynamicRouting",
            (2, 6, 5, 16),
            "received bias (10, 16) of torch.float32; expected (parent, dim) of floats",
        ),
        ("UniformRouting", (2, 6, 10, 8), "where parent is 10, dim is 8 as in votes"),
        (
            "EMRouting",
            (2, 6, 5, 16),
            "received beta_u (10,) of torch.float32; expected (parent,) of floats or (1,)",
        ),
        (
            "RandomCouplings",
            (2, 6, 10, 16),
            "received log_couplings (10, 7) of torch.float32; expected (parent",
        ),
        (
            "AttentionOverChildren",
            (2, 6, 10, 16),
            "received attention (10, 16, 7, 7) of torch.float32; expected (par",
        ),
    ]:
        routing = getattr(routings, name)(10, 16)
        routing.build(LayerInfo(10, 16, 7, 3, shared=False, child_types=7))
        with pytest.raises(ValueError, match=re.escape(message)):
            routing(torch.zeros(votes), torch.zeros(2, 6))


WITHOUT_BIAS = (
    "DynamicRouting",
    "UniformRouting",
    "RandomCouplings",
    "ScaledDistanceAgreement",
    "HeinsenRouting",
)
ALWAYS = ("EMRouting", "NormalisedEMRouting", "SelfAttentionRouting", "VariationalBayesRouting")


def change_of_sign(name: str, *, trained: bool, **options: Any) -> float:
    """Largest change of the parents' activations when votes are negated; ``trained`` means random parameters."""
    votes, active = example()
    torch.manual_seed(0)
    routing = getattr(routings, name)(parents=3, dim=16, **options)
    routing.build(
        LayerInfo(parents=3, dim=16, children=6, child_dim=16, shared=False, child_types=6)
    )
    routing = routing.double().eval()
    if trained:
        with torch.no_grad():
            for parameter in routing.parameters():
                parameter += 0.3 * torch.randn(parameter.shape, dtype=torch.float64)
    before = routing(votes, active).activations
    after = routing(-votes, active).activations
    return (after - before).abs().max().item()


def test_some_routings_ignore_the_sign_of_votes() -> None:
    """Negated votes give the same activations, for most routings also with trained parameters (Peer 2021)."""
    for name in (*WITHOUT_BIAS, *ALWAYS):
        options = {"bias": False} if name in WITHOUT_BIAS else {}
        assert change_of_sign(name, trained=False, **options) < 1e-12, name
        assert change_of_sign(name, trained=True, **options) < 1e-12, name
    assert change_of_sign("InvertedAttention", trained=False) < 1e-12  # until it learns a shift
    for name in (*WITHOUT_BIAS, "InvertedAttention", "AttentionOverChildren"):
        assert change_of_sign(name, trained=True) > 1e-4, name
