"""EM routing: golden numbers of the official code, and wrong versions found in public ports.
See docs/algorithms/em_routing.md for the variants.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from capsule_lab.layers import ClassCapsules, ConvCapsules
from capsule_lab.routing import EMRouting, dynamic_routing, em_routing
from capsule_lab.routing.em_costs import (
    CLASS_ROUTING,
    INITIAL,
    activation_logit,
    inverse_temperatures,
)
from capsule_lab.types import Capsules, RoutingTrace
from tests.helpers.changes_of_votes import CHANGES, example
from tests.helpers.closeness import assert_close
from tests.reference import em_bridge as bridge
from tests.reference import em_golden as golden
from tests.reference import em_wrong as wrong
from tests.reference.em_loops import (
    conv_em_loops,
    dense_em_loops,
    in_terms_of_the_loops,
    log_density,
)
from tests.reference.wrong import check_catches

LN_2PI = math.log(2 * math.pi)
PARENTS = 3

exact = partial(assert_close, atol=1e-10)


def double(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


# ------------------------------------------------------------------------------------------ golden numbers


def parents_of(
    layer: Any, row: golden.ConvGolden | golden.ClassGolden, weight: Tensor, *children: Tensor
) -> tuple[Capsules, list[RoutingTrace]]:
    assert layer.weight.shape == weight.shape
    layer.double()
    layer.weight.data = weight
    layer.routing.beta_u.data.fill_(row.b_s)
    layer.routing.beta_a.data.fill_(row.b_a)
    traces: list[RoutingTrace] = []
    with torch.no_grad():
        parents = layer(*map(bridge.as_children, children), on_iteration=traces.append)
    return parents, traces


def routing_of(row: golden.ConvGolden | golden.ClassGolden, **options: Any) -> Any:
    official = {"inverse_temperature": row.final, "initial": "types", "damping": 0.1}
    return partial(EMRouting, cost=row.cost, **official, **options)


CONV_ROWS = [*golden.CONV, *map(golden.in_paper_form, golden.CONV)]


@pytest.mark.parametrize("row", CONV_ROWS, ids=lambda row: row.name)
def test_convolutional_layer_gives_golden_numbers(row: golden.ConvGolden) -> None:
    """The paper's cost gives them as well, with converted betas."""
    routing = routing_of(row, mass_eps=1e-7, normalisation=row.normalisation)
    layer = ConvCapsules(
        (7, 7), 2, 16, 3, 16, rows=4, kernel_size=3, stride=row.stride, routing=routing
    )
    weight = bridge.as_conv_weight(golden.conv_weight())
    poses = golden.conv_poses()
    activations = golden.conv_activations()
    parents, traces = parents_of(layer, row, weight, poses, activations)
    seen = layer.windows.activations(bridge.as_children(activations))[0]
    masses = torch.stack([(trace.couplings[0, :, 0] * seen).sum() + 1e-7 for trace in traces])
    logits = torch.stack([trace.logits[0, 0] for trace in traces])
    exact(torch.cat([trace.activations[0, :1] for trace in traces]), logits.sigmoid())
    row.check(
        bridge.as_grid(parents.activations, layer.windows.grid),
        bridge.as_grid(parents.poses, layer.windows.grid),
        traces[-1].couplings,
        masses,
        logits,
    )


@pytest.mark.parametrize("row", golden.CLASS, ids=lambda row: row.name)
def test_class_layer_gives_golden_numbers(row: golden.ClassGolden) -> None:
    coordinates = golden.class_offsets().permute(1, 2, 0).flatten(0, 1)
    routing = routing_of(row, mass_eps=1e-5)
    layer = ClassCapsules(4, 3, 16, 4, 16, rows=4, routing=routing, coordinates=coordinates)
    children = golden.class_poses(), golden.class_activations()
    parents, _ = parents_of(layer, row, bridge.as_class_weight(golden.class_weight()), *children)
    row.check(parents.activations, parents.poses, parents.logits)


# -------------------------------------------------------------------------------- presets as they are configured


def test_class_routing_is_that_of_the_preset_em() -> None:
    assert dict(CLASS_ROUTING) == bridge.class_options("em")


def test_initial_values_follow_the_cost_unless_given() -> None:
    for cost, expected in INITIAL.items():
        module = EMRouting(PARENTS, 16, cost=cost)
        assert module.beta_u.tolist() == pytest.approx([expected["beta_u"]] * PARENTS)
        assert module.beta_a.tolist() == pytest.approx([expected["beta_a"]] * PARENTS)
        assert module.options["inverse_temperature"] == expected["inverse_temperature"]
    for shared, betas in ((False, PARENTS), (True, 1)):
        module = EMRouting(PARENTS, 16, beta_u=0.75, beta_a=-80.0, shared_betas=shared)
        assert module.beta_u.tolist() == [0.75] * betas
        assert module.beta_a.tolist() == [-80.0] * betas


