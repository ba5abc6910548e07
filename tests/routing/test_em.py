"""EM routing: golden numbers of the official code, and wrong versions found in public ports.
See docs/algorithms/em_routing.md for the variants.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

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
from tests.helpers.routing_contract import learned
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
    given = [bridge.as_children(each) for each in children]
    with torch.no_grad():
        parents = layer(*given, on_iteration=traces.append)
    return parents, traces


def routing_of(row: golden.ConvGolden | golden.ClassGolden, **options: Any) -> Any:
    official = {
        "inverse_temperature": row.final,
        "initial": "types",
        "damping": 0.1,
    }
    return partial(EMRouting, cost=row.cost, **official, **options)


CONV_ROWS = [*golden.CONV, *map(golden.in_paper_form, golden.CONV)]


@pytest.mark.parametrize("row", CONV_ROWS, ids=lambda row: row.name)
def test_convolutional_layer_gives_golden_numbers(row: golden.ConvGolden) -> None:
    """The paper's cost gives them as well, with converted betas."""
    routing = routing_of(row, mass_eps=1e-7, normalisation=row.normalisation)
    layer = ConvCapsules((7, 7), 2, 16, 3, 16, rows=4, stride=row.stride, routing=routing)
    weight = bridge.as_conv_weight(golden.conv_weight())
    poses = golden.conv_poses()
    activations = golden.conv_activations()
    parents, traces = parents_of(layer, row, weight, poses, activations)
    seen = layer.windows.activations(bridge.as_children(activations))[0]
    masses = []
    logits = []
    for trace in traces:
        assigned = trace.couplings[0, :, 0] * seen
        mass = assigned.sum() + 1e-7
        masses.append(mass)
        logit = trace.logits[0, 0]
        logits.append(logit)
        exact(trace.activations[0, 0], logit.sigmoid())
    row.check(
        bridge.as_grid(parents.activations, layer.windows.grid),
        bridge.as_grid(parents.poses, layer.windows.grid),
        traces[-1].couplings,
        torch.stack(masses),
        torch.stack(logits),
    )


@pytest.mark.parametrize("row", golden.CLASS, ids=lambda row: row.name)
def test_class_layer_gives_golden_numbers(row: golden.ClassGolden) -> None:
    offsets = golden.class_offsets().permute(1, 2, 0)
    options: Any = {
        "rows": 4,
        "routing": routing_of(row, mass_eps=1e-5),
        "coordinates": offsets.flatten(0, 1),
    }
    layer = ClassCapsules(4, 3, 16, 4, 16, **options)
    weight = bridge.as_class_weight(golden.class_weight())
    poses = golden.class_poses()
    activations = golden.class_activations()
    parents, _ = parents_of(layer, row, weight, poses, activations)
    row.check(parents.activations, parents.poses, parents.logits)


# -------------------------------------------------------------------------------- presets as they are configured


def test_class_routing_is_that_of_the_preset_em() -> None:
    assert dict(CLASS_ROUTING) == bridge.class_options("em")


@pytest.mark.parametrize("cost", INITIAL)
def test_initial_values_follow_the_cost_unless_given(cost: Any) -> None:
    expected = INITIAL[cost]
    module = EMRouting(PARENTS, 16, cost=cost)
    assert module.beta_u.tolist() == pytest.approx([expected["beta_u"]] * PARENTS)
    assert module.beta_a.tolist() == pytest.approx([expected["beta_a"]] * PARENTS)
    assert module.options["inverse_temperature"] == expected["inverse_temperature"]
    given = EMRouting(PARENTS, 16, cost=cost, beta_u=0.75, beta_a=-80.0)
    assert given.beta_u.tolist() == [0.75] * PARENTS
    assert given.beta_a.tolist() == [-80.0] * PARENTS


def test_parents_may_share_their_betas() -> None:
    module = EMRouting(PARENTS, 16, beta_u=0.75, beta_a=-80.0, shared_betas=True)
    assert module.beta_u.tolist() == [0.75]
    assert module.beta_a.tolist() == [-80.0]


@pytest.mark.parametrize("of", [bridge.preset, bridge.class_preset])
def test_paper_preset_equals_em_in_other_units(of: Callable[[str], dict[str, Any]]) -> None:
    names = ["beta_u", "beta_a", "inverse_temperature"]
    em = of("em")
    paper = of("em_paper")
    in_units_of_em = [em[name] for name in names]
    found = [paper[name] for name in names]
    expected = golden.in_paper_terms(em["cost"], *in_units_of_em)
    assert found == pytest.approx([*expected], rel=1e-3)
    different = {name for name in em if em[name] != paper[name]}
    assert different == {"cost", *names}


