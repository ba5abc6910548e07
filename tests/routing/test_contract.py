"""What every routing must satisfy, and proof that the usual mistakes do not.

A routing joins by being exported from ``capsule_lab.routing`` and having an entry in ``JUDGED``. Every check is a
function of a ``Route``, so that the wrong versions of ``tests/reference/wrong.py`` face the same ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError, gradcheck

from capsule_lab import routing as routings
from capsule_lab.functional import softmax_over_parents, squash
from capsule_lab.routing import AbstractRouting, DynamicRouting, UniformRouting, dynamic_routing, uniform_routing
from capsule_lab.types import RoutingTrace
from tests.reference import wrong
from tests.reference.loops import dynamic_routing_loops, length_loops, uniform_routing_loops

BATCH, CHILDREN, PARENTS, DIM = 3, 5, 4, 2

Route = Callable[..., Tensor]
"""``route(votes, **options) -> poses``; the option ``on_iteration`` is always understood."""


@dataclass(frozen=True)
class Judge:
    """How a routing is judged.

    Attributes:
        reference: poses of the parents by slow loops, from votes and the module under test.
        variants: constructor arguments under which module and reference must agree.
    """

    reference: Callable[[Tensor, Any], Tensor]
    variants: list[dict[str, Any]] = field(default_factory=lambda: [{}])


JUDGED: dict[type[AbstractRouting], Judge] = {
    DynamicRouting: Judge(
        reference=lambda votes, module: dynamic_routing_loops(
            votes,
            iterations=module.iterations,
            bias=module.bias,
            bias_inside=module.bias_inside,
            leaky=module.leaky,
        ),
        variants=[
            {"iterations": iterations, "leaky": leaky, **bias}
            for iterations in (1, 2, 3, 5)
            for leaky in (False, True)
            for bias in ({"bias": False}, {"bias_inside": True}, {"bias_inside": False})
        ],
    ),
    UniformRouting: Judge(
        reference=lambda votes, module: uniform_routing_loops(votes, bias=module.bias, leaky=module.leaky),
        variants=[{"bias": bias, "leaky": leaky} for bias in (False, True) for leaky in (False, True)],
    ),
}

DISCOVERED = [
    value
    for name in routings.__all__
    if inspect.isclass(value := getattr(routings, name))
    and issubclass(value, AbstractRouting)
    and not inspect.isabstract(value)
]
VARIANTS = [
    pytest.param(kind, options, id="-".join([kind.__name__, *(f"{k}={v}" for k, v in options.items())]))
    for kind in DISCOVERED
    if kind in JUDGED
    for options in JUDGED[kind].variants
]
every_routing = pytest.mark.parametrize("kind", DISCOVERED)


def random_votes(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Votes that agree enough for couplings to leave 1/parents far behind."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*(shape or (BATCH, CHILDREN, PARENTS, DIM)), generator=generator, dtype=dtype)


def build(kind: type[AbstractRouting], *, parameters: str = "initial", **options: Any) -> AbstractRouting:
    """A float64 routing; with ``parameters="random"`` no two parents have the same ones."""
    module = kind(parents=PARENTS, dim=DIM, **options).double()
    if parameters == "random":
        generator = torch.Generator().manual_seed(1)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5, generator=generator)
    return module


def route_of(module: AbstractRouting) -> Route:
    """Children are as present as their mean vote is large, for the algorithms that ask."""
    return lambda votes, **options: module(votes, votes.mean((2, 3)).sigmoid(), **options).poses


# --------------------------------------------------------------------------------------------- the checks


def check_equals(route: Route, reference: Callable[[Tensor], Tensor]) -> None:
    votes = random_votes()
    torch.testing.assert_close(route(votes), reference(votes), rtol=0, atol=1e-10)


def check_gradient(route: Route, parameters: Iterable[nn.Parameter] = ()) -> None:
    votes = random_votes(1, 3, PARENTS, DIM).requires_grad_()
    try:
        gradcheck(lambda votes, *_: route(votes), (votes, *parameters), fast_mode=True)
    except GradcheckError as error:
        raise AssertionError(str(error)) from error


def check_couplings(route: Route, *, leaky: bool = False) -> None:
    traces: list[RoutingTrace] = []
    poses = route(random_votes(), on_iteration=traces.append)
    assert [trace.iteration for trace in traces] == list(range(len(traces)))
    couplings = torch.stack([trace.couplings for trace in traces])
    assert couplings.shape == (len(traces), BATCH, CHILDREN, PARENTS)
    assert (couplings > 0).all()
    mass = couplings.sum(3)
    if leaky:
        assert (mass < 1).all()
    else:
        torch.testing.assert_close(mass, torch.ones_like(mass), rtol=0, atol=1e-12)
    torch.testing.assert_close(traces[-1].poses, poses)


def check_watching_changes_nothing(route: Route) -> None:
    votes = random_votes()
    torch.testing.assert_close(route(votes, on_iteration=lambda _: None), route(votes), rtol=0, atol=1e-12)


def check_repeatable(route: Route) -> None:
    votes = random_votes()
    assert torch.equal(route(votes), route(votes))


def check_children_have_no_order(route: Route) -> None:
    votes = random_votes()
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(route(votes[:, order]), route(votes), rtol=0, atol=1e-12)


def check_parents_keep_their_order(route: Route) -> None:
    """Only for parents with the same parameters, as at the start."""
    votes = random_votes()
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(route(votes[:, :, order]), route(votes)[:, order], rtol=0, atol=1e-12)


def check_images_are_independent(route: Route) -> None:
    votes = random_votes()
    alone = torch.cat([route(image) for image in votes.split(1)])
    torch.testing.assert_close(alone, route(votes), rtol=0, atol=1e-12)


def check_finite(route: Route, scale: float) -> None:
    votes = (scale * random_votes(dtype=torch.float32)).requires_grad_()
    poses = route(votes)
    poses.square().sum().backward()
    assert votes.grad is not None
    assert poses.isfinite().all()
    assert votes.grad.isfinite().all()


def check_every_parameter_learns(route: Route, parameters: Iterable[nn.Parameter]) -> None:
    votes = random_votes().requires_grad_()
    inputs = [votes, *parameters]
    weighted = (route(votes) * torch.linspace(1, 2, PARENTS * DIM).view(PARENTS, DIM)).sum()
    gradients = torch.autograd.grad(weighted, inputs, allow_unused=True)
    unused = [i for i, gradient in enumerate(gradients) if gradient is None or not (gradient != 0).all()]
    assert not unused, f"no gradient reaches input {unused} of {len(inputs)}; 0 are the votes"


# ------------------------------------------------------------------------------- every routing passes them


@every_routing
def test_every_routing_has_a_judge(kind: type[AbstractRouting]) -> None:
    assert kind in JUDGED, (
        f"{kind.__name__} is exported by capsule_lab.routing but nothing says whether it is right: "
        f"transcribe its paper as slow loops in tests/reference/ and add it to JUDGED in {__name__}"
    )


def test_discovery_finds_the_routings_of_this_project() -> None:
    assert {DynamicRouting, UniformRouting} <= set(DISCOVERED)


@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_equals_the_loops(kind: type[AbstractRouting], options: dict[str, Any]) -> None:
    module = build(kind, parameters="random", **options)
    check_equals(route_of(module), lambda votes: JUDGED[kind].reference(votes, module))


@every_routing
def test_activations_are_lengths(kind: type[AbstractRouting]) -> None:
    parents = build(kind)(random_votes())
    torch.testing.assert_close(parents.activations, length_loops(parents.poses), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_gradient(kind: type[AbstractRouting], options: dict[str, Any]) -> None:
    module = build(kind, parameters="random", **options)
    check_gradient(route_of(module), module.parameters())


@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_couplings_of_a_child(kind: type[AbstractRouting], options: dict[str, Any]) -> None:
    module = build(kind, parameters="random", **options)
    check_couplings(route_of(module), leaky=module.leaky)


@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_watching_changes_nothing(kind: type[AbstractRouting], options: dict[str, Any]) -> None:
    check_watching_changes_nothing(route_of(build(kind, parameters="random", **options)))


@every_routing
def test_same_votes_same_poses(kind: type[AbstractRouting]) -> None:
    check_repeatable(route_of(build(kind)))


@every_routing
def test_children_have_no_order(kind: type[AbstractRouting]) -> None:
    check_children_have_no_order(route_of(build(kind, parameters="random")))


@every_routing
def test_parents_keep_their_order(kind: type[AbstractRouting]) -> None:
    check_parents_keep_their_order(route_of(build(kind)))


@every_routing
def test_images_are_independent(kind: type[AbstractRouting]) -> None:
    check_images_are_independent(route_of(build(kind, parameters="random")))


@every_routing
def test_one_child(kind: type[AbstractRouting]) -> None:
    module = build(kind, parameters="random")
    votes = random_votes(BATCH, 1, PARENTS, DIM)
    torch.testing.assert_close(module(votes).poses, JUDGED[kind].reference(votes, module), rtol=0, atol=1e-10)


def test_one_iteration_is_no_routing() -> None:
    votes = random_votes()
    torch.testing.assert_close(dynamic_routing(votes, iterations=1), uniform_routing(votes), rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [1e4, 1.0, 1e-4, 0.0])
@pytest.mark.parametrize("bias", [False, True])
@every_routing
def test_finite(kind: type[AbstractRouting], bias: bool, scale: float) -> None:
    check_finite(route_of(build(kind, bias=bias).float()), scale)


@every_routing
def test_every_parameter_learns(kind: type[AbstractRouting]) -> None:
    module = build(kind)
    assert list(module.parameters())
    check_every_parameter_learns(route_of(module), module.parameters())


@every_routing
def test_nothing_but_parameters_is_kept(kind: type[AbstractRouting]) -> None:
    module = build(kind)
    before = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    module(random_votes())
    assert {name: value for name, value in vars(module).items() if not name.startswith("_")} == before
    assert not list(module.buffers())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])  # neither needs a compiler
@every_routing
def test_same_when_compiled(kind: type[AbstractRouting], backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # shape checks only run outside of graphs
    torch.compiler.reset()
    module = build(kind, parameters="random")
    compiled = torch.compile(module, backend=backend, fullgraph=True)
    plain, traced = random_votes().requires_grad_(), random_votes().requires_grad_()
    expected, poses = module(plain).poses, compiled(traced).poses
    torch.testing.assert_close(poses, expected, rtol=0, atol=1e-12)
    expected.square().sum().backward()
    poses.square().sum().backward()
    torch.testing.assert_close(traced.grad, plain.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "strided",
    [
        pytest.param(lambda votes: votes.transpose(1, 2).contiguous().transpose(1, 2), id="by parent"),
        pytest.param(lambda votes: votes.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0), id="backwards"),
        pytest.param(lambda votes: votes.repeat_interleave(2, 3)[..., ::2], id="with gaps"),
    ],
)
@every_routing
def test_memory_order_of_votes(kind: type[AbstractRouting], strided: Callable[[Tensor], Tensor]) -> None:
    votes, module = random_votes(), build(kind, parameters="random")
    other = strided(votes)
    assert other.stride() != votes.stride()
    torch.testing.assert_close(module(other).poses, module(votes).poses, rtol=0, atol=1e-12)


@every_routing
def test_float32_under_autocast(kind: type[AbstractRouting]) -> None:
    module, votes = build(kind, parameters="random").float(), random_votes(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parents = module(votes)
    assert parents.poses.dtype == parents.activations.dtype == torch.float32
    assert torch.equal(parents.poses, module(votes).poses)
    assert torch.equal(parents.activations, module(votes).activations)


@every_routing
def test_half_precision_votes_are_routed_in_float32(kind: type[AbstractRouting]) -> None:
    module, votes = build(kind).float(), random_votes(dtype=torch.float32).bfloat16()
    parents = module(votes)
    assert parents.poses.dtype == torch.float32
    assert torch.equal(parents.poses, module(votes.float()).poses)


@every_routing
def test_normaliser_is_used(kind: type[AbstractRouting]) -> None:
    shapes = []

    def half(logits: Tensor) -> Tensor:
        shapes.append(tuple(logits.shape))
        return softmax_over_parents(logits) / 2

    votes, module = random_votes(), build(kind)
    halved = route_of(module)(votes, normalise=half)
    assert set(shapes) == {(BATCH, PARENTS, CHILDREN)}
    assert not torch.allclose(halved, route_of(module)(votes))
    softmax = route_of(module)(votes, normalise=softmax_over_parents)
    torch.testing.assert_close(softmax, route_of(module)(votes), rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------ what dynamic routing adds


def test_last_gradient_has_the_same_value() -> None:
    votes = random_votes()
    assert torch.equal(dynamic_routing(votes, gradient="last"), dynamic_routing(votes, gradient="full"))


@pytest.mark.parametrize("bias_inside", [True, False])
@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_last_gradient_takes_couplings_as_constants(iterations: int, leaky: bool, bias_inside: bool) -> None:
    votes = random_votes().requires_grad_()
    bias = torch.linspace(-0.5, 0.5, PARENTS * DIM, dtype=torch.float64).view(PARENTS, DIM).requires_grad_()
    traces: list[RoutingTrace] = []
    poses = dynamic_routing(
        votes,
        bias=bias,
        iterations=iterations,
        leaky=leaky,
        bias_inside=bias_inside,
        gradient="last",
        on_iteration=traces.append,
    )
    constant = traces[-1].couplings.detach()
    expected = squash(torch.einsum("bij,bijd->bjd", constant, votes) + bias)
    torch.testing.assert_close(
        torch.autograd.grad(poses.square().sum(), (votes, bias)),
        torch.autograd.grad(expected.square().sum(), (votes, bias)),
        rtol=0,
        atol=1e-12,
    )


def test_last_gradient_differs_from_the_full_one() -> None:
    votes = random_votes().requires_grad_()
    (full,) = torch.autograd.grad(dynamic_routing(votes, gradient="full").square().sum(), votes)
    (last,) = torch.autograd.grad(dynamic_routing(votes, gradient="last").square().sum(), votes)
    assert not torch.allclose(full, last, rtol=1e-2)


def test_gradient_check_sees_that_the_last_one_is_cut() -> None:
    with pytest.raises(AssertionError):
        check_gradient(route_of(build(DynamicRouting, gradient="last")))


@pytest.mark.parametrize(
    ("argument", "other"),
    [("iterations", 2), ("bias", False), ("bias_inside", False), ("leaky", True)],
)
def test_every_argument_of_dynamic_routing_changes_the_poses(argument: str, other: Any) -> None:
    votes = random_votes()
    assert not torch.allclose(
        build(DynamicRouting, **{argument: other})(votes).poses, build(DynamicRouting)(votes).poses
    )


@pytest.mark.parametrize(("argument", "other"), [("bias", False), ("leaky", True)])
def test_every_argument_of_uniform_routing_changes_the_poses(argument: str, other: Any) -> None:
    votes = random_votes()
    assert not torch.allclose(
        build(UniformRouting, **{argument: other})(votes).poses, build(UniformRouting)(votes).poses
    )


@every_routing
def test_bias_starts_at_a_tenth_for_each_parent_and_component(kind: type[AbstractRouting]) -> None:
    bias = dict(build(kind).named_parameters())["bias"]
    assert bias.shape == (PARENTS, DIM)
    assert torch.equal(bias.float(), torch.full((PARENTS, DIM), 0.1))


@pytest.mark.parametrize(("argument", "value"), [("iterations", 0), ("iterations", -1), ("gradient", "none")])
@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda **options: DynamicRouting(PARENTS, DIM, **options), id="module"),
        pytest.param(lambda **options: dynamic_routing(random_votes(), **options), id="function"),
    ],
)
def test_wrong_argument_is_named(
    call: Callable[..., Any], argument: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # in training nothing else checks
    with pytest.raises(ValueError, match=rf"{argument} is {value!r}; expected"):
        call(**{argument: value})


# -------------------------------------------------------------------------- and the usual mistakes do not


def loops_with_bias(votes: Tensor, module: nn.Module) -> Tensor:
    return dynamic_routing_loops(votes, bias=module.bias)


@pytest.mark.parametrize(
    ("mistake", "check"),
    [
        (wrong.SoftmaxOverChildren, check_equals),
        (wrong.SoftmaxOverChildren, check_couplings),
        (wrong.LogitsSharedOverBatch, check_equals),
        (wrong.LogitsSharedOverBatch, check_images_are_independent),
        (wrong.LogitsKeptBetweenCalls, check_repeatable),
        (wrong.LogitsKeptBetweenCalls, check_watching_changes_nothing),
        (wrong.TransposedParents, check_equals),
        (wrong.TransposedParents, check_parents_keep_their_order),
        (wrong.DeadGradient, check_gradient),
        (wrong.DeadGradient, check_every_parameter_learns),
        (wrong.UnguardedSquash, check_finite),
    ],
)
def test_mistake_is_caught(mistake: type[nn.Module], check: Callable[..., None]) -> None:
    module = mistake(PARENTS, DIM).to(torch.float32 if check is check_finite else torch.float64)
    with pytest.raises(AssertionError):
        check(module, **extra(check, module))


@pytest.mark.parametrize(
    "check",
    [
        check_equals,
        check_gradient,
        check_couplings,
        check_watching_changes_nothing,
        check_repeatable,
        check_children_have_no_order,
        check_parents_keep_their_order,
        check_images_are_independent,
        check_finite,
        check_every_parameter_learns,
    ],
)
def test_without_a_mistake_nothing_is_caught(check: Callable[..., None]) -> None:
    module = wrong.Right(PARENTS, DIM).to(torch.float32 if check is check_finite else torch.float64)
    check(module, **extra(check, module))


def extra(check: Callable[..., None], module: nn.Module) -> dict[str, Any]:
    """What a check wants to know beside the routing itself."""
    known = {
        "reference": lambda votes: loops_with_bias(votes, module),
        "parameters": list(module.parameters()),
        "scale": 0.0,
    }
    return {name: value for name, value in known.items() if name in inspect.signature(check).parameters}
