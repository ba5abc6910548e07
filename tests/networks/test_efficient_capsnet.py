from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from capsule_lab.losses import margin_loss, reconstruction_loss
from capsule_lab.networks import EfficientCapsNet
from capsule_lab.routing import DynamicRouting, SelfAttentionRouting
from capsule_lab.types import RoutingTrace
from tests.helpers.commands import ROOT

SMALL: dict[str, Any] = {
    "channels": (4, 6), "kernel_sizes": (3, 2), "strides": (1, 2), "primary_dim": 3, "class_dim": 5, "decoder": (6, 7),
}  # fmt: skip


def build(image_shape: tuple[int, int, int] = (1, 9, 9), num_classes: int = 4, **options: Any) -> EfficientCapsNet:
    torch.manual_seed(0)
    return EfficientCapsNet(image_shape, num_classes, **{**SMALL, **options})


def images(batch: int = 3, *image_shape: int) -> Tensor:
    return torch.rand(batch, *(image_shape or (1, 9, 9)), generator=torch.Generator().manual_seed(1))


def shipped(name: str) -> dict[str, Any]:
    """Options of ``conf/model/efficient_capsnet<name>.yaml`` that are the network's."""
    files = [ROOT / "conf" / "model" / f"efficient_capsnet{each}.yaml" for each in dict.fromkeys(["", name])]
    options = {key: value for file in files for key, value in yaml.safe_load(Path(file).read_text())["model"].items()}
    return {key: value for key, value in options.items() if key not in ("_target_", "routing", "decoder")}


@pytest.mark.parametrize(
    ("name", "image_shape", "num_classes", "parameters", "without_normalisation"),
    [
        pytest.param("", (1, 28, 28), 10, 161_824, 161_248, id="MNIST"),
        pytest.param("_multimnist", (1, 36, 36), 10, 154_656, 154_080, id="MultiMNIST"),
        pytest.param("_smallnorb", (2, 48, 48), 5, 151_664, 151_088, id="smallNORB"),
    ],
)
def test_published_parameter_counts(
    name: str, image_shape: tuple[int, int, int], num_classes: int, parameters: int, without_normalisation: int
) -> None:
    options = {**shipped(name), "decoder": None}
    with torch.device("meta"):
        network = EfficientCapsNet(image_shape, num_classes, **options)
        plain = EfficientCapsNet(image_shape, num_classes, **{**options, "normalisation": "none"})
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert sum(p.numel() for p in plain.parameters()) == without_normalisation
    assert network.digits.weight.shape == (16, 8, num_classes, 16)


def test_defaults_are_those_of_mnist() -> None:
    defaults = {key: each.default for key, each in inspect.signature(EfficientCapsNet).parameters.items()}
    for key, value in shipped("").items():
        assert defaults[key] == (tuple(value) if isinstance(value, list) else value)


def test_initial_values_of_the_official_code() -> None:
    network = EfficientCapsNet((1, 28, 28), 10)
    conv = network.features[3]
    assert conv.weight.std().item() == pytest.approx((2 / (32 * 9)) ** 0.5, rel=0.02)
    assert not any(layer.bias.any() for layer in (conv, network.primary.conv))
    assert network.primary.conv.weight.abs().max().item() == pytest.approx((6 / (81 + 81 * 128)) ** 0.5, rel=0.01)
    assert network.digits.weight.std().item() == pytest.approx(0.0395, rel=0.02)


def test_instance_normalisation_starts_small_and_of_either_sign() -> None:
    network = build(normalisation="instance", channels=(50, 6))
    for parameter in (network.features[2].weight, network.features[2].bias):
        assert 0.03 < parameter.abs().max() <= 0.05
        assert parameter.min() < 0 < parameter.max()


