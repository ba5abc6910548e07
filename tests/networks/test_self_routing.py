"""The networks of self-routing: sizes, trunks, learning."""

from __future__ import annotations

from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

from capsule_lab.losses import logits_cross_entropy_loss
from capsule_lab.networks import AveragePoolingNet, SelfRoutingNet
from capsule_lab.networks.self_routing import PaddedShortcut
from capsule_lab.routing import DynamicRouting, EMRouting, SelfRouting
from capsule_lab.types import RoutingTrace

CIFAR, NORB = ((3, 32, 32), 10), ((1, 32, 32), 5)
SMALL = {"planes": 4, "types": 3, "dim": 4}


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def pictures(batch: int, *image_shape: int) -> Tensor:
    return torch.randn(batch, *image_shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("data", "options", "parameters"),
    [
        pytest.param(CIFAR, {}, 931_664, id="CIFAR10"),
        pytest.param(CIFAR, {"conv_strides": [2]}, 3_187_536, id="CIFAR10 deep"),
        pytest.param(NORB, {"trunk": "convnet"}, 814_960, id="smallNORB"),
        pytest.param(NORB, {"trunk": "convnet", "conv_strides": [1]}, 3_331_952, id="smallNORB deep"),
    ],
)
def test_published_parameter_counts(data: tuple[Any, int], options: dict[str, Any], parameters: int) -> None:
    with torch.device("meta"):
        assert count(SelfRoutingNet(*data, **options)) == parameters


@pytest.mark.parametrize(("data", "trunk", "parameters"), [(CIFAR, "resnet20", 269_722), (NORB, "convnet", 144_309)])
def test_published_parameter_counts_without_capsules(data: tuple[Any, int], trunk: Any, parameters: int) -> None:
    with torch.device("meta"):
        assert count(AveragePoolingNet(*data, trunk=trunk)) == parameters


ACTIVATIONS_OF_CHILDREN = {"primary.activation.0.weight", "primary.activation.1.weight", "primary.activation.1.bias"}


@pytest.mark.parametrize("trunk", ["resnet20", "convnet"])
@pytest.mark.parametrize("conv_strides", [(), (2,), (1, 2)])
@pytest.mark.parametrize(
    ("routing", "unused"),
    [
        pytest.param({}, set(), id="self"),
        pytest.param({"routing": EMRouting, "class_routing": None}, set(), id="em"),
        pytest.param(
            {"routing": DynamicRouting, "class_routing": {"iterations": 1}}, ACTIVATIONS_OF_CHILDREN, id="dynamic"
        ),
    ],
)
def test_every_parameter_gets_a_gradient(
    routing: dict[str, Any], unused: set[str], conv_strides: Any, trunk: Any
) -> None:
    torch.manual_seed(0)
    network = SelfRoutingNet((2, 21, 18), 4, trunk=trunk, conv_strides=conv_strides, **SMALL, **routing)
    for layer in network.modules():
        if isinstance(layer, SelfRouting):
            nn.init.normal_(layer.weight)
    output = network(pictures(3, 2, 21, 18))
    assert output.scores.shape == output.logits.shape == (3, 4)
    logits_cross_entropy_loss(output.logits, torch.tensor([0, 1, 2])).backward()
    learned = [(name, p) for name, p in network.named_parameters() if p.requires_grad]
    assert {name for name, parameter in learned if parameter.grad is None or not parameter.grad.any()} == unused


def test_couplings_of_the_classes_learn_first() -> None:
    """As long as they are equal, what is below them changes no score."""
    network = SelfRoutingNet((1, 16, 16), 4, **SMALL).double()
    logits_cross_entropy_loss(network(pictures(3, 1, 16, 16).double()).logits, torch.tensor([0, 1, 2])).backward()
    gradients = {name: p.grad.abs().max() for name, p in network.named_parameters() if p.grad is not None}
    learning = {name for name, largest in gradients.items() if largest > 1e-12}  # the others have rounding errors
    assert learning == {"classes.routing.weight", "classes.routing.bias"}


@pytest.mark.parametrize("conv_strides", [(), (2,)])
def test_scores_are_probabilities(conv_strides: Any) -> None:
    network = SelfRoutingNet((1, 16, 16), 4, conv_strides=conv_strides, **SMALL)
    nn.init.normal_(network.classes.routing.weight)
    output = network(pictures(3, 1, 16, 16))
    torch.testing.assert_close(output.scores.sum(1), torch.ones(3))
    torch.testing.assert_close(output.logits.exp(), output.scores)


@pytest.mark.parametrize("stride", [1, 2])
def test_shortcut_pads_channels_on_both_sides(stride: int) -> None:
    features = torch.arange(2.0 * 5 * 4).view(1, 2, 5, 4)
    padded = PaddedShortcut(4, stride)(features)
    assert torch.equal(padded[:, 2:4], features[:, :, ::stride, ::stride])
    assert not padded[:, [0, 1, 4, 5]].any()


def test_routing_of_the_classes_is_observed() -> None:
    traces: list[RoutingTrace] = []
    network = SelfRoutingNet((1, 16, 16), 4, conv_strides=[2], **SMALL)
    network(pictures(2, 1, 16, 16), on_iteration=traces.append)
    assert [trace.couplings.shape for trace in traces] == [(2, 2 * 2 * 3, 4)]
    assert [*network.capsule_layers()] == ["primary", "conv_capsules_1", "classes"]


def test_initial_transformations_are_the_official_codes() -> None:
    (layer,) = SelfRoutingNet((1, 32, 32), 4, conv_strides=[2]).conv_capsules
    assert layer.weight.abs().max().item() == pytest.approx(0.0271, abs=1e-4)
    assert not layer.routing.weight.any()


@pytest.mark.parametrize("kind", [SelfRoutingNet, AveragePoolingNet])
@pytest.mark.parametrize(
    ("options", "message"),
    [({"trunk": "vgg"}, "trunk is 'vgg'; expected"), ({"planes": 0}, "planes 0; expected 1 or more")],
)
def test_wrong_input_is_explained(
    kind: Any, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # in training nothing else checks
    with pytest.raises(ValueError, match=message):
        kind((1, 16, 16), 4, **options)


def test_wrong_strides_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match="conv_strides 2; expected a list"):
        SelfRoutingNet((1, 16, 16), 4, conv_strides=2)
