"""EM routing: the numbers of the official code, the loops under every preset, and the mistakes of public ports."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.autograd.gradcheck import GradcheckError

from capsule_lab.layers import ClassCapsules, ConvCapsules, Windows, build_normaliser
from capsule_lab.routing import EMRouting, Normaliser, em_routing
from capsule_lab.routing.em_costs import CLASS_ROUTING, INITIAL, activation_logit, inverse_temperatures
from capsule_lab.types import Capsules, RoutingTrace
from tests.reference import em_golden as golden
from tests.reference import em_wrong as wrong
from tests.reference.em_bridge import (
    PRESETS,
    as_children,
    as_class_weight,
    as_conv_weight,
    as_grid,
    betas_of_the_loops,
    class_options,
    class_preset,
    in_terms_of_the_loops,
    preset,
    random,
)
from tests.reference.em_loops import conv_em_loops, dense_em_loops, matrix_votes_loops

LN_2PI = math.log(2 * math.pi)

exact = partial(torch.testing.assert_close, rtol=0, atol=1e-10)
exact_golden = partial(torch.testing.assert_close, rtol=0, atol=golden.TOLERANCE)


def double(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def logit(activations: Tensor) -> Tensor:
    return activations.log() - (-activations).log1p()


# ------------------------------------------------------------------------------------------ golden numbers


def options_of(row: golden.ConvGolden | golden.ClassGolden, mass_eps: float) -> dict[str, Any]:
    return {
        "cost": row.cost,
        "inverse_temperature": row.final,
        "initial": "types",
        "damping": 0.1,
        "mass_eps": mass_eps,
    }


def give(layer: ConvCapsules | ClassCapsules, weight: Tensor, row: golden.ConvGolden | golden.ClassGolden) -> None:
    assert layer.weight.shape == weight.shape
    layer.double()
    layer.weight.data = weight
    layer.routing.beta_u.data.fill_(row.b_s)
    layer.routing.beta_a.data.fill_(row.b_a)


@cache
def conv_golden(row: golden.ConvGolden, iterations: int = 3) -> tuple[ConvCapsules, Capsules, list[RoutingTrace]]:
    routing = partial(
        EMRouting, **options_of(row, mass_eps=1e-7), normalisation=row.normalisation, iterations=iterations
    )
    layer = ConvCapsules((7, 7), 2, 16, 3, 16, rows=4, kernel_size=3, stride=row.stride, routing=routing)
    give(layer, as_conv_weight(golden.conv_weight()), row)
    traces: list[RoutingTrace] = []
    children = as_children(golden.conv_poses()), as_children(golden.conv_activations())
    with torch.no_grad():
        parents = layer(*children, on_iteration=traces.append)
    return layer, parents, traces


def parents_of(row: golden.ConvGolden, iterations: int = 3) -> tuple[Tensor, Tensor]:
    layer, parents, _ = conv_golden(row, iterations)
    return as_grid(parents.poses, layer.windows.grid), as_grid(parents.activations, layer.windows.grid)


def first_masses(row: golden.ConvGolden) -> Tensor:
    layer, _, traces = conv_golden(row)
    activations = layer.windows.activations(as_children(golden.conv_activations()))[0]
    return torch.stack([(trace.couplings[0, :, 0] * activations).sum() + 1e-7 for trace in traces])


CONV_QUANTITIES: dict[str, Callable[[golden.ConvGolden], Tensor]] = {
    "first_activations": lambda row: parents_of(row)[1][0, :, 0, 0],
    "last_activations": lambda row: parents_of(row)[1][0, :, -1, -1],
    "mean_activation": lambda row: parents_of(row)[1].mean()[None],
    "first_pose": lambda row: parents_of(row)[0][0, 0, :4, 0, 0],
    "pose_std": lambda row: parents_of(row)[0].std(correction=0)[None],
    "total_couplings": lambda row: conv_golden(row)[2][-1].couplings.sum()[None],
    "masses": first_masses,
    "logits": lambda row: torch.stack([logit(parents_of(row, n)[1][0, 0, 0, 0]) for n in (1, 2, 3)]),
}


def expected_of(row: object, quantity: str) -> Tensor:
    value = getattr(row, quantity)
    return double(*value) if isinstance(value, tuple) else double(value)


def golden_numbers(rows: list[Any], quantities: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(row, quantity, id=f"{row.name}-{quantity}")
        for row in rows
        for quantity in quantities
        if getattr(row, quantity) != ()
    ]


@pytest.mark.parametrize(("row", "quantity"), golden_numbers(golden.CONV, CONV_QUANTITIES))
def test_convolution_gives_golden_number(row: golden.ConvGolden, quantity: str) -> None:
    exact_golden(CONV_QUANTITIES[quantity](row), expected_of(row, quantity))


@cache
def class_golden(row: golden.ClassGolden) -> Capsules:
    layer = ClassCapsules(
        4,
        3,
        16,
        4,
        16,
        rows=4,
        routing=partial(EMRouting, **options_of(row, mass_eps=1e-5)),
        coordinates=golden.class_offsets().permute(1, 2, 0).flatten(0, 1),
    )
    give(layer, as_class_weight(golden.class_weight()), row)
    with torch.no_grad():
        return layer(as_children(golden.class_poses()), as_children(golden.class_activations()))


CLASS_QUANTITIES: dict[str, Callable[[golden.ClassGolden], Tensor]] = {
    "activations": lambda row: class_golden(row).activations[0],
    "first_pose": lambda row: class_golden(row).poses[0, 0, :4],
    "logits": lambda row: logit(class_golden(row).activations[0]),
}


@pytest.mark.parametrize(("row", "quantity"), golden_numbers(golden.CLASS, CLASS_QUANTITIES))
def test_class_layer_gives_golden_number(row: golden.ClassGolden, quantity: str) -> None:
    exact_golden(CLASS_QUANTITIES[quantity](row), expected_of(row, quantity))


# -------------------------------------------------------------------------------- presets as they are configured

PARENTS = 3
ROUTINGS = [
    *(pytest.param(preset(name), id=name) for name in PRESETS),
    *(pytest.param(class_preset(name), id=f"{name}-classes") for name in PRESETS),
]


def dense_inputs(batch: int = 2, children: int = 4, dim: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    return random(batch, children, PARENTS, dim, seed=seed), random(batch, children, seed=seed + 1).sigmoid()


@pytest.mark.parametrize("options", ROUTINGS)
def test_preset_at_its_initial_betas_equals_the_loops(options: dict[str, Any]) -> None:
    """In a dense layer; ``tests/layers/test_conv.py`` has the other one."""
    module, (votes, activations) = EMRouting(PARENTS, 16, **options).double(), dense_inputs()
    expected = dense_em_loops(
        votes,
        activations,
        *betas_of_the_loops(module, PARENTS, 16),
        **{**in_terms_of_the_loops(options), "normalisation": "all_parents"},
    )[-1]
    parents = module(votes, activations)
    exact(parents.poses, expected.poses)
    exact(parents.activations, expected.activations)


@pytest.mark.parametrize("options", ROUTINGS)
def test_preset_has_its_gradient(options: dict[str, Any]) -> None:
    """Of votes, activations and both betas, one by one and through all iterations."""
    module = EMRouting(PARENTS, 2, **options).double()
    votes, activations = dense_inputs(batch=1, children=3, dim=2)
    inputs = votes.requires_grad_(), activations.requires_grad_(), module.beta_u, module.beta_a

    def function(votes: Tensor, activations: Tensor, beta_u: Tensor, beta_a: Tensor) -> Capsules:
        return em_routing(votes, activations, beta_u, beta_a, **module.options)

    assert gradcheck(lambda *args: tuple(function(*args)), inputs)


def test_defaults_are_the_preset_em() -> None:
    parameters = inspect.signature(EMRouting).parameters
    defaults = {name: p.default for name, p in parameters.items() if p.default is not inspect.Parameter.empty}
    own = INITIAL[defaults["cost"]]
    assert {**defaults, **own} == preset("em")


def test_default_options_of_the_class_layer_are_those_of_the_preset_em() -> None:
    assert dict(CLASS_ROUTING) == class_options("em")


@pytest.mark.parametrize("cost", INITIAL)
def test_initial_values_follow_the_cost(cost: Any) -> None:
    module = EMRouting(PARENTS, 16, cost=cost)
    own = {"beta_u": module.beta_u[0].item(), "beta_a": module.beta_a[0].item()}
    assert {**own, "inverse_temperature": module.options["inverse_temperature"]} == pytest.approx(INITIAL[cost])


def test_paper_preset_is_em_in_other_units() -> None:
    em, paper = preset("em"), preset("em_paper")
    expected = golden.in_paper_form(em["cost"], em["beta_u"], em["beta_a"], em["inverse_temperature"])
    assert (paper["beta_u"], paper["beta_a"], paper["inverse_temperature"]) == pytest.approx(expected, rel=1e-3)


def test_class_layer_of_the_paper_preset_is_ems_in_other_units() -> None:
    em, paper = class_preset("em"), class_preset("em_paper")
    expected = golden.in_paper_form(em["cost"], em["beta_u"], em["beta_a"], em["inverse_temperature"])
    assert (paper["beta_u"], paper["beta_a"], paper["inverse_temperature"]) == pytest.approx(expected, rel=1e-3)


OF_THE_PAPER = ("cost", "inverse_temperature", "beta_u", "beta_a")


def test_paper_preset_differs_in_units_only() -> None:
    em, paper = preset("em"), preset("em_paper")
    assert {name for name in em if em[name] != paper[name]} == set(OF_THE_PAPER)


@pytest.mark.parametrize("shared", [False, True])
def test_betas_start_where_they_are_told(shared: bool) -> None:
    module = EMRouting(PARENTS, 16, beta_u=0.75, beta_a=-80.0, shared_betas=shared)
    assert torch.equal(module.beta_u, torch.full((1 if shared else PARENTS,), 0.75))
    assert torch.equal(module.beta_a, torch.full((1 if shared else PARENTS,), -80.0))


def test_mixing_proportions_learn_no_betas() -> None:
    module = EMRouting(PARENTS, 16, activation="mixing_proportions")
    assert not any(parameter.requires_grad for parameter in module.parameters())
    assert module.state_dict().keys() == EMRouting(PARENTS, 16).state_dict().keys()


# -------------------------------------------------------------------------------------- inverse temperatures


@pytest.mark.parametrize(
    ("schedule", "final", "expected"),
    [
        ("saturating", 0.01, (0.0005, 0.000975, 0.00142625)),  # notes 3.2
        ("saturating", 0.04, (0.002, 0.0039, 0.005705)),  # notes 3.3
        ("saturating", 0.0025, (0.000125, 0.00024375, 0.0003565625)),  # notes 3.4
        ("saturating", 1.0, (0.05,)),
        ("saturating", 1.0, (0.05, 0.0975, 0.142625, 0.18549375, 0.2262190625)),  # as far as more go, the same ones
        ("linear", 1.0, (1.0,)),
        ("linear", 1.0, (1.0, 2.0)),
        ("linear", 1.0, (1.0, 2.0, 3.0)),
        ("linear", 1.0, (1.0, 1.5, 2.0, 2.5, 3.0)),  # never beyond 3
        ("linear", 0.5, (0.5, 1.0, 1.5)),
        ("increment", 1.0, (1.0, 2.0, 3.0, 4.0, 5.0)),
        ("increment", 0.05, (0.05, 0.1, 0.15)),
        ("constant", 0.3, (0.3,)),
        ("constant", 0.3, (0.3, 0.3, 0.3)),
    ],
)
def test_inverse_temperatures(schedule: Any, final: float, expected: tuple[float, ...]) -> None:
    assert inverse_temperatures(len(expected), final, schedule) == pytest.approx(expected, rel=1e-12)


# --------------------------------------------------------------------------------------------------- costs


@pytest.mark.parametrize(
    ("cost", "expected"),  # of mass 2, log-variances of sum -3, beta_u 0.5, beta_a 0.25, 4 components, floor 0.1
    [
        ("paper", 0.25 - 2 * (4 * 0.5 - 1.5)),
        ("official_legacy", -2 * (-3 + 4 * 0.5 * (LN_2PI + 1)) - 1250),
        ("official_fast", -2 * (-3 + 4 * (math.log(0.35) + LN_2PI + 1)) - 50),
    ],
)
def test_activation_logit_by_hand(cost: Any, expected: float) -> None:
    logits = activation_logit(
        cost, double(2)[None], double(-3)[None], double(0.5), double(0.25), dim=4, min_variance=0.1
    )
    assert logits.item() == pytest.approx(expected, rel=1e-12)


def test_standardised_activation_logit_by_hand() -> None:
    """Costs 1 and 3 are one standard deviation from their mean; beta_a is added after that."""
    mass, log_variance = double(1, 3)[None], double(0, 0)[None]
    logits = activation_logit(
        "standardised", mass, log_variance, double(0.5, 0.5), double(0.25, 0.5), dim=2, min_variance=0.1
    )
    one = 1 / (1 + 1e-4)  # 1e-4: beside the standard deviation
    torch.testing.assert_close(logits, double(0.25 + one, 0.5 - one)[None], rtol=0, atol=1e-12)


@pytest.mark.parametrize("parents", [2, 5, 32])
@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_standardised_cost_is_bounded_by_the_number_of_parents(parents: int, scale: float) -> None:
    """A z-score of n numbers is at most sqrt(n - 1), however large they are; one parent against equals reaches it."""
    betas = torch.zeros(parents, dtype=torch.float64)
    mass = scale * torch.rand(100, parents, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mass[0], mass[0, 0] = 2.0 * scale, scale
    logits = activation_logit("standardised", mass, mass, betas, betas, dim=2, min_variance=0.1)
    bound = math.sqrt(parents - 1)
    assert logits.abs().max() <= bound * (1 + 1e-12)
    assert logits[0, 0].item() == pytest.approx(bound, rel=1e-3)


@pytest.mark.parametrize("schedule", ["linear", "increment"])
def test_activations_are_the_more_sensitive_to_votes_the_later_the_iteration(schedule: Any) -> None:
    """At the same couplings: what one iteration of a later temperature makes of the difference of two parents."""
    votes, activations = dense_inputs(dim=4)
    betas = torch.zeros(3, dtype=torch.float64)
    gaps = []
    for temperature in inverse_temperatures(3, 0.01, schedule):
        options = {"iterations": 1, "cost": "paper", "temperature_schedule": "constant"}
        found = em_routing(votes, activations, betas, betas, inverse_temperature=temperature, **options).activations
        gaps.append((found.amax(1) - found.amin(1)).mean().item())
    assert gaps == sorted(gaps)
    assert gaps[0] < gaps[-1]


@pytest.mark.parametrize("parents", [1, 3])
def test_standardised_activation_logit_of_equal_costs_is_finite(parents: int) -> None:
    mass = torch.ones(2, parents, requires_grad=True)
    logits = activation_logit("standardised", mass, -mass, torch.zeros(1), torch.ones(1), dim=2, min_variance=0.1)
    logits.sum().backward()
    assert torch.equal(logits, torch.ones(2, parents))
    assert mass.grad.isfinite().all()


@pytest.mark.parametrize("dim", [1, 4, 16])
@pytest.mark.parametrize("min_variance", [5e-4, 0.1])
@pytest.mark.parametrize("cost", ["official_legacy", "official_fast"])
def test_official_cost_is_the_papers_in_other_units(cost: Any, min_variance: float, dim: int) -> None:
    """ln of a variance is twice that of a deviation: twice the inverse temperature, half of what betas are worth."""
    votes, activations = dense_inputs(dim=dim)
    b_s, b_a = double(0.3, 0.5, 0.8), double(0.02, -0.01, 0.05)
    options = {"iterations": 3, "min_variance": min_variance}
    official = em_routing(votes, activations, b_s, b_a, cost=cost, inverse_temperature=0.1, **options)
    if cost == "official_legacy":
        beta_u, beta_a = b_s * (LN_2PI + 1) / 2, -2500 * b_a
    else:
        beta_u, beta_a = ((b_s**2 + min_variance).log() + LN_2PI + 1) / 2, -25 * dim * b_a
    paper = em_routing(votes, activations, beta_u, beta_a, cost="paper", inverse_temperature=0.2, **options)
    exact(paper.poses, official.poses)
    exact(paper.activations, official.activations)


# ---------------------------------------------------------------------------------------- the paper's own form


def procedure_1(votes: Tensor, activations: Tensor, beta_u: Tensor, beta_a: Tensor, temperatures: Any) -> Capsules:
    """With deviations, products and the density's exponential, as it is printed: for a handful of components."""
    couplings = torch.full(votes.shape[:3], 1 / votes.shape[2], dtype=torch.float64)
    for inverse_temperature in temperatures:
        assigned = couplings * activations[:, :, None]
        mass = assigned.sum(1) + 1e-7
        mu = torch.einsum("bij,bijh->bjh", assigned, votes) / mass[..., None]
        sigma = (torch.einsum("bij,bijh->bjh", assigned, (votes - mu[:, None]) ** 2) / mass[..., None] + 5e-4).sqrt()
        cost = (beta_u[:, None] + sigma.log()) * mass[..., None]
        present = (inverse_temperature * (beta_a - cost.sum(2))).sigmoid()
        density = torch.distributions.Normal(mu[:, None], sigma[:, None]).log_prob(votes).exp().prod(3)
        explained = present[:, None] * density
        couplings = explained / explained.sum(2, keepdim=True)
    return Capsules(mu, present)


