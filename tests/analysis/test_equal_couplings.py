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
    SelfAttentionRouting,
)
from capsule_lab.types import RoutingTrace
from tests.helpers.networks import small_capsnet, small_em_caps

IMAGES = torch.rand(2, 1, 17, 17, generator=torch.Generator().manual_seed(0))


def em_caps(routing: Any) -> EMCaps:
    torch.manual_seed(0)
    options: dict[str, Any] = {
        "channels": 8,
        "types": 3,
        "conv_types": (4,),
        "conv_strides": (1,),
        "routing": routing,
        "class_routing": None,
    }
    network = small_em_caps((1, 17, 17), 3, **options)
    for layer in (*network.conv_capsules, network.classes):
        layer.weight.data *= 10  # else couplings are nearly equal
    return network.eval()


@pytest.mark.parametrize(
    "routing",
    [
        DynamicRouting,
        EMRouting,
        partial(NormalisedEMRouting, min_variance=1e-3),
        partial(EMRouting, backend="reference"),
        partial(EMRouting, normalisation="window"),
    ],
)
def test_couplings_of_all_layers_are_those_of_no_routing(routing: Any) -> None:
    network = em_caps(routing)
    traces: list[RoutingTrace] = []
    own = network(IMAGES).logits
    with equal_couplings(network):
        equal = network(IMAGES, on_iteration=traces.append).logits
    for trace in traces:
        third = torch.full_like(trace.couplings, 1 / 3)
        assert torch.equal(trace.couplings, third)
    assert not torch.allclose(own, equal, rtol=1e-3, atol=0)
    afterwards = network(IMAGES).logits
    assert torch.equal(afterwards, own)


def test_of_dynamic_routing_is_its_first_iteration() -> None:
    routing = partial(DynamicRouting, iterations=1)
    build = partial(small_capsnet, (1, 17, 17), 3, channels=8, decoder=None)
    once = build(routing=routing)
    three = build()
    once.load_state_dict(three.state_dict())
    with equal_couplings(three):
        torch.testing.assert_close(three(IMAGES).scores, once(IMAGES).scores)


def test_networks_without_equal_couplings() -> None:
    """Where children compete, couplings do not come from the normaliser, so replacing it would change nothing."""
    cnn = SmallCNN((1, 17, 17), 3)
    attention = small_capsnet((1, 17, 17), 3, channels=8, routing=AttentionOverChildren)
    leaky = small_capsnet((1, 17, 17), 3, channels=8, routing=partial(DynamicRouting, leaky=True))
    prior = small_capsnet((1, 17, 17), 3, channels=8, routing=SelfAttentionRouting)
    messages = {
        prior: "SelfAttentionRouting are shares plus a learned prior.*expected a network with routing.prior=false",
        cnn: "SmallCNN has no couplings; expected a capsule network",
        attention: "AttentionOverChildren sum to one over the children of a parent",
        leaky: "DynamicRouting is leaky.*expected a network with routing.leaky=false",
    }
    for network, message in messages.items():
        with pytest.raises(ValueError, match=message), equal_couplings(network):
            pass
