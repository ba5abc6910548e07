"""What is measured of a network that trains, against loops; and that measuring changes nothing."""

import copy
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from capsule_lab.analysis import learning
from capsule_lab.analysis.learning import (
    floor_warnings,
    measure_gradient,
    measure_layers,
    votes_variance,
)
from capsule_lab.functional import dense_votes
from capsule_lab.losses import spread_loss
from capsule_lab.networks import (
    AbstractCapsuleNetwork,
    BaselineCNN,
    CapsNet,
    EMCaps,
    SelfRoutingNet,
)
from capsule_lab.routing import EMRouting, NormalisedEMRouting, SelfAttentionRouting
from capsule_lab.types import Votes
from tests.helpers.closeness import assert_close
from tests.helpers.networks import small_capsnet, small_em_caps

LABELS = torch.tensor([0, 1, 2, 0])


def images() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(4, 1, 17, 17, generator=generator)


def em_caps(**options: Any) -> EMCaps:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"types": 3, "batch_norm": True}
    return small_em_caps((1, 17, 17), 3, **sizes, **options)


def capsnet() -> CapsNet:
    torch.manual_seed(0)
    return small_capsnet((1, 17, 17), 3, class_dim=4, decoder=(5,))


def cnn(dropout: float = 0.5) -> BaselineCNN:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"channels": (2,), "kernel_size": 3, "hidden": (4,)}
    return BaselineCNN((1, 17, 17), 3, dropout=dropout, **sizes)


def loss(network: Any) -> Tensor:
    dtype = next(network.parameters()).dtype
    output = network(images().to(dtype))
    return spread_loss(output.scores, LABELS)


def loops(network: nn.Module, seed: int, changes: int) -> tuple[float, float]:
    """Norm and mean cosine, a parameter at a time, with ``backward``."""
    network = copy.deepcopy(network)

    def gradient() -> Tensor:
        for each in network.parameters():
            each.grad = torch.zeros_like(each)
        loss(network).backward()
        gradients = [each.grad.flatten() for each in network.parameters()]
        return torch.cat(gradients).double()

    before = gradient()
    generator = torch.Generator().manual_seed(seed)
    cosines = []
    weights = copy.deepcopy([*network.parameters()])
    for _ in range(changes):
        for each, weight in zip(network.parameters(), weights, strict=True):
            noise = torch.randn(each.shape, generator=generator)
            each.data = weight.detach() + 0.01 * weight.detach() * noise
        cosine = torch.cosine_similarity(before, gradient(), dim=0)
        cosines.append(cosine.item())
    return before.norm().item(), sum(cosines) / changes


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(em_caps, id="em_caps"),
        pytest.param(capsnet, id="capsnet"),
        pytest.param(partial(cnn, dropout=0.0), id="cnn"),
    ],
)
def test_cosine_is_that_of_loops(build: Callable[..., nn.Module]) -> None:
    network = build()
    found = measure_gradient(network, loss, changes=2, seed=7)
    norm, cosine = loops(network, seed=7, changes=2)
    expected_loss = loss(copy.deepcopy(network)).item()
    assert found.norm == pytest.approx(norm, rel=1e-5)
    assert found.cosine == pytest.approx(cosine, rel=1e-5)
    assert found.loss == pytest.approx(expected_loss)


class Wave(nn.Module):
    """Its loss is a wave of the weights, of so many radians per unit."""

    def __init__(self, frequency: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(1, 2, 1000))
        self.frequency = frequency

    def forward(self) -> Tensor:
        return (self.frequency * self.weight).sin().mean()


def test_smooth_and_chaotic_gradients_are_told_apart() -> None:
    def cosine(frequency: float, change: float = 0.01) -> float:
        wave = Wave(frequency)
        found = measure_gradient(wave, lambda wave: wave(), relative_change=change)
        return found.cosine

    assert 0.999 <= cosine(0.1) <= 1
    assert abs(cosine(1000.0)) < 0.1
    by_change = [cosine(10.0, change) for change in (0.3, 0.1, 0.003, 0.001)]
    assert by_change == sorted(set(by_change)), "the larger a change, the smaller is the cosine"