def test_variances_and_deviations_are_the_same_procedure() -> None:
    votes, activations = dense_inputs(dim=3)
    betas = random(PARENTS, seed=2), random(PARENTS, seed=3)
    parents = em_routing(
        votes, activations, *betas, cost="paper", inverse_temperature=0.3, temperature_schedule="increment"
    )
    expected = procedure_1(votes, activations, *betas, [0.3, 0.6, 0.9])
    exact(parents.poses, expected.poses)
    exact(parents.activations, expected.activations)


def test_one_child_by_hand() -> None:
    """Activation 1/2, two parents: mass 1/4, mean its vote, variance the floor (ln of its root is ln 0.1)."""
    votes, beta_u, beta_a = double(3, -1).view(1, 1, 2, 1), double(1, 2), double(5, 6)
    parents = em_routing(
        votes,
        double(0.5)[None],
        beta_u,
        beta_a,
        iterations=1,
        inverse_temperature=0.1,
        temperature_schedule="constant",
        min_variance=0.01,
        mass_eps=1e-15,
    )
    exact(parents.poses, votes[:, 0])
    exact(logit(parents.activations), 0.1 * (beta_a - 0.25 * (beta_u + double(0.1).log()))[None])


def test_mass_eps_is_added_to_masses() -> None:
    """One child of weight 1 and an epsilon of 1: half its vote, half the squared distance to that, ln sigma of 2."""
    one, beta = double(1)[None], double(0)
    options = {"iterations": 1, "temperature_schedule": "constant", "inverse_temperature": 0.1, "min_variance": 1e-15}
    parents = em_routing(double(4).view(1, 1, 1, 1), one, beta, beta, mass_eps=1.0, **options)
    exact(parents.poses, double(2).view(1, 1, 1))
    exact(logit(parents.activations), double(-0.1 * 2 * 0.5 * math.log(2))[None])


