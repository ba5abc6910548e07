"""Networks as lists of operations and one block of numbers, which ``assets/engine.js`` computes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from capsule_lab.functional import SQUASHES, SquashFunctions, same_padding
from capsule_lab.layers import (
    ClassCapsules,
    ComposedPrimaryCapsules,
    Decoder,
    DenseCapsules,
    DepthwisePrimaryCapsules,
    LinearPrimaryCapsules,
    PrimaryCapsules,
)
from capsule_lab.layers.conv import ConvCapsules
from capsule_lab.layers.stem import PaperConvolution
from capsule_lab.networks import (
    AveragePoolingNet,
    CapsNet,
    EfficientCapsNet,
    EMCaps,
    MatchedCNN,
    SelfRoutingNet,
)
from capsule_lab.networks.base import AbstractNetwork
from capsule_lab.networks.cnn import AbstractCNN
from capsule_lab.networks.self_routing import PaddedShortcut
from capsule_studies.explorer import routings
from capsule_studies.explorer.routings import affine, check, unsupported

Precision = Literal["f16", "f32"]

_EXACT_BELOW = 4096
"""Ours: smaller tensors, such as biases, stay in float32; they are a thousandth of the block."""
_BYTES = 4
"""Each tensor starts at a multiple of this number."""


class PackedNetwork(NamedTuple):
    """A network for the engine.

    Attributes:
        network: its operations, see ``FEATURES`` and ``forward`` in ``engine.js``; tensors are named by their number.
        tensors: type, place in bytes and number of values of each tensor.
        block: the tensors, in little-endian order.
    """

    network: dict[str, Any]
    tensors: list[dict[str, Any]]
    block: bytes


def rounded(network: AbstractNetwork, precision: Precision) -> AbstractNetwork:
    """Return a copy in eval mode whose weights are those of a ``PackedNetwork`` with this precision."""
    network = copy.deepcopy(network).eval()
    with torch.no_grad():
        for tensor in network.state_dict().values():
            if precision == "f16" and _is_large(tensor):
                tensor.copy_(tensor.half())
    return network


@torch.no_grad()
def export(network: AbstractNetwork, precision: Precision) -> PackedNetwork:
    """Return the operations and weights of a network in eval mode.

    Raises:
        RunError: if the engine has no operation for one of its layers; the message names it and what is supported.
    """
    return _Exporter(precision).export(network)


def _is_large(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() >= _EXACT_BELOW


class _Exporter:
    def __init__(self, precision: Precision) -> None:
        self.precision = precision
        self.tensors: list[dict[str, Any]] = []
        self.block = bytearray()

    def export(self, network: AbstractNetwork) -> PackedNetwork:
        described = {"image": list(network.image_shape), **self.describe(network)}
        return PackedNetwork(described, self.tensors, bytes(self.block))

    def add(self, tensor: Tensor | None) -> int | None:
        """Append a tensor to the block and return its number."""
        if tensor is None:
            return None
        values = tensor.detach().float().contiguous().numpy()
        dtype = "f16" if self.precision == "f16" and _is_large(tensor) else "f32"
        data = values.astype("<f2" if dtype == "f16" else "<f4").tobytes()
        self.tensors.append({"dtype": dtype, "offset": len(self.block), "count": values.size})
        self.block += data + b"\0" * (-len(data) % _BYTES)
        return len(self.tensors) - 1

    def describe(self, network: AbstractNetwork) -> dict[str, Any]:
        if isinstance(network, CapsNet):
            check(network.masked_decoder, "masked_decoder=false")
            features = self.convolutions(network)
            capsules = [self.dense(name, layer) for name, layer in _above(network)]
        elif isinstance(network, EfficientCapsNet):
            features = self.operations(network.features)
            features.append(self.conv(network.primary.conv))
            capsules = [self.dense("digits", network.digits)]
        elif isinstance(network, EMCaps):
            stem = nn.Sequential(network.conv, network.norm, nn.ReLU())
            features = self.operations(stem)
            capsules = [self.em(name, layer) for name, layer in _above(network)]
        elif isinstance(network, SelfRoutingNet):
            check(len(network.conv_capsules) == 0, "model.conv_strides of a SelfRoutingNet")
            features = self.operations(network.trunk)
            capsules = [self.dense("classes", network.classes)]
        else:
            return self.without_capsules(network)
        return {
            "features": features,
            "primary": self.primary(network.primary),
            "capsules": capsules,
            "decoder": self.decoder(getattr(network, "decoder", None)),
            "classes": capsules[-1]["parents"],
        }

    def convolutions(self, network: CapsNet) -> list[dict[str, Any]]:
        """Return both convolutions of a CapsNet, with the padding that the network adds before them."""
        first = self.conv(network.conv)
        second = self.conv(network.primary.conv)
        if network.padding == "same":
            # of the image and, with stride 1, of the first feature maps
            size = network.image_shape[1:]
            for conv in (first, second):
                left, right, top, bottom = same_padding(size, conv["size"][0], conv["stride"][0])
                conv["pad"] = [top, left, bottom, right]
        return [first, *self.operations(nn.ReLU()), second]

    def without_capsules(self, network: AbstractNetwork) -> dict[str, Any]:
        scores = "softmax"
        if isinstance(network, MatchedCNN):
            features = self.matched(network)
            scores = "logistic"
        elif isinstance(network, AbstractCNN):
            features = self.operations(network.features)
            features.append({"op": "flatten"})
            features += self.operations(network.classifier)
        elif isinstance(network, AveragePoolingNet):
            features = self.operations(network.trunk)
            features.append({"op": "mean"})
            features += self.operations(network.classifier)
        else:
            raise unsupported(type(network).__name__)
        classes = features[-1]["out"]
        return {"features": features, "primary": None, "scores": scores, "classes": classes}

    def matched(self, network: MatchedCNN) -> list[dict[str, Any]]:
        features = self.operations(network.features)
        features.append({"op": "mean" if network.averaged else "flatten"})
        if network.units is None:
            return features + self.operations(network.classifier)
        units: Any = network.classifier
        features += self.operations(network.units)
        features += self.operations(nn.ReLU())
        scores = {
            "op": "units",
            "out": units.num_classes,
            "weight": self.add(units.weight),
            "bias": self.add(units.bias),
        }
        return [*features, scores]

    def operations(self, module: nn.Module) -> list[dict[str, Any]]:
        """Return the operations on feature maps of a module."""
        if isinstance(module, nn.Sequential):
            return [operation for part in module for operation in self.operations(part)]
        if isinstance(module, nn.Conv2d):
            return [self.conv(module)]
        if isinstance(module, nn.BatchNorm2d):
            return [self.scale(module)]
        if isinstance(module, nn.ReLU | nn.LeakyReLU):
            return [{"op": "relu", "slope": getattr(module, "negative_slope", 0)}]
        if isinstance(module, nn.Linear):
            return [self.linear(module)]
        if isinstance(module, nn.AdaptiveAvgPool2d) and module.output_size == 1:
            return [{"op": "mean"}]
        if isinstance(module, nn.MaxPool2d):
            return [_pooling(module)]
        if isinstance(module, PaddedShortcut):
            added, stride = module.added, module.stride
            return [{"op": "padded_shortcut", "added": added, "stride": stride}]
        if isinstance(module, nn.Identity | nn.Dropout):
            return []
        # of torchvision, which only residual networks need
        if type(module).__name__ == "BasicBlock":
            return [self.residual(module)]
        raise unsupported(type(module).__name__)

    def residual(self, block: Any) -> dict[str, Any]:
        """Return a residual block of two convolutions."""
        main = nn.Sequential(block.conv1, block.bn1, block.relu, block.conv2, block.bn2)
        shortcut = [] if block.downsample is None else self.operations(block.downsample)
        return {"op": "residual", "main": self.operations(main), "shortcut": shortcut}

    def conv(self, module: nn.Conv2d) -> dict[str, Any]:
        if isinstance(module, PaperConvolution):
            left, right, top, bottom = module.outside
            pad = [top, left, bottom, right]
        elif module.padding == "same":
            pad = [(size - 1) // 2 for size in module.kernel_size] * 2  # of odd sizes and stride 1
        else:
            pad = [int(pixels) for pixels in module.padding] * 2
        return {
            "op": "conv",
            "weight": self.add(module.weight),
            "bias": self.add(module.bias),
            "out": module.out_channels,
            "groups": module.groups,
            "size": list(module.kernel_size),
            "stride": list(module.stride),
            "pad": pad,
        }

    def scale(self, norm: Any) -> dict[str, Any]:
        factor, term = affine(norm)
        return {"op": "scale", "factor": self.add(factor), "term": self.add(term)}

    def linear(self, module: nn.Linear) -> dict[str, Any]:
        weight, bias = self.add(module.weight), self.add(module.bias)
        return {"op": "linear", "out": module.out_features, "weight": weight, "bias": bias}

    def primary(self, layer: nn.Module) -> dict[str, Any]:
        if isinstance(layer, PrimaryCapsules):
            squash = _name_of_squash(layer.squash)
            return {
                "op": "squashed",
                "dim": layer.dim,
                "factor": layer.scale,
                "bias": self.add(layer.bias),
                "relu": layer.relu,
                "squash": squash,
            }
        if isinstance(layer, DepthwisePrimaryCapsules):
            return {
                "op": "squashed",
                "dim": layer.dim,
                "factor": 1,
                "bias": None,
                "relu": False,
                "squash": "exponential",
            }
        if isinstance(layer, LinearPrimaryCapsules):
            check(not layer.norm_per_type, "primary.norm_per_type=true")
            pose = nn.Sequential(layer.pose, layer.pose_norm)
            activation = nn.Sequential(layer.activation, layer.activation_norm)
            return self.matrices(pose, activation, layer.offset)
        if isinstance(layer, ComposedPrimaryCapsules):
            return self.matrices(layer.pose, layer.activation, 0.0)
        raise unsupported(type(layer).__name__)

    def matrices(self, pose: nn.Module, activation: nn.Module, offset: float) -> dict[str, Any]:
        """Return primary capsules whose poses and logits are feature maps."""
        return {
            "op": "matrices",
            "pose": self.operations(pose),
            "activation": self.operations(activation),
            "offset": offset,
        }

    def dense(self, name: str, layer: nn.Module) -> dict[str, Any]:
        if not isinstance(layer, DenseCapsules):
            raise unsupported(type(layer).__name__)
        _, _, parents, dim = layer.weight.shape
        weight = self.add(layer.weight) if dim else None
        return {
            "op": "dense",
            "name": name,
            "parents": parents,
            "dim": dim,
            "weight": weight,
            "routing": routings.dense_routing(layer.routing, self.add),
        }

    def em(self, name: str, layer: nn.Module) -> dict[str, Any]:
        if not isinstance(layer, ConvCapsules | ClassCapsules):
            raise unsupported(type(layer).__name__)
        routing = routings.em_routing(layer.routing, self.add)
        _, inner, parents, columns = layer.weight.shape
        check((inner, columns) == (4, 4), "poses that are not 4x4 matrices")
        window = layer.windows if isinstance(layer, ConvCapsules) else None
        if isinstance(layer, ConvCapsules):
            competition = routing["competition"]
            check(competition in ("all_parents", "window"), f"routing.normalisation={competition}")
            check(layer.padding == 0, "padded capsules")
        return {
            "op": "em",
            "name": name,
            "parents": parents,
            "weight": self.add(layer.weight),
            "size": None if window is None else window.kernel_size,
            "stride": None if window is None else window.stride,
            "coordinates": self.add(getattr(layer, "coordinates", None)),
            **routing,
        }

    def decoder(self, decoder: nn.Module | None) -> list[dict[str, Any]] | None:
        if not isinstance(decoder, Decoder):
            return None
        return [self.linear(part) for part in decoder.layers if isinstance(part, nn.Linear)]


def _above(network: CapsNet | EMCaps) -> Sequence[tuple[str, nn.Module]]:
    """Return the capsule layers above the primary capsules."""
    return [*network.capsule_layers().items()][1:]


def _pooling(module: nn.MaxPool2d) -> dict[str, Any]:
    plain = module.padding == 0 and module.dilation == 1 and not module.ceil_mode
    check(plain, "MaxPool2d with padding")
    return {"op": "pool", "size": module.kernel_size, "stride": module.stride}


def _name_of_squash(functions: SquashFunctions) -> str:
    probe = torch.tensor([0.6, -0.8])  # a copy of a network has a copy of the function
    for name in routings.SQUASHES:
        if torch.equal(SQUASHES[name].poses(probe), functions.poses(probe)):
            return name
    raise unsupported("primary.squash of this kind")
