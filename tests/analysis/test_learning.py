"""What is measured of a network that trains, against loops; and that measuring changes nothing."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_lab.analysis import learning
from capsule_lab.analysis.learning import (
    GradientMeasurement,
    LayerMeasurement,
    floor_warnings,
    measure_gradient,
    measure_layers,
    quantities,
    relative_steps,
    votes_variance,
)
from capsule_lab.functional import dense_votes
from capsule_lab.losses import spread_loss
from capsule_lab.networks import AbstractCapsuleNetwork, BaselineCNN, CapsNet, EMCaps
from capsule_lab.routing import EMRouting, NormalisedEMRouting
from capsule_lab.types import CapsuleOutput, Capsules, OnIteration, RoutingTrace, Votes
from tests.helpers.networks import small_capsnet, small_em_caps

LABELS = torch.tensor([0, 1, 2, 0])


def images() -> Tensor:
    return torch.rand(4, 1, 17, 17, generator=torch.Generator().manual_seed(3))


def em_caps(**options: Any) -> EMCaps:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"types": 3, "batch_norm": True}
    return small_em_caps((1, 17, 17), 3, **sizes, **options)


def capsnet() -> CapsNet:
    torch.manual_seed(0)
    return small_capsnet((1, 17, 17), 3, class_dim=4, decoder=(5,))


def cnn(dropout: float = 0.5) -> BaselineCNN:
    torch.manual_seed(0)
    return BaselineCNN((1, 17, 17), 3, channels=(2,), kernel_size=3, hidden=(4,), dropout=dropout)


def loss(network: Any) -> Tensor:
    return spread_loss(network(images().to(next(network.parameters()).dtype)).scores, LABELS)


# --- the gradient ----------------------------------------------------------------------------------------------------


def loops(network: nn.Module, seed: int, changes: int) -> tuple[float, float]:
    """Norm and mean cosine in float64, a parameter at a time, with ``backward``."""
    network = copy.deepcopy(network)

    def gradient() -> list[float]:
        network.zero_grad()
        loss(network).backward()
        return [
            value
            for each in network.parameters()
            for value in (each.new_zeros(each.shape) if each.grad is None else each.grad).flatten().tolist()
        ]

    before, generator, cosines = gradient(), torch.Generator().manual_seed(seed), []
    weights = copy.deepcopy([*network.parameters()])
    for _ in range(changes):
        for each, weight in zip(network.parameters(), weights, strict=True):
            noise = torch.randn(each.shape, generator=generator)
            each.data = weight.detach() + 0.01 * weight.detach() * noise
        after = gradient()
        product = math.fsum(a * b for a, b in zip(before, after, strict=True))
        cosines.append(product / math.hypot(*before) / math.hypot(*after))
    return math.hypot(*before), sum(cosines) / changes


@pytest.mark.parametrize("build", [em_caps, capsnet, lambda: cnn(0.0)], ids=["em_caps", "capsnet", "cnn"])
def test_cosine_is_that_of_loops(build: Callable[..., nn.Module]) -> None:
    network = build()
    found = measure_gradient(network, loss, changes=2, seed=7)
    assert (found.norm, found.cosine) == pytest.approx(loops(network, seed=7, changes=2), rel=1e-5)
    assert found.loss == pytest.approx(float(loss(copy.deepcopy(network)).detach()))


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
        return measure_gradient(Wave(frequency), lambda network: network(), relative_change=change).cosine

    assert 0.999 <= cosine(0.1) <= 1
    assert abs(cosine(1000.0)) < 0.1
    assert cosine(10.0, 0.001) > cosine(10.0, 0.003) > cosine(10.0, 0.1) > cosine(10.0, 0.3)
    assert math.isnan(measure_gradient(Wave(0.0), lambda network: 0 * network()).cosine), "without a gradient"


def test_floor_far_below_the_votes_makes_the_gradient_chaotic() -> None:
    """The first table of docs/guides/not_learning.md in small."""

    def cosine(floor: float, iterations: int) -> float:
        def routing(**sizes: int) -> EMRouting:
            return EMRouting(**sizes, min_variance=floor, iterations=iterations, inverse_temperature=0.16, beta_a=0.05)

        network = em_caps(routing=routing, class_routing=None, conv_weight_std=0.4, class_weight_std=0.4)
        return measure_gradient(network, loss).cosine

    assert cosine(1e-6, 3) < 0.7 < 0.95 < cosine(0.1, 3)
    assert cosine(1e-6, 1) > 0.95


def test_dropout_is_the_same_before_and_after() -> None:
    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(200))

        def forward(self) -> Tensor:
            return nn.functional.dropout(self.weight, training=True).sum()

    assert measure_gradient(Linear(), lambda network: network()).cosine == pytest.approx(1)


def test_half_precision_is_measured_in_float32() -> None:
    network = cnn(0.0)
    for each in network.parameters():
        each.data = each.data.bfloat16().float()
    expected = measure_gradient(network, loss)
    assert measure_gradient(copy.deepcopy(network).bfloat16(), loss) == expected
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert measure_gradient(network, loss) == expected
    with torch.no_grad():
        assert measure_gradient(network, loss) == expected


def test_wrong_arguments_are_refused(unchecked_types: None) -> None:
    with pytest.raises(ValueError, match=r"relative_change is 0; expected more than 0"):
        measure_gradient(cnn(), loss, relative_change=0)
    with pytest.raises(ValueError, match=r"changes is 0; expected 1 or more"):
        measure_gradient(cnn(), loss, changes=0)
    with pytest.raises(ValueError, match=r"BaselineCNN has no parameter that is trained; expected one with requires"):
        measure_gradient(cnn().requires_grad_(requires_grad=False), loss)


# --- what stays as it is ---------------------------------------------------------------------------------------------


def state(network: nn.Module) -> list[Any]:
    """Everything that training depends on."""
    tensors = [*network.state_dict().values(), *(each.grad for each in network.parameters()), torch.get_rng_state()]
    return [*(each.clone() for each in tensors if each is not None), network.training, hooks(network)]


def hooks(network: nn.Module) -> int:
    return sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in network.modules())


@pytest.mark.parametrize("build", [em_caps, capsnet, cnn])
def test_measuring_changes_nothing(build: Callable[[], nn.Module]) -> None:
    for training in (True, False):
        network: Any = build().train(training)
        loss(network).backward()
        before = state(network)
        measure_gradient(network, loss)
        if isinstance(network, AbstractCapsuleNetwork):
            measure_layers(network, images())
        torch.testing.assert_close(state(network), before, rtol=0, atol=0)


# --- capsules --------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """A layer of capsules with given activations, that reports one iteration."""

    def __init__(self, activations: Tensor) -> None:
        super().__init__()
        self.activations = nn.Parameter(activations, requires_grad=False)

    def forward(self, images: Tensor, on_iteration: OnIteration | None = None) -> Capsules:
        poses = torch.stack([self.activations, -self.activations], 2)
        if on_iteration is not None:
            on_iteration(RoutingTrace(0, torch.full((len(images), 3, 2), 0.5), 2 * poses))
        return Capsules(poses, self.activations)


class Fake(AbstractCapsuleNetwork):
    def __init__(self) -> None:
        super().__init__()
        self.low = Layer(torch.tensor([[0.0, 0.5], [1.0, 0.5], [0.01, 0.5]]))
        self.high = Layer(torch.tensor([[0.2, 0.4], [0.4, 0.4], [0.6, 0.4]]))
        self.unused = Layer(torch.zeros(1, 1))

    def capsule_layers(self) -> dict[str, nn.Module]:
        return {"low": self.low, "unused": self.unused, "high": self.high}

    def forward(self, images: Tensor, *, on_iteration: OnIteration | None = None) -> CapsuleOutput:
        self.low(images)
        classes = self.high(images, on_iteration=on_iteration)
        return CapsuleOutput(classes.activations, classes)


def test_known_activations() -> None:
    found = measure_layers(Fake(), torch.zeros(3, 1, 1, 1))
    assert [*found] == ["low", "high"]
    low = torch.tensor([0.0, 1.0, 0.01]).std().item()
    assert [found["low"].activation, found["low"].activation_std, found["low"].saturated] == pytest.approx(
        [2.51 / 6, low / 2, 50.0]
    )
    assert (found["low"].votes_variance, found["low"].min_variance, found["low"].normalised) == (None, None, False)
    assert found["high"].activation_std == pytest.approx(0.1)
    deviations = math.sqrt(2 * (0.04 + 0.16 + 0.36 + 3 * 0.16) / 11)
    assert found["high"].pose_std == pytest.approx(deviations)
    (iteration,) = found["high"].iterations
    assert iteration == pytest.approx({"pose_std": 2 * deviations, "coupling_entropy": 1.0})


def test_every_layer_and_iteration_of_em_caps() -> None:
    network = em_caps(routing=lambda **sizes: EMRouting(**sizes, iterations=2, min_variance=0.25))
    found = measure_layers(network, images())
    assert [*found] == ["primary", "conv_capsules_1", "conv_capsules_2", "classes"]
    assert [len(each.iterations) for each in found.values()] == [0, 2, 2, 2]
    assert [each.min_variance for each in found.values()] == [None, 0.25, 0.25, 0.25]
    assert found["primary"].votes_variance is None
    classes = found["classes"]
    last = classes.iterations[-1]
    assert [last[name] for name in ("pose_std", "activation", "activation_std")] == pytest.approx(
        [classes.pose_std, classes.activation, classes.activation_std], abs=1e-6
    )
    assert classes.iterations[0]["coupling_entropy"] == pytest.approx(1)


def test_normalised_evidence_is_told_apart() -> None:
    def routing(**sizes: int) -> NormalisedEMRouting:
        return NormalisedEMRouting(**sizes, min_variance=0.5)

    network = em_caps(routing=routing, class_routing=None)
    classes = measure_layers(network, images())["classes"]
    assert (classes.normalised, classes.min_variance) == (True, 0.5)
    assert [each.keys() for each in classes.iterations] == [{"pose_std", "coupling_entropy"}] * 2
    assert not measure_layers(em_caps(), images())["classes"].normalised
    digits = measure_layers(capsnet(), images())["digits"]
    assert (digits.min_variance, digits.normalised) == (None, False), "there is no floor"
    assert digits.votes_variance is not None
    assert digits.iterations[-1]["activation"] == pytest.approx(digits.activation)


def variance_by_loops(votes: Tensor, activations: Tensor) -> float:
    found = []
    batch, children, parents, dim = votes.shape
    for b, j, d in ((b, j, d) for b in range(batch) for j in range(parents) for d in range(dim)):
        mass = sum(activations[b, i].item() for i in range(children))
        mean = sum(activations[b, i].item() * votes[b, i, j, d].item() for i in range(children)) / mass
        found.append(
            sum(activations[b, i].item() * (votes[b, i, j, d].item() - mean) ** 2 for i in range(children)) / mass
        )
    return sorted(found)[(len(found) - 1) // 2]  # as torch.median


def test_variance_of_votes_is_that_of_loops() -> None:
    torch.manual_seed(0)
    votes = Votes(torch.randn(2, 5, 8).double(), torch.randn(5, 2, 3, 4).double())
    activations = torch.rand(2, 5).double()
    dense = dense_votes(votes.poses, votes.weight)
    expected = variance_by_loops(dense, activations)
    assert votes_variance(votes, activations) == pytest.approx(expected)
    assert votes_variance(dense, activations) == pytest.approx(expected)
    assert votes_variance(dense) == pytest.approx(variance_by_loops(dense, torch.ones(2, 5)))


def test_of_many_votes_a_part_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "_BYTES_OF_VOTES", 2 * 4 * 5 * 3 * 16)
    votes = torch.randn(7, 5, 3, 16, generator=torch.Generator().manual_seed(0))
    assert votes_variance(votes) == pytest.approx(variance_by_loops(votes[[0, 6]], torch.ones(2, 5)), rel=1e-4)


# --- steps, and all numbers by name ----------------------------------------------------------------------------------


def test_relative_steps_are_those_of_the_optimizer() -> None:
    """Adam's first step moves every weight by the learning rate."""
    network = cnn(0.0)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, eps=0)
    loss(network).backward()
    before = {name: each.detach().clone() for name, each in network.named_parameters()}
    optimizer.step()
    found = relative_steps(before, dict(network.named_parameters()))
    name, weight = next(iter(before.items()))
    assert found[name] == pytest.approx(0.01 * math.sqrt(weight.numel()) / weight.norm().item(), rel=1e-4)


