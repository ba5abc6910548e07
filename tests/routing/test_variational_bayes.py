"""Variational Bayes routing: golden numbers, convolutional layers, batch normalisation, wrong versions."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_lab.layers import ClassCapsules, ConvCapsules
from capsule_lab.routing import VariationalBayesRouting, variational_bayes_routing
from capsule_lab.types import RoutingTrace
from tests.helpers.closeness import assert_close
from tests.helpers.networks import count
from tests.helpers.waves import sine
from tests.reference import wrong
from tests.reference.em_bridge import random
from tests.reference.variational_bayes_loops import bayes_loops

GOLDEN: list[dict[str, list[float]]] = [
    {
        "couplings": [1 / 3, 1 / 3, 1 / 3],
        "masses": [1.092508165537, 1.092508165537, 1.092508165537],
        "poses": [-0.049092123, -0.049561096, -0.043322206, -0.031219860],
        "log_precisions": [33.084908707, 33.088219192, 33.090732259],
        "log_shares": [-1.274437691, -1.274437691, -1.274437691],
        "logits": [
            -1.722420114,
            -1.721957328,
            -1.721606016,
            -1.720803330,
            -1.721016763,
            -1.721275494,
        ],
    },
    {
        "couplings": [0.263843876, 0.313823165, 0.422332959],
        "masses": [1.062415248, 1.086191704, 1.128917544],
        "poses": [-0.050738643, -0.051532299, -0.045351300, -0.033032216],
        "log_precisions": [33.040449085, 33.079316935, 33.150844908],
        "log_shares": [-1.292946738, -1.278295147, -1.252480835],
        "logits": [
            -1.696934198,
            -1.716567441,
            -1.751235177,
            -1.740495310,
            -1.713653494,
            -1.707759427,
        ],
    },
    {
        "couplings": [0.210389814, 0.293368399, 0.496241787],
        "masses": [0.974320098, 1.058639243, 1.244565156],
        "poses": [-0.052799632, -0.054721125, -0.049236369, -0.037087703],
        "log_precisions": [32.895311379, 33.033558138, 33.335965093],
        "log_shares": [-1.349129286, -1.295292950, -1.185704145],
        "logits": [
            -1.623053976,
            -1.693900929,
            -1.843889762,
            -1.809918570,
            -1.687374493,
            -1.662563763,
        ],
    },
]
"""Computed in float64; the official module in evaluation mode agrees to 6e-10."""


def test_values_are_the_golden_numbers() -> None:
    votes = sine(2, 6, 3, 16, scale=0.3, frequency=0.37, phase=0.1)
    activations = 0.5 + sine(2, 6, scale=0.4, frequency=0.91)
    by_loops = bayes_loops(votes, activations)
    for iterations, expected in enumerate(GOLDEN, 1):
        traces: list[RoutingTrace] = []
        found = variational_bayes_routing(
            votes, activations, iterations=iterations, on_iteration=traces.append
        )
        couplings = traces[-1].couplings
        masses = (couplings * activations.unsqueeze(2)).sum(1)
        golden(couplings[0, 0], expected["couplings"])
        golden(masses[0], expected["masses"])
        golden(found.poses[0, 0, :4], expected["poses"])
        golden(found.logits.flatten(), expected["logits"])
        record = by_loops[iterations - 1]
        golden(record.masses[0, 0], expected["masses"])
        golden(record.log_precisions[0, 0], expected["log_precisions"])
        golden(record.log_shares[0, 0], expected["log_shares"])


def golden(found: Tensor, numbers: list[float]) -> None:
    expected = torch.tensor(numbers, dtype=torch.float64)
    assert_close(found, expected, atol=6e-10)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("options", "of_the_loops"),
    [
        ({}, {}),
        ({"initial": "types"}, {"initial": "types"}),
        ({"normalisation": "window"}, {"per_window": True}),
    ],
    ids=str,
)
def test_convolutional_layer_equals_the_loops(
    stride: int, options: dict[str, Any], of_the_loops: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    routing: Any = partial(VariationalBayesRouting, **options)
    sizes: Any = {"rows": 2, "kernel_size": 2, "stride": stride}
    layer = ConvCapsules((4, 4), 2, 4, 3, 4, routing=routing, weight_std=1.0, **sizes)
    layer.double().eval()
    poses = torch.randn(2, 32, 4, dtype=torch.float64)
    activations = torch.rand(2, 32, dtype=torch.float64)
    # [b position place row q]
    children = layer.windows.poses(poses).view(2, -1, 8, 2, 2)
    votes = torch.einsum("bpwrq,wqjc->bpwjrc", children, layer.weight).flatten(4)
    expected = bayes_loops(votes, activations, layer.windows.child, **of_the_loops)[-1]
    traces: list[RoutingTrace] = []
    found = layer(poses, activations, on_iteration=traces.append)
    couplings = traces[-1].couplings.unflatten(0, (2, -1))
    exact = partial(assert_close, atol=1e-10)
    exact(couplings, expected.couplings)
    # running statistics are still 0 and 1
    factor = (1 + layer.routing.logit_norm.eps) ** -0.5
    exact(found.poses, factor * expected.poses.flatten(1, 2))
    exact(found.logits, factor * expected.logits.flatten(1, 2))


def trained(rows: int) -> tuple[VariationalBayesRouting, Any]:
    torch.manual_seed(0)
    routing = VariationalBayesRouting(3, 4).double()
    spread = torch.tensor([1.0, 3.0, 9.0]).view(3, 1)  # of the parents
    normal = torch.randn(rows, 6, 3, 4, dtype=torch.float64)
    votes = normal * spread + 2
    activations = torch.rand(rows, 6, dtype=torch.float64)
    return routing, routing(votes, activations)


def test_poses_and_logits_are_normalised_per_parent_type() -> None:
    _, parents = trained(200)
    poses = parents.poses.transpose(1, 2).flatten(0, 1)
    for values in (poses, parents.logits):
        means = values.mean(0)
        variances = values.var(0, unbiased=False)
        assert means.tolist() == pytest.approx([0] * 3, abs=1e-10)
        assert variances.tolist() == pytest.approx([1] * 3, rel=1e-2)


@pytest.mark.parametrize(("affine", "parameters"), [(True, 6), (False, 0)])
def test_normalisation_has_parameters_if_it_is_affine(affine: bool, parameters: int) -> None:
    routing = partial(VariationalBayesRouting, affine=affine)
    layer = ClassCapsules(4, 2, 4, 3, 4, routing=routing)
    assert count(layer.routing) == parameters


def check_gradients(module: nn.Module, activations: Tensor) -> None:
    weights = torch.rand_like(activations)
    loss = (weights * activations).sum()
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    for gradient in gradients:
        assert (gradient.abs() > 1e-9).all()


def test_every_parameter_learns_in_training() -> None:
    routing, parents = trained(20)
    check_gradients(routing, parents.activations)


def test_dead_betas_are_caught() -> None:
    module = wrong.DeadBetas(3).double()
    activations = module(torch.randn(20, 3, dtype=torch.float64))
    with pytest.raises(AssertionError):
        check_gradients(module, activations)


def large_votes() -> tuple[Tensor, Tensor]:
    votes = random(2, 6, 3, 16)
    activations = random(2, 6, seed=1).sigmoid()
    return votes, activations


def check_couplings_of_large_votes(route: Callable[..., Any]) -> None:
    traces: list[Any] = []
    route(*large_votes(), on_iteration=traces.append)
    for trace in traces:
        shares = trace.couplings.sum(2)
        assert_close(shares, torch.ones_like(shares), atol=1e-9)


def check_children_that_are_not_there(route: Callable[..., Any]) -> None:
    votes, activations = large_votes()
    none = torch.zeros_like(activations)
    poses = route(votes, none)[0]
    assert poses.isfinite().all()


@pytest.mark.parametrize(
    ("mistake", "check"),
    [
        (wrong.ClampedDensities, check_couplings_of_large_votes),
        (wrong.ShareInTheSumOnly, check_couplings_of_large_votes),
        (wrong.DividedByMass, check_children_that_are_not_there),
    ],
)
def test_mistake_is_caught(mistake: type[wrong.Bayes], check: Callable[..., None]) -> None:
    right = wrong.Bayes()
    wrong.check_catches(check, mistake(), right, variational_bayes_routing)
    expected = variational_bayes_routing(*large_votes()).poses
    assert_close(right(*large_votes()), expected)