@pytest.mark.parametrize(("iterations", "share"), [(1, 0.9), (2, 0.99), (3, 0.999)])
def test_damped_mean_closes_in_on_the_vote(iterations: int, share: float) -> None:
    votes, beta = torch.ones(1, 4, 1, 5, dtype=torch.float64), double(0)
    options = {"damping": 0.1, "mass_eps": 1e-15, "iterations": iterations}
    parents = em_routing(votes, torch.ones(1, 4).double(), beta, beta, **options)
    exact(parents.poses, share * votes[:, 0])


def test_mixing_proportions_are_shares_of_the_mass() -> None:
    (votes, activations), traces = dense_inputs(), []
    beta = double(0)
    parents = em_routing(
        votes, activations, beta, beta, activation="mixing_proportions", on_iteration=traces.append, mass_eps=1e-15
    )
    mass = (traces[-1].couplings * activations[..., None]).sum(1)
    exact(parents.activations, mass / activations.sum(1, keepdim=True))
    exact(parents.activations.sum(1), double(1, 1))


def test_first_couplings_are_equal_shares() -> None:
    (votes, activations), traces = dense_inputs(), []
    beta = double(0)
    em_routing(votes, activations, beta, beta, on_iteration=traces.append)
    exact(traces[0].couplings, torch.full((2, 4, PARENTS), 1 / PARENTS, dtype=torch.float64))
    assert (traces[1].couplings - 1 / PARENTS).abs().max() > 0.1


