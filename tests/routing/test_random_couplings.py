"""Random couplings: drawn once from a seed, equal for all images."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_lab.layers import ClassCapsules, ConvCapsules, DenseCapsules
from capsule_lab.routing import LayerInfo, RandomCouplings, UniformRouting
from capsule_lab.types import RoutingTrace

exact = partial(torch.testing.assert_close, rtol=0, atol=1e-12)

LAYERS: dict[str, tuple[type[nn.Module], tuple[Any, ...], dict[str, Any]]] = {
    "dense": (DenseCapsules, (12, 6, 4, 8), {}),
    "class": (ClassCapsules, (6, 2, 6, 4, 8), {"coordinates": torch.rand(6, 8)}),
    "convolutional": (ConvCapsules, ((3, 2), 2, 6, 4, 8), {"kernel_size": 2}),
}


def build(name: str, routing: Any = RandomCouplings, **options: Any) -> Any:
    torch.manual_seed(0)
    kind, sizes, others = LAYERS[name]
    return kind(*sizes, **others, routing=partial(routing, **options)).double()


def below() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 12, 6, generator=generator).double(), torch.rand(
        3, 12, generator=generator
    ).double()


@pytest.mark.parametrize("name", LAYERS)
def test_couplings_are_equal_for_all_images_and_differ_among_children(name: str) -> None:
    """A spread of zero gives the couplings of uniform routing."""
    traces: list[RoutingTrace] = []
    build(name)(*below(), on_iteration=traces.append)
    found = traces[0].couplings.unflatten(0, (3, -1))  # [b position i j]
    exact(found, found[:1].expand_as(found))
    assert min(found[0, 0].std(dim).min() for dim in (0, 1)) > 0.01
    equal, expected = (
        layer(*below()) for layer in (build(name, spread=0.0), build(name, UniformRouting))
    )
    exact(tuple(equal), tuple(expected))


def test_logits_have_a_normal_distribution_of_the_given_spread() -> None:
    routing = RandomCouplings(20, 8, spread=3.0)
    routing.build(LayerInfo(20, 8, 500, 6, shared=False, child_types=500))
    assert routing.log_couplings.std().item() == pytest.approx(3.0, rel=0.02)
    assert routing.log_couplings.mean().item() == pytest.approx(0.0, abs=0.1)


def test_seed_determines_couplings_and_leaves_the_global_generator() -> None:
    first, again, other = (build("dense", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.routing.log_couplings, again.routing.log_couplings)
    assert not torch.allclose(first.routing.log_couplings, other.routing.log_couplings)
    assert torch.equal(first.weight, build("dense", UniformRouting).weight)


def test_couplings_are_saved_and_not_trained() -> None:
    layer, other = build("dense"), build("dense", seed=1)
    assert "routing.log_couplings" not in dict(layer.named_parameters())
    other.load_state_dict(layer.state_dict())
    exact(other(*below()).poses, layer(*below()).poses)