def test_mixing_proportions_have_no_trained_betas() -> None:
    module = EMRouting(PARENTS, 16, activation="mixing_proportions")
    assert not learned(module)
    with_betas = EMRouting(PARENTS, 16)
    assert module.state_dict().keys() == with_betas.state_dict().keys()


@pytest.mark.parametrize(
    ("schedule", "final", "expected"),
    [
        # official_legacy
        ("saturating", 0.01, [0.0005, 0.000975, 0.00142625]),
        # official_fast
        ("saturating", 0.04, [0.002, 0.0039, 0.005705]),
        # the class layer of both
        ("saturating", 0.0025, [0.000125, 0.00024375, 0.0003565625]),
        ("linear", 1.0, [1.0]),
        # never beyond 3
        ("linear", 1.0, [1.0, 1.5, 2.0, 2.5, 3.0]),
        ("increment", 1.0, [1.0, 2.0, 3.0, 4.0, 5.0]),
        ("constant", 0.3, [0.3, 0.3, 0.3]),
    ],
)
def test_inverse_temperatures_follow_the_schedule(
    schedule: Any, final: float, expected: list[float]
) -> None:
    found = inverse_temperatures(len(expected), final, schedule)
    assert found == pytest.approx(expected, rel=1e-12)


def test_activation_logits_equal_numbers_by_hand() -> None:
    """Logits of mass 2, log-variances that sum to -3, beta_u 0.5, beta_a 0.25, 4 components and floor 0.1."""
    mass = double(2)[None]
    log_variance = double(-3)[None]
    beta_u = double(0.5)
    beta_a = double(0.25)
    fast_floor = math.log(0.35)
    for cost, expected in {
        "paper": 0.25 - 2 * (4 * 0.5 - 1.5),
        "official_legacy": -2 * (-3 + 4 * 0.5 * (LN_2PI + 1)) - 1250,
        "official_fast": -2 * (-3 + 4 * (fast_floor + LN_2PI + 1)) - 50,
    }.items():
        given = mass, log_variance, beta_u, beta_a
        logit = activation_logit(cost, *given, dim=4, min_variance=0.1)
        assert logit.item() == pytest.approx(expected, rel=1e-12)


def test_standardised_logits_equal_numbers_by_hand() -> None:
    """Costs 1 and 3 are one standard deviation from their mean; beta_a is added after that."""
    masses = double(1, 3)[None]
    log_variances = double(0, 0)[None]
    beta_u = double(0.5, 0.5)
    beta_a = double(0.25, 0.5)
    given = masses, log_variances, beta_u, beta_a
    logits = activation_logit("standardised", *given, dim=2, min_variance=0.1)
    one = 1 / (1 + 1e-4)  # 1e-4 is added to the standard deviation
    expected = double(0.25 + one, 0.5 - one)
    assert_close(logits, expected[None])


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
    given = mass, mass, betas, betas
    logits = activation_logit("standardised", *given, dim=2, min_variance=0.1)
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
    assert steps == sorted(set(steps))
    slopes = []
    for step in steps:
        spread = torch.ones((), dtype=torch.float64, requires_grad=True)
        options: Any = {
            "cost": cost,
            "temperature_schedule": "constant",
            "inverse_temperature": step,
            "iterations": 1,
        }
        parents = em_routing(spread * votes, activations, zero, zero, **options)
        of_loops = in_terms_of_the_loops({**options, "mass_eps": 1e-7})
        records = dense_em_loops(votes, activations, zero, zero, **of_loops)
        exact(parents.activations.detach(), records[-1].activations)
        (to_spread,) = torch.autograd.grad(parents.activations[0, 0], spread)
        slopes.append(to_spread.abs().item())
    relative_steps = [step / steps[0] for step in steps]
    relative_slopes = [slope / slopes[0] for slope in slopes]
    assert relative_slopes == pytest.approx(relative_steps, rel=1e-3)


def dense_inputs(dim: int = 4) -> tuple[Tensor, Tensor]:
    votes = bridge.random(2, 4, PARENTS, dim)
    activations = bridge.random(2, 4, seed=1).sigmoid()
    return votes, activations