def test_absent_child_changes_nothing() -> None:
    votes, activations = dense_inputs()
    activations[:, 1] = 0
    others = [0, 2, 3]
    betas = double(0.1, 0.2, 0.3), double(1, 2, 3)
    exact(em_routing(votes, activations, *betas).poses, em_routing(votes[:, others], activations[:, others], *betas)[0])


# ----------------------------------------------------------------------------------- arguments and errors

CHANGED: dict[str, Any] = {
    "iterations": 2,
    "normalisation": "window",
    "cost": "official_legacy",
    "activation": "mixing_proportions",
    "inverse_temperature": 0.5,
    "temperature_schedule": "constant",
    "initial": "types",
    "damping": 0.3,
    "min_variance": 0.1,
    "mass_eps": 0.1,
    "beta_u": 0.7,
    "beta_a": 0.1,
}


def through_a_convolution(**options: Any) -> Capsules:
    torch.manual_seed(0)
    layer = ConvCapsules((4, 4), 2, 4, PARENTS, 4, rows=2, weight_std=1.0, routing=partial(EMRouting, **options))
    return layer.double()(random(1, 32, 4), random(1, 32, seed=1).sigmoid())


@pytest.mark.parametrize("argument", CHANGED)
def test_every_argument_changes_the_capsules(argument: str) -> None:
    capsules, other = through_a_convolution(), through_a_convolution(**{argument: CHANGED[argument]})
    assert not torch.allclose(capsules.activations, other.activations, rtol=1e-4, atol=1e-6)


