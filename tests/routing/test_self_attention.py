"""Self-attention routing: golden numbers, linear memory, and the prior."""

from collections.abc import Callable
from functools import partial
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
from tests.helpers.closeness import assert_close
from tests.helpers.waves import cosine, sine
from tests.reference import wrong
from tests.reference.em_bridge import random
from tests.reference.self_attention_loops import self_attention_loops


def golden(found: Tensor, numbers: list[float]) -> None:
    expected = torch.tensor(numbers, dtype=torch.float64)
    assert_close(found, expected)


@pytest.mark.parametrize("backend", ["reference", "matmul", "fused"])
def test_values_are_the_golden_numbers(backend: Any) -> None:
    """The numbers are from the formulas of Mazzia 2021 in float64, without an epsilon."""
    inputs = sine(1, 6, 4, frequency=0.37, phase=0.1)
    children = exponential_squash(inputs, eps=0.0)
    # given as [j i c d]
    weight = cosine(3, 6, 4, 5, scale=0.3, frequency=0.53, phase=0.2)
    weight = weight.permute(1, 2, 0, 3).contiguous()
    traces: list[RoutingTrace] = []
    parents = self_attention_routing(
        Votes(children, weight),
        prior=sine(3, 6, scale=0.05, frequency=0.61),
        eps=0.0,
        on_iteration=traces.append,
        backend=backend,
    )
    child = [0.056252462199, 0.255184781852, 0.419579038408, 0.527185240449]
    couplings = [0.333314025729, 0.308573270667, 0.376377204354]
    pose = [
        0.003928357226,
        0.003823183352,
        0.002668982030,
        0.000782449781,
        -0.001318775623,
    ]
    lengths = [0.006286778453, 0.003318802073, 0.009661542526]
    golden(children[0, 0], child)
    golden(traces[0].couplings[0, 0], couplings)
    golden(parents.poses[0, 0], pose)
    golden(parents.activations[0], lengths)
    golden(parents.poses[0].norm(dim=1), lengths)


def test_logits_are_of_lengths_and_do_not_saturate() -> None:
    parents = self_attention_routing(random(2, 6, 3, 4))
    of_logits = parents.logits.sigmoid()
    torch.testing.assert_close(of_logits, parents.activations, rtol=1e-6, atol=0)
    long_votes = torch.tensor([30.0, 40.0]).view(2, 1, 1, 1)
    parents = self_attention_routing(long_votes)
    assert parents.activations.tolist() == [[1.0], [1.0]]
    assert parents.logits.tolist() == [[30.0], [40.0]]


def test_prior_is_per_child_type_and_parent() -> None:
    kind = SelfAttentionRouting
    for layer, child_types in [
        (DenseCapsules(6, 4, 3, 8, routing=kind), 6),
        (ConvCapsules((3, 2), 2, 4, 3, 8, kernel_size=2, routing=kind), 8),
        (ClassCapsules(3, 2, 4, 3, 8, routing=kind), 2),
    ]:
        expected = torch.zeros(3, child_types)
        assert torch.equal(layer.routing.prior, expected)


def test_without_a_prior_nothing_is_learned() -> None:
    routing = partial(SelfAttentionRouting, prior=False)
    layer = DenseCapsules(6, 4, 3, 8, routing=routing)
    assert not list(layer.routing.parameters())


class LargestTensor(TorchDispatchMode):
    """Records the largest number of elements that an operation returned."""

    numbers = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.numbers = max(self.numbers, leaf.numel())
        return result


def check_memory(route: Callable[[Tensor], Any]) -> None:
    votes = random(1, 64, 2, 2).requires_grad_()
    with LargestTensor() as largest:
        loss = route(votes).square().sum()
        loss.backward()
    assert largest.numbers <= votes.numel()


def check_values(route: Callable[[Tensor], Any]) -> None:
    votes = random(2, 6, 3, 4)
    assert_close(route(votes), self_attention_loops(votes))


def check_gradient_at_zero(squash: Callable[[Tensor], Tensor]) -> None:
    zero = torch.zeros(2, 3, requires_grad=True)
    squash(zero).sum().backward()
    one = torch.ones(2, 3)  # (1 - exp(-|s|)) / |s| there
    torch.testing.assert_close(zero.grad, one, rtol=1e-3, atol=0)


def poses(votes: Tensor) -> Tensor:
    return self_attention_routing(votes).poses


@pytest.mark.parametrize(
    ("mistake", "right", "check"),
    [
        (wrong.children_by_children, poses, check_memory),
        (wrong.softmax_over_children, poses, check_values),
        (wrong.official_squash, exponential_squash, check_gradient_at_zero),
    ],
)
def test_mistake_is_caught(mistake: Any, right: Any, check: Callable[..., None]) -> None:
    wrong.check_catches(check, mistake, right)
