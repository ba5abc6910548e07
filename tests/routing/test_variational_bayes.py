"""Variational Bayes routing: golden numbers, convolutional layers, normalisation over the batch, wrong versions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_lab.layers import ClassCapsules, ConvCapsules, DenseCapsules
from capsule_lab.routing import VariationalBayesRouting, variational_bayes_routing
from capsule_lab.types import RoutingTrace
from tests.reference import bayes_wrong
from tests.reference.variational_bayes_loops import bayes_loops


def flat_index(*shape: int) -> Tensor:
    return torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)


def golden_votes() -> tuple[Tensor, Tensor]:
    return 0.3 * torch.sin(0.37 * flat_index(2, 6, 3, 16) + 0.1), 0.5 + 0.4 * torch.sin(0.91 * flat_index(2, 6))


def random_votes(*shape: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    votes = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    return votes, torch.rand(shape[:2], generator=generator, dtype=torch.float64)


GOLDEN: list[dict[str, list[float]]] = [
    {
        "couplings": [1 / 3, 1 / 3, 1 / 3],
        "masses": [1.092508165537, 1.092508165537, 1.092508165537],
        "poses": [-0.049092123, -0.049561096, -0.043322206, -0.031219860],
        "log_precisions": [33.084908707, 33.088219192, 33.090732259],
        "log_shares": [-1.274437691, -1.274437691, -1.274437691],
        "logits": [-1.722420114, -1.721957328, -1.721606016, -1.720803330, -1.721016763, -1.721275494],
    },
    {
        "couplings": [0.263843876, 0.313823165, 0.422332959],
        "masses": [1.062415248, 1.086191704, 1.128917544],
        "poses": [-0.050738643, -0.051532299, -0.045351300, -0.033032216],
        "log_precisions": [33.040449085, 33.079316935, 33.150844908],
        "log_shares": [-1.292946738, -1.278295147, -1.252480835],
        "logits": [-1.696934198, -1.716567441, -1.751235177, -1.740495310, -1.713653494, -1.707759427],
    },
    {
        "couplings": [0.210389814, 0.293368399, 0.496241787],
        "masses": [0.974320098, 1.058639243, 1.244565156],
        "poses": [-0.052799632, -0.054721125, -0.049236369, -0.037087703],
        "log_precisions": [32.895311379, 33.033558138, 33.335965093],
        "log_shares": [-1.349129286, -1.295292950, -1.185704145],
        "logits": [-1.623053976, -1.693900929, -1.843889762, -1.809918570, -1.687374493, -1.662563763],
    },
]
"""Section 2.3 of the project's notes on routings, where the official module in eval mode agrees to 6e-10."""


def test_golden_numbers() -> None:
    votes, activations = golden_votes()
    for iterations, expected in enumerate(GOLDEN, 1):
        traces: list[RoutingTrace] = []
        found = variational_bayes_routing(votes, activations, iterations=iterations, on_iteration=traces.append)
        couplings = traces[-1].couplings
        by_loops = bayes_loops(votes, activations)[iterations - 1]
        for values, name in [
            (couplings[0, 0], "couplings"),
            ((couplings * activations.unsqueeze(2)).sum(1)[0], "masses"),
            (found.poses[0, 0, :4], "poses"),
            (found.logits.flatten(), "logits"),
            (by_loops.masses[0, 0], "masses"),
            (by_loops.log_precisions[0, 0], "log_precisions"),
            (by_loops.log_shares[0, 0], "log_shares"),
        ]:
            golden = torch.tensor(expected[name], dtype=torch.float64)
            torch.testing.assert_close(values, golden, rtol=0, atol=6e-10)


