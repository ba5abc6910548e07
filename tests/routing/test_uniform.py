"""Uniform routing: the learned gain. The rest is in test_contract."""

from functools import partial

import pytest
import torch
from torch import Tensor

from capsule_lab.layers import DenseCapsules
from capsule_lab.routing import UniformRouting, uniform_routing
from tests.helpers.closeness import assert_close
from tests.reference.loops import dynamic_routing_loops


@pytest.fixture
def votes() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 5, 3, 4, generator=generator).double()


def test_gain_multiplies_the_sums_before_the_bias(votes: Tensor) -> None:
    """Judged by the loops: the sum of votes that are twice as large is twice as large."""
    bias = torch.linspace(-1, 1, 12).double().view(3, 4)
    gain = torch.tensor(2.0).double()
    found = uniform_routing(votes, gain=gain, bias=bias).poses
    without_gain = uniform_routing(votes, bias=bias).poses
    expected = dynamic_routing_loops(2 * votes, iterations=1, bias=bias)
    assert_close(found, expected)
    assert not torch.allclose(found, without_gain)


def test_gradient_of_the_gain(votes: Tensor) -> None:
    gain = torch.tensor(1.3).double().requires_grad_()

    def poses(gain: Tensor) -> Tensor:
        return uniform_routing(votes, gain=gain).poses

    assert torch.autograd.gradcheck(poses, [gain])


@pytest.mark.parametrize("backend", ["matmul", "fused"])
def test_learned_gain_starts_at_one_and_learns(backend: str) -> None:
    torch.manual_seed(0)
    routing = partial(UniformRouting, backend=backend)
    layer = DenseCapsules(5, 4, 3, 6, routing=partial(routing, learned_gain=True))
    plain = DenseCapsules(5, 4, 3, 6, routing=routing)
    state = layer.state_dict()
    gain = layer.routing.gain
    assert torch.equal(state.pop("routing.gain"), gain)
    plain.load_state_dict(state)
    poses = torch.randn(2, 5, 4)
    activations = torch.rand(2, 5)
    parents = layer(poses, activations)
    expected = plain(poses, activations)
    torch.testing.assert_close(parents.poses, expected.poses)
    parents.activations.sum().backward()
    assert gain.grad > 0, "a larger gain makes longer capsules"
