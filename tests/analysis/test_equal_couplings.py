from functools import partial
from typing import Any

import pytest
import torch

from capsule_lab.analysis.equal_couplings import equal_couplings
from capsule_lab.networks import EMCaps, SmallCNN
from capsule_lab.routing import (
    AttentionOverChildren,
    DynamicRouting,
    EMRouting,
    NormalisedEMRouting,
)
from capsule_lab.types import RoutingTrace
from tests.helpers.networks import small_capsnet, small_em_caps

IMAGES = torch.rand(2, 1, 17, 17, generator=torch.Generator().manual_seed(0))


def em_caps(routing: Any) -> EMCaps:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"channels": 8, "types": 3, "conv_types": (4,), "conv_strides": (1,)}
    network = small_em_caps((1, 17, 17), 3, routing=routing, class_routing=None, **sizes)
    for layer in (*network.conv_capsules, network.classes):
        layer.weight.data *= 10  # else couplings are nearly equal
    return network.eval()


def test_couplings_of_all_layers_are_those_of_no_routing() -> None:
    for routing in [
        DynamicRouting,
        EMRouting,
        partial(NormalisedEMRouting, min_variance=1e-3),
        partial(EMRouting, backend="reference"),
        partial(EMRouting, normalisation="window"),
    ]:
        network = em_caps(routing)
        traces: list[RoutingTrace] = []
        own = network(IMAGES).logits
        with equal_couplings(network):
            equal = network(IMAGES, on_iteration=traces.append).logits
        for trace in traces:
            assert torch.equal(trace.couplings, torch.full_like(trace.couplings, 1 / 3))
        assert not torch.allclose(own, equal, rtol=1e-3, atol=0)
        assert torch.equal(network(IMAGES).logits, own)  # afterwards


def test_of_dynamic_routing_is_its_first_iteration() -> None:
    routing = partial(DynamicRouting, iterations=1)
    once = small_capsnet((1, 17, 17), 3, channels=8, decoder=None, routing=routing)
    three = small_capsnet((1, 17, 17), 3, channels=8, decoder=None)
    once.load_state_dict(three.state_dict())
    with equal_couplings(three):
        torch.testing.assert_close(three(IMAGES).scores, once(IMAGES).scores)


def test_networks_without_equal_couplings() -> None:
    """Where children compete, couplings do not come from the normaliser, so replacing it would change nothing."""
    cnn = SmallCNN((1, 17, 17), 3)
    attention = small_capsnet((1, 17, 17), 3, channels=8, routing=AttentionOverChildren)
    for network, message in [
        (cnn, "SmallCNN has no couplings; expected a capsule network"),
        (attention, "AttentionOverChildren sum to one over the children of a parent"),
    ]:
        with pytest.raises(ValueError, match=message), equal_couplings(network):
            pass
