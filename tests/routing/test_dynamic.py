"""Options of dynamic and uniform routing only: prior, squash, gradient of the last iteration."""

import re
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, zeros

from capsule_lab import RandomCouplings, ScaledDistanceAgreement, dynamic_routing, uniform_routing
from capsule_lab.functional import SQUASHES, dense_votes, squash
from capsule_lab.routing import AbstractRouting, DynamicRouting, Normaliser, UniformRouting
from capsule_lab.types import RoutingTrace, Votes
from tests.helpers import routing_contract as checks
from tests.helpers.routing_contract import CHILDREN, DIM, PARENTS, build, in_form, random_votes
from tests.reference.contract import BACKENDS
from tests.reference.loops import dynamic_routing_loops, length_loops, squash_vector
from tests.reference.self_attention_loops import exponential_squash_vector

close = torch.testing.assert_close


def test_gradient_last_treats_couplings_as_constants() -> None:
    bias = (
        torch.linspace(-0.5, 0.5, PARENTS * DIM, dtype=torch.float64)
        .view(PARENTS, DIM)
        .requires_grad_()
    )
    for iterations, leaky, backend in product((1, 2, 3), (False, True), ("dense", "fused")):
        votes, traces = random_votes().requires_grad_(), list[RoutingTrace]()
        options: Any = {"iterations": iterations, "leaky": leaky, "bias": bias, "gradient": "last"}
        options["backend"] = "auto" if backend == "dense" else backend
        poses = dynamic_routing(
            in_form(votes, backend), on_iteration=traces.append, **options
        ).poses
        expected = squash(
            torch.einsum("bij,bijd->bjd", traces[-1].couplings.detach(), votes) + bias
        )
        with checks.case_in_errors(options):
            gradients = (
                torch.autograd.grad(each.square().sum(), (votes, bias))
                for each in (poses, expected)
            )
            close(*gradients, rtol=0, atol=1e-12)


def test_gradient_last_changes_gradients_and_no_value() -> None:
    full, last = (
        dynamic_routing(random_votes(), gradient=gradient).poses for gradient in ("full", "last")
    )
    assert torch.equal(full, last)
    with pytest.raises(AssertionError):
        checks.check_gradient(checks.route_of(build(DynamicRouting, gradient="last")))


@pytest.mark.parametrize("std", [0.01, 0.001])
def test_small_weights_make_short_poses_and_hardly_any_routing(std: float) -> None:
    """With initial weights of std 0.01 a length is the square of its input's, and couplings stay almost equal."""
    generator = torch.Generator().manual_seed(0)
    children = torch.randn(2, 6, 8, dtype=torch.float64, generator=generator)
    weight = std * torch.randn(6, 8, PARENTS, DIM, dtype=torch.float64, generator=generator)
    votes, traces = dense_votes(squash(children), weight), list[RoutingTrace]()
    poses = dynamic_routing(votes, on_iteration=traces.append).poses
    close(poses, dynamic_routing_loops(votes), rtol=1e-9, atol=1e-15)
    total = torch.einsum("bij,bijd->bjd", traces[-1].couplings, votes).norm(dim=2)
    assert total.max() < 10 * std
    close(poses.norm(dim=2), total.square(), rtol=0.05, atol=1e-7)
    close(
        traces[-1].couplings,
        torch.full_like(traces[-1].couplings, 1 / PARENTS),
        rtol=0,
        atol=std / 10,
    )


def test_capsule_of_one_component_without_squash_is_a_neuron() -> None:
    """A weighted sum of its inputs and a bias, as in a linear layer, with the sum divided among the parents."""
    generator = torch.Generator().manual_seed(0)
    shapes = (3, CHILDREN), (CHILDREN, PARENTS), (PARENTS, 1)
    inputs, weight, bias = (
        torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in shapes
    )
    votes = Votes(inputs.unsqueeze(2), weight.view(CHILDREN, 1, PARENTS, 1))
    capsules = dynamic_routing(votes, iterations=1, squash="none", bias=bias)
    neurons = torch.nn.functional.linear(inputs, weight.T / PARENTS, bias[:, 0])
    close(capsules.poses.squeeze(2), neurons, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("iterations", "equal"), [(1, True), (2, True), (3, False)])
