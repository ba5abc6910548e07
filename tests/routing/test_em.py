"""EM routing: the numbers of the official code, the loops under every preset, and the mistakes of public ports."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.autograd.gradcheck import GradcheckError

from capsule_lab.layers import ClassCapsules, ConvCapsules, Windows, build_normaliser
from capsule_lab.routing import EMRouting, em_routing
from capsule_lab.routing.em_costs import CLASS_ROUTING, INITIAL, activation_logit, inverse_temperatures
from capsule_lab.types import Capsules, RoutingTrace
from tests.helpers.changes_of_votes import CHANGES, example
from tests.reference import em_golden as golden
from tests.reference import em_wrong as wrong
from tests.reference.em_bridge import (
    PRESETS,
    as_children,
    as_class_weight,
    as_conv_weight,
    as_grid,
    class_options,
    class_preset,
    preset,
    random,
)
from tests.reference.em_loops import conv_em_loops, dense_em_loops, matrix_votes_loops, parents_by_loops

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


def check_golden(row: Any, quantities: dict[str, Callable[[Any], Tensor]]) -> None:
    for quantity, found in quantities.items():
        if (expected := getattr(row, quantity)) != ():
            exact_golden(found(row), double(*expected) if isinstance(expected, tuple) else double(expected))


@pytest.mark.parametrize("row", golden.CONV, ids=lambda row: row.name)
def test_convolution_gives_golden_numbers(row: golden.ConvGolden) -> None:
    check_golden(row, CONV_QUANTITIES)


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


@pytest.mark.parametrize("row", golden.CLASS, ids=lambda row: row.name)
def test_class_layer_gives_golden_numbers(row: golden.ClassGolden) -> None:
    check_golden(row, CLASS_QUANTITIES)


# -------------------------------------------------------------------------------- presets as they are configured

PARENTS = 3


def dense_inputs(batch: int = 2, children: int = 4, dim: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    return random(batch, children, PARENTS, dim, seed=seed), random(batch, children, seed=seed + 1).sigmoid()


@pytest.mark.parametrize("name", PRESETS)
def test_preset_at_its_initial_betas_has_the_loops_values_and_its_gradient(name: str) -> None:
    """In a dense layer; ``tests/layers/test_conv.py`` has the other one. Gradients through all iterations."""
    for options in (preset(name), class_preset(name)):
        module, (votes, activations) = EMRouting(PARENTS, 16, **options).double(), dense_inputs()
        expected = parents_by_loops(votes, activations, module)
        exact(tuple(module(votes, activations)[:2]), expected)
        module = EMRouting(PARENTS, 2, **options).double()
        votes, activations = dense_inputs(batch=1, children=3, dim=2)
        inputs = votes.requires_grad_(), activations.requires_grad_(), module.beta_u, module.beta_a
        assert gradcheck(lambda *args, module=module: tuple(em_routing(*args, **module.options)), inputs)


def test_defaults_are_the_preset_em() -> None:
    parameters = inspect.signature(EMRouting).parameters
    defaults = {name: p.default for name, p in parameters.items() if p.default is not inspect.Parameter.empty}
    own = INITIAL[defaults["cost"]]
    assert {**defaults, **own} == preset("em")


def test_default_options_of_the_class_layer_are_those_of_the_preset_em() -> None:
    assert dict(CLASS_ROUTING) == class_options("em")


def test_initial_values_follow_the_cost_or_are_those_given() -> None:
    for cost, expected in INITIAL.items():
        module = EMRouting(PARENTS, 16, cost=cost)
        own = {"beta_u": module.beta_u[0].item(), "beta_a": module.beta_a[0].item()}
        assert {**own, "inverse_temperature": module.options["inverse_temperature"]} == pytest.approx(expected)
    for shared in (False, True):
        module = EMRouting(PARENTS, 16, beta_u=0.75, beta_a=-80.0, shared_betas=shared)
        assert torch.equal(module.beta_u, torch.full((1 if shared else PARENTS,), 0.75))
        assert torch.equal(module.beta_a, torch.full((1 if shared else PARENTS,), -80.0))


@pytest.mark.parametrize("of", [preset, class_preset])
def test_paper_preset_is_em_in_other_units(of: Callable[[str], dict[str, Any]]) -> None:
    em, paper = of("em"), of("em_paper")
    expected = golden.in_paper_form(em["cost"], em["beta_u"], em["beta_a"], em["inverse_temperature"])
    assert (paper["beta_u"], paper["beta_a"], paper["inverse_temperature"]) == pytest.approx(expected, rel=1e-3)
    units = {"cost", "inverse_temperature", "beta_u", "beta_a"}
    assert {name for name in em if em[name] != paper[name]} == units


def test_mixing_proportions_learn_no_betas() -> None:
    module = EMRouting(PARENTS, 16, activation="mixing_proportions")
    assert not any(parameter.requires_grad for parameter in module.parameters())
    assert module.state_dict().keys() == EMRouting(PARENTS, 16).state_dict().keys()


# -------------------------------------------------------------------------------------- inverse temperatures


def test_inverse_temperatures() -> None:
    for schedule, final, expected in [
        ("saturating", 0.01, (0.0005, 0.000975, 0.00142625)),  # notes 3.2
        ("saturating", 0.04, (0.002, 0.0039, 0.005705)),  # notes 3.3
        ("saturating", 0.0025, (0.000125, 0.00024375, 0.0003565625)),  # notes 3.4
        ("saturating", 1.0, (0.05, 0.0975, 0.142625, 0.18549375, 0.2262190625)),  # as far as more go, the same ones
        ("linear", 1.0, (1.0,)),
        ("linear", 1.0, (1.0, 1.5, 2.0, 2.5, 3.0)),  # never beyond 3
        ("linear", 0.5, (0.5, 1.0, 1.5)),
        ("increment", 1.0, (1.0, 2.0, 3.0, 4.0, 5.0)),
        ("constant", 0.3, (0.3, 0.3, 0.3)),
    ]:
        assert inverse_temperatures(len(expected), final, schedule) == pytest.approx(expected, rel=1e-12)


# --------------------------------------------------------------------------------------------------- costs


def test_activation_logits_by_hand() -> None:
    """Of mass 2, log-variances of sum -3, beta_u 0.5, beta_a 0.25, 4 components, floor 0.1.

    Standardised, costs 1 and 3 are one standard deviation from their mean; beta_a is added after that.
    """
    given = double(2)[None], double(-3)[None], double(0.5), double(0.25)
    for cost, expected in {
        "paper": 0.25 - 2 * (4 * 0.5 - 1.5),
        "official_legacy": -2 * (-3 + 4 * 0.5 * (LN_2PI + 1)) - 1250,
        "official_fast": -2 * (-3 + 4 * (math.log(0.35) + LN_2PI + 1)) - 50,
    }.items():
        assert activation_logit(cost, *given, dim=4, min_variance=0.1).item() == pytest.approx(expected, rel=1e-12)
    given = double(1, 3)[None], double(0, 0)[None], double(0.5, 0.5), double(0.25, 0.5)
    logits = activation_logit("standardised", *given, dim=2, min_variance=0.1)
    one = 1 / (1 + 1e-4)  # 1e-4: beside the standard deviation
    torch.testing.assert_close(logits, double(0.25 + one, 0.5 - one)[None], rtol=0, atol=1e-12)


def test_standardised_cost_is_bounded_by_the_number_of_parents() -> None:
    """A z-score of n numbers is at most sqrt(n - 1), however large they are; one parent against equals reaches it."""
    for parents, scale in [(2, 1.0), (5, 1e6), (32, 1.0)]:
        betas = torch.zeros(parents, dtype=torch.float64)
        mass = scale * torch.rand(100, parents, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        mass[0], mass[0, 0] = 2.0 * scale, scale
        logits = activation_logit("standardised", mass, mass, betas, betas, dim=2, min_variance=0.1)
        bound = math.sqrt(parents - 1)
        assert logits.abs().max() <= bound * (1 + 1e-12)
        assert logits[0, 0].item() == pytest.approx(bound, rel=1e-3)
    for parents in (1, 3):  # equal costs
        mass = torch.ones(2, parents, requires_grad=True)
        logits = activation_logit("standardised", mass, -mass, torch.zeros(1), torch.ones(1), dim=2, min_variance=0.1)
        logits.sum().backward()
        assert torch.equal(logits, torch.ones(2, parents))
        assert mass.grad.isfinite().all()


@pytest.mark.parametrize(("dim", "min_variance"), [(1, 5e-4), (4, 0.1), (16, 5e-4)])
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


# ------------------------------------------------------------------------------------------------ properties


def test_damped_mean_closes_in_on_the_vote() -> None:
    votes, beta = torch.ones(1, 4, 1, 5, dtype=torch.float64), double(0)
    for iterations, share in enumerate((0.9, 0.99, 0.999), 1):
        options: Any = {"damping": 0.1, "mass_eps": 1e-15, "iterations": iterations}
        exact(em_routing(votes, torch.ones(1, 4).double(), beta, beta, **options).poses, share * votes[:, 0])


def test_mixing_proportions_are_shares_of_the_mass() -> None:
    (votes, activations), traces = dense_inputs(), []
    beta = double(0)
    parents = em_routing(
        votes, activations, beta, beta, activation="mixing_proportions", on_iteration=traces.append, mass_eps=1e-15
    )
    mass = (traces[-1].couplings * activations[..., None]).sum(1)
    exact(parents.activations, mass / activations.sum(1, keepdim=True))
    exact(parents.activations.sum(1), double(1, 1))


# -------------------------------------------------------------------------------------------------- options


@pytest.mark.usefixtures("unchecked_types")  # in training nothing else checks
def test_function_checks_its_options() -> None:
    known = {"cost": "nonsense", "activation": "nonsense", "temperature_schedule": "none", "initial": "all"}
    for argument, value in {**known, "iterations": 0}.items():
        with pytest.raises(ValueError, match=f"^routing {argument} is {value!r}; expected "):
            em_routing(*dense_inputs(), double(0), double(0), **{argument: value})


def test_every_option_of_the_function_is_one_of_the_module() -> None:
    given = {"votes", "activations", "normalise", "on_iteration", "beta_u", "beta_a", "backend"}
    assert EMRouting(PARENTS, 4).options.keys() == set(inspect.signature(em_routing).parameters) - given


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


@pytest.mark.parametrize("route", [Package, wrong.Right, *CAUGHT_BY])
def test_only_mistakes_are_caught(route: type) -> None:
    if route in CAUGHT_BY:
        with pytest.raises(AssertionError):
            CHECKS[CAUGHT_BY[route]](route())
    else:
        for check in CHECKS.values():
            check(route())


def test_every_mistake_is_tried() -> None:
    assert set(CAUGHT_BY) == {*wrong.WRONG_ANYWHERE, *wrong.WRONG_IN_WINDOWS}


def test_harmless_constant_is_not_caught() -> None:
    check_values(wrong.ConstantOfTheDensity())


# -------------------------------------------------------------------------------- all votes changed in one way


def routed(votes: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Poses, activations, couplings."""
    traces: list[RoutingTrace] = []
    beta = votes.new_zeros(3)
    found = em_routing(votes, example()[1], beta, beta, on_iteration=traces.append, **options)
    return found.poses, found.activations, traces[-1].couplings