@pytest.mark.usefixtures("unchecked_types")  # as in training, where nothing else checks
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("cost", "nonsense"),
        ("activation", "nonsense"),
        ("temperature_schedule", "none"),
        ("initial", "all"),
        ("iterations", 0),
    ],
)
def test_wrong_options_of_the_function_are_named(argument: str, value: Any) -> None:
    options = {argument: value}
    message = f"^routing {argument} is {value!r}; expected "
    with pytest.raises(ValueError, match=message):
        em_routing(*dense_inputs(), double(0), double(0), **options)


# ------------------------------------------------------------------------------------------- the usual mistakes


def test_density_is_that_of_a_gaussian() -> None:
    vote = bridge.random(4)
    pose = bridge.random(4, seed=1)
    variance = bridge.random(4, seed=2).exp()
    normal = torch.distributions.Normal(pose, variance.sqrt())
    expected = normal.log_prob(vote).sum()
    of_loops = log_density(vote.tolist(), pose.tolist(), variance.tolist())
    assert of_loops == pytest.approx(expected.item(), rel=0, abs=1e-10)
    given = vote.view(1, 1, 1, -1), pose.view(1, 1, -1), variance.view(1, 1, -1)
    right = wrong.Right().log_density(*given)
    other = wrong.ConstantOfTheDensity().log_density(*given)
    exact(right, expected.view(1, 1, 1))
    assert (other - expected).abs() > 0.1


class Package:
    """``em_routing`` in the form of ``em_wrong``."""

    caught_by = None

    options: ClassVar[Any] = {
        "cost": "paper",
        "temperature_schedule": "increment",
        "inverse_temperature": wrong.INVERSE_TEMPERATURES[0],
    }

    def __call__(self, *inputs: Tensor, inverse_temperatures: tuple[float, ...] = ()) -> Capsules:
        options = dict(self.options)
        if inverse_temperatures:
            options["temperature_schedule"] = "constant"
            options["inverse_temperature"] = inverse_temperatures[0]
        return em_routing(*inputs, **options)

    def windowed(
        self, poses: Tensor, activations: Tensor, weight: Tensor, *betas: Tensor, stride: int
    ) -> Any:
        routing: Any = partial(EMRouting, **self.options)
        layer = ConvCapsules((5, 6), 2, 16, PARENTS, 16, rows=4, stride=stride, routing=routing)
        layer.double()
        layer.weight.data = bridge.as_conv_weight(weight)
        layer.routing.beta_u.data, layer.routing.beta_a.data = betas
        children = bridge.as_children(poses), bridge.as_children(activations)
        parents = layer(*children)
        grid = layer.windows.grid
        parent_poses = bridge.as_grid(parents.poses, grid)
        parent_activations = bridge.as_grid(parents.activations, grid)
        return parent_poses, parent_activations


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
        last = records[-1]
        return last.poses, last.activations


def betas() -> tuple[Tensor, Tensor]:
    return bridge.random(PARENTS, seed=2), bridge.random(PARENTS, seed=3)


def check_values(route: Any) -> None:
    inputs = *dense_inputs(), *betas()
    records = dense_em_loops(*inputs, inverse_temperatures=wrong.INVERSE_TEMPERATURES)
    last = records[-1]
    poses, activations = route(*inputs)[:2]
    exact(poses, last.poses)
    exact(activations, last.activations)


def check_parents_that_are_off(route: Any) -> None:
    """Logits around -90 are equal as probabilities and differ as logarithms."""
    beta_u, beta_a = betas()
    inputs = *dense_inputs(), beta_u, beta_a - 30
    temperatures = 3.0, 3.0, 3.0
    poses = route(*inputs, inverse_temperatures=temperatures)[0]
    records = dense_em_loops(*inputs, inverse_temperatures=temperatures)
    exact(poses, records[-1].poses)


def check_gradient_where_all_votes_agree(route: Any) -> None:
    votes, activations = dense_inputs()
    votes = torch.zeros_like(votes).requires_grad_()
    poses, parent_activations = route(votes, activations, *betas())[:2]
    loss = poses.sum() + parent_activations.sum()
    loss.backward()
    assert votes.grad.isfinite().all()


def check_gradient(route: Any) -> None:
    inputs = *dense_inputs(dim=2), *betas()
    for tensor in inputs:
        tensor.requires_grad_()

    def parents(*given: Tensor) -> tuple[Tensor, ...]:
        return tuple(route(*given))

    assert gradcheck(parents, inputs, fast_mode=True, raise_exception=False)


