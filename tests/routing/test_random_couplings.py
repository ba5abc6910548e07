"""Random couplings: drawn once from a seed, equal for all images."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from capsule_lab.commands import compose
from capsule_lab.config.build import build_module
from capsule_lab.layers import ClassCapsules, ConvCapsules, DenseCapsules
from capsule_lab.routing import LayerInfo, RandomCouplings, UniformRouting
from capsule_lab.types import DataSpec, RoutingTrace
from tests.helpers.closeness import assert_close

COORDINATES = torch.rand(6, 8)
LAYERS: dict[str, Callable[..., nn.Module]] = {
    "dense": partial(DenseCapsules, 12, 6, 4, 8),
    "class": partial(ClassCapsules, 6, 2, 6, 4, 8, coordinates=COORDINATES),
    "convolutional": partial(ConvCapsules, (3, 2), 2, 6, 4, 8, kernel_size=2),
}


def build(name: str, routing: Any = RandomCouplings, **options: Any) -> Any:
    torch.manual_seed(0)
    layer = LAYERS[name](routing=partial(routing, **options))
    return layer.double()


def below() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    poses = torch.randn(3, 12, 6, generator=generator)
    activations = torch.rand(3, 12, generator=generator)
    return poses.double(), activations.double()


@pytest.mark.parametrize("name", LAYERS)
def test_couplings_are_equal_for_all_images_and_differ_among_children(name: str) -> None:
    """A spread of zero gives the couplings of uniform routing."""
    traces: list[RoutingTrace] = []
    build(name)(*below(), on_iteration=traces.append)
    found = traces[0].couplings.unflatten(0, (3, -1))  # [b position i j]
    of_first_image = found[:1].expand_as(found)
    assert_close(found, of_first_image)
    couplings = found[0, 0]
    assert couplings.std(0).min() > 0.01
    assert couplings.std(1).min() > 0.01
    equal = build(name, spread=0.0)(*below())
    expected = build(name, UniformRouting)(*below())
    assert_close(tuple(equal), tuple(expected))


def test_logits_have_a_normal_distribution_of_the_given_spread() -> None:
    routing = RandomCouplings(20, 8, spread=3.0)
    layer = LayerInfo(20, 8, 500, 6, shared=False, child_types=500)
    routing.build(layer)
    logits = routing.log_couplings
    assert logits.std().item() == pytest.approx(3.0, rel=0.02)
    assert logits.mean().item() == pytest.approx(0.0, abs=0.1)


def test_seed_determines_couplings_and_leaves_the_global_generator() -> None:
    first = build("dense", seed=0)
    again = build("dense", seed=0)
    other = build("dense", seed=1)
    logits = first.routing.log_couplings
    assert torch.equal(logits, again.routing.log_couplings)
    assert not torch.allclose(logits, other.routing.log_couplings)
    without_draw = build("dense", UniformRouting)
    assert torch.equal(first.weight, without_draw.weight)


def test_couplings_are_saved_and_not_trained() -> None:
    layer = build("dense")
    other = build("dense", seed=1)
    parameters = dict(layer.named_parameters())
    assert "routing.log_couplings" not in parameters
    other.load_state_dict(layer.state_dict())
    children = below()
    assert_close(other(*children).poses, layer(*children).poses)


def test_random_couplings_drawn_have_another_draw_for_every_seed_of_a_run() -> None:
    chosen = ["model=em_caps", "routing=random_couplings_drawn"]
    of_three = compose("train", [*chosen, "seed=3"])
    of_four = compose("train", [*chosen, "seed=4"])
    draws = []
    for config in (of_three, of_four):
        OmegaConf.set_readonly(config, True)  # as in a sweep
        network = build_module(config, DataSpec((1, 28, 28), 10)).network
        draws.append(network.classes.routing.log_couplings)
    assert not draws[0].equal(draws[1])
