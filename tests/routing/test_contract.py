"""What every routing must satisfy, and proof that the usual mistakes do not.

A routing joins by being exported from ``capsule_lab.routing`` and having an entry in ``JUDGED``. Every check is a
function of a ``Route``, so that the wrong versions of ``tests/reference/wrong.py`` face the same ones.

Every backend faces them too, see ``WAYS``: those checks that look into its sums and their gradients with each variant
of a routing, the others with one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError, gradcheck

from capsule_lab import routing as routings
from capsule_lab.functional import dense_votes, squash
from capsule_lab.routing import (
    AbstractRouting,
    DynamicRouting,
    EMRouting,
    Normaliser,
    UniformRouting,
    dynamic_routing,
    uniform_routing,
)
from capsule_lab.types import RoutingTrace, Votes
from tests.helpers.compile import without_shape_checks
from tests.reference import wrong
from tests.reference.em_bridge import PRESETS, betas_of_the_loops, class_preset, in_terms_of_the_loops, preset
from tests.reference.em_loops import dense_em_loops
from tests.reference.loops import dynamic_routing_loops, length_loops, uniform_routing_loops

BATCH, CHILDREN, PARENTS, DIM = 3, 5, 4, 2

Route = Callable[..., Tensor]
"""``route(votes, **options) -> poses``, each perhaps followed by its activation; ``on_iteration`` is understood."""


@dataclass(frozen=True)
class Judge:
    """How a routing is judged.

    Attributes:
        reference: poses and activations of the parents by slow loops, from votes, activations of the children and the
            module under test.
        variants: constructor arguments under which module and reference must agree, by name.
    """

    reference: Callable[[Tensor, Tensor, Any], tuple[Tensor, Tensor]]
    variants: dict[str, dict[str, Any]]


def with_lengths(poses: Tensor) -> tuple[Tensor, Tensor]:
    """Capsules whose activations are the lengths of their poses."""
    return poses, length_loops(poses)


def em_by_loops(votes: Tensor, activations: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    options = {**in_terms_of_the_loops(module.options), "normalisation": "all_parents"}  # in a dense layer
    betas = betas_of_the_loops(module, votes.shape[2], votes.shape[3])
    last = dense_em_loops(votes.detach(), activations.detach(), *betas, **options)[-1]
    return last.poses, last.activations


def named(variants: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {"-".join(f"{name}={value}" for name, value in options.items()): options for options in variants}


EM_SWITCHES = [
    *({"cost": cost} for cost in ("paper", "official_legacy", "standardised")),
    *({"temperature_schedule": schedule, "iterations": 5} for schedule in ("linear", "increment", "constant")),
    *({"initial": "types", "normalisation": other} for other in ("window", "official_legacy", "official_fast")),
    {"activation": "mixing_proportions"},
    {"damping": 0.5},
    {"shared_betas": True},
    {"min_variance": 0.1},
    {"mass_eps": 0.1},
    {"inverse_temperature": 0.5},
]

JUDGED: dict[type[AbstractRouting], Judge] = {
    DynamicRouting: Judge(
        reference=lambda votes, _, module: with_lengths(
            dynamic_routing_loops(
                votes,
                iterations=module.iterations,
                bias=module.bias,
                bias_inside=module.bias_inside,
                leaky=module.leaky,
            )
        ),
        variants=named(
            {"iterations": iterations, "leaky": leaky, **bias}
            for iterations in (1, 2, 3, 5)
            for leaky in (False, True)
            for bias in ({"bias": False}, {"bias_inside": True}, {"bias_inside": False})
        ),
    ),
    UniformRouting: Judge(
        reference=lambda votes, _, module: with_lengths(
            uniform_routing_loops(votes, bias=module.bias, leaky=module.leaky)
        ),
        variants=named({"bias": bias, "leaky": leaky} for bias in (False, True) for leaky in (False, True)),
    ),
    EMRouting: Judge(
        reference=em_by_loops,
        variants={
            **{f"{name}-{n}": {**preset(name), "iterations": n} for name in PRESETS for n in (1, 2, 3, 5)},
            **{f"{name}-classes": class_preset(name) for name in PRESETS},
            **named(EM_SWITCHES),
        },
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
    pytest.param(kind, options, id=f"{kind.__name__}-{name}")
    for kind in DISCOVERED
    if kind in JUDGED
    for name, options in JUDGED[kind].variants.items()
]
COMPILED = [
    pytest.param(EMRouting, {"activation": "mixing_proportions", "damping": 0.1}, id="EMRouting-mixing"),
    pytest.param(EMRouting, preset("em_tutorial"), id="EMRouting-tutorial"),
]


@dataclass(frozen=True)
class Way:
    """How votes reach a routing, and who sums them."""

    backend: Any
    made: bool = False


WAYS = [
    pytest.param(Way("auto", made=True), id="made"),
    pytest.param(Way("reference", made=True), id="made-reference"),
    pytest.param(Way("reference"), id="reference"),
    pytest.param(Way("matmul"), id="matmul"),
    pytest.param(Way("fused"), id="fused"),
]
every_way = pytest.mark.parametrize("way", WAYS)
every_routing = pytest.mark.parametrize("kind", DISCOVERED)
every_variant = pytest.mark.parametrize(("kind", "options"), VARIANTS)
with_squash = pytest.mark.parametrize("kind", [DynamicRouting, UniformRouting])  # of Sabour 2017


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


def not_made(votes: Tensor) -> Votes:
    """What exactly these votes are made from: poses that say the number of the image, and its votes as weights."""
    batch, child, _, _ = votes.shape
    image = torch.eye(batch, dtype=votes.dtype).unsqueeze(1).expand(-1, child, -1)  # [b i b]
    return Votes(image, votes.transpose(0, 1))


def presence(votes: Tensor) -> Tensor:
    """Children are as present as their mean vote is large, for the algorithms that ask."""
    return votes.mean((2, 3)).sigmoid()


def together(poses: Tensor, activations: Tensor) -> Tensor:
    return torch.cat([poses, activations.unsqueeze(2)], 2)


def route_of(module: nn.Module, activations: Tensor | None = None, *, made: bool = True) -> Route:
    """Poses and activations of the parents, of children with these ``activations``, by default their ``presence``."""
    return lambda votes, **options: together(
        *module(votes if made else not_made(votes), presence(votes) if activations is None else activations, **options)
    )


def reference_of(module: AbstractRouting) -> Callable[[Tensor], Tensor]:
    return lambda votes: together(*JUDGED[type(module)].reference(votes, presence(votes), module))


def learned(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


# --------------------------------------------------------------------------------------------- the checks


def check_equals(route: Route, reference: Callable[[Tensor], Tensor]) -> None:
    votes = random_votes()
    torch.testing.assert_close(route(votes), reference(votes), rtol=0, atol=1e-10)


def check_gradient(route: Route, parameters: Iterable[Tensor] = ()) -> None:
    """``parameters`` are whatever else the route depends on."""
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
    torch.testing.assert_close(traces[-1].poses, poses[..., :DIM])


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


def check_every_parameter_learns(route: Route, parameters: Iterable[Tensor]) -> None:
    votes = random_votes().requires_grad_()
    inputs = [votes, *parameters]
    parents = route(votes)
    weighted = (parents * torch.linspace(1, 2, parents[0].numel()).view(parents.shape[1:])).sum()
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
    assert {DynamicRouting, EMRouting, UniformRouting} <= set(DISCOVERED)


def test_votes_that_are_not_made_are_the_same_votes() -> None:
    votes = random_votes()
    assert torch.equal(dense_votes(*not_made(votes)), votes)


@every_way
@every_variant
def test_equals_the_loops(kind: type[AbstractRouting], options: dict[str, Any], way: Way) -> None:
    module = build(kind, parameters="random", **{**options, "backend": way.backend})
    check_equals(route_of(module, made=way.made), reference_of(module))


@with_squash
def test_activations_are_lengths(kind: type[AbstractRouting]) -> None:
    parents = build(kind)(random_votes())
    torch.testing.assert_close(parents.activations, length_loops(parents.poses), rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", [WAYS[0], *WAYS[3:]])  # the reference makes votes and goes on as with those of others
@every_variant
def test_gradient(kind: type[AbstractRouting], options: dict[str, Any], way: Way) -> None:
    module = build(kind, parameters="random", **{**options, "backend": way.backend})
    activations = presence(random_votes(1, 3, PARENTS, DIM, seed=2)).requires_grad_()
    check_gradient(route_of(module, activations, made=way.made), [*learned(module), activations])


@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]])
@every_variant
def test_couplings_of_a_child(kind: type[AbstractRouting], options: dict[str, Any], way: Way) -> None:
    module = build(kind, parameters="random", **{**options, "backend": way.backend})
    check_couplings(route_of(module, made=way.made), leaky=module.leaky)


@every_way
@every_routing
def test_couplings_of_every_backend(kind: type[AbstractRouting], way: Way) -> None:
    found: list[RoutingTrace] = []
    expected: list[RoutingTrace] = []
    votes = random_votes()
    route_of(build(kind, backend=way.backend), made=way.made)(votes, on_iteration=found.append)
    route_of(build(kind, backend="reference"))(votes, on_iteration=expected.append)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


BOUND = pytest.mark.parametrize(
    "check",
    [
        check_couplings,
        check_watching_changes_nothing,
        check_repeatable,
        check_children_have_no_order,
        check_parents_keep_their_order,
        check_images_are_independent,
        check_every_parameter_learns,
    ],
)


@BOUND
@every_way
@every_routing
def test_every_backend_passes(kind: type[AbstractRouting], way: Way, check: Callable[..., None]) -> None:
    module = build(kind, backend=way.backend)
    check(*[route_of(module, made=way.made), learned(module)][: 2 if check is check_every_parameter_learns else 1])


@every_variant
def test_watching_changes_nothing(kind: type[AbstractRouting], options: dict[str, Any]) -> None:
    check_watching_changes_nothing(route_of(build(kind, parameters="random", **options)))


@every_variant
def test_same_votes_same_poses(kind: type[AbstractRouting], options: dict[str, Any]) -> None:
    check_repeatable(route_of(build(kind, **options)))


@every_variant
def test_children_have_no_order(kind: type[AbstractRouting], options: dict[str, Any]) -> None:
    check_children_have_no_order(route_of(build(kind, parameters="random", **options)))


@every_variant
def test_parents_keep_their_order(kind: type[AbstractRouting], options: dict[str, Any]) -> None:
    check_parents_keep_their_order(route_of(build(kind, **options)))


@every_variant
def test_images_are_independent(kind: type[AbstractRouting], options: dict[str, Any]) -> None:
    check_images_are_independent(route_of(build(kind, parameters="random", **options)))


@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]])
@every_variant
def test_one_child_of_one_image(kind: type[AbstractRouting], options: dict[str, Any], way: Way) -> None:
    module = build(kind, parameters="random", **{**options, "backend": way.backend})
    votes = random_votes(1, 1, PARENTS, DIM)
    found = route_of(module, made=way.made)(votes)
    torch.testing.assert_close(found, reference_of(module)(votes), rtol=0, atol=1e-10)


def test_one_iteration_is_no_routing() -> None:
    votes = random_votes()
    torch.testing.assert_close(dynamic_routing(votes, iterations=1), uniform_routing(votes), rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]])
@pytest.mark.parametrize("scale", [1e4, 1e-4, 0.0])
@every_variant
def test_finite(kind: type[AbstractRouting], options: dict[str, Any], scale: float, way: Way) -> None:
    module = build(kind, **{**options, "backend": way.backend}).float()
    check_finite(route_of(module, made=way.made), scale)


@every_way
@pytest.mark.parametrize("scale", [1e4, 0.0])
@every_routing
def test_every_backend_is_finite(kind: type[AbstractRouting], scale: float, way: Way) -> None:
    check_finite(route_of(build(kind, backend=way.backend).float(), made=way.made), scale)


@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]])
@pytest.mark.parametrize("scale", [1e4, 0.0])
@pytest.mark.parametrize("presence_of_all", [0.0, 1.0])
@pytest.mark.parametrize(("kind", "options"), [param for param in VARIANTS if param.values[0] is EMRouting])
def test_finite_if_no_child_is_there_or_all_are(
    kind: type[AbstractRouting], options: dict[str, Any], presence_of_all: float, scale: float, way: Way
) -> None:
    module = build(kind, **{**options, "backend": way.backend}).float()
    check_finite(route_of(module, torch.full((BATCH, CHILDREN), presence_of_all), made=way.made), scale)


@every_routing
def test_every_parameter_learns(kind: type[AbstractRouting]) -> None:
    module = build(kind)
    assert list(module.parameters()) == learned(module) != []
    check_every_parameter_learns(route_of(module), learned(module))


@every_variant
def test_every_parameter_learns_in_each_variant(kind: type[AbstractRouting], options: dict[str, Any]) -> None:
    module = build(kind, parameters="random", **options)
    check_every_parameter_learns(route_of(module), learned(module))


@every_routing
def test_nothing_but_parameters_is_kept(kind: type[AbstractRouting]) -> None:
    module = build(kind)
    before = deepcopy({name: value for name, value in vars(module).items() if not name.startswith("_")})
    route_of(module)(random_votes())
    assert {name: value for name, value in vars(module).items() if not name.startswith("_")} == before
    assert not list(module.buffers())


def values_and_gradients(module: nn.Module, votes: Tensor | Votes, activations: Tensor) -> list[Tensor]:
    given, activations = (
        [tensor.detach().clone().requires_grad_() for tensor in ([votes] if isinstance(votes, Tensor) else votes)],
        activations.detach().clone().requires_grad_(),
    )
    parents = together(*module(given[0] if isinstance(votes, Tensor) else Votes(*given), activations))
    weights = torch.linspace(1, 2, parents.numel(), dtype=parents.dtype).view_as(parents)
    asked = [*given, activations, *learned(module)]
    return [
        parents,
        *torch.autograd.grad((weights * parents).sum(), asked, allow_unused=True, materialize_grads=True),
    ]


@pytest.mark.slow  # whole layers are compiled in tests/kernels/test_ops.py
@pytest.mark.parametrize("way", [WAYS[0], WAYS[4]])
@pytest.mark.parametrize(("kind", "options"), [*((kind, {}) for kind in DISCOVERED), *COMPILED])
def test_same_when_compiled(
    kind: type[AbstractRouting], options: dict[str, Any], way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_shape_checks(monkeypatch)
    module = build(kind, parameters="random", **{**options, "backend": way.backend})
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)  # traces backward, too; needs no compiler
    votes = random_votes()
    given = votes if way.made else not_made(votes)
    found, expected = (values_and_gradients(each, given, presence(votes)) for each in (compiled, module))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "strided",
    [
        pytest.param(lambda votes: votes.transpose(1, 2).contiguous().transpose(1, 2), id="by parent"),
        pytest.param(lambda votes: votes.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0), id="backwards"),
        pytest.param(lambda votes: votes.repeat_interleave(2, 3)[..., ::2], id="with gaps"),
    ],
)
@every_way
@every_routing
def test_memory_order_of_votes(kind: type[AbstractRouting], strided: Callable[[Tensor], Tensor], way: Way) -> None:
    votes, module = random_votes(), build(kind, parameters="random", backend=way.backend)
    other = strided(votes)
    assert other.stride() != votes.stride()
    route = route_of(module, made=way.made)
    torch.testing.assert_close(route(other), route(votes), rtol=0, atol=1e-12)


@every_way
@every_routing
def test_float32_under_autocast(kind: type[AbstractRouting], way: Way) -> None:
    module = build(kind, parameters="random", backend=way.backend).float()
    votes = random_votes(dtype=torch.float32)
    given, activations = votes if way.made else not_made(votes), presence(votes)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parents = module(given, activations)
    assert parents.poses.dtype == parents.activations.dtype == torch.float32
    expected = module(given, activations)
    assert torch.equal(parents.poses, expected.poses)
    assert torch.equal(parents.activations, expected.activations)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_way
@every_routing
def test_half_precision_is_routed_in_float32(kind: type[AbstractRouting], way: Way, dtype: torch.dtype) -> None:
    module, votes = build(kind, backend=way.backend).float(), random_votes(dtype=torch.float32).to(dtype)
    activations = presence(votes)
    parents = module(votes if way.made else not_made(votes), activations)
    expected = module(votes.float() if way.made else not_made(votes.float()), activations.float())
    assert parents.poses.dtype == parents.activations.dtype == torch.float32
    assert torch.equal(parents.poses, expected.poses)
    assert torch.equal(parents.activations, expected.activations)


class Half(Normaliser):
    """Hands half of each child up, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()

    def __call__(self, log_couplings: Tensor) -> Tensor:
        self.shapes.add(tuple(log_couplings.shape))
        return super().__call__(log_couplings) / 2


