"""What every routing must satisfy, and tests that the usual mistakes do not.

A routing joins by being exported from ``capsule_lab.routing`` and having an entry in ``REFERENCES``. Every check is a
function of a ``Route``, so that the wrong versions of ``tests/reference/wrong.py`` are put to the same ones.

Every check is run for combinations of a routing's switches and of backends, see ``BACKENDS``, that contain each pair
of values at least once, and for each shipped configuration of EM routing.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError, gradcheck

from capsule_lab import routing as routings
from capsule_lab.functional import SQUASHES, Squash, dense_votes, squash
from capsule_lab.routing import (
    AbstractRouting,
    AttentionOverChildren,
    DynamicRouting,
    EMRouting,
    HeinsenRouting,
    InvertedAttention,
    LayerInfo,
    NormalisedEMRouting,
    Normaliser,
    RandomCouplings,
    ScaledDistanceAgreement,
    SelfAttentionRouting,
    SelfRouting,
    UniformRouting,
    VariationalBayesRouting,
    dynamic_routing,
    uniform_routing,
)
from capsule_lab.types import RoutingTrace, Votes
from tests.helpers.compile import without_shape_checks
from tests.helpers.pairwise import pairwise
from tests.reference import wrong
from tests.reference.attention_loops import exponential_squash_vector, self_attention_loops
from tests.reference.attention_over_children_loops import attention_over_children_loops
from tests.reference.bayes_loops import bayes_loops
from tests.reference.em_bridge import PRESETS, betas_of_the_loops, class_preset, in_terms_of_the_loops, preset
from tests.reference.em_loops import dense_em_loops
from tests.reference.em_normalised_loops import dense_em_evidence_loops
from tests.reference.heinsen_loops import heinsen_loops
from tests.reference.inverted_attention_loops import inverted_attention_loops
from tests.reference.loops import (
    dynamic_routing_loops,
    half_squash_vector,
    length_loops,
    squash_vector,
    uniform_routing_loops,
)
from tests.reference.random_couplings_loops import fixed_couplings_loops
from tests.reference.scaled_distance_loops import scaled_distance_loops
from tests.reference.self_routing_loops import self_routing_loops

BATCH, CHILDREN, PARENTS, DIM = 3, 5, 4, 3

Route = Callable[..., Tensor]
"""``route(votes, **options) -> poses``, each followed by its activation if it has one; knows ``on_iteration``."""


@dataclass(frozen=True)
class Reference:
    """What a routing is compared with.

    Attributes:
        loops: poses and activations of the parents by slow loops, from votes, activations of the children and the
            module under test.
        switches: values of its constructor's arguments.
        given: combinations of arguments that are always among those tested, by name.
        backends: names of those in ``BACKENDS`` that it has: a routing that reads the poses of children cannot be given
            the tensor of votes.
        added: what the algorithm adds to the sum of a child's couplings, which is one without.
        normalised: whether poses are normalised over the batch after the last iteration, which its trace is without.
        exchangeable: whether no child and, at the start, no parent differs from another but by its votes.
    """

    loops: Callable[[Tensor, Tensor, Any], tuple[Tensor, Tensor]]
    switches: dict[str, Sequence[Any]]
    given: dict[str, dict[str, Any]] = field(default_factory=dict)
    backends: Sequence[str] = ("dense", "dense-reference", "reference", "matmul", "fused")
    added: Callable[[Any], float | Tensor] = lambda _: 0.0
    normalised: bool = False
    exchangeable: bool = True


def options_of(preset: dict[str, Any]) -> dict[str, Any]:
    """A shipped configuration but for what is varied here and for what belongs to other layers."""
    return {name: value for name, value in preset.items() if name not in ("iterations", "backend", "class_layer")}


def with_lengths(poses: Tensor) -> tuple[Tensor, Tensor]:
    """Capsules whose activations are the lengths of their poses."""
    return poses, length_loops(poses)


def em_by_loops(votes: Tensor, activations: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    options = {**in_terms_of_the_loops(module.options), "normalisation": "all_parents"}  # in a dense layer
    betas = betas_of_the_loops(module, votes.shape[2], votes.shape[3])
    last = dense_em_loops(votes.detach(), activations.detach(), *betas, **options)[-1]
    return last.poses, last.activations


def bayes_by_loops(votes: Tensor, activations: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    """As in evaluation: normalised by the running statistics."""
    last = bayes_loops(votes.detach(), activations.detach(), iterations=module.iterations)[-1]
    poses = by_statistics(module.pose_norm, last.poses[:, 0].transpose(1, 2)).transpose(1, 2)
    return poses, by_statistics(module.logit_norm, last.logits[:, 0]).sigmoid()


def inverted_attention_by_loops(votes: Tensor, _: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    poses, logits, _ = inverted_attention_loops(
        votes, iterations=module.iterations, scale=module.scale, shift=module.shift
    )
    if module.head is not None:
        logits = (poses * module.head.weight[0]).sum(2) + module.head.bias
    return poses, logits.sigmoid()


def attention_over_children_by_loops(votes: Tensor, _: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    poses, _ = attention_over_children_loops(votes, module.attention, module.weight, module.bias)
    return poses, length_loops(poses) / votes.shape[3] ** 0.5


def em_normalised_by_loops(votes: Tensor, activations: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    """As in evaluation: normalised by the running statistics."""
    learned = module.log_temperature
    poses, evidence = dense_em_evidence_loops(
        votes,
        activations,
        iterations=module.iterations,
        temperature=module.temperature if learned is None else learned.exp().item(),
        min_variance=module.min_variance,
        mass_eps=module.mass_eps,
    )
    if module.pose_norm is not None:
        poses = by_statistics(module.pose_norm, poses.flatten(1)).view_as(poses)
    return poses, by_statistics(module.evidence_norm, evidence).sigmoid()


def by_statistics(norm: nn.BatchNorm1d, rows: Tensor) -> Tensor:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    normalised = (rows - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    return normalised * norm.weight + norm.bias if norm.affine else normalised


def self_routing_by_loops(votes: Tensor, activations: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    """The children's poses are their votes, see ``factored``."""
    return self_routing_loops(votes, votes.flatten(2), activations, module.weight, module.bias)