def test_cosine_of_a_constant_and_with_dropout() -> None:
    def dropped_out(network: Wave) -> Tensor:
        return nn.functional.dropout(network.weight, training=True).sum()

    constant = measure_gradient(Wave(0.0), lambda wave: 0 * wave())
    assert math.isnan(constant.cosine), "without a gradient"
    dropout = measure_gradient(Wave(0.1), dropped_out)
    assert dropout.cosine == pytest.approx(1), "dropout is the same before and after"


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relative_change": 0}, "relative_change is 0; expected more than 0"),
        ({"changes": 0}, "changes is 0; expected 1 or more"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure_gradient(cnn(), loss, **options)


def test_a_network_that_cannot_train_is_refused() -> None:
    frozen = cnn().requires_grad_(requires_grad=False)
    message = "BaselineCNN has no trainable parameter; expected one with requires_grad"
    with pytest.raises(ValueError, match=message):
        measure_gradient(frozen, loss)


def test_half_precision_is_measured_in_float32() -> None:
    network = cnn(0.0)
    for each in network.parameters():
        each.data = each.data.bfloat16().float()
    expected = measure_gradient(network, loss)
    half = copy.deepcopy(network).bfloat16()
    assert measure_gradient(half, loss) == expected
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert measure_gradient(network, loss) == expected
    with torch.no_grad():
        assert measure_gradient(network, loss) == expected


@pytest.mark.parametrize("build", [em_caps, capsnet, cnn])
def test_measuring_changes_nothing(build: Callable[[], nn.Module]) -> None:
    for training in (True, False):
        network: Any = build().train(training)
        loss(network).backward()
        before = copy.deepcopy(network.state_dict())
        random = torch.get_rng_state()
        gradients = copy.deepcopy(gradients_of(network))
        measure_gradient(network, loss)
        if isinstance(network, AbstractCapsuleNetwork):
            measure_layers(network, images())
        assert torch.equal(torch.get_rng_state(), random)
        assert network.training is training
        assert_close(network.state_dict(), before, atol=0)
        assert_close(gradients_of(network), gradients, atol=0)
        for module in network.modules():
            assert not module._forward_hooks
            assert not module._forward_pre_hooks


def gradients_of(network: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in network.named_parameters()}


def test_every_layer_and_iteration_and_whether_evidence_is_normalised() -> None:
    routing = partial(EMRouting, iterations=2, min_variance=0.25)
    found = measure_layers(em_caps(routing=routing), images())
    facts = {name: (len(each.iterations), each.min_variance) for name, each in found.items()}
    assert facts == {
        "primary": (0, None),
        "conv_capsules_1": (2, 0.25),
        "conv_capsules_2": (2, 0.25),
        "classes": (2, 0.25),
    }
    assert found["primary"].votes_variance is None
    classes = found["classes"]
    assert not classes.normalised
    first, last = classes.iterations
    assert first["coupling_entropy"] == pytest.approx(1)
    for name in ("pose_std", "activation", "activation_std"):
        expected = getattr(classes, name)
        assert last[name] == pytest.approx(expected, abs=1e-6)


def test_spread_after_an_iteration_is_over_images_also_in_a_convolutional_layer() -> None:
    found = measure_layers(em_caps(routing=partial(EMRouting, iterations=1)), images())
    for name in ("conv_capsules_1", "conv_capsules_2", "classes"):
        layer = found[name]
        (only,) = layer.iterations
        assert only["activation_std"] == pytest.approx(layer.activation_std, abs=1e-6)


def test_layer_of_classes_without_poses() -> None:
    network = SelfRoutingNet((1, 16, 16), 3, planes=4, types=2, dim=4).eval()
    classes = measure_layers(network, torch.rand(4, 1, 16, 16))["classes"]
    assert math.isnan(classes.pose_std)
    assert math.isnan(classes.votes_variance or 0)
    assert 0 < classes.activation < 1


def test_couplings_with_a_prior_below_zero() -> None:
    network = small_capsnet((1, 17, 17), 3, channels=8, routing=SelfAttentionRouting).eval()
    routing = network.digits.routing
    with torch.no_grad():
        routing.prior.fill_(-1)
    measured = measure_layers(network, torch.rand(2, 1, 17, 17))["digits"]
    (only,) = measured.iterations
    assert 0 <= only["coupling_entropy"] <= 1


def test_layer_of_a_routing_with_normalised_evidence() -> None:
    routing = partial(NormalisedEMRouting, min_variance=0.5)
    network = em_caps(routing=routing, class_routing=None)
    classes = measure_layers(network, images())["classes"]
    assert classes.normalised
    assert classes.min_variance == 0.5
    assert len(classes.iterations) == 2
    for iteration in classes.iterations:
        assert iteration.keys() == {"pose_std", "coupling_entropy"}


def test_layer_of_a_routing_without_a_floor() -> None:
    digits = measure_layers(capsnet(), images())["digits"]
    assert digits.min_variance is None
    assert not digits.normalised
    assert digits.votes_variance is not None
    with torch.no_grad():
        poses, activations, _ = capsnet()(images()).capsules
    saturated = (activations < 0.0257) | (activations > 0.9743)
    percent = 100 * saturated.float().mean()
    std_of_images = activations.std(0).mean()
    assert digits.pose_std == pytest.approx(poses.std().item())
    assert digits.activation == pytest.approx(activations.mean().item())
    assert digits.activation_std == pytest.approx(std_of_images.item())
    assert digits.saturated == pytest.approx(percent.item())


def variance_by_loops(votes: Tensor, activations: Tensor) -> float:
    batch, _, parents, dim = votes.shape
    found = []
    for b, j, d in itertools.product(range(batch), range(parents), range(dim)):
        variance = np.cov(votes[b, :, j, d], aweights=activations[b], ddof=0)
        found.append(variance.item())
    found.sort()
    middle = (len(found) - 1) // 2  # as torch.median
    return found[middle]


def test_variance_of_votes_is_that_of_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    poses = torch.randn(2, 5, 8).double()
    weight = torch.randn(5, 2, 3, 4).double()
    votes = Votes(poses, weight)
    activations = torch.rand(2, 5).double()
    dense = dense_votes(votes.poses, votes.weight)
    expected = variance_by_loops(dense, activations)
    assert votes_variance(votes, activations) == pytest.approx(expected)
    assert votes_variance(dense, activations) == pytest.approx(expected)
    expected = variance_by_loops(dense, torch.ones(2, 5))
    assert votes_variance(dense) == pytest.approx(expected)


def test_variance_of_many_votes_is_that_of_some_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    bytes_of_two_rows = 2 * 4 * 5 * 3 * 16
    monkeypatch.setattr(learning, "_BYTES_OF_VOTES", bytes_of_two_rows)
    many = torch.randn(7, 5, 3, 16)
    expected = variance_by_loops(many[[0, 6]], torch.ones(2, 5))
    assert votes_variance(many) == pytest.approx(expected, rel=1e-4)


def test_quantities_have_names() -> None:
    iterations = ({"pose_std": 0.3, "coupling_entropy": 0.9},)
    layer = learning.LayerMeasurement(1.0, 0.5, 0.1, 2.0, iterations, 0.7)
    gradient = learning.GradientMeasurement(0.1, 0.2, 0.99)
    assert learning.quantities(gradient, {"low": layer}) == {
        "loss": 0.1,
        "gradient_norm": 0.2,
        "gradient_cosine": 0.99,
        "pose_std_low": 1.0,
        "activation_low": 0.5,
        "activation_std_low": 0.1,
        "saturated_low": 2.0,
        "votes_variance_low": 0.7,
        "pose_std_low_iteration_1": 0.3,
        "coupling_entropy_low_iteration_1": 0.9,
    }


CLASSES = learning.LayerMeasurement(
    pose_std=0.6,
    activation=0.5,
    activation_std=0.2,
    saturated=10.0,
    iterations=({"pose_std": 0.5}, {"pose_std": 0.6}),
    votes_variance=0.1,
    min_variance=0.1,
)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"min_variance": 5e-4, "iterations": CLASSES.iterations[:1]},
        {"min_variance": 20.0, "normalised": True},
        {"min_variance": None},
        {"min_variance": 0.0},
        {"votes_variance": 0.0},
        {"min_variance": 0.0011},
        {"min_variance": 0.011, "normalised": True},
        {"min_variance": 9.0},
    ],
)
def test_harmless_floor_is_not_warned_of(changes: dict[str, Any]) -> None:
    layers = {"classes": replace(CLASSES, **changes)}
    assert floor_warnings(layers) == []


def test_floor_is_warned_of_where_it_does_harm() -> None:
    normalised = replace(CLASSES, min_variance=0.008, normalised=True)
    (warning,) = floor_warnings({"a": normalised})
    assert "far below the variance of the votes: a (0.008 beside 0.1);" in warning
    low = replace(CLASSES, min_variance=5e-4)
    high = replace(CLASSES, min_variance=20.0)
    layers = {"a": low, "b": high, "c": low}
    below, above = floor_warnings(layers)
    assert "votes: a (0.0005 beside 0.1), c (0.0005 beside 0.1); with two or" in below
    assert "far below the variance of the votes: " in below
    assert "far above the variance of the votes: b (20 beside 0.1); activations then" in above