def test_no_argument_is_forgotten() -> None:
    """Shared betas are the same at first, see above; layers set ``parents`` and ``dim``.

    Backends are the same throughout, see ``test_contract.py``.
    """
    others = {"parents", "dim", "shared_betas", "backend"}
    assert set(inspect.signature(EMRouting).parameters) == {*CHANGED, *others}


OF_THE_FUNCTION = set(inspect.signature(em_routing).parameters) - {"votes", "activations", "normalise", "on_iteration"}


def test_module_passes_every_argument_to_the_function() -> None:
    module = EMRouting(PARENTS, 4, **CHANGED)
    assert module.options == {name: CHANGED[name] for name in OF_THE_FUNCTION - {"beta_u", "beta_a", "backend"}}
    assert module.normalisation == CHANGED["normalisation"]
    assert EMRouting(PARENTS, 4, backend="matmul").backend == "matmul"


OPTIONS = {
    "cost": ("paper", "official_legacy", "official_fast", "standardised"),
    "activation": ("description_length", "mixing_proportions"),
    "temperature_schedule": ("saturating", "linear", "increment", "constant"),
    "initial": ("parents", "types"),
    "normalisation": ("all_parents", "window", "official_legacy", "official_fast"),
    "backend": ("auto", "reference", "matmul", "fused"),
}