def test_quantities_have_names() -> None:
    layers = {"low": LayerMeasurement(1.0, 0.5, 0.1, 2.0, ({"pose_std": 0.3, "coupling_entropy": 0.9},), 0.7)}
    assert quantities(GradientMeasurement(0.1, 0.2, 0.99), layers) == {
        "loss": 0.1, "gradient_norm": 0.2, "gradient_cosine": 0.99,
        "pose_std_low": 1.0, "activation_low": 0.5, "activation_std_low": 0.1, "saturated_low": 2.0,
        "votes_variance_low": 0.7, "pose_std_low_iteration_1": 0.3, "coupling_entropy_low_iteration_1": 0.9,
    }  # fmt: skip


# --- the variance floor ----------------------------------------------------------------------------------------------


def test_floor_is_warned_of_where_it_does_harm() -> None:
    iterations = ({"pose_std": 0.5}, {"pose_std": 0.6})
    classes = LayerMeasurement(0.6, 0.5, 0.2, 10.0, iterations, votes_variance=0.1, min_variance=0.1)
    harmless: tuple[dict[str, Any], ...] = (
        {}, {"min_variance": 5e-4, "iterations": iterations[:1]}, {"min_variance": 20.0, "normalised": True},
        {"min_variance": None}, {"min_variance": 0.0}, {"votes_variance": 0.0}, {"min_variance": 0.0011},
        {"min_variance": 0.011, "normalised": True}, {"min_variance": 9.0},
    )  # fmt: skip
    assert [floor_warnings({"classes": replace(classes, **each)}) for each in harmless] == [[]] * len(harmless)
    (normalised,) = floor_warnings({"a": replace(classes, min_variance=0.008, normalised=True)})
    assert "far below the variance of the votes: a (0.008 beside 0.1);" in normalised
    low = replace(classes, min_variance=5e-4)
    below, above = floor_warnings({"a": low, "b": replace(classes, min_variance=20.0), "c": low})
    assert "far below the variance of the votes: a (0.0005 beside 0.1), c (0.0005 beside 0.1); with two or" in below
    assert "far above the variance of the votes: b (20 beside 0.1); whether votes agree" in above
