"""Uniform routing: the learned gain. The rest is in test_contract."""

from functools import partial

import pytest
import torch

from capsule_lab.layers import DenseCapsules
from capsule_lab.routing import UniformRouting, uniform_routing
from tests.helpers.closeness import assert_close
from tests.reference.loops import dynamic_routing_loops


@pytest.fixture
def votes() -> torch.Tensor:
    return torch.randn(2, 5, 3, 4, generator=torch.Generator().manual_seed(0)).double()


def test_gain_multiplies_the_sums_before_the_bias(votes: torch.Tensor) -> None:
    """Judged by the loops: the sum of votes that are twice as large is twice as large."""
    bias = torch.linspace(-1, 1, 12).double().reshape(3, 4)
    found = uniform_routing(votes, gain=torch.tensor(2.0).double(), bias=bias)
    expected = dynamic_routing_loops(2 * votes, iterations=1, bias=bias)
    assert_close(found.poses, expected)
    assert not torch.allclose(found.poses, uniform_routing(votes, bias=bias).poses)


def test_gradient_of_the_gain(votes: torch.Tensor) -> None:
    gain = torch.tensor(1.3, requires_grad=True, dtype=torch.double)

    def poses(gain: torch.Tensor) -> torch.Tensor:
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
    torch.testing.assert_close(layer(poses, activations).poses, plain(poses, activations).poses)
    layer(poses, activations).activations.sum().backward()
    assert gain.grad > 0, "a larger gain makes longer capsules"