def call_module(**options: Any) -> None:
    EMRouting(PARENTS, 4, **options)


def call_function(**options: Any) -> None:
    votes, activations = dense_inputs()
    em_routing(votes, activations, double(0), double(0), **options)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        *(pytest.param(call_module, argument, id=f"module-{argument}") for argument in OPTIONS),
        *(pytest.param(call_function, name, id=f"function-{name}") for name in OPTIONS if name != "normalisation"),
    ],
)
def test_unknown_option_is_named_with_those_that_are(
    call: Callable[..., None], argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # in training nothing else checks
    with pytest.raises(ValueError, match=f"^routing {argument} is 'nonsense'; expected ") as error:
        call(**{argument: "nonsense"})
    *others, last = map(repr, OPTIONS[argument])
    assert str(error.value).endswith(f"{', '.join(others)} or {last}")


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("iterations", 0, "1 (no routing) or more, the paper uses 3"),
        ("iterations", -1, "1 (no routing) or more, the paper uses 3"),
        *(("damping", value, "0 (none) or more and less than 1") for value in (-0.1, 1.0, math.nan)),
        *(
            (argument, value, "more than 0")
            for argument in ("inverse_temperature", "min_variance", "mass_eps")
            for value in (0.0, -1.0, math.inf, math.nan)
        ),
    ],
)
def test_wrong_number_is_named(argument: str, value: float, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match="routing") as error:
        call_module(**{argument: value})
    assert str(error.value) == f"routing {argument} is {value}; expected {expected}"