def check_windows(route: Any, stride: int) -> None:
    if not hasattr(route, "windowed"):
        return
    poses = bridge.random(2, 2, 16, 5, 6)
    activations = bridge.random(2, 2, 5, 6, seed=1).sigmoid()
    weight = 0.5 * bridge.random(2, 3, 3, 4, 4, PARENTS, seed=2)
    inputs = poses, activations, weight, *betas()
    temperatures = wrong.INVERSE_TEMPERATURES
    records = conv_em_loops(*inputs, stride=stride, inverse_temperatures=temperatures)
    found = route.windowed(*inputs, stride=stride)
    exact(found, (records[-1].poses, records[-1].activations))


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
    if route.caught_by is not None:
        check_catches(CHECKS[route.caught_by], route)
        return
    for check in CHECKS.values():
        check(route)


# -------------------------------------------------------------------------------- equivariance


def routed(
    routing: Callable[..., Capsules], votes: Tensor, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Poses, activations, couplings."""
    traces: list[RoutingTrace] = []
    arguments: tuple[Tensor, ...] = ()
    if routing is em_routing:
        _, activations = example()
        beta_u = beta_a = votes.new_zeros(3)
        arguments = activations, beta_u, beta_a
    parents = routing(votes, *arguments, on_iteration=traces.append, **options)
    return parents.poses, parents.activations, traces[-1].couplings


TURNS = {"rotation of 16 components", "turned frame of 4x4 poses", "signed permutation"}
BIAS = torch.full((3, 16), 0.1).double()


@pytest.mark.parametrize(
    ("routing", "options", "followed"),
    [
        (dynamic_routing, {}, TURNS),
        # the bias of Sabour 2017, official code
        (dynamic_routing, {"bias": BIAS}, set()),
        (em_routing, {"mass_eps": 0.0}, {"shift", "signed permutation"}),
        # damping of the official code, at first from zero
        (em_routing, {"mass_eps": 0.0, "damping": 0.1}, {"signed permutation"}),
        # means are linear
        (em_routing, {"mass_eps": 0.0, "iterations": 1}, {"shift", *TURNS}),
    ],
)
def test_poses_follow_changes_exactly(
    routing: Any, options: dict[str, Any], followed: set[str]
) -> None:
    """Poses follow the change; couplings stay, and so do activations unless components' variances mix (EM)."""
    votes, _ = example()
    poses, activations, couplings = routed(routing, votes, **options)
    for name, change in CHANGES.items():
        after = routed(routing, change(votes), **options)
        of_poses = largest(after[0] - change(poses))
        of_couplings = largest(after[2] - couplings)
        if name not in followed:
            assert max(of_poses, of_couplings) > 0.05, name
            continue
        assert of_poses < 1e-12, name
        assert of_couplings < 1e-12, name
        if options.get("iterations") != 1:
            assert_close(after[1], activations)


def largest(difference: Tensor) -> float:
    return difference.abs().max().item()


def test_poses_of_em_nearly_follow_shifts_and_scales() -> None:
    """``mass_eps`` breaks shifts by 1e-5. Longer votes lower activations."""
    votes, _ = example()
    shift = CHANGES["shift"]
    poses, activations, couplings = routed(em_routing, votes)
    shifted_poses, _, _ = routed(em_routing, shift(votes))
    assert 1e-9 < largest(shifted_poses - shift(poses)) < 1e-5
    _, of_longer, couplings_of_longer = routed(em_routing, 2 * votes)
    assert largest(couplings_of_longer - couplings) < 0.02
    assert (of_longer < activations).all()


def test_poses_of_dynamic_routing_nearly_follow_scales() -> None:
    """Longer votes raise activations."""
    votes, _ = example()
    poses, activations, _ = routed(dynamic_routing, votes)
    longer_poses, of_longer, _ = routed(dynamic_routing, 2 * votes)
    similarities = torch.cosine_similarity(poses, longer_poses, dim=2)
    assert similarities.min() > 0.9
    assert (of_longer > activations).all()


@pytest.mark.parametrize(
    "wrong_number", [{"min_variance": -1.0}, {"damping": 1.0}, {"inverse_temperature": 0.0}]
)
def test_numbers_of_the_function_are_checked_as_those_of_the_module(
    wrong_number: dict[str, float],
) -> None:
    votes, activations = example()
    betas = double(0.0), double(0.0)
    with pytest.raises(ValueError, match=f"routing {next(iter(wrong_number))} is .*; expected"):
        em_routing(votes, activations, *betas, **wrong_number)