@pytest.mark.parametrize(
    ("options", "of_the_loops"),
    [
        ({}, {}),
        ({"initial": "types"}, {"initial": "types"}),
        ({"normalisation": "window"}, {"per_window": True}),
    ],
    ids=["all parents", "types", "window"],
)
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutional_layer_equals_the_loops(
    stride: int, options: dict[str, Any], of_the_loops: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    build = lambda **sizes: VariationalBayesRouting(**sizes, **options)  # noqa: E731
    layer = ConvCapsules((4, 4), 2, 4, 3, 4, rows=2, kernel_size=2, stride=stride, routing=build, weight_std=1.0)
    layer = layer.double().eval()
    poses, activations = torch.randn(2, 32, 4, dtype=torch.float64), torch.rand(2, 32, dtype=torch.float64)
    votes = torch.einsum("bpwrq,wqjc->bpwjrc", layer.windows.poses(poses).view(2, -1, 8, 2, 2), layer.weight).flatten(4)
    expected = bayes_loops(votes, activations, layer.windows.child, **of_the_loops)[-1]
    traces: list[RoutingTrace] = []
    found = layer(poses, activations, on_iteration=traces.append)
    couplings = traces[-1].couplings.unflatten(0, (2, -1))
    torch.testing.assert_close(couplings, expected.couplings, rtol=0, atol=1e-10)
    factor = (1 + layer.routing.logit_norm.eps) ** -0.5  # running statistics are still 0 and 1
    torch.testing.assert_close(found.poses, factor * expected.poses.flatten(1, 2), rtol=0, atol=1e-10)
    torch.testing.assert_close(found.logits, factor * expected.logits.flatten(1, 2), rtol=0, atol=1e-10)


# ------------------------------------------------------------------------------------------ normalisation


def trained(rows: int, **options: Any) -> tuple[VariationalBayesRouting, Any]:
    torch.manual_seed(0)
    routing = VariationalBayesRouting(3, 4, **options).double()
    votes = torch.randn(rows, 6, 3, 4, dtype=torch.float64) * torch.tensor([1.0, 3.0, 9.0]).view(3, 1) + 2
    return routing, routing(votes, torch.rand(rows, 6, dtype=torch.float64))


def test_poses_and_logits_of_a_batch_are_normalised_per_kind_of_parent() -> None:
    _, parents = trained(200)
    for values in (parents.poses.transpose(1, 2).flatten(0, 1), parents.logits):
        torch.testing.assert_close(values.mean(0), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-10)
        torch.testing.assert_close(values.var(0, unbiased=False), torch.ones(3, dtype=torch.float64), rtol=1e-2, atol=0)
    assert torch.equal(parents.activations, parents.logits.sigmoid())


def test_chunks_of_a_batch_are_normalised_together(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = DenseCapsules(6, 4, 3, 4, routing=lambda **sizes: VariationalBayesRouting(**sizes, backend="matmul"))
    poses, activations = torch.randn(8, 6, 4), torch.rand(8, 6)
    whole = layer(poses, activations)
    monkeypatch.setattr("capsule_lab.kernels.run_routing.VOTES_IN_CACHE", 1)
    torch.testing.assert_close(layer(poses, activations), whole)


@pytest.mark.parametrize("affine", [True, False])
def test_scale_and_shift_of_the_logits(affine: bool) -> None:
    layer = ClassCapsules(4, 2, 4, 3, 4, routing=lambda **sizes: VariationalBayesRouting(**sizes, affine=affine))
    assert sum(p.numel() for p in layer.routing.parameters()) == (6 if affine else 0)


def test_every_parameter_learns_in_training() -> None:
    routing, parents = trained(20)
    check_gradients(routing, (parents.activations * torch.rand_like(parents.activations)).sum())


# ------------------------------------------------------------------------------------------- wrong versions


def check_couplings_of_large_votes(route: Callable[..., Any]) -> None:
    traces: list[Any] = []
    route(*random_votes(2, 6, 3, 16), on_iteration=traces.append)
    for trace in traces:
        shares = trace.couplings.sum(2)
        torch.testing.assert_close(shares, torch.ones_like(shares), rtol=0, atol=1e-9)


def check_children_that_are_not_there(route: Callable[..., Any]) -> None:
    votes, activations = random_votes(2, 6, 3, 16)
    poses = route(votes, torch.zeros_like(activations))
    assert (poses if isinstance(poses, Tensor) else poses.poses).isfinite().all()


def check_gradients(module: nn.Module, loss: Tensor) -> None:
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    assert all((gradient.abs() > 1e-9).all() for gradient in gradients)


@pytest.mark.parametrize(
    ("mistake", "check"),
    [
        (bayes_wrong.ClampedDensities, check_couplings_of_large_votes),
        (bayes_wrong.ShareInTheSumOnly, check_couplings_of_large_votes),
        (bayes_wrong.DividedByMass, check_children_that_are_not_there),
    ],
)
def test_mistake_is_caught(mistake: type[bayes_wrong.Right], check: Callable[..., None]) -> None:
    check(bayes_wrong.Right())
    check(variational_bayes_routing)
    with pytest.raises(AssertionError):
        check(mistake())


def test_version_without_a_mistake_is_the_procedure() -> None:
    votes, activations = random_votes(2, 6, 3, 16)
    expected = variational_bayes_routing(votes, activations).poses
    torch.testing.assert_close(bayes_wrong.Right()(votes, activations), expected, rtol=0, atol=1e-12)


def test_dead_betas_are_caught() -> None:
    module = bayes_wrong.DeadBetas(3).double()
    activations = module(torch.randn(20, 3, dtype=torch.float64))
    with pytest.raises(AssertionError):
        check_gradients(module, (activations * torch.rand_like(activations)).sum())