def test_function_checks_its_iterations() -> None:
    with pytest.raises(ValueError, match=r"^routing iterations is 0; expected 1 "):
        call_function(iterations=0)


def test_children_without_activations_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no activations of the children; expected \(batch, child\) in \[0, 1\]$"):
        EMRouting(PARENTS, 16)(dense_inputs()[0])


# ------------------------------------------------------------------------------------------- the usual mistakes

SCHEDULE = {"temperature_schedule": "increment", "inverse_temperature": wrong.INVERSE_TEMPERATURES[0]}


class Package:
    """``em_routing`` in the form of ``em_wrong``."""

    def __call__(self, *inputs: Tensor, **options: Any) -> Capsules:
        temperatures = options.pop("inverse_temperatures", None)
        constant = {"temperature_schedule": "constant", "inverse_temperature": temperatures and temperatures[0]}
        return em_routing(*inputs, cost="paper", **(constant if temperatures else SCHEDULE), **options)

    def windowed(self, votes: Tensor, activations: Tensor, windows: wrong.Windows, *betas: Tensor) -> Capsules:
        geometry = Windows((5, 6), 2, kernel_size=3, stride=2 if votes.shape[1] == 4 else 1)
        seen = activations[:, windows.children]
        ordered = votes.unflatten(2, (2, 9)).transpose(2, 3).flatten(0, 1).flatten(1, 2)
        present = seen.unflatten(2, (2, 9)).transpose(2, 3).flatten(0, 1).flatten(1, 2)
        normaliser = build_normaliser("all_parents", geometry)
        parents = em_routing(ordered, present, *betas, cost="paper", normalise=normaliser, **SCHEDULE)
        return Capsules(*(tensor.unflatten(0, (len(votes), -1)) for tensor in parents))


def betas() -> tuple[Tensor, Tensor]:
    return random(PARENTS, seed=2), random(PARENTS, seed=3)


def check_values(route: Any) -> None:
    inputs = *dense_inputs(dim=4), *betas()
    expected = dense_em_loops(*inputs, inverse_temperatures=wrong.INVERSE_TEMPERATURES)[-1]
    poses, activations = route(*inputs)[:2]
    exact(poses, expected.poses)
    exact(activations, expected.activations)


def check_parents_that_are_off(route: Any) -> None:
    """Logits around -90: as probabilities they are alike, as logarithms they are not."""
    beta_u, beta_a = betas()
    inputs = *dense_inputs(dim=4), beta_u, beta_a - 30
    expected = dense_em_loops(*inputs, inverse_temperatures=(3.0, 3.0, 3.0))[-1]
    exact(route(*inputs, inverse_temperatures=(3.0, 3.0, 3.0))[0], expected.poses)