def test_normalisation_comes_after_the_activation() -> None:
    kinds = [type(layer).__name__ for layer in build().features]
    assert kinds == 2 * ["Conv2d", "ReLU", "BatchNorm2d"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalisation": "instance", "activation": "leaky_relu"},
        {"normalisation": "none"},
        {"routing": DynamicRouting},
        {"primary_kernel": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("batch", [1, 3])
def test_every_parameter_gets_a_gradient(batch: int, options: dict[str, Any]) -> None:
    network, labels = build(**options), torch.arange(batch) % 4
    output = network(images(batch))
    decoded = network.reconstruct(output, labels)
    (margin_loss(output.scores, labels) + reconstruction_loss(decoded, images(batch))).backward()
    assert [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()] == []


CHANGED = {
    "image_shape": (1, 11, 9),
    "num_classes": 5,
    "routing": partial(SelfAttentionRouting, prior=False),
    "channels": (4, 9),
    "kernel_sizes": (3, 3),
    "strides": (1, 1),
    "activation": "leaky_relu",
    "normalisation": "instance",
    "primary_dim": 2,
    "primary_kernel": 2,
    "primary_stride": 2,
    "class_dim": 6,
    "decoder": None,
}


@pytest.mark.parametrize("argument", list(inspect.signature(EfficientCapsNet).parameters))
def test_every_argument_does_something(argument: str) -> None:
    around = {"primary_kernel": 1} if argument == "primary_stride" else {}
    network, other = build(**around), build(**{**around, argument: CHANGED[argument]})
    shapes, other_shapes = ({n: p.shape for n, p in each.named_parameters()} for each in (network, other))
    assert shapes != other_shapes or not torch.allclose(network(images()).scores, other(images()).scores, atol=1e-3)


def test_shapes_and_scores() -> None:
    traces: list[RoutingTrace] = []
    network = build((2, 9, 12))
    output = network(images(2, 2, 9, 12), on_iteration=traces.append)
    assert output.capsules.poses.shape == (2, 4, 5)
    assert torch.equal(output.scores, output.capsules.activations)
    assert torch.equal(output.logits, output.capsules.logits)
    torch.testing.assert_close(output.scores, output.capsules.poses.norm(dim=2), rtol=1e-3, atol=1e-4)
    assert [trace.couplings.shape for trace in traces] == [(2, 2, 4)]
    assert network.reconstruct(output, torch.tensor([0, 3])).shape == (2, 2, 9, 12)
    assert list(network.capsule_layers()) == ["primary", "digits"]


def test_batch_of_one_equals_its_row() -> None:
    network = build().eval()
    torch.testing.assert_close(network(images()[1:2]).scores, network(images()).scores[1:2])


def test_scores_are_float32_under_autocast() -> None:
    network = build().eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = network(images())
    assert output.scores.dtype == output.capsules.poses.dtype == torch.float32
    torch.testing.assert_close(output.scores, network(images()).scores, rtol=0.05, atol=0.01)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "swish"}, "activation is 'swish'; expected"),
        ({"normalisation": "layer"}, "normalisation is 'layer'; expected"),
        ({"strides": (1,)}, "EfficientCapsNet has 2 channels, 2 kernel_sizes and 1 strides; expected as many"),
        ({"primary_dim": 4}, "there are 6 channels for capsules of 4 components; expected a multiple"),
        ({"image_shape": (1, 3, 9)}, "images are 3x9; EfficientCapsNet needs at least 4x4"),
        ({"primary_kernel": 5}, "images are 9x9; EfficientCapsNet needs at least 12x12"),
        ({"primary_kernel": 0}, "EfficientCapsNet has primary_kernel 0; expected 1 or more"),
    ],
    ids=str,
)
def test_arguments_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"expected|needs") as caught:
        build(**options)
    assert str(caught.value).startswith(message)


def test_reconstruction_without_a_decoder_is_refused() -> None:
    network = build(decoder=None)
    with pytest.raises(ValueError, match="this EfficientCapsNet has no decoder; build it with"):
        network.reconstruct(network(images()), torch.tensor([0, 1, 2]))