@pytest.mark.parametrize("of", [bridge.preset, bridge.class_preset])
def test_paper_preset_equals_em_in_other_units(of: Callable[[str], dict[str, Any]]) -> None:
    names = ["beta_u", "beta_a", "inverse_temperature"]
    em = of("em")
    paper = of("em_paper")
    expected = golden.in_paper_terms(em["cost"], *[em[name] for name in names])
    assert [paper[name] for name in names] == pytest.approx([*expected], rel=1e-3)
    assert {name for name in em if em[name] != paper[name]} == {"cost", *names}


def test_mixing_proportions_have_no_trained_betas() -> None:
    module = EMRouting(PARENTS, 16, activation="mixing_proportions")
    assert not any(parameter.requires_grad for parameter in module.parameters())
    assert module.state_dict().keys() == EMRouting(PARENTS, 16).state_dict().keys()


def test_inverse_temperatures_follow_the_schedule() -> None:
    for schedule, final, expected in [
        ("saturating", 0.01, (0.0005, 0.000975, 0.00142625)),  # official_legacy
        ("saturating", 0.04, (0.002, 0.0039, 0.005705)),  # official_fast
        ("saturating", 0.0025, (0.000125, 0.00024375, 0.0003565625)),  # the class layer of both
        ("linear", 1.0, (1.0,)),
        ("linear", 1.0, (1.0, 1.5, 2.0, 2.5, 3.0)),  # never beyond 3
        ("increment", 1.0, (1.0, 2.0, 3.0, 4.0, 5.0)),
        ("constant", 0.3, (0.3, 0.3, 0.3)),
    ]:
        found = inverse_temperatures(len(expected), final, schedule)
        assert found == pytest.approx(expected, rel=1e-12)


def test_activation_logits_equal_numbers_by_hand() -> None:
    """Logits of mass 2, log-variances that sum to -3, beta_u 0.5, beta_a 0.25, 4 components and floor 0.1.

    Standardised, costs 1 and 3 are one standard deviation from their mean; beta_a is added after that.
    """
    given = double(2)[None], double(-3)[None], double(0.5), double(0.25)
    for cost, expected in {
        "paper": 0.25 - 2 * (4 * 0.5 - 1.5),
        "official_legacy": -2 * (-3 + 4 * 0.5 * (LN_2PI + 1)) - 1250,
        "official_fast": -2 * (-3 + 4 * (math.log(0.35) + LN_2PI + 1)) - 50,
    }.items():
        logit = activation_logit(cost, *given, dim=4, min_variance=0.1)
        assert logit.item() == pytest.approx(expected, rel=1e-12)
    given = double(1, 3)[None], double(0, 0)[None], double(0.5, 0.5), double(0.25, 0.5)
    logits = activation_logit("standardised", *given, dim=2, min_variance=0.1)
    one = 1 / (1 + 1e-4)  # 1e-4 is added to the standard deviation
    assert_close(logits, double(0.25 + one, 0.5 - one)[None])


@pytest.mark.parametrize("parents", [2, 5, 10, 32])
@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_standardised_logit_is_at_most_the_root_of_the_other_parents(
    parents: int, scale: float
) -> None:
    """A z-score of n numbers is at most sqrt(n - 1), 2 for five classes; one parent among equal ones reaches it."""
    betas = torch.zeros(parents, dtype=torch.float64)
    mass = scale * bridge.random(100, parents).exp()
    mass[0] = 2 * scale
    mass[0, 0] = scale
    logits = activation_logit("standardised", mass, mass, betas, betas, dim=2, min_variance=0.1)
    bound = math.sqrt(parents - 1)
    assert logits.abs().max() <= bound * (1 + 1e-12)
    assert logits[0, 0].item() == pytest.approx(bound, rel=1e-3)


@pytest.mark.parametrize("schedule", ["saturating", "linear", "increment"])
@pytest.mark.parametrize("cost", ["paper", "official_legacy", "standardised"])
def test_activations_are_more_sensitive_to_votes_in_later_iterations(
    cost: Any, schedule: Any
) -> None:
    """The inverse temperature is the slope of the logistic: a smaller spread of votes counts more in each iteration.

    Without betas, logits of small inverse temperatures are near 0, where the slope is a quarter of lambda.
    """
    votes, activations = dense_inputs()
    zero = torch.zeros(PARENTS, dtype=torch.float64)
    steps = inverse_temperatures(3, 0.001, schedule)
    slopes = []
    for step in steps:
        spread = torch.ones((), dtype=torch.float64, requires_grad=True)
        options: Any = {
            "cost": cost,
            "temperature_schedule": "constant",
            "inverse_temperature": step,
            "iterations": 1,
        }
        found = em_routing(spread * votes, activations, zero, zero, **options).activations
        of_loops = in_terms_of_the_loops({**options, "mass_eps": 1e-7})
        expected = dense_em_loops(votes, activations, zero, zero, **of_loops)[-1]
        exact(found.detach(), expected.activations)
        (to_spread,) = torch.autograd.grad(found[0, 0], spread)
        slopes.append(to_spread.abs().item())
    assert steps == sorted(set(steps))
    relative = [step / steps[0] for step in steps]
    assert [slope / slopes[0] for slope in slopes] == pytest.approx(relative, rel=1e-3)


