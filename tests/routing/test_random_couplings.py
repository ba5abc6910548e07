"""Random couplings: the same for all images, drawn once, from a seed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_lab.layers import ClassCapsules, ConvCapsules, DenseCapsules
from capsule_lab.routing import LayerInfo, RandomCouplings, UniformRouting
from capsule_lab.types import RoutingTrace

exact = partial(torch.testing.assert_close, rtol=0, atol=1e-12)

LAYERS: dict[str, Any] = {
    "dense": lambda routing: DenseCapsules(12, 6, 4, 8, routing=routing),
    "class": lambda routing: ClassCapsules(6, 2, 6, 4, 8, routing=routing, coordinates=torch.rand(6, 8)),
    "convolutional": lambda routing: ConvCapsules((3, 2), 2, 6, 4, 8, kernel_size=2, routing=routing),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


def build(name: str, routing: Any = RandomCouplings, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return LAYERS[name](partial(routing, **options)).double()


def below(batch: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, 12, 6, generator=generator).double(), torch.rand(batch, 12, generator=generator).double()


def couplings(layer: nn.Module, batch: int = 3) -> Tensor:
    """By image: ``(batch, position, child, parent)``."""
    traces: list[RoutingTrace] = []
    layer(*below(batch), on_iteration=traces.append)
    assert [trace.iteration for trace in traces] == [0]
    return traces[0].couplings.unflatten(0, (batch, -1))


@every_layer
def test_couplings_are_the_same_for_every_image_and_differ_among_children(name: str) -> None:
    """With a spread of zero they are those of uniform routing."""
    found = couplings(build(name))
    exact(found, found[:1].expand_as(found))
    assert found[0, 0].std(0).min() > 0.01
    assert found[0, 0].std(1).min() > 0.01
    equal, expected = (layer(*below()) for layer in (build(name, spread=0.0), build(name, UniformRouting)))
    exact(tuple(equal), tuple(expected))


def test_positions_of_a_convolutional_layer_share_a_child() -> None:
    """Softmax over all parents that see it: the middle column is seen by no other, rows 0 and 2 by one position."""
    layer = build("convolutional")
    found, child = couplings(layer)[0], layer.windows.child
    totals = torch.zeros(12).double().index_add(0, child.flatten(), found.sum(2).flatten())
    exact(totals, torch.ones(12).double())


def test_logits_are_normal_numbers_of_the_spread() -> None:
    routing = RandomCouplings(20, 8, spread=3.0)
    routing.build(LayerInfo(20, 8, 500, 6, shared=False, child_types=500))
    assert routing.log_couplings.shape == (20, 500)
    assert routing.log_couplings.std().item() == pytest.approx(3.0, rel=0.02)
    assert routing.log_couplings.mean().item() == pytest.approx(0.0, abs=0.1)


def test_seed_decides() -> None:
    first, again, other = (build("dense", seed=seed).routing.log_couplings for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_drawing_leaves_the_random_numbers_of_others_alone() -> None:
    weights = [build("dense", routing).weight for routing in (RandomCouplings, UniformRouting)]
    assert torch.equal(*weights)


def test_couplings_are_no_parameters_and_part_of_a_checkpoint() -> None:
    layer, other = build("dense"), build("dense", seed=1)
    assert "routing.log_couplings" not in dict(layer.named_parameters())
    other.load_state_dict(layer.state_dict())
    exact(other(*below()).poses, layer(*below()).poses)


@pytest.mark.usefixtures("unchecked_types")
def test_votes_of_other_children_are_refused() -> None:
    routing = RandomCouplings(4, 8)
    routing.build(LayerInfo(4, 8, 6, 3, shared=False, child_types=6))
    with pytest.raises(ValueError, match=r"log-couplings are of shape \(4, 6\), and votes are of 5 children"):
        routing(torch.zeros(2, 5, 4, 8))