@pytest.mark.parametrize("name", ["shift", "signed permutation"])
def test_changes_that_poses_follow_exactly(name: str) -> None:
    """Mass that is added breaks shifts by as little; damping breaks them: official code, at first from zero."""
    change, votes = CHANGES[name], example()[0]
    before, after = (routed(each, mass_eps=0.0) for each in (votes, change(votes)))
    torch.testing.assert_close(after[0], change(before[0]), rtol=0, atol=1e-12)
    torch.testing.assert_close(after[1:], before[1:], rtol=0, atol=1e-12)
    if name == "shift":
        differences = [
            (routed(change(votes), damping=damping)[0] - change(routed(votes, damping=damping)[0])).abs().max()
            for damping in (0.0, 0.1)
        ]
        assert 1e-9 < differences[0] < 1e-5
        assert differences[1] > 0.05


@pytest.mark.parametrize("name", ["rotation of 16 components", "turned frame of 4x4 poses"])
def test_turning_is_exact_for_means_only(name: str) -> None:
    """Means are linear; variances are of components, which turning mixes."""
    change, votes = CHANGES[name], example()[0]
    once = routed(votes, iterations=1)[0], routed(change(votes), iterations=1)[0]
    torch.testing.assert_close(once[1], change(once[0]), rtol=0, atol=1e-13)
    assert (routed(change(votes))[2] - routed(votes)[2]).abs().max() > 0.3


def test_scaling_keeps_couplings_nearly() -> None:
    before, after = routed(example()[0]), routed(2 * example()[0])
    assert (after[2] - before[2]).abs().max() < 0.02
    assert (after[1] < before[1]).all()  # it costs more to describe wider votes
