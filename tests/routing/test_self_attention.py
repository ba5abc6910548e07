"""Self-attention routing: golden numbers, what it never computes, and its prior."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from capsule_lab.functional import exponential_squash
from capsule_lab.layers import ClassCapsules, ConvCapsules, DenseCapsules
from capsule_lab.routing import SelfAttentionRouting, self_attention_routing
from capsule_lab.types import RoutingTrace, Votes
from tests.reference import attention_wrong
from tests.reference.self_attention_loops import self_attention_loops


def flat_index(*shape: int) -> Tensor:
    return torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)


def random_votes(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("backend", ["reference", "matmul", "fused"])
def test_golden_numbers(backend: Any) -> None:
    """Formulas of the project's notes on routings, section 7.3, in float64; there without an epsilon."""
    children = exponential_squash(torch.sin(0.37 * flat_index(1, 6, 4) + 0.1), eps=0.0)
    weight = 0.3 * torch.cos(0.53 * flat_index(3, 6, 4, 5) + 0.2)  # [j i c d]
    traces: list[RoutingTrace] = []
    parents = self_attention_routing(
        Votes(children, weight.permute(1, 2, 0, 3).contiguous()),
        prior=0.05 * torch.sin(0.61 * flat_index(3, 6)),
        eps=0.0,
        on_iteration=traces.append,
        backend=backend,
    )
    found = {
        "child": children[0, 0],
        "couplings": traces[0].couplings[0, 0],
        "pose": parents.poses[0, 0],
        "lengths": parents.activations[0],
        "lengths of the poses": parents.poses[0].norm(dim=1),
    }
    lengths = [0.006286778453, 0.003318802073, 0.009661542526]
    expected = {
        "child": [0.056252462199, 0.255184781852, 0.419579038408, 0.527185240449],
        "couplings": [0.333314025729, 0.308573270667, 0.376377204354],
        "pose": [0.003928357226, 0.003823183352, 0.002668982030, 0.000782449781, -0.001318775623],
        "lengths": lengths,
        "lengths of the poses": lengths,
    }
    for name, numbers in expected.items():
        torch.testing.assert_close(found[name], torch.tensor(numbers, dtype=torch.float64), rtol=0, atol=1e-12)


def test_logits_are_those_of_the_lengths() -> None:
    parents = self_attention_routing(random_votes(2, 6, 3, 4))
    torch.testing.assert_close(parents.logits.sigmoid(), parents.activations, rtol=1e-6, atol=0)


def test_logits_tell_lengths_apart_that_round_to_one() -> None:
    parents = self_attention_routing(torch.tensor([30.0, 40.0]).view(2, 1, 1, 1))
    assert parents.activations.tolist() == [[1.0], [1.0]]
    assert parents.logits.tolist() == [[30.0], [40.0]]


def test_prior_of_a_layer() -> None:
    for layer, kinds in [
        (DenseCapsules(6, 4, 3, 8, routing=SelfAttentionRouting), 6),
        (ConvCapsules((3, 2), 2, 4, 3, 8, kernel_size=2, routing=SelfAttentionRouting), 8),
        (ClassCapsules(3, 2, 4, 3, 8, routing=SelfAttentionRouting), 2),
    ]:
        assert layer.routing.prior.shape == (3, kinds)
        assert not layer.routing.prior.any()


def test_layer_without_a_prior() -> None:
    layer = DenseCapsules(6, 4, 3, 8, routing=lambda **sizes: SelfAttentionRouting(**sizes, prior=False))
    assert not list(layer.routing.parameters())
    votes = random_votes(2, 6, 3, 8)
    assert torch.equal(layer.routing(votes).poses, self_attention_routing(votes).poses)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("shape", [(2, 6), (3, 4)])
def test_prior_of_other_sizes_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"prior is of shape .*6 children for 3 parents; expected"):
        self_attention_routing(random_votes(2, 6, 3, 4), prior=torch.zeros(shape, dtype=torch.float64))


# ------------------------------------------------------------------------------------------- wrong versions


class LargestTensor(TorchDispatchMode):
    """Records the most numbers that an operation returned."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.numbers = max(self.numbers, *sizes, 0)
        return result


def check_memory(route: Callable[[Tensor], Any]) -> None:
    votes = random_votes(1, 64, 2, 2).requires_grad_()
    with LargestTensor() as largest:
        result = route(votes)
        result.square().sum().backward()
    assert largest.numbers <= votes.numel()


def check_values(route: Callable[[Tensor], Any]) -> None:
    votes = random_votes(2, 6, 3, 4)
    torch.testing.assert_close(route(votes), self_attention_loops(votes)[0], rtol=0, atol=1e-12)


def check_gradient_at_zero(squash: Callable[[Tensor], Tensor]) -> None:
    zero = torch.zeros(2, 3, requires_grad=True)
    squash(zero).sum().backward()
    torch.testing.assert_close(zero.grad, torch.ones(2, 3), rtol=1e-3, atol=0)  # (1 - exp(-|s|)) / |s| is 1 there


@pytest.mark.parametrize(
    ("mistake", "right", "check"),
    [
        (attention_wrong.children_by_children, lambda votes: self_attention_routing(votes).poses, check_memory),
        (attention_wrong.softmax_over_children, lambda votes: self_attention_routing(votes).poses, check_values),
        (attention_wrong.official_squash, exponential_squash, check_gradient_at_zero),
    ],
    ids=["children by children", "softmax over children", "official squash"],
)
def test_mistake_is_caught(
    mistake: Callable[[Tensor], Tensor], right: Callable[[Tensor], Tensor], check: Callable[..., None]
) -> None:
    check(right)
    with pytest.raises(AssertionError):
        check(mistake)
