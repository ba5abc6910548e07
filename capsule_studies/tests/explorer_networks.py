"""Networks that the explorer supports, with running statistics and biases that are not the initial ones."""

from functools import partial
from typing import Any

import torch

from capsule_lab.layers import LinearPrimaryCapsules, PrimaryCapsules
from capsule_lab.networks import (
    AveragePoolingNet,
    BaselineCNN,
    EfficientCapsNet,
    MatchedCNN,
    SelfRoutingNet,
    SmallCNN,
)
from capsule_lab.routing import (
    AttentionOverChildren,
    DynamicRouting,
    EMRouting,
    InvertedAttention,
    NormalisedEMRouting,
    RandomCouplings,
    ScaledDistanceAgreement,
    SelfRouting,
    UniformRouting,
)
from tests.helpers.networks import pictures, small_capsnet, small_em_caps

SHAPE = (1, 28, 28)
COLOUR = (3, 20, 24)
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
in_windows = partial(EMRouting, normalisation="window", initial="types")
capsnet = partial(small_capsnet, SHAPE, 10, decoder=None)
leaky = partial(DynamicRouting, leaky=True, update="replace", learned_prior=True)
half = partial(PrimaryCapsules, types=2, squash="half", relu=True)
exponential = partial(DynamicRouting, squash="exponential", bias=False)
gain = partial(UniformRouting, learned_gain=True)
head = partial(InvertedAttention, head=True)
published = partial(small_em_caps, SHAPE, 10)

NETWORKS: dict[str, Any] = {
    "capsnet": lambda: small_capsnet(SHAPE, 10, decoder=(16, 32)),
    "capsnet of two layers": lambda: capsnet(hidden=[[6, 8]]),
    "equal couplings": lambda: capsnet(routing=UniformRouting),
    "equal couplings, gain": lambda: capsnet(routing=gain),
    "random couplings": lambda: capsnet(routing=RandomCouplings),
    "leaky": lambda: capsnet(routing=leaky),
    "squashes": lambda: capsnet(routing=exponential, primary=half),
    "same padding": lambda: capsnet(padding="same", kernel_size=5),
    "scaled distance": lambda: capsnet(routing=ScaledDistanceAgreement),
    "self-routing": lambda: capsnet(routing=SelfRouting),
    "attention over children": lambda: capsnet(routing=AttentionOverChildren),
    "inverted attention": lambda: capsnet(routing=head),
    "colour": lambda: small_capsnet(COLOUR, 3, decoder=(16,)),
    "efficient": lambda: EfficientCapsNet(SHAPE, 10, decoder=(16,)),
    "em": em_caps,
    "em, three convolutions": lambda: em_caps(stem="conv3", conv_types=(), conv_strides=()),
    "em, residual": lambda: em_caps(stem="resnet", conv_types=(), conv_strides=()),
    "em, cold": lambda: em_caps(routing=cold),
    "em, published": lambda: published(routing=EMRouting),
    "em, paper": lambda: published(routing=partial(EMRouting, cost="paper"), class_routing=None),
    "em, windows": lambda: published(routing=in_windows),
    "self-routing network": lambda: SelfRoutingNet(COLOUR, 3, planes=2, types=2, dim=4),
    "cnn": lambda: SmallCNN(SHAPE, 10, pooled=32),
    "cnn of the paper": lambda: BaselineCNN(SHAPE, 10, channels=(4, 4), hidden=(8,)),
    "pooling": lambda: BaselineCNN(SHAPE, 10, channels=(4, 4), hidden=(8,), pooling=2),
    "residual": lambda: AveragePoolingNet(SHAPE, 10, planes=2),
    "dense units": lambda: MatchedCNN(SHAPE, 10, channels=(4, 4), batch_norm=True),
    "averages": lambda: MatchedCNN(SHAPE, 10, channels=(4, 4), averaged=True, class_dim=None),
}


def with_statistics(network: Any) -> Any:
    """The network with running statistics and biases that are not the initial ones."""
    network.train()(pictures(16, network.image_shape))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.01 * torch.randn_like(parameter)
    return network.eval()