def dense_inputs(dim: int = 4) -> tuple[Tensor, Tensor]:
    return bridge.random(2, 4, PARENTS, dim), bridge.random(2, 4, seed=1).sigmoid()


@pytest.mark.usefixtures("unchecked_types")  # as in training, where nothing else checks
def test_wrong_options_of_the_function_are_named() -> None:
    wrong_options = {
        "cost": "nonsense",
        "activation": "nonsense",
        "temperature_schedule": "none",
        "initial": "all",
        "iterations": 0,
    }
    for argument, value in wrong_options.items():
        with pytest.raises(ValueError, match=f"^routing {argument} is {value!r}; expected "):
            em_routing(*dense_inputs(), double(0), double(0), **{argument: value})


# ------------------------------------------------------------------------------------------- the usual mistakes


def test_density_is_that_of_a_gaussian() -> None:
    vote = bridge.random(4)
    pose = bridge.random(4, seed=1)
    variance = bridge.random(4, seed=2).exp()
    expected = torch.distributions.Normal(pose, variance.sqrt()).log_prob(vote).sum()
    exact(double(log_density(vote.tolist(), pose.tolist(), variance.tolist())), expected[None])
    given = vote.view(1, 1, 1, -1), pose.view(1, 1, -1), variance.view(1, 1, -1)
    exact(wrong.Right().log_density(*given), expected.view(1, 1, 1))
    assert (wrong.ConstantOfTheDensity().log_density(*given) - expected).abs() > 0.1


class Package:
    """``em_routing`` in the form of ``em_wrong``."""

    caught_by = None

    def __call__(self, *inputs: Tensor, inverse_temperatures: tuple[float, ...] = ()) -> Capsules:
        schedule = "constant" if inverse_temperatures else "increment"
        first = (inverse_temperatures or wrong.INVERSE_TEMPERATURES)[0]
        return em_routing(
            *inputs, cost="paper", temperature_schedule=schedule, inverse_temperature=first
        )

    def windowed(
        self, poses: Tensor, activations: Tensor, weight: Tensor, *betas: Tensor, stride: int
    ) -> Any:
        routing: Any = partial(
            EMRouting,
            cost="paper",
            temperature_schedule="increment",
            inverse_temperature=wrong.INVERSE_TEMPERATURES[0],
        )
        layer = ConvCapsules((5, 6), 2, 16, PARENTS, 16, rows=4, stride=stride, routing=routing)
        layer.double()
        layer.weight.data = bridge.as_conv_weight(weight)
        layer.routing.beta_u.data, layer.routing.beta_a.data = betas
        parents = layer(bridge.as_children(poses), bridge.as_children(activations))
        return tuple(bridge.as_grid(each, layer.windows.grid) for each in parents[:2])


class InWindows:
    """The loops with a wrong normalisation, in the same form."""

    def __init__(self, mistake: str) -> None:
        self.normalisation, stride = wrong.IN_WINDOWS[mistake]
        self.caught_by = f"stride {stride}"

    def windowed(self, *inputs: Tensor, stride: int) -> Any:
        records = conv_em_loops(
            *inputs,
            stride=stride,
            normalisation=self.normalisation,
            inverse_temperatures=wrong.INVERSE_TEMPERATURES,
        )
        return records[-1].poses, records[-1].activations


def betas() -> tuple[Tensor, Tensor]:
    return bridge.random(PARENTS, seed=2), bridge.random(PARENTS, seed=3)


def check_values(route: Any) -> None:
    inputs = *dense_inputs(), *betas()
    records = dense_em_loops(*inputs, inverse_temperatures=wrong.INVERSE_TEMPERATURES)
    exact(tuple(route(*inputs)[:2]), (records[-1].poses, records[-1].activations))


def check_parents_that_are_off(route: Any) -> None:
    """Logits around -90 are equal as probabilities and differ as logarithms."""
    beta_u, beta_a = betas()
    inputs = *dense_inputs(), beta_u, beta_a - 30
    options = {"inverse_temperatures": (3.0, 3.0, 3.0)}
    exact(route(*inputs, **options)[0], dense_em_loops(*inputs, **options)[-1].poses)


