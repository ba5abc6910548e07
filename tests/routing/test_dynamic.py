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
from tests.helpers.closeness import assert_close
from tests.helpers.routing_contract import (
    CHILDREN,
    DIM,
    PARENTS,
    build,
    case_in_errors,
    check_gradient,
    in_form,
    random_votes,
    route_of,
)
from tests.reference.contract import BACKENDS
from tests.reference.loops import dynamic_routing_loops, length_loops, squash_vector
from tests.reference.self_attention_loops import exponential_squash_vector


def test_gradient_last_treats_couplings_as_constants() -> None:
    bias = torch.linspace(-0.5, 0.5, PARENTS * DIM, dtype=torch.float64)
    bias = bias.view(PARENTS, DIM).requires_grad_()
    cases = product((1, 2, 3), (False, True), ("dense", "fused"))
    for iterations, leaky, backend in cases:
        votes = random_votes().requires_grad_()
        traces: list[RoutingTrace] = []
        poses = dynamic_routing(
            in_form(votes, backend),
            iterations=iterations,
            bias=bias,
            leaky=leaky,
            gradient="last",
            on_iteration=traces.append,
            backend="auto" if backend == "dense" else backend,
        ).poses
        couplings = traces[-1].couplings.detach()
        totals = torch.einsum("bij,bijd->bjd", couplings, votes) + bias
        found = gradients_of_squares(poses, votes, bias)
        expected = gradients_of_squares(squash(totals), votes, bias)
        with case_in_errors((iterations, leaky, backend)):
            assert_close(found, expected)


def gradients_of_squares(poses: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(poses.square().sum(), inputs)


def test_gradient_last_changes_gradients_and_no_value() -> None:
    full = dynamic_routing(random_votes(), gradient="full").poses
    last = dynamic_routing(random_votes(), gradient="last").poses
    assert torch.equal(full, last)
    route = route_of(build(DynamicRouting, gradient="last"))
    with pytest.raises(AssertionError):
        check_gradient(route)


@pytest.mark.parametrize("std", [0.01, 0.001])
def test_small_weights_make_short_poses_and_hardly_any_routing(std: float) -> None:
    """With initial weights of std 0.01 a length is the square of its input's, and couplings stay almost equal."""
    generator = torch.Generator().manual_seed(0)
    normal = partial(torch.randn, dtype=torch.float64, generator=generator)
    children = normal(2, 6, 8)
    weight = std * normal(6, 8, PARENTS, DIM)
    votes = dense_votes(squash(children), weight)
    traces: list[RoutingTrace] = []
    poses = dynamic_routing(votes, on_iteration=traces.append).poses
    expected = dynamic_routing_loops(votes)
    torch.testing.assert_close(poses, expected, rtol=1e-9, atol=1e-15)
    couplings = traces[-1].couplings
    total = torch.einsum("bij,bijd->bjd", couplings, votes).norm(dim=2)
    assert total.max() < 10 * std
    lengths = poses.norm(dim=2)
    torch.testing.assert_close(lengths, total.square(), rtol=0.05, atol=1e-7)
    equal = torch.full_like(couplings, 1 / PARENTS)
    assert_close(couplings, equal, atol=std / 10)


def test_capsule_of_one_component_without_squash_is_a_neuron() -> None:
    """A weighted sum of its inputs and a bias, as in a linear layer, with the sum divided among the parents."""
    generator = torch.Generator().manual_seed(0)
    normal = partial(torch.randn, dtype=torch.float64, generator=generator)
    inputs = normal(3, CHILDREN)
    weight = normal(CHILDREN, PARENTS)
    bias = normal(PARENTS, 1)
    votes = Votes(inputs.unsqueeze(2), weight.view(CHILDREN, 1, PARENTS, 1))
    capsules = dynamic_routing(votes, iterations=1, squash="none", bias=bias)
    neurons = torch.nn.functional.linear(inputs, weight.T / PARENTS, bias[:, 0])
    assert_close(capsules.poses.squeeze(2), neurons)


@pytest.mark.parametrize(("iterations", "equal"), [(1, True), (2, True), (3, False)])
def test_logits_that_are_replaced_differ_from_the_third_iteration_on(
    iterations: int, equal: bool
) -> None:
    votes = random_votes()
    added = dynamic_routing(votes, iterations=iterations, update="add").poses
    replaced = dynamic_routing(votes, iterations=iterations, update="replace").poses
    assert torch.equal(added, replaced) == equal
    assert_close(replaced, dynamic_routing_loops(votes, iterations=iterations, replace=True))


def test_prior_starts_at_zero_and_always_gets_a_gradient() -> None:
    prior = build(DynamicRouting, learned_prior=True, types=CHILDREN).prior
    zeros_of_prior = zeros(PARENTS, CHILDREN).double()
    assert torch.equal(prior, zeros_of_prior)
    for gradient, iterations in product(("full", "last"), (1, 2, 3)):
        options: Any = {"gradient": gradient, "iterations": iterations}
        poses = dynamic_routing(random_votes(), prior=prior, **options).poses
        (to_prior,) = gradients_of_squares(poses, prior)
        assert (to_prior != 0).all()


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("routing", "options", "message"),
    [
        (
            dynamic_routing,
            {"prior": zeros(3, 1)},
            "received prior (3, 1) of torch.float32; expec",
        ),
        (
            dynamic_routing,
            {"prior": zeros(4, 2).double()},
            "there are 5 children of 2 types; exp",
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
    votes = random_votes()
    found = routing(votes, normalise=Normaliser(leaky=True))
    expected = routing(votes, leaky=True)
    assert_close(found, expected)
    with pytest.raises(ValueError, match="leaky and has a normaliser; expected only one"):
        routing(votes, leaky=True, normalise=Normaliser())


@pytest.mark.parametrize(
    "kind", [DynamicRouting, RandomCouplings, ScaledDistanceAgreement, UniformRouting]
)
def test_bias_is_a_tenth_per_parent_and_component(kind: type[AbstractRouting]) -> None:
    """There is a bias per parent and component, initially 0.1."""
    parameters = dict(kind(PARENTS, DIM).named_parameters())
    expected = torch.full((PARENTS, DIM), 0.1)
    assert torch.equal(parameters["bias"], expected)


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
    squash_loops = SQUASH_LOOPS[name]
    for iterations, backend in product((1, 3), BACKENDS):
        options: Any = {"iterations": iterations, "squash": name, "backend": backend}
        module: Any = build(DynamicRouting, bias=False, **options)
        parents = module(in_form(votes, backend))
        poses = dynamic_routing_loops(votes, iterations=iterations, squash=squash_loops)
        lengths = length_loops(parents.poses)
        assert_close(parents.poses, poses, atol=1e-8)
        assert_close(parents.activations, lengths, atol=1e-8)
        bounded = SQUASHES[name].bounded
        of_logits = parents.logits.sigmoid() if bounded else parents.logits
        assert_close(of_logits, parents.activations, atol=1e-5)
        if iterations == 1:
            uniform = uniform_routing(votes, squash=name)
            assert_close(tuple(uniform), tuple(parents), atol=1e-10)


@pytest.mark.parametrize("name", SQUASHES)
@pytest.mark.parametrize("kind", [DynamicRouting, UniformRouting])
def test_routing_says_whether_lengths_are_bounded(kind: Any, name: Any) -> None:
    routing = kind(PARENTS, DIM, squash=name)
    long_votes = 100 * random_votes(dtype=torch.float32)
    longest = routing(long_votes).activations.max()
    assert routing.bounded is bool(longest < 1.001)