def heinsen_by_loops(votes: Tensor, activations: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    options = {"iterations": module.iterations, "eps": module.eps}
    last = heinsen_loops(votes, activations, module.beta_use, module.beta_ignore, module.bias, **options)[-1]
    return last.poses, last.scores.sigmoid()


REFERENCES: dict[type[AbstractRouting], Reference] = {
    AttentionOverChildren: Reference(loops=attention_over_children_by_loops, switches={}, exchangeable=False),
    DynamicRouting: Reference(
        loops=lambda votes, _, module: with_lengths(
            dynamic_routing_loops(
                votes,
                iterations=module.iterations,
                bias=module.bias,
                bias_inside=module.bias_inside,
                leaky=module.leaky,
                prior=module.prior,
                replace=module.update == "replace",
            )
        ),
        switches={
            "iterations": (1, 2, 3, 5),
            "leaky": (False, True),
            "bias": (True, False),
            "bias_inside": (True, False),
            "learned_prior": (False, True),
            "update": ("add", "replace"),
        },
    ),
    SelfAttentionRouting: Reference(
        loops=lambda votes, _, module: self_attention_loops(votes, prior=module.prior)[:2],
        switches={"normalisation": ("all_parents", "window")},
        added=lambda module: module.prior.sum(),
    ),
    UniformRouting: Reference(
        loops=lambda votes, _, module: with_lengths(uniform_routing_loops(votes, bias=module.bias, leaky=module.leaky)),
        switches={"bias": (False, True), "leaky": (False, True)},
    ),
    VariationalBayesRouting: Reference(
        loops=bayes_by_loops,
        switches={
            "iterations": (3, 1, 2, 5),
            "initial": ("parents", "types"),
            "normalisation": ("all_parents", "window"),
            "affine": (True, False),
        },
        normalised=True,
    ),
    NormalisedEMRouting: Reference(
        loops=em_normalised_by_loops,
        switches={
            "iterations": (2, 1, 3, 5),
            "temperature": (1.0, 0.5, 4.0),
            "learn_temperature": (False, True),
            "min_variance": (1.0, 0.1),
            "relative_floor": (False, True),
            "pose_norm": (True, False),
        },
        normalised=True,
    ),
    SelfRouting: Reference(
        loops=self_routing_by_loops,
        switches={"normalisation": ("window", "all_parents"), "eps": (1e-12, 1e-9)},
        backends=("reference", "matmul", "fused"),
    ),
    HeinsenRouting: Reference(
        loops=heinsen_by_loops,
        switches={"iterations": (3, 1, 2, 5), "bias": (True, False), "eps": (1e-5, 0.1)},
    ),
    EMRouting: Reference(
        loops=em_by_loops,
        switches={
            "iterations": (3, 1, 2, 5),
            "cost": ("official_fast", "paper", "official_legacy", "standardised"),
            "normalisation": ("all_parents", "window", "official_legacy", "official_fast"),
            "temperature_schedule": ("saturating", "linear", "increment", "constant"),
            "initial": ("parents", "types"),
            "activation": ("description_length", "mixing_proportions"),
            "damping": (0.0, 0.5),
            "shared_betas": (False, True),
            "min_variance": (5e-4, 0.1),
            "mass_eps": (1e-7, 0.1),
            "inverse_temperature": (None, 0.02),
        },
        given={
            **{name: options_of(preset(name)) for name in PRESETS},
            **{f"{name}-classes": options_of(class_preset(name)) for name in PRESETS},
        },
    ),
    InvertedAttention: Reference(
        loops=inverted_attention_by_loops,
        switches={"iterations": (2, 1, 3), "head": (False, True), "normalisation": ("window", "all_parents")},
    ),
    RandomCouplings: Reference(
        loops=lambda votes, _, module: with_lengths(
            fixed_couplings_loops(votes, module.log_couplings, bias=module.bias, leaky=module.leaky)
        ),
        switches={"spread": (1.0, 0.0, 3.0), "seed": (0, 1), "bias": (True, False), "leaky": (False, True)},
        exchangeable=False,
    ),
    ScaledDistanceAgreement: Reference(
        loops=lambda votes, activations, module: with_lengths(
            scaled_distance_loops(
                votes, activations, iterations=module.iterations, share=module.share, bias=module.bias
            )[0]
        ),
        switches={"iterations": (3, 1, 2), "share": (0.9, 0.5), "bias": (True, False)},
    ),
}

DISCOVERED = [
    value
    for name in routings.__all__
    if inspect.isclass(value := getattr(routings, name))
    and issubclass(value, AbstractRouting)
    and not inspect.isabstract(value)
]
COMPILED = [
    ("-mixing", EMRouting, {"activation": "mixing_proportions", "damping": 0.1}),
    ("-tutorial", EMRouting, preset("em_tutorial")),
]


@dataclass(frozen=True)
class BackendCase:
    """What sums the votes, and whether it is given the tensor (``dense``) or poses and weight."""

    backend: Any
    dense: bool = False


BACKENDS = {
    "dense": BackendCase("auto", dense=True),
    "dense-reference": BackendCase("reference", dense=True),
    "reference": BackendCase("reference"),
    "matmul": BackendCase("matmul"),
    "fused": BackendCase("fused"),
}


def combinations(kind: type[AbstractRouting], **more: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Arguments of a routing, a ``backend_case`` and ``more`` switches, in every pair of values, by name."""
    reference = REFERENCES[kind]
    switches = {"backend_case": reference.backends, **reference.switches, **more}
    rows = pairwise(switches, reference.given.values())
    names = [*reference.given, *([""] * (len(rows) - len(reference.given)))]
    found = {}
    for name, row in zip(names, rows, strict=True):
        shown = {switch: row[switch] for switch in switches if not (name and switch in reference.given[name])}
        parts = [f"{switch}={value}" for switch, value in shown.items() if value != switches[switch][0]]
        found["-".join([kind.__name__, *filter(None, [name]), *parts])] = row
    return found


def every_combination(
    *kinds: type[AbstractRouting], **more: Sequence[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Parametrize a test with ``kind``, ``options``, ``case`` and ``more`` switches, every pair of values of them."""
    params = []
    for kind in kinds or [kind for kind in DISCOVERED if kind in REFERENCES]:
        for name, row in combinations(kind, **more).items():
            options = {option: value for option, value in row.items() if option not in ("backend_case", *more)}
            case = BACKENDS[row["backend_case"]]
            options["backend"] = case.backend
            params.append(pytest.param(kind, options, case, *(row[switch] for switch in more), id=name))
    return pytest.mark.parametrize(("kind", "options", "case", *more), params)


def every_backend(
    *names: str, kinds: Iterable[type[AbstractRouting]] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Parametrize a test with every ``kind``, or ``kinds``, and every ``case`` of its backends, or ``names``."""
    params = [
        pytest.param(kind, BACKENDS[name], id=f"{kind.__name__}-{name}")
        for kind in (DISCOVERED if kinds is None else kinds)
        if kind in REFERENCES
        for name in REFERENCES[kind].backends
        if name in (names or BACKENDS)
    ]
    return pytest.mark.parametrize(("kind", "case"), params)


every_routing = pytest.mark.parametrize("kind", DISCOVERED)
with_squash = pytest.mark.parametrize(
    "kind", [DynamicRouting, RandomCouplings, ScaledDistanceAgreement, UniformRouting]
)  # of Sabour 2017
PARENTS_COMPETE = [kind for kind in DISCOVERED if kind.competing == "parents"]
EXCHANGEABLE = [kind for kind in DISCOVERED if kind in REFERENCES and REFERENCES[kind].exchangeable]


def random_votes(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Votes that agree enough for couplings far from 1/parents."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*(shape or (BATCH, CHILDREN, PARENTS, DIM)), generator=generator, dtype=dtype)


def build(
    kind: type[AbstractRouting],
    *,
    parameters: str = "initial",
    types: int | None = None,
    children: int = CHILDREN,
    **options: Any,
) -> AbstractRouting:
    """A float64 routing; with ``parameters="random"`` no two parents have the same ones.

    Args:
        kind: what to build.
        parameters: ``"initial"`` or ``"random"``.
        types: kinds of children, which have parameters of their own in some routings; those of one kind have no order.
            By default one, where children are exchangeable.
        children: how many there are.
        options: of the routing.
    """
    torch.manual_seed(0)  # of initial parameters that are drawn
    if types is None:
        types = 1 if kind not in REFERENCES or REFERENCES[kind].exchangeable else children
    module = kind(parents=PARENTS, dim=DIM, **options)
    child_dim = PARENTS * DIM  # see ``factored``
    module.build(LayerInfo(PARENTS, DIM, children, child_dim, shared=types != children, child_types=types))
    module.double().eval()  # images of a batch apart from each other
    if parameters == "random":
        generator = torch.Generator().manual_seed(1)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5, generator=generator)
    return module


def factored(votes: Tensor) -> Votes:
    """The same votes as poses and weight: a pose is all votes of a child, the weight picks those of a parent."""
    _, child, parent, dim = votes.shape
    pick = torch.eye(parent * dim, dtype=votes.dtype).view(parent * dim, parent, dim)
    return Votes(votes.flatten(2), pick.expand(child, -1, -1, -1))


def child_activations(votes: Tensor) -> Tensor:
    """Activations of the children, larger for larger mean votes, for the algorithms that use them."""
    return votes.mean((2, 3)).sigmoid()


def concatenate(poses: Tensor, activations: Tensor, _: Tensor | None = None) -> Tensor:
    return torch.cat([poses, activations.unsqueeze(2)], 2)


def route_of(module: nn.Module, activations: Tensor | None = None, *, dense: bool = True) -> Route:
    """Poses and activations of the parents; those of the children are ``child_activations`` unless they are given."""
    return lambda votes, **options: concatenate(
        *module(
            votes if dense else factored(votes),
            child_activations(votes) if activations is None else activations,
            **options,
        )
    )


def reference_of(module: AbstractRouting) -> Callable[[Tensor], Tensor]:
    return lambda votes: concatenate(*REFERENCES[type(module)].loops(votes, child_activations(votes), module))


def learned(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


# ------------------------------------------------------------------------------------------------- the checks


def check_equals(route: Route, reference: Callable[[Tensor], Tensor]) -> None:
    votes = random_votes()
    torch.testing.assert_close(route(votes), reference(votes), rtol=0, atol=1e-10)


def check_gradient(route: Route, parameters: Iterable[Tensor] = ()) -> None:
    """``parameters`` are other tensors that the route depends on."""
    votes = random_votes(1, 3, PARENTS, DIM).requires_grad_()
    try:
        gradcheck(lambda votes, *_: route(votes), (votes, *parameters), fast_mode=True)
    except GradcheckError as error:
        raise AssertionError(str(error)) from error


def check_couplings(
    route: Route,
    *,
    leaky: bool = False,
    added: float | Tensor = 0.0,
    normalised: bool = False,
    competing: str = "parents",
) -> None:
    traces: list[RoutingTrace] = []
    poses = route(random_votes(), on_iteration=traces.append)
    assert [trace.iteration for trace in traces] == list(range(len(traces)))
    couplings = torch.stack([trace.couplings for trace in traces])
    assert couplings.shape == (len(traces), BATCH, CHILDREN, PARENTS)
    assert (couplings > 0).all() or added
    mass = couplings.sum(3 if competing == "parents" else 2)
    if leaky:
        assert (mass < 1).all()
    else:
        torch.testing.assert_close(mass, torch.ones_like(mass) + added, rtol=0, atol=1e-12)
    if not normalised:
        torch.testing.assert_close(traces[-1].poses, poses[..., :DIM])


def check_callback_changes_nothing(route: Route) -> None:
    votes = random_votes()
    torch.testing.assert_close(route(votes, on_iteration=lambda _: None), route(votes), rtol=0, atol=1e-12)


def check_repeatable(route: Route) -> None:
    votes = random_votes()
    assert torch.equal(route(votes), route(votes))


def check_order_of_children_does_not_matter(route: Route) -> None:
    votes = random_votes()
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(route(votes[:, order]), route(votes), rtol=0, atol=1e-12)


def check_parents_are_permuted_as_their_votes(route: Route) -> None:
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


def check_every_parameter_has_a_gradient(route: Route, parameters: Iterable[Tensor]) -> None:
    votes = random_votes().requires_grad_()
    inputs = [votes, *parameters]
    parents = route(votes)
    weighted = (parents * torch.linspace(1, 2, parents[0].numel()).view(parents.shape[1:])).sum()
    gradients = torch.autograd.grad(weighted, inputs, allow_unused=True)
    unused = [i for i, gradient in enumerate(gradients) if gradient is None or not (gradient != 0).all()]
    assert not unused, f"no gradient reaches input {unused} of {len(inputs)}; 0 are the votes"


# ------------------------------------------------------------------------------- every routing passes them


@every_routing
def test_every_routing_has_a_reference(kind: type[AbstractRouting]) -> None:
    assert kind in REFERENCES, (
        f"{kind.__name__} is exported by capsule_lab.routing but has no reference: "
        f"transcribe its paper as slow loops in tests/reference/ and add it to REFERENCES in {__name__}"
    )


def test_discovery_finds_the_routings_of_this_project() -> None:
    assert {DynamicRouting, EMRouting, SelfAttentionRouting, UniformRouting, VariationalBayesRouting} <= set(DISCOVERED)


@pytest.mark.parametrize("kind", REFERENCES)
def test_combinations_have_every_pair_of_values(kind: type[AbstractRouting]) -> None:
    switches = {**REFERENCES[kind].switches, "backend_case": REFERENCES[kind].backends}
    rows = combinations(kind).values()
    for (one, values), (other, others) in itertools.combinations(switches.items(), 2):
        assert {(row[one], row[other]) for row in rows} >= set(itertools.product(values, others))


def test_factored_votes_are_the_same_votes() -> None:
    votes = random_votes()
    assert torch.equal(dense_votes(*factored(votes)[:2]), votes)


@every_combination(types=(1, CHILDREN))
def test_equals_the_loops(kind: type[AbstractRouting], options: dict[str, Any], case: BackendCase, types: int) -> None:
    module = build(kind, parameters="random", types=types, **options)
    check_equals(route_of(module, dense=case.dense), reference_of(module))


@with_squash
def test_activations_are_lengths(kind: type[AbstractRouting]) -> None:
    votes = random_votes()
    parents = build(kind)(votes, child_activations(votes))
    torch.testing.assert_close(parents.activations, length_loops(parents.poses), rtol=0, atol=1e-12)


@every_combination()
def test_gradient(kind: type[AbstractRouting], options: dict[str, Any], case: BackendCase) -> None:
    module = build(kind, parameters="random", children=3, **options)
    activations = child_activations(random_votes(1, 3, PARENTS, DIM, seed=2)).requires_grad_()
    check_gradient(route_of(module, activations, dense=case.dense), [*learned(module), activations])


@every_combination()
def test_couplings_of_a_child(kind: type[AbstractRouting], options: dict[str, Any], case: BackendCase) -> None:
    module = build(kind, parameters="random", **options)
    of_kind = REFERENCES[kind]
    check_couplings(
        route_of(module, dense=case.dense),
        leaky=module.leaky,
        added=of_kind.added(module),
        normalised=of_kind.normalised,
        competing=module.competing,
    )


@every_backend()
def test_couplings_of_every_backend(kind: type[AbstractRouting], case: BackendCase) -> None:
    found: list[RoutingTrace] = []
    expected: list[RoutingTrace] = []
    votes = random_votes()
    route_of(build(kind, backend=case.backend), dense=case.dense)(votes, on_iteration=found.append)
    route_of(build(kind, backend="reference"), dense=False)(votes, on_iteration=expected.append)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@every_combination()
def test_callback_changes_nothing(kind: type[AbstractRouting], options: dict[str, Any], case: BackendCase) -> None:
    check_callback_changes_nothing(route_of(build(kind, parameters="random", **options), dense=case.dense))


@every_combination()
def test_same_votes_same_poses(kind: type[AbstractRouting], options: dict[str, Any], case: BackendCase) -> None:
    check_repeatable(route_of(build(kind, parameters="random", **options), dense=case.dense))


@every_combination(*EXCHANGEABLE)
def test_order_of_children_does_not_matter(
    kind: type[AbstractRouting], options: dict[str, Any], case: BackendCase
) -> None:
    check_order_of_children_does_not_matter(route_of(build(kind, parameters="random", **options), dense=case.dense))


@every_combination(*EXCHANGEABLE)
def test_parents_are_permuted_as_their_votes(
    kind: type[AbstractRouting], options: dict[str, Any], case: BackendCase
) -> None:
    check_parents_are_permuted_as_their_votes(route_of(build(kind, **options), dense=case.dense))


@every_combination()
def test_images_are_independent(kind: type[AbstractRouting], options: dict[str, Any], case: BackendCase) -> None:
    check_images_are_independent(route_of(build(kind, parameters="random", **options), dense=case.dense))


@every_combination()
def test_one_child_of_one_image(kind: type[AbstractRouting], options: dict[str, Any], case: BackendCase) -> None:
    module = build(kind, parameters="random", children=1, **options)
    votes = random_votes(1, 1, PARENTS, DIM)
    found = route_of(module, dense=case.dense)(votes)
    torch.testing.assert_close(found, reference_of(module)(votes), rtol=0, atol=1e-10)


def test_one_iteration_is_no_routing() -> None:
    votes = random_votes()
    torch.testing.assert_close(
        dynamic_routing(votes, iterations=1).poses, uniform_routing(votes).poses, rtol=0, atol=1e-12
    )


@every_combination(scale=(1e4, 1.0, 1e-4, 0.0))
def test_finite(kind: type[AbstractRouting], options: dict[str, Any], case: BackendCase, scale: float) -> None:
    check_finite(route_of(build(kind, **options).float(), dense=case.dense), scale)


@every_combination(EMRouting, VariationalBayesRouting, scale=(1e4, 1.0, 0.0), activation_of_all=(0.0, 1.0))
def test_finite_if_no_child_is_active_or_all_are(
    kind: type[AbstractRouting], options: dict[str, Any], case: BackendCase, scale: float, activation_of_all: float
) -> None:
    activations = torch.full((BATCH, CHILDREN), activation_of_all)
    check_finite(route_of(build(kind, **options).float(), activations, dense=case.dense), scale)


@every_backend()
def test_every_initial_parameter_has_a_gradient(kind: type[AbstractRouting], case: BackendCase) -> None:
    module = build(kind, backend=case.backend)
    assert list(module.parameters()) == learned(module) != []
    check_every_parameter_has_a_gradient(route_of(module, dense=case.dense), learned(module))


@every_combination()
def test_every_parameter_has_a_gradient(
    kind: type[AbstractRouting], options: dict[str, Any], case: BackendCase
) -> None:
    module = build(kind, parameters="random", **options)
    check_every_parameter_has_a_gradient(route_of(module, dense=case.dense), learned(module))


@every_routing
def test_nothing_but_parameters_is_kept(kind: type[AbstractRouting]) -> None:
    """Nor is a buffer changed, such as couplings that were drawn once."""
    module = build(kind)
    before = deepcopy({name: value for name, value in vars(module).items() if not name.startswith("_")})
    buffers = deepcopy(dict(module.named_buffers()))
    route_of(module, dense=False)(random_votes())
    assert {name: value for name, value in vars(module).items() if not name.startswith("_")} == before
    torch.testing.assert_close(dict(module.named_buffers()), buffers, rtol=0, atol=0)


def values_and_gradients(module: nn.Module, votes: Tensor | Votes, activations: Tensor) -> list[Tensor]:
    given, activations = (
        [tensor.detach().clone().requires_grad_() for tensor in ([votes] if isinstance(votes, Tensor) else votes[:2])],
        activations.detach().clone().requires_grad_(),
    )
    parents = concatenate(*module(given[0] if isinstance(votes, Tensor) else Votes(*given), activations))
    weights = torch.linspace(1, 2, parents.numel(), dtype=parents.dtype).view_as(parents)
    asked = [*given, activations, *learned(module)]
    return [
        parents,
        *torch.autograd.grad((weights * parents).sum(), asked, allow_unused=True, materialize_grads=True),
    ]


@pytest.mark.slow  # whole layers are compiled in tests/kernels/test_ops.py
@pytest.mark.parametrize(
    ("kind", "options", "case"),
    [
        pytest.param(kind, options, BACKENDS[name], id=f"{kind.__name__}{label}-{name}")
        for label, kind, options in [*(("", kind, {}) for kind in REFERENCES), *COMPILED]
        for name in ("dense", "fused")
        if name in REFERENCES[kind].backends
    ],
)
def test_same_when_compiled(
    kind: type[AbstractRouting], options: dict[str, Any], case: BackendCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_shape_checks(monkeypatch)
    module = build(kind, parameters="random", **{**options, "backend": case.backend})
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)  # traces backward, too; needs no compiler
    votes = random_votes()
    given = votes if case.dense else factored(votes)
    found, expected = (values_and_gradients(each, given, child_activations(votes)) for each in (compiled, module))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "strided",
    [
        pytest.param(lambda votes: votes.transpose(1, 2).contiguous().transpose(1, 2), id="by parent"),
        pytest.param(lambda votes: votes.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0), id="backwards"),
        pytest.param(lambda votes: votes.repeat_interleave(2, 3)[..., ::2], id="with gaps"),
    ],
)
@every_backend("dense", "dense-reference")
def test_memory_order_of_dense_votes(
    kind: type[AbstractRouting], strided: Callable[[Tensor], Tensor], case: BackendCase
) -> None:
    votes, module = random_votes(), build(kind, parameters="random", backend=case.backend)
    other = strided(votes)
    assert other.stride() != votes.stride()  # of poses and weight: tests/kernels/test_backends.py
    route = route_of(module, dense=case.dense)
    torch.testing.assert_close(route(other), route(votes), rtol=0, atol=1e-12)


@every_backend()
def test_float32_under_autocast(kind: type[AbstractRouting], case: BackendCase) -> None:
    module = build(kind, parameters="random", backend=case.backend).float()
    votes = random_votes(dtype=torch.float32)
    given, activations = votes if case.dense else factored(votes), child_activations(votes)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parents = module(given, activations)
    assert parents.poses.dtype == parents.activations.dtype == torch.float32
    expected = module(given, activations)
    assert torch.equal(parents.poses, expected.poses)
    assert torch.equal(parents.activations, expected.activations)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_backend()
def test_half_precision_is_routed_in_float32(
    kind: type[AbstractRouting], case: BackendCase, dtype: torch.dtype
) -> None:
    module, votes = build(kind, backend=case.backend).float(), random_votes(dtype=torch.float32).to(dtype)
    activations = child_activations(votes)
    parents = module(votes if case.dense else factored(votes), activations)
    expected = module(votes.float() if case.dense else factored(votes.float()), activations.float())
    assert parents.poses.dtype == parents.activations.dtype == torch.float32
    assert torch.equal(parents.poses, expected.poses)
    assert torch.equal(parents.activations, expected.activations)


class HalfNormaliser(Normaliser):
    """Half of the usual couplings; records the shapes that it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()

    def __call__(self, log_couplings: Tensor) -> Tensor:
        self.shapes.add(tuple(log_couplings.shape))
        return super().__call__(log_couplings) / 2


@every_backend(kinds=PARENTS_COMPETE)
def test_normaliser_is_used(kind: type[AbstractRouting], case: BackendCase) -> None:
    votes, half = random_votes(), HalfNormaliser()
    route = route_of(build(kind, backend=case.backend), dense=case.dense)
    halved = route(votes, normalise=half)
    by_kernel = kind in (EMRouting, HeinsenRouting, NormalisedEMRouting) and case.backend == "fused"
    once = {(1, PARENTS, CHILDREN)} if by_kernel else set()
    assert half.shapes - once == {(BATCH, PARENTS, CHILDREN)}
    assert half.shapes >= once  # the first couplings are the same for all images
    assert not torch.allclose(halved, route(votes))
    torch.testing.assert_close(route(votes, normalise=Normaliser()), route(votes), rtol=0, atol=1e-12)


@every_backend(kinds=PARENTS_COMPETE)
def test_normaliser_decides_about_every_coupling(kind: type[AbstractRouting], case: BackendCase) -> None:
    """From the first iteration on: no coupling has bypassed it."""
    traces: list[RoutingTrace] = []
    route = route_of(build(kind, backend=case.backend), dense=case.dense)
    route(random_votes(), normalise=HalfNormaliser(), on_iteration=traces.append)
    shares = torch.stack([trace.couplings.sum(2) for trace in traces])
    torch.testing.assert_close(shares, torch.full_like(shares, 0.5), rtol=0, atol=1e-12)


# ----------------------------------------------------------------------------------- agreement of votes

AGREEING = (DynamicRouting, EMRouting, NormalisedEMRouting, VariationalBayesRouting, ScaledDistanceAgreement)
"""Routings whose couplings follow how close votes are; inverted attention and Heinsen's ask whether they are useful."""


def votes_with_outliers(children: int = 10, outliers: int = 2) -> Tensor:
    """Votes for the first parent agree, but for those of the last children; for all others they are scattered."""
    votes = 1.5 * random_votes(20, children, PARENTS, 8, seed=3)
    generator = torch.Generator().manual_seed(4)
    cluster = torch.randn(20, 1, 8, generator=generator, dtype=torch.float64)
    near = torch.randn(20, children - outliers, 8, generator=generator, dtype=torch.float64)
    votes[:, : children - outliers, 0] = cluster + 0.1 * near
    return votes


@pytest.mark.parametrize("kind", AGREEING)
def test_children_whose_votes_do_not_belong_go_elsewhere(kind: type[AbstractRouting]) -> None:
    """Hinton 2018, section 1: it depends on the votes of the other children where a child goes."""
    torch.manual_seed(0)
    routing = kind(parents=PARENTS, dim=8, iterations=3)
    routing.build(LayerInfo(PARENTS, 8, 10, 8, shared=True, child_types=1))
    traces: list[RoutingTrace] = []
    routing.double().eval()(votes_with_outliers(), torch.full((20, 10), 0.9).double(), on_iteration=traces.append)
    belonging, outlying = (traces[-1].couplings[:, rows, 0].mean().item() for rows in (slice(8), slice(8, None)))
    assert belonging > 1.2 * outlying
    assert belonging > traces[0].couplings[:, :8, 0].mean()


@pytest.mark.parametrize("kind", AGREEING)
def test_parts_that_do_not_fit_together_make_a_whole_less_active(kind: type[AbstractRouting]) -> None:
    """The same votes, each from another image: no two parts are of one object."""
    torch.manual_seed(0)
    routing = kind(parents=PARENTS, dim=8, iterations=3)
    routing.build(LayerInfo(PARENTS, 8, 10, 8, shared=True, child_types=1))
    routing.double().eval()
    whole = votes_with_outliers(outliers=0)
    scrambled = torch.stack([whole[:, child].roll(child, 0) for child in range(10)], 1)
    presence = torch.full((20, 10), 0.9).double()
    fitting, unfitting = (routing(votes, presence).logits[:, 0].mean() for votes in (whole, scrambled))
    assert fitting > unfitting


# ------------------------------------------------------------------------------ what dynamic routing adds


def test_last_gradient_has_the_same_value() -> None:
    votes = random_votes()
    assert torch.equal(dynamic_routing(votes, gradient="last").poses, dynamic_routing(votes, gradient="full").poses)


@pytest.mark.parametrize("case", [BACKENDS["dense"], BACKENDS["fused"]], ids=["dense", "fused"])
@pytest.mark.parametrize("bias_inside", [True, False])
@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_last_gradient_takes_couplings_as_constants(
    iterations: int, leaky: bool, bias_inside: bool, case: BackendCase
) -> None:
    votes = random_votes().requires_grad_()
    bias = torch.linspace(-0.5, 0.5, PARENTS * DIM, dtype=torch.float64).view(PARENTS, DIM).requires_grad_()
    traces: list[RoutingTrace] = []
    poses = dynamic_routing(
        votes if case.dense else factored(votes),
        bias=bias,
        iterations=iterations,
        leaky=leaky,
        bias_inside=bias_inside,
        gradient="last",
        on_iteration=traces.append,
        backend=case.backend,
    ).poses
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
    (full,) = torch.autograd.grad(dynamic_routing(votes, gradient="full").poses.square().sum(), votes)
    (last,) = torch.autograd.grad(dynamic_routing(votes, gradient="last").poses.square().sum(), votes)
    assert not torch.allclose(full, last, rtol=1e-2)


def test_gradient_check_sees_that_the_last_one_is_cut() -> None:
    with pytest.raises(AssertionError):
        check_gradient(route_of(build(DynamicRouting, gradient="last")))


@pytest.mark.parametrize(
    ("argument", "other"),
    [
        ("iterations", 2), ("bias", False), ("bias_inside", False), ("leaky", True), ("squash", "none"),
        ("update", "replace"),
    ],
)  # fmt: skip
def test_every_argument_of_dynamic_routing_changes_the_poses(argument: str, other: Any) -> None:
    votes = random_votes()
    assert not torch.allclose(
        build(DynamicRouting, **{argument: other})(votes).poses, build(DynamicRouting)(votes).poses
    )


@pytest.mark.parametrize("iterations", [1, 2])
def test_agreement_that_replaces_differs_from_the_third_iteration_on(iterations: int) -> None:
    votes = random_votes()
    found = [dynamic_routing(votes, iterations=iterations, update=update).poses for update in ("add", "replace")]
    assert torch.equal(*found)


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


def test_prior_starts_at_zero_and_is_of_the_parents_and_kinds_of_children() -> None:
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


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("shape", [(3, 1), (4, 2)])
def test_prior_of_another_layer_is_refused(shape: tuple[int, int]) -> None:
    message = re.escape(f"prior is of shape {shape}, and votes are of 5 children for 4 parents; expected")
    with pytest.raises(ValueError, match=message):
        dynamic_routing(random_votes(), prior=torch.zeros(shape, dtype=torch.float64))


@pytest.mark.parametrize("gradient", ["full", "last"])
@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_prior_gets_a_gradient_however_deep_that_of_votes_goes(gradient: Any, iterations: int) -> None:
    prior = torch.zeros(PARENTS, CHILDREN, dtype=torch.float64, requires_grad=True)
    poses = dynamic_routing(random_votes(), prior=prior, gradient=gradient, iterations=iterations).poses
    (found,) = torch.autograd.grad(poses.square().sum(), prior)
    assert (found != 0).all()


def test_prior_before_build_is_refused() -> None:
    with pytest.raises(ValueError, match="the prior has no parameters yet; expected a call of build"):
        DynamicRouting(PARENTS, DIM, learned_prior=True)(random_votes(dtype=torch.float32))


@pytest.mark.parametrize(("argument", "other"), [("bias", False), ("leaky", True), ("squash", "none")])
def test_every_argument_of_uniform_routing_changes_the_poses(argument: str, other: Any) -> None:
    votes = random_votes()
    assert not torch.allclose(
        build(UniformRouting, **{argument: other})(votes).poses, build(UniformRouting)(votes).poses
    )


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


SQUASH_LOOPS = {
    "squash": squash_vector,
    "exponential": exponential_squash_vector,
    "half": half_squash_vector,
    "relu": lambda total: [max(component, 0.0) for component in total],
    "none": lambda total: total,
}


@pytest.mark.parametrize("case", [BACKENDS[name] for name in BACKENDS], ids=list(BACKENDS))
@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("name", SQUASHES)
def test_squash_of_every_iteration(name: Squash, iterations: int, case: BackendCase) -> None:
    """Its poses take part in the agreement, its logits are those of the last total input."""
    votes = random_votes() / 2
    options = {"iterations": iterations, "squash": name, "backend": case.backend}
    parents = dynamic_routing(votes if case.dense else factored(votes), **options)
    expected = dynamic_routing_loops(votes, iterations=iterations, squash=SQUASH_LOOPS[name])
    torch.testing.assert_close(parents.poses, expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(parents.activations, length_loops(parents.poses), rtol=0, atol=1e-8)
    lengths = parents.logits.sigmoid() if SQUASHES[name].bounded else parents.logits
    torch.testing.assert_close(lengths, parents.activations, rtol=0, atol=1e-5)
    if iterations == 1:
        uniform = uniform_routing(votes, squash=name)
        torch.testing.assert_close(tuple(uniform), tuple(parents), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [DynamicRouting, UniformRouting])
@pytest.mark.parametrize("name", SQUASHES)
def test_a_routing_says_whether_its_lengths_are_bounded(kind: Callable[..., AbstractRouting], name: Squash) -> None:
    routing = kind(PARENTS, DIM, squash=name)
    lengths = routing(100 * random_votes(dtype=torch.float32)).activations
    assert routing.bounded is bool(lengths.max() < 1.001)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    "call",
    [
        lambda: DynamicRouting(2, 4, squash="tanh"),
        lambda: UniformRouting(2, 4, squash="tanh"),
        lambda: dynamic_routing(random_votes(), squash="tanh"),
        lambda: uniform_routing(random_votes(), squash="tanh"),
    ],
)
def test_unknown_squash_is_named(call: Callable[[], Any]) -> None:
    with pytest.raises(
        ValueError, match="squash is 'tanh'; expected 'squash', 'exponential', 'half', 'relu' or 'none'"
    ):
        call()


@with_squash
def test_bias_starts_at_a_tenth_for_each_parent_and_component(kind: type[AbstractRouting]) -> None:
    bias = dict(build(kind).named_parameters())["bias"]
    assert bias.shape == (PARENTS, DIM)
    assert torch.equal(bias.float(), torch.full((PARENTS, DIM), 0.1))


@pytest.mark.parametrize(
    ("argument", "value"), [("iterations", 0), ("iterations", -1), ("gradient", "none"), ("update", "no")]
)
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
        (wrong.LogitsKeptBetweenCalls, check_callback_changes_nothing),
        (wrong.TransposedParents, check_equals),
        (wrong.TransposedParents, check_parents_are_permuted_as_their_votes),
        (wrong.DeadGradient, check_gradient),
        (wrong.DeadGradient, check_every_parameter_has_a_gradient),
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
        check_callback_changes_nothing,
        check_repeatable,
        check_order_of_children_does_not_matter,
        check_parents_are_permuted_as_their_votes,
        check_images_are_independent,
        check_finite,
        check_every_parameter_has_a_gradient,
    ],
)
def test_without_a_mistake_nothing_is_caught(check: Callable[..., None]) -> None:
    module = wrong.Right(PARENTS, DIM).to(torch.float32 if check is check_finite else torch.float64)
    check(module, **extra(check, module))


def extra(check: Callable[..., None], module: nn.Module) -> dict[str, Any]:
    """Further arguments of a check."""
    known = {
        "reference": lambda votes: loops_with_bias(votes, module),
        "parameters": list(module.parameters()),
        "scale": 0.0,
    }
    return {name: value for name, value in known.items() if name in inspect.signature(check).parameters}