def check_gradient_where_all_votes_agree(route: Any) -> None:
    votes, activations = dense_inputs(dim=4)
    votes = torch.zeros_like(votes).requires_grad_()
    poses, parent_activations = route(votes, activations, *betas())[:2]
    (poses.sum() + parent_activations.sum()).backward()
    assert votes.grad.isfinite().all()


def check_gradient(route: Any) -> None:
    inputs = tuple(tensor.requires_grad_() for tensor in (*dense_inputs(dim=2), *betas()))
    try:
        gradcheck(lambda *args: tuple(route(*args)), inputs)
    except GradcheckError as error:
        raise AssertionError(str(error)) from error


def check_windows(route: Any, stride: int) -> None:
    poses, activations = random(2, 2, 16, 5, 6), random(2, 2, 5, 6, seed=1).sigmoid()
    weight = 0.5 * random(2, 3, 3, 4, 4, PARENTS, seed=2)
    record = conv_em_loops(
        poses, activations, weight, *betas(), stride=stride, inverse_temperatures=wrong.INVERSE_TEMPERATURES
    )[-1]
    windows = wrong.grid_windows(types=2, size=(5, 6), kernel=3, stride=stride)
    seen = poses.permute(0, 1, 3, 4, 2).flatten(1, 3)[:, windows.children]  # (b, p, w, 16)
    votes = matrix_votes_loops(seen.flatten(0, 1), weight.flatten(0, 2)).unflatten(0, (2, -1))
    got_poses, got_activations = route.windowed(votes, activations.flatten(1), windows, *betas())[:2]
    exact(got_poses, record.poses.flatten(3).permute(0, 3, 1, 2))
    exact(got_activations, record.activations.flatten(2).transpose(1, 2))


CHECKS: dict[str, Callable[[Any], None]] = {
    "values": check_values,
    "off": check_parents_that_are_off,
    "agreeing": check_gradient_where_all_votes_agree,
    "gradient": check_gradient,
    "stride 1": partial(check_windows, stride=1),
    "stride 2": partial(check_windows, stride=2),
}
CAUGHT_BY: dict[type[wrong.Right], str] = {
    wrong.ChildActivationCancelled: "values",
    wrong.ChildActivationTwice: "values",
    wrong.OldCouplingsKept: "values",
    wrong.ChildActivationMissingAtFirst: "values",
    wrong.ActivationTimesLogDensity: "values",
    wrong.LogOfSigmoid: "off",
    wrong.RootOfVariance: "agreeing",
    wrong.StoppedGradient: "gradient",
    wrong.SoftmaxPerWindow: "stride 1",
    wrong.SoftmaxOverPositions: "stride 1",
    wrong.MaximumPerType: "stride 1",
    wrong.StrideIgnored: "stride 2",
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("route", [Package, wrong.Right])
def test_right_routing_passes(route: type, check: str) -> None:
    CHECKS[check](route())


@pytest.mark.parametrize(("mistake", "check"), CAUGHT_BY.items())
def test_mistake_is_caught(mistake: type[wrong.Right], check: str) -> None:
    with pytest.raises(AssertionError):
        CHECKS[check](mistake())


def test_every_mistake_is_tried() -> None:
    assert set(CAUGHT_BY) == {*wrong.WRONG_ANYWHERE, *wrong.WRONG_IN_WINDOWS}


def test_harmless_constant_is_not_caught() -> None:
    check_values(wrong.ConstantOfTheDensity())


def test_module_takes_a_normaliser_of_its_caller() -> None:
    class Nothing(Normaliser):
        def __call__(self, log_couplings: Tensor) -> Tensor:
            return 0 * log_couplings

    votes, activations = dense_inputs()
    parents = EMRouting(PARENTS, 16).double()(votes, activations, normalise=Nothing())
    assert torch.equal(parents.poses, torch.zeros_like(parents.poses))