def test_logits_that_are_replaced_differ_from_the_third_iteration_on(
    iterations: int, equal: bool
) -> None:
    updates = ("add", "replace")
    added, replaced = (
        dynamic_routing(random_votes(), iterations=iterations, update=each).poses
        for each in updates
    )
    assert torch.equal(added, replaced) == equal
    close(
        replaced,
        dynamic_routing_loops(random_votes(), iterations=iterations, replace=True),
        rtol=0,
        atol=1e-12,
    )


def test_prior_starts_at_zero_and_always_gets_a_gradient() -> None:
    prior = build(DynamicRouting, learned_prior=True, types=CHILDREN).prior
    assert torch.equal(prior, torch.zeros(PARENTS, CHILDREN).double())
    for gradient, iterations in product(("full", "last"), (1, 2, 3)):
        poses = dynamic_routing(
            random_votes(), prior=prior, gradient=gradient, iterations=iterations
        ).poses
        assert (torch.autograd.grad(poses.square().sum(), prior)[0] != 0).all()


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("routing", "options", "message"),
    [
        (
            dynamic_routing,
            {"prior": zeros(3, 1)},
            "received prior (3, 1) of torch.float32; expected (parent, type)",
        ),
        (
            dynamic_routing,
            {"prior": zeros(4, 2).double()},
            "there are 5 children of 2 types; expected a multiple",
        ),
        (dynamic_routing, {"squash": "tanh"}, "squash is 'tanh'; expected 'squash', 'e"),
        (uniform_routing, {"squash": "tanh"}, "squash is 'tanh'; expected 'squash', 'e"),
        (dynamic_routing, {"gradient": "none"}, "gradient is 'none'; expected"),
        (dynamic_routing, {"update": "no"}, "update is 'no'; expected"),
        (dynamic_routing, {"iterations": 0}, "iterations is 0; expected 1 (no routing) or more"),
    ],
)
def test_wrong_arguments_of_functions(
    routing: Callable[..., Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        routing(random_votes(), **options)


@pytest.mark.parametrize("routing", [dynamic_routing, uniform_routing])
def test_leaky_normaliser_equals_leaky_option(routing: Callable[..., Tensor]) -> None:
    """A leaky normaliser equals ``leaky=True``; giving both is refused."""
    leaking = routing(random_votes(), normalise=Normaliser(leaky=True))
    close(leaking, routing(random_votes(), leaky=True), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="leaky and has a normaliser; expected only one"):
        routing(random_votes(), leaky=True, normalise=Normaliser())


@pytest.mark.parametrize(
    "kind", [DynamicRouting, RandomCouplings, ScaledDistanceAgreement, UniformRouting]
)
def test_bias_is_a_tenth_per_parent_and_component(kind: type[AbstractRouting]) -> None:
    """There is a bias per parent and component, initially 0.1."""
    assert torch.equal(
        dict(kind(PARENTS, DIM).named_parameters())["bias"], torch.full((PARENTS, DIM), 0.1)
    )


SQUASH_LOOPS = {
    "squash": squash_vector,
    "exponential": exponential_squash_vector,
    "half": partial(squash_vector, added=0.5),
    "relu": lambda total: [max(component, 0.0) for component in total],
    "none": lambda total: total,
}


@pytest.mark.parametrize("name", SQUASHES)
def test_squash_is_used_in_every_iteration(name: Any) -> None:
    """Agreement uses the squashed poses; the logits come from the last total input."""
    votes = random_votes() / 2
    for iterations, backend in product((1, 3), BACKENDS):
        module: Any = build(
            DynamicRouting, iterations=iterations, squash=name, backend=backend, bias=False
        )
        parents = module(in_form(votes, backend))
        expected = dynamic_routing_loops(votes, iterations=iterations, squash=SQUASH_LOOPS[name])
        close(parents.poses, expected, rtol=0, atol=1e-8)
        close(parents.activations, length_loops(parents.poses), rtol=0, atol=1e-8)
        lengths = parents.logits.sigmoid() if SQUASHES[name].bounded else parents.logits
        close(lengths, parents.activations, rtol=0, atol=1e-5)
        if iterations == 1:
            close(tuple(uniform_routing(votes, squash=name)), tuple(parents), rtol=0, atol=1e-10)
    for kind in (DynamicRouting, UniformRouting):
        routing = kind(PARENTS, DIM, squash=name)
        lengths = routing(100 * random_votes(dtype=torch.float32)).activations
        assert routing.bounded is bool(lengths.max() < 1.001)
