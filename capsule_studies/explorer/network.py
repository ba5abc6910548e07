"""Networks as lists of operations and one block of numbers, which ``assets/engine.js`` computes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from capsule_lab.errors import RunError
from capsule_lab.functional import SQUASHES, SquashFunctions
from capsule_lab.layers import (
    ClassCapsules,
    Decoder,
    DenseCapsules,
    DepthwisePrimaryCapsules,
    LinearPrimaryCapsules,
    PrimaryCapsules,
)
from capsule_lab.layers.conv import ConvCapsules
from capsule_lab.layers.stem import PaperConvolution
from capsule_lab.networks import CapsNet, EfficientCapsNet, EMCaps, MatchedCNN
from capsule_lab.networks.base import AbstractNetwork
from capsule_lab.networks.cnn import AbstractCNN
from capsule_lab.routing import (
    AbstractRouting,
    DynamicRouting,
    NormalisedEMRouting,
    SelfAttentionRouting,
    UniformRouting,
)

Precision = Literal["f16", "f32"]

SUPPORTED = (
    "a CapsNet with dynamic or uniform routing, an EfficientCapsNet or EMCaps with routing=em_normalised, and beside "
    "it a CNN without pooling; each in its usual options"
)
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
            check(network.padding == "valid", "padding='same'")
            check(network.masked_decoder, "masked_decoder=false")
            features = self.operations(network.conv)
            features += self.operations(nn.ReLU())
            features.append(self.conv(network.primary.conv))
            capsules = [self.dense(name, layer) for name, layer in _above(network)]
        elif isinstance(network, EfficientCapsNet):
            features = self.operations(network.features)
            features.append(self.conv(network.primary.conv))
            capsules = [self.dense("digits", network.digits)]
        elif isinstance(network, EMCaps):
            stem = nn.Sequential(network.conv, network.norm, nn.ReLU())
            features = self.operations(stem)
            capsules = [self.em(name, layer) for name, layer in _above(network)]
        else:
            return self.without_capsules(network)
        return {
            "features": features,
            "primary": self.primary(network.primary),
            "capsules": capsules,
            "decoder": self.decoder(network.decoder),
            "classes": capsules[-1]["parents"],
        }

    def without_capsules(self, network: AbstractNetwork) -> dict[str, Any]:
        if isinstance(network, MatchedCNN) and not network.averaged and network.units is not None:
            units: Any = network.classifier
            features = self.operations(network.features)
            features.append({"op": "flatten"})
            features += self.operations(network.units)
            features += self.operations(nn.ReLU())
            scores = {
                "op": "units",
                "classes": units.num_classes,
                "weight": self.add(units.weight),
                "bias": self.add(units.bias),
            }
            features.append(scores)
            return {
                "features": features,
                "primary": None,
                "scores": "logistic",
                "classes": units.num_classes,
            }
        if isinstance(network, AbstractCNN):
            features = self.operations(network.features)
            features.append({"op": "flatten"})
            features += self.operations(network.classifier)
            return {
                "features": features,
                "primary": None,
                "scores": "softmax",
                "classes": features[-1]["out"],
            }
        raise unsupported(type(network).__name__)

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
        if isinstance(module, nn.Identity | nn.Dropout):
            return []
        raise unsupported(type(module).__name__)

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
            check(not layer.relu, "primary.relu=true")
            squash = _name_of_squash(layer.squash)
            return {
                "op": "squashed",
                "dim": layer.dim,
                "factor": layer.scale,
                "bias": self.add(layer.bias),
                "squash": squash,
            }
        if isinstance(layer, DepthwisePrimaryCapsules):
            return {
                "op": "squashed",
                "dim": layer.dim,
                "factor": 1,
                "bias": None,
                "squash": "exponential",
            }
        if isinstance(layer, LinearPrimaryCapsules):
            pose = nn.Sequential(layer.pose, layer.pose_norm)
            activation = nn.Sequential(layer.activation, layer.activation_norm)
            return {
                "op": "matrices",
                "pose": self.operations(pose),
                "activation": self.operations(activation),
                "offset": layer.offset,
            }
        raise unsupported(type(layer).__name__)

    def dense(self, name: str, layer: nn.Module) -> dict[str, Any]:
        if not isinstance(layer, DenseCapsules):
            raise unsupported(type(layer).__name__)
        _, _, parents, dim = layer.weight.shape
        weight, routing = self.add(layer.weight), self.routing(layer.routing)
        return {
            "op": "dense",
            "name": name,
            "parents": parents,
            "dim": dim,
            "weight": weight,
            "routing": routing,
        }

    def routing(self, routing: AbstractRouting) -> dict[str, Any]:
        if isinstance(routing, SelfAttentionRouting):
            return {"kind": "self_attention", "bias": None, "prior": self.add(routing.prior)}
        options = routing.options
        if isinstance(routing, DynamicRouting):
            check(options["update"] == "add", "routing.update=replace")
            check(not routing.learned_prior, "routing.learned_prior=true")
            iterations = options["iterations"]
        elif isinstance(routing, UniformRouting):
            check(routing.gain is None, "routing.learned_gain=true")
            iterations = 1
        else:
            raise unsupported(type(routing).__name__)
        check(not routing.leaky, "routing.leaky=true")
        squash = options.get("squash", "squash")
        check(squash == "squash", f"routing.squash={squash}")
        return {"kind": "dynamic", "iterations": iterations, "bias": self.add(routing.bias)}

    def em(self, name: str, layer: nn.Module) -> dict[str, Any]:
        if not isinstance(layer, ConvCapsules | ClassCapsules):
            raise unsupported(type(layer).__name__)
        routing = layer.routing
        if not isinstance(routing, NormalisedEMRouting):
            raise unsupported(type(routing).__name__)
        _, inner, parents, columns = layer.weight.shape
        check((inner, columns) == (4, 4), "poses that are not 4x4 matrices")
        check(not routing.learned_prior, "routing.learned_prior=true")
        window = layer.windows if isinstance(layer, ConvCapsules) else None
        if isinstance(layer, ConvCapsules):
            normalisation = routing.normalisation
            check(normalisation == "all_parents", f"routing.normalisation={normalisation}")
            check(layer.padding == 0, "padded capsules")
        evidence_factor, evidence_term = affine(routing.evidence_norm)
        pose_factor, pose_term = affine(routing.pose_norm)
        return {
            "op": "em",
            "name": name,
            "parents": parents,
            "weight": self.add(layer.weight),
            "size": None if window is None else window.kernel_size,
            "stride": None if window is None else window.stride,
            "coordinates": self.add(getattr(layer, "coordinates", None)),
            "iterations": routing.options["iterations"],
            "temperature": routing.options["temperature"],
            "minVariance": routing.options["min_variance"],
            "massEps": routing.options["mass_eps"],
            "evidenceFactor": self.add(evidence_factor),
            "evidenceTerm": self.add(evidence_term),
            "poseFactor": self.add(pose_factor),
            "poseTerm": self.add(pose_term),
        }

    def decoder(self, decoder: nn.Module | None) -> list[dict[str, Any]] | None:
        if not isinstance(decoder, Decoder):
            return None
        return [self.linear(part) for part in decoder.layers if isinstance(part, nn.Linear)]


def _above(network: CapsNet | EMCaps) -> Sequence[tuple[str, nn.Module]]:
    """Return the capsule layers above the primary capsules."""
    return [*network.capsule_layers().items()][1:]


def affine(norm: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return batch normalisation in eval mode as a factor and a term for each feature."""
    if norm is None:
        return None, None
    factor = norm.weight * (norm.running_var + norm.eps).rsqrt()
    return factor, norm.bias - norm.running_mean * factor


def _name_of_squash(functions: SquashFunctions) -> str:
    names = [name for name in ("squash", "exponential") if SQUASHES[name].poses is functions.poses]
    check(bool(names), "primary.squash of this kind")
    return names[0]


def check(supported: bool, option: str) -> None:
    """Check an option that the engine has no operation for."""
    if not supported:
        raise unsupported(option)


def unsupported(what: str) -> RunError:
    """Return the error for a layer or option that the engine does not have."""
    return RunError(f"the explorer has no {what}; expected {SUPPORTED}")
