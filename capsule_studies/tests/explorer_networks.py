"""Networks that the explorer supports, with running statistics and biases that are not the initial ones."""

from functools import partial
from typing import Any

import torch

from capsule_lab.layers import LinearPrimaryCapsules
from capsule_lab.networks import BaselineCNN, EfficientCapsNet, MatchedCNN, SmallCNN
from capsule_lab.routing import NormalisedEMRouting, UniformRouting
from tests.helpers.networks import pictures, small_capsnet, small_em_caps

SHAPE = (1, 28, 28)
primary = partial(LinearPrimaryCapsules, types=2, norm=True)
em_caps = partial(
    small_em_caps,
    SHAPE,
    10,
    routing=NormalisedEMRouting,
    class_routing={"pose_norm": False},
    batch_norm=True,
    primary=primary,
)
cold = partial(NormalisedEMRouting, temperature=0.5, min_variance=0.3, iterations=3)
NETWORKS: dict[str, Any] = {
    "capsnet": lambda: small_capsnet(SHAPE, 10, decoder=(16, 32)),
    "capsnet of two layers": lambda: small_capsnet(SHAPE, 10, hidden=[[6, 8]], decoder=None),
    "equal couplings": lambda: small_capsnet(SHAPE, 10, routing=UniformRouting, decoder=None),
    "efficient": lambda: EfficientCapsNet(SHAPE, 10, decoder=(16,)),
    "em": em_caps,
    "em, three convolutions": lambda: em_caps(stem="conv3", conv_types=(), conv_strides=()),
    "em, cold": lambda: em_caps(routing=cold),
    "cnn": lambda: SmallCNN(SHAPE, 10, pooled=32),
    "cnn of the paper": lambda: BaselineCNN(SHAPE, 10, channels=(4, 4), hidden=(8,)),
    "dense units": lambda: MatchedCNN(SHAPE, 10, channels=(4, 4), batch_norm=True),
}


def with_statistics(network: Any) -> Any:
    """The network with running statistics and biases that are not the initial ones."""
    network.train()(pictures(16, SHAPE))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.01 * torch.randn_like(parameter)
    return network.eval()
