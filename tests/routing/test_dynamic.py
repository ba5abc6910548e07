"""What dynamic and uniform routing have and others have not: prior, squashes, a gradient that is cut; equivariance."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_lab.functional import SQUASHES, squash
from capsule_lab.routing import (
    AbstractRouting,
    DynamicRouting,
    Normaliser,
    RandomCouplings,
    ScaledDistanceAgreement,
    UniformRouting,
    dynamic_routing,
    uniform_routing,
)
from capsule_lab.types import RoutingTrace, Votes
from tests.helpers.changes_of_votes import CHANGES, example
from tests.helpers.routing_contract import (
    BATCH,
    CHILDREN,
    DIM,
    PARENTS,
    build,
    check_gradient,
    child_activations,
    in_form,
    noted,
    random_votes,
    route_of,
)
from tests.reference.loops import dynamic_routing_loops, half_squash_vector, length_loops, squash_vector
from tests.reference.reference import BACKENDS
from tests.reference.self_attention_loops import exponential_squash_vector


def test_one_iteration_is_no_routing() -> None:
    votes = random_votes()
    found, expected = dynamic_routing(votes, iterations=1), uniform_routing(votes)
    torch.testing.assert_close(found.poses, expected.poses, rtol=0, atol=1e-12)


def test_last_gradient_takes_couplings_as_constants() -> None:
    bias = torch.linspace(-0.5, 0.5, PARENTS * DIM, dtype=torch.float64).view(PARENTS, DIM).requires_grad_()
    for iterations, leaky, backend in product((1, 2, 3), (False, True), ("dense", "fused")):
        votes, traces = random_votes().requires_grad_(), list[RoutingTrace]()
        options: Any = {"iterations": iterations, "leaky": leaky, "bias": bias, "gradient": "last"}
        options["backend"] = "auto" if backend == "dense" else backend
        poses = dynamic_routing(in_form(votes, backend), on_iteration=traces.append, **options).poses
        expected = squash(torch.einsum("bij,bijd->bjd", traces[-1].couplings.detach(), votes) + bias)
        with noted(options):
            torch.testing.assert_close(
                torch.autograd.grad(poses.square().sum(), (votes, bias)),
                torch.autograd.grad(expected.square().sum(), (votes, bias)),
                rtol=0,
                atol=1e-12,
            )


def test_last_gradient_has_the_same_value_and_is_another_one() -> None:
    votes = random_votes().requires_grad_()
    full, last = (dynamic_routing(votes, gradient=gradient).poses for gradient in ("full", "last"))
    assert torch.equal(full, last)
    gradients = [torch.autograd.grad(each.square().sum(), votes)[0] for each in (full, last)]
    assert not torch.allclose(*gradients, rtol=1e-2)
    with pytest.raises(AssertionError):
        check_gradient(route_of(build(DynamicRouting, gradient="last")))


def test_agreement_that_replaces_differs_from_the_third_iteration_on() -> None:
    votes, updates = random_votes(), ("add", "replace")
    for iterations in (1, 2, 3):
        found = [dynamic_routing(votes, iterations=iterations, update=update).poses for update in updates]
        assert torch.equal(*found) is (iterations < 3)


def test_capsule_of_one_component_without_routing_and_squash_is_a_neuron() -> None:
    """A weighted sum of its inputs and a bias, divided among the parents: what a capsule generalises."""
    generator = torch.Generator().manual_seed(0)
    inputs, weights = (torch.randn(*shape, generator=generator) for shape in ((3, 5), (5, 4)))
    bias = torch.randn(4, generator=generator)
    votes = Votes(inputs.unsqueeze(2), weights.view(5, 1, 4, 1))
    capsules = dynamic_routing(votes, iterations=1, squash="none", bias=bias.unsqueeze(1))
    torch.testing.assert_close(capsules.poses.squeeze(2), inputs @ weights / 4 + bias)


@pytest.mark.parametrize("scale", [0.01, 0.001])
def test_short_votes_make_short_poses_and_hardly_any_routing(scale: float) -> None:
    """Weights of a deviation of 0.01: ``|v|`` is about ``|s|^2``, and couplings stay where they began."""
    traces: list[RoutingTrace] = []
    dynamic_routing(scale * random_votes(), on_iteration=traces.append)
    total = torch.einsum("bij,bijd->bjd", traces[0].couplings, scale * random_votes()).norm(dim=2)
    torch.testing.assert_close(traces[0].poses.norm(dim=2), total.square(), rtol=0.01, atol=1e-7)
    assert (traces[-1].couplings - 1 / PARENTS).abs().max() < 1e-4


# ------------------------------------------------------------------------------------------- prior, leak, bias


def test_learned_prior() -> None:
    """Of parents and kinds of children, zero at first; refused where it is of another layer."""
    prior = build(DynamicRouting, learned_prior=True, types=CHILDREN).prior
    assert prior is not None
    assert prior.shape == (PARENTS, CHILDREN)
    assert not prior.any()


def test_prior_of_a_child_decides_its_first_couplings() -> None:
    prior = torch.zeros(PARENTS, CHILDREN, dtype=torch.float64)
    prior[1, 2] = 30.0
    traces: list[RoutingTrace] = []
    dynamic_routing(random_votes(), prior=prior, on_iteration=traces.append)
    first = traces[0].couplings
    torch.testing.assert_close(first[:, 2, 1], torch.ones(BATCH, dtype=torch.float64))
    torch.testing.assert_close(first[:, 3], torch.full((BATCH, PARENTS), 1 / PARENTS, dtype=torch.float64))


def test_prior_gets_a_gradient_however_deep_that_of_votes_goes() -> None:
    for gradient, iterations in product(("full", "last"), (1, 2, 3)):
        prior = torch.zeros(PARENTS, CHILDREN, dtype=torch.float64, requires_grad=True)
        poses = dynamic_routing(random_votes(), prior=prior, gradient=gradient, iterations=iterations).poses
        (found,) = torch.autograd.grad(poses.square().sum(), prior)
        assert (found != 0).all()


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (
                lambda shape=shape: dynamic_routing(random_votes(), prior=torch.zeros(shape).double()),
                f"prior is of shape {shape}, and votes are of 5 children for 4 parents; expected",
            )
            for shape in ((3, 1), (4, 2))
        ),
        *(
            (lambda routing=routing: routing(random_votes(), squash="tanh"), "squash is 'tanh'; expected 'squash', 'e")
            for routing in (dynamic_routing, uniform_routing)
        ),
        (lambda: dynamic_routing(random_votes(), gradient="none"), "gradient is 'none'; expected"),
        (lambda: dynamic_routing(random_votes(), update="no"), "update is 'no'; expected"),
        (lambda: dynamic_routing(random_votes(), iterations=0), "iterations is 0; expected 1 (no routing) or more"),
    ],
    ids=range(7),
)
def test_function_names_wrong_arguments(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.parametrize("routing", [dynamic_routing, uniform_routing])
def test_leaky_is_an_option_of_the_normaliser(routing: Callable[..., Tensor]) -> None:
    """Only one of the two may be given; a leaky normaliser gives what ``leaky`` does."""
    leaking = routing(random_votes(), normalise=Normaliser(leaky=True))
    torch.testing.assert_close(leaking, routing(random_votes(), leaky=True), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="leaky and has a normaliser; expected one of them"):
        routing(random_votes(), leaky=True, normalise=Normaliser())


def test_normaliser_totals_a_row() -> None:
    mass = torch.rand(BATCH, PARENTS, dtype=torch.float64)
    torch.testing.assert_close(Normaliser().total(mass), mass.sum(1, keepdim=True), rtol=0, atol=1e-15)


@pytest.mark.parametrize("kind", [DynamicRouting, RandomCouplings, ScaledDistanceAgreement, UniformRouting])
def test_lengths_and_bias_of_sabour(kind: type[AbstractRouting]) -> None:
    """Activations are lengths; the bias is of each parent and component, a tenth at first."""
    votes, module = random_votes(), build(kind)
    parents = module(votes, child_activations(votes))
    torch.testing.assert_close(parents.activations, length_loops(parents.poses), rtol=0, atol=1e-12)
    bias = dict(module.named_parameters())["bias"]
    assert torch.equal(bias.float(), torch.full((PARENTS, DIM), 0.1))


# ------------------------------------------------------------------------------------------------------ squashes

SQUASH_LOOPS = {
    "squash": squash_vector,
    "exponential": exponential_squash_vector,
    "half": half_squash_vector,
    "relu": lambda total: [max(component, 0.0) for component in total],
    "none": lambda total: total,
}


@pytest.mark.parametrize("name", SQUASHES)
def test_squash_of_every_iteration(name: Any) -> None:
    """Its poses take part in the agreement, its logits are those of the last total input."""
    votes = random_votes() / 2
    for iterations, backend in product((1, 3), BACKENDS):
        module: Any = build(DynamicRouting, iterations=iterations, squash=name, backend=backend, bias=False)
        parents = module(in_form(votes, backend))
        expected = dynamic_routing_loops(votes, iterations=iterations, squash=SQUASH_LOOPS[name])
        torch.testing.assert_close(parents.poses, expected, rtol=0, atol=1e-8)
        torch.testing.assert_close(parents.activations, length_loops(parents.poses), rtol=0, atol=1e-8)
        lengths = parents.logits.sigmoid() if SQUASHES[name].bounded else parents.logits
        torch.testing.assert_close(lengths, parents.activations, rtol=0, atol=1e-5)
        if iterations == 1:
            torch.testing.assert_close(tuple(uniform_routing(votes, squash=name)), tuple(parents), rtol=0, atol=1e-10)
    for kind in (DynamicRouting, UniformRouting):
        routing: nn.Module = kind(PARENTS, DIM, squash=name)
        lengths = routing(100 * random_votes(dtype=torch.float32)).activations
        assert routing.bounded is bool(lengths.max() < 1.001)


# -------------------------------------------------------------------------------- all votes changed in one way


def routed(votes: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Poses, activations, couplings."""
    traces: list[RoutingTrace] = []
    found = dynamic_routing(votes, bias=bias, on_iteration=traces.append)
    return found.poses, found.activations, traces[-1].couplings


@pytest.mark.parametrize("name", ["rotation of 16 components", "signed permutation", "turned frame of 4x4 poses"])
def test_turned_votes_turn_poses_unless_there_is_a_bias(name: str) -> None:
    change, votes = CHANGES[name], example()[0]
    before, after = routed(votes), routed(change(votes))
    torch.testing.assert_close(after[0], change(before[0]), rtol=0, atol=1e-13)
    torch.testing.assert_close(after[1:], before[1:], rtol=0, atol=1e-13)
    bias = votes.new_full((3, 16), 0.1)  # Sabour 2017, official code
    before, after = routed(votes, bias), routed(change(votes), bias)
    assert (after[0] - change(before[0])).abs().max() > 0.05


def test_shifts_and_scales_change_couplings() -> None:
    """Longer votes agree more, so that couplings change, and with them directions a little."""
    votes = example()[0]
    before, shifted, scaled = routed(votes), routed(CHANGES["shift"](votes)), routed(2 * votes)
    assert (shifted[2] - before[2]).abs().max() > 0.01
    assert torch.cosine_similarity(before[0], scaled[0], dim=2).min() > 0.9
    assert (scaled[1] > before[1]).all()