def check_gradient_where_all_votes_agree(route: Any) -> None:
    votes, activations = dense_inputs()
    votes = torch.zeros_like(votes).requires_grad_()
    poses, parent_activations = route(votes, activations, *betas())[:2]
    (poses.sum() + parent_activations.sum()).backward()
    assert votes.grad.isfinite().all()


def check_gradient(route: Any) -> None:
    inputs = *dense_inputs(dim=2), *betas()
    for tensor in inputs:
        tensor.requires_grad_()

    def parents(*given: Tensor) -> tuple[Tensor, ...]:
        return tuple(route(*given))

    assert gradcheck(parents, inputs, fast_mode=True, raise_exception=False)


def check_windows(route: Any, stride: int) -> None:
    if hasattr(route, "windowed"):
        poses = bridge.random(2, 2, 16, 5, 6)
        activations = bridge.random(2, 2, 5, 6, seed=1).sigmoid()
        weight = 0.5 * bridge.random(2, 3, 3, 4, 4, PARENTS, seed=2)
        inputs = poses, activations, weight, *betas()
        options: Any = {"stride": stride, "inverse_temperatures": wrong.INVERSE_TEMPERATURES}
        record = conv_em_loops(*inputs, **options)[-1]
        exact(route.windowed(*inputs, stride=stride), (record.poses, record.activations))


CHECKS: dict[str, Callable[[Any], None]] = {
    "values": check_values,
    "off": check_parents_that_are_off,
    "agreeing": check_gradient_where_all_votes_agree,
    "gradient": check_gradient,
    "stride 1": partial(check_windows, stride=1),
    "stride 2": partial(check_windows, stride=2),
}


ROUTES = [Package, wrong.Right, *wrong.Right.__subclasses__()]
ROUTES += [partial(InWindows, name) for name in wrong.IN_WINDOWS]


@pytest.mark.parametrize("build", ROUTES)
def test_only_mistakes_are_caught(build: Callable[[], Any]) -> None:
    """Each wrong version fails its check; correct versions, also with another constant density, pass all checks."""
    route = build()
    if route.caught_by is None:
        for check in CHECKS.values():
            check(route)
    else:
        check_catches(CHECKS[route.caught_by], route)


# -------------------------------------------------------------------------------- equivariance


def routed(
    routing: Callable[..., Capsules], votes: Tensor, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Poses, activations, couplings."""
    traces: list[RoutingTrace] = []
    arguments: tuple[Tensor, ...] = ()
    if routing is em_routing:
        beta_u = beta_a = votes.new_zeros(3)
        arguments = example()[1], beta_u, beta_a
    parents = routing(votes, *arguments, on_iteration=traces.append, **options)
    return parents.poses, parents.activations, traces[-1].couplings


TURNS = {"rotation of 16 components", "turned frame of 4x4 poses", "signed permutation"}


@pytest.mark.parametrize(
    ("routing", "options", "exact"),
    [
        (dynamic_routing, {}, TURNS),
        # the bias of Sabour 2017, official code
        (dynamic_routing, {"bias": torch.full((3, 16), 0.1).double()}, set()),
        (em_routing, {"mass_eps": 0.0}, {"shift", "signed permutation"}),
        # damping of the official code, at first from zero
        (em_routing, {"mass_eps": 0.0, "damping": 0.1}, {"signed permutation"}),
        (em_routing, {"mass_eps": 0.0, "iterations": 1}, {"shift", *TURNS}),  # means are linear
    ],
)
def test_poses_follow_changes_exactly(
    routing: Any, options: dict[str, Any], exact: set[str]
) -> None:
    """Poses follow the change; couplings stay, and so do activations unless components' variances mix (EM)."""
    votes = example()[0]
    poses, activations, couplings = routed(routing, votes, **options)
    for name, change in CHANGES.items():
        after = routed(routing, change(votes), **options)
        moved = max(largest(after[0] - change(poses)), largest(after[2] - couplings))
        assert moved < 1e-12 if name in exact else moved > 0.05, name
        if name in exact and options.get("iterations") != 1:
            assert_close(after[1], activations)


def largest(difference: Tensor) -> float:
    return difference.abs().max().item()


def test_poses_nearly_follow_shifts_and_scales() -> None:
    """``mass_eps`` breaks shifts by 1e-5. Longer votes raise activations of dynamic routing and lower those of EM."""
    votes = example()[0]
    shift = CHANGES["shift"]
    before = routed(em_routing, votes)
    shifted = routed(em_routing, shift(votes))
    assert 1e-9 < largest(shifted[0] - shift(before[0])) < 1e-5
    longer = routed(em_routing, 2 * votes)
    assert largest(longer[2] - before[2]) < 0.02
    assert (longer[1] < before[1]).all()
    before = routed(dynamic_routing, votes)
    longer = routed(dynamic_routing, 2 * votes)
    assert torch.cosine_similarity(before[0], longer[0], dim=2).min() > 0.9
    assert (longer[1] > before[1]).all()