@every_way
@every_routing
def test_normaliser_is_used(kind: type[AbstractRouting], way: Way) -> None:
    votes, half = random_votes(), Half()
    route = route_of(build(kind, backend=way.backend), made=way.made)
    halved = route(votes, normalise=half)
    once = {(1, PARENTS, CHILDREN)} if way.backend == "fused" and kind is EMRouting else set()
    assert half.shapes - once == {(BATCH, PARENTS, CHILDREN)}
    assert half.shapes >= once  # equal ones, the same for all images
    assert not torch.allclose(halved, route(votes))
    torch.testing.assert_close(route(votes, normalise=Normaliser()), route(votes), rtol=0, atol=1e-12)


@every_way
@every_routing
def test_normaliser_decides_about_every_coupling(kind: type[AbstractRouting], way: Way) -> None:
    """From equal log-couplings on: nothing that a child hands up has not been through it."""
    traces: list[RoutingTrace] = []
    route = route_of(build(kind, backend=way.backend), made=way.made)
    route(random_votes(), normalise=Half(), on_iteration=traces.append)
    shares = torch.stack([trace.couplings.sum(2) for trace in traces])
    torch.testing.assert_close(shares, torch.full_like(shares, 0.5), rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------ what dynamic routing adds


def test_last_gradient_has_the_same_value() -> None:
    votes = random_votes()
    assert torch.equal(dynamic_routing(votes, gradient="last"), dynamic_routing(votes, gradient="full"))


@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]])
@pytest.mark.parametrize("bias_inside", [True, False])
@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_last_gradient_takes_couplings_as_constants(iterations: int, leaky: bool, bias_inside: bool, way: Way) -> None:
    votes = random_votes().requires_grad_()
    bias = torch.linspace(-0.5, 0.5, PARENTS * DIM, dtype=torch.float64).view(PARENTS, DIM).requires_grad_()
    traces: list[RoutingTrace] = []
    poses = dynamic_routing(
        votes if way.made else not_made(votes),
        bias=bias,
        iterations=iterations,
        leaky=leaky,
        bias_inside=bias_inside,
        gradient="last",
        on_iteration=traces.append,
        backend=way.backend,
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


@pytest.mark.parametrize("routing", [dynamic_routing, uniform_routing])
def test_leak_is_the_normalisers(routing: Callable[..., Tensor]) -> None:
    """One of the two decides; a normaliser that leaks gives what ``leaky`` does."""
    leaking = routing(random_votes(), normalise=Normaliser(leaky=True))
    torch.testing.assert_close(leaking, routing(random_votes(), leaky=True), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="leaky and has a normaliser; expected one of them"):
        routing(random_votes(), leaky=True, normalise=Normaliser())


def test_normaliser_totals_a_row() -> None:
    mass = torch.rand(BATCH, PARENTS, dtype=torch.float64)
    torch.testing.assert_close(Normaliser().total(mass), mass.sum(1, keepdim=True), rtol=0, atol=1e-15)


@with_squash
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
