"""The contract of every routing, and tests that the contract catches the usual mistakes.

The tests find a routing by its file in ``conf/routing``. It must have a transcription of its paper as slow loops,
``REFERENCE`` in ``tests/reference/<module>_loops.py``. Every check runs on combinations of its switches that contain
each pair of values at least once, and on each shipped configuration of EM routing.
"""

import inspect
import itertools
import re
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import pytest
import torch
from torch import Tensor, nn

from capsule_lab.functional import dense_votes
from capsule_lab.layers import ConvCapsules, DenseCapsules
from capsule_lab.routing import (
    AbstractRouting,
    DynamicRouting,
    EMRouting,
    LayerInfo,
    Normaliser,
    UniformRouting,
)
from capsule_lab.types import RoutingTrace, Votes
from tests.helpers.closeness import assert_close
from tests.helpers.compile import without_shape_checks
from tests.helpers.routing_contract import (
    BATCH,
    CHILDREN,
    DIM,
    DISCOVERED,
    PARENTS,
    REFERENCES,
    Route,
    build,
    case_in_errors,
    check_absent_child_changes_nothing,
    check_callback_changes_nothing,
    check_couplings,
    check_equals,
    check_every_parameter_has_a_gradient,
    check_finite,
    check_gradient,
    check_images_are_independent,
    check_order_of_children_does_not_matter,
    check_parents_are_permuted_as_their_votes,
    check_repeatable,
    check_tensors_are_registered,
    child_activations,
    combinations,
    concatenate,
    factored,
    in_form,
    learned,
    random_votes,
    reference_of,
    route_of,
)
from tests.helpers.tiers import whole_but
from tests.reference import wrong
from tests.reference.contract import BACKENDS as BACKENDS_OF_VOTES
from tests.reference.contract import Reference, with_lengths
from tests.reference.em_bridge import preset
from tests.reference.loops import dynamic_routing_loops

every_routing = pytest.mark.parametrize("kind", REFERENCES)
BACKENDS: list[tuple[type[AbstractRouting], str]] = []
LAST_BACKENDS: list[tuple[type[AbstractRouting], str]] = []
for routing, its_reference in REFERENCES.items():
    pairs = [(routing, backend) for backend in its_reference.backends]
    BACKENDS += pairs
    LAST_BACKENDS.append(pairs[-1])
# "reference" and "dense-reference" differ in the form of the votes only
DIFFERENT_BACKENDS = [pair for pair in BACKENDS if pair[1] != "dense-reference"]
every_backend = pytest.mark.parametrize(
    ("kind", "backend"), whole_but(BACKENDS, *DIFFERENT_BACKENDS)
)
last_backend = pytest.mark.parametrize(("kind", "backend"), whole_but(BACKENDS, *LAST_BACKENDS))


def test_every_routing_has_a_reference() -> None:
    missing = [kind.__name__ for kind in DISCOVERED if kind not in REFERENCES]
    assert not missing, (
        f"conf/routing has {', '.join(missing)} without a slow reference: transcribe the paper as loops, with a "
        "REFERENCE, in tests/reference/<module of the routing>_loops.py"
    )
    assert {DynamicRouting, EMRouting} <= {*DISCOVERED}


@every_backend
def test_values_equal_the_loops_and_gradients_are_right(
    kind: type[AbstractRouting], backend: str, shapes_checked_in_first: Any
) -> None:
    """Values equal those of the loops; votes, child activations and parameters get their gradient."""
    initial = build(kind, backend=backend)
    check_tensors_are_registered(initial)
    check_every_parameter_has_a_gradient(route_of(initial), learned(initial))
    with_random = partial(build, kind, backend=backend, parameters="random")
    for name, row in shapes_checked_in_first(combinations(kind, backend)):
        with case_in_errors((name, row)):
            of_default_types = {**row, "types": None}
            module = with_random(**row)
            check_equals(route_of(module), reference_of(module))
            one = with_random(children=1, **row)
            check_equals(route_of(one), reference_of(one), 1, 1, PARENTS, DIM)
            alike = with_random(**of_default_types)
            parameters = learned(alike)
            for parameter in parameters:
                parameter.data *= 0.1  # large betas saturate activations
            check_every_parameter_has_a_gradient(route_of(alike), parameters)
            three = with_random(children=3, **of_default_types)
            votes = random_votes(1, 3, PARENTS, DIM, seed=2)
            active = child_activations(votes).requires_grad_()
            check_gradient(route_of(three, active), [*learned(three), active])


def test_factored_votes_are_the_dense_votes() -> None:
    votes = factored(random_votes())
    dense = dense_votes(votes.poses, votes.weight)
    assert torch.equal(dense, random_votes())


@last_backend
def test_couplings_sum_up_and_order_does_not_matter(
    kind: type[AbstractRouting], backend: str, shapes_checked_in_first: Any
) -> None:
    """Couplings sum to what the trace promises; images, children and equal parents can be reordered."""
    reference = REFERENCES[kind]
    for name, row in shapes_checked_in_first(combinations(kind, backend)):
        with case_in_errors((name, row)):
            options = {"backend": backend, **row, "types": None}
            module = build(kind, parameters="random", **options)
            route = route_of(module)
            check_couplings(
                route,
                leaky=module.leaky,
                added=reference.added(module),
                normalised=reference.normalised,
                competing=module.competing,
            )
            check_callback_changes_nothing(route)
            check_repeatable(route)
            check_images_are_independent(route)
            if reference.activations == "weighing":
                check_absent_child_changes_nothing(module)
            if reference.exchangeable:
                check_order_of_children_does_not_matter(route)
                initial = build(kind, **options)
                check_parents_are_permuted_as_their_votes(route_of(initial))


@last_backend
def test_extreme_votes_and_activations_stay_finite(
    kind: type[AbstractRouting], backend: str, shapes_checked_in_first: Any
) -> None:
    """Values and gradients are finite for long, short and zero votes, and for some, no or all children active."""
    presences = None, torch.zeros(BATCH, CHILDREN), torch.ones(BATCH, CHILDREN)
    for name, row in shapes_checked_in_first(combinations(kind, backend)):
        options = {**row, "backend": backend, "types": None}
        module = build(kind, **options).float()
        scales = 1e4, 1.0, 1e-4, 0.0
        for scale, presence in itertools.product(scales, presences):
            with case_in_errors((name, row, scale, presence)):
                check_finite(route_of(module, presence), scale)


class HalfNormaliser(Normaliser):
    """Half of the usual couplings; records the shapes of its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()

    def __call__(self, log_couplings: Tensor) -> Tensor:
        self.shapes.add(tuple(log_couplings.shape))
        return super().__call__(log_couplings) / 2


@every_backend
def test_backends_agree_use_the_normaliser_and_route_in_float32(
    kind: type[AbstractRouting], backend: str
) -> None:
    """Backends return the same couplings and use the given normaliser; half precision is routed in float32."""
    votes = random_votes()
    route = route_of(build(kind, backend=backend))
    slow = route_of(build(kind, backend="reference"))
    traces: list[RoutingTrace] = []
    slow_traces: list[RoutingTrace] = []
    route(votes, on_iteration=traces.append)
    slow(votes, on_iteration=slow_traces.append)
    assert_close(traces, slow_traces, atol=1e-10)
    if kind.competing == "parents":
        check_normaliser_is_used(route, backend)
    check_half_precision_is_routed_in_float32(kind, backend)


def check_normaliser_is_used(route: Route, backend: str) -> None:
    votes = random_votes()
    parents = route(votes)
    half = HalfNormaliser()
    half_traces: list[RoutingTrace] = []
    halved = route(votes, normalise=half, on_iteration=half_traces.append)
    if backend == "fused":
        # a kernel normalises the first couplings, equal for all images, once
        half.shapes.discard((1, PARENTS, CHILDREN))
    assert half.shapes == {(BATCH, PARENTS, CHILDREN)}
    assert not torch.allclose(halved, parents)
    for trace in half_traces:
        shares = trace.couplings.sum(2)
        assert_close(shares, torch.full_like(shares, 0.5))
    usual = route(votes, normalise=Normaliser())
    assert_close(usual, parents)


def check_half_precision_is_routed_in_float32(kind: type[AbstractRouting], backend: str) -> None:
    module = build(kind, parameters="random", backend=backend).float()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        votes = random_votes().to(dtype)
        activations = child_activations(random_votes().float()).to(dtype)
        under_autocast = dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=under_autocast):
            parents = module(in_form(votes, backend), activations)
        expected = module(in_form(votes.float(), backend), activations.float())
        assert parents.poses.dtype == torch.float32
        assert parents.activations.dtype == torch.float32
        assert torch.equal(concatenate(*parents), concatenate(*expected))


def public_attributes(module: nn.Module) -> dict[str, Any]:
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return deepcopy(public)


@every_routing
def test_call_ignores_strides_and_keeps_no_state(kind: type[AbstractRouting]) -> None:
    """Strides of dense votes do not matter; a call changes neither attributes nor buffers."""
    votes = random_votes()
    module = build(kind, parameters="random")
    before = public_attributes(module)
    buffers = deepcopy(dict(module.named_buffers()))
    route_of(module)(votes)
    assert public_attributes(module) == before
    assert_close(dict(module.named_buffers()), buffers, atol=0)
    # of dense votes; tests/kernels/test_backends.py varies the strides of poses and weight
    strided = [
        votes.transpose(1, 2).contiguous().transpose(1, 2),
        votes.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        votes.repeat_interleave(2, 3)[..., ::2],
    ]
    dense_backends = {"dense", "dense-reference"} & {*REFERENCES[kind].backends}
    for backend in dense_backends:
        route = route_of(build(kind, parameters="random", backend=backend))
        parents = route(votes)
        for other in strided:
            assert other.stride() != votes.stride()
            assert_close(route(other), parents)


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()


def values_and_gradients(
    module: nn.Module, votes: Tensor | Votes, activations: Tensor
) -> list[Tensor]:
    activations = leaf(activations)
    if isinstance(votes, Tensor):
        votes = leaf(votes)
        inputs = [votes, activations]
    else:
        votes = Votes(leaf(votes.poses), leaf(votes.weight))
        inputs = [votes.poses, votes.weight, activations]
    parents = concatenate(*module(votes, activations))
    weights = torch.linspace(1, 2, parents.numel(), dtype=parents.dtype)
    loss = (weights.view_as(parents) * parents).sum()
    gradients = torch.autograd.grad(
        loss,
        [*inputs, *learned(module)],
        allow_unused=True,
        materialize_grads=True,
    )
    return [parents, *gradients]


@pytest.mark.slow  # whole layers are compiled in tests/kernels/test_ops.py
@every_routing
def test_compiled_routing_equals_eager(
    kind: type[AbstractRouting], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_shape_checks(monkeypatch)
    every: list[dict[str, Any]] = [{}]
    if kind is EMRouting:
        every.append({"activation": "mixing_proportions", "damping": 0.1})
        every.append(preset("em_tutorial"))
    backends = {"dense", "fused"} & {*REFERENCES[kind].backends}
    activations = child_activations(random_votes())
    for options, backend in itertools.product(every, backends):
        with case_in_errors((options, backend)):
            torch.compiler.reset()
            module = build(kind, parameters="random", **{**options, "backend": backend})
            # "aot_eager" traces the backward pass, too, and needs no compiler
            compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
            votes = in_form(random_votes(), backend)
            found = values_and_gradients(compiled, votes, activations)
            expected = values_and_gradients(module, votes, activations)
            assert_close(found, expected)


# ------------------------------------------------------------------------------------------------ its arguments


def parents_of(kind: type[AbstractRouting], switch: str, value: Any) -> tuple[Tensor, ...]:
    """Parents of a layer in which the switch matters; parameters depend on nothing but their own name."""
    torch.manual_seed(0)
    options: Any = {"weight_std": 1.0, "routing": partial(kind, **{switch: value})}
    if switch in ("normalisation", "initial"):
        layer: Any = ConvCapsules((4, 4), 2, 6, 3, 4, rows=2, **options)
    else:
        layer = DenseCapsules(32, 6, 3, 4, **options)
    layer.double().eval()
    for name, parameter in layer.routing.named_parameters():
        generator = torch.Generator().manual_seed(len(name))
        noise = torch.randn(parameter.shape, generator=generator).double()
        first = parameter.data.flatten()[0]
        parameter.data = first + noise
    generator = torch.Generator().manual_seed(0)
    poses = torch.randn(2, 32, 6, generator=generator).double()
    activations = torch.rand(2, 32, generator=generator).double()
    return tuple(layer(poses, activations))


@every_routing
def test_every_argument_changes_the_parents(kind: type[AbstractRouting]) -> None:
    reference = REFERENCES[kind]
    parameters = inspect.signature(kind).parameters
    arguments = parameters.keys() - {"parents", "dim", "backend"}
    assert arguments == {*reference.switches, *reference.elsewhere}
    for switch, (default, *others) in reference.switches.items():
        first = f"Reference.switches: the first value of {switch} is its default"
        assert parameters[switch].default == default, first
        parents = parents_of(kind, switch, default)
        other = parents_of(kind, switch, others[0])
        pairs = zip(parents, other, strict=True)
        unchanged = [torch.allclose(*pair, rtol=1e-4, atol=1e-6) for pair in pairs]
        assert not all(unchanged), f"{switch}={others[0]} changes nothing"


INFINITY = float("inf")
NOT_A_NUMBER = float("nan")
NOT_POSITIVE = [0.0, -1.0, INFINITY, NOT_A_NUMBER]


class Refused(NamedTuple):
    values: list[Any]
    expected: str


NUMBERS = {
    "iterations": Refused([0, -1], "1 (no routing) or more"),
    "damping": Refused([-0.1, 1.0, NOT_A_NUMBER], "0 (none) or more and less than 1"),
    "inverse_temperature": Refused(NOT_POSITIVE, "more than 0"),
    "temperature": Refused(NOT_POSITIVE, "more than 0"),
    "min_variance": Refused(NOT_POSITIVE, "more than 0"),
    "mass_eps": Refused(NOT_POSITIVE, "more than 0"),
    "share": Refused([1.0, 0.25], "more than 0.25, less than 1"),
    "spread": Refused([-1.0], "0 or more"),
    "seed": Refused([-1, 0.5], "a whole number, 0 or more"),
}
ANYTHING = Refused([], "")


@pytest.mark.usefixtures("unchecked_types")  # as in training, where nothing else checks
@every_routing
def test_wrong_argument_is_refused_with_the_expected_values(kind: type[AbstractRouting]) -> None:
    for argument, hint in get_type_hints(kind.__init__).items():
        values, expected = NUMBERS.get(argument, ANYTHING)
        if get_origin(hint) is Literal:
            first_choice = get_args(hint)[0]
            values = ["nonsense"]
            expected = repr(first_choice)
        for value in values:
            message = f"^routing {argument} is {value!r}; expected {re.escape(expected)}"
            with pytest.raises(ValueError, match=message):
                kind(PARENTS, DIM, **{argument: value})


@pytest.mark.usefixtures("unchecked_types")
@every_routing
def test_missing_activations_or_parameters_are_named(kind: type[AbstractRouting]) -> None:
    """A routing that needs child activations, or parameters that ``build`` creates, says so; the others run."""
    module = build(kind)
    votes = factored(random_votes())
    activations = child_activations(random_votes())
    is_ignored = REFERENCES[kind].activations == "ignored"
    assert kind.uses_activations is not is_ignored
    if is_ignored:
        assert module(votes).poses.shape == (BATCH, PARENTS, DIM)
    else:
        with pytest.raises(ValueError, match="received no activations; exp"):
            module(votes)
    not_built = kind(PARENTS, DIM).double()
    if not_built.state_dict().keys() == module.state_dict().keys():
        assert not_built(votes, activations).poses.shape == (BATCH, PARENTS, DIM)
    else:
        with pytest.raises(ValueError, match=r"has no \w+ yet; call build\(LayerInfo"):
            not_built(votes, activations)


# ----------------------------------------------------------------------------------------- agreement of votes


AGREEING = [kind for kind, reference in REFERENCES.items() if reference.agreeing]


@pytest.mark.parametrize("kind", AGREEING)
def test_agreeing_votes_activate_a_parent(kind: type[AbstractRouting]) -> None:
    """Children whose votes agree get larger couplings, and make the parent more active (Hinton 2018, section 1).

    All votes for the first parent agree except those of the last two children. Parts that are combined from different
    images belong to no object and make the parent less active.
    """
    torch.manual_seed(0)
    routing: Any = kind(parents=PARENTS, dim=8, iterations=3)
    layer = LayerInfo(PARENTS, 8, 10, 8, shared=True, child_types=1)
    routing.build(layer)
    routing.double().eval()
    whole = 1.5 * random_votes(20, 10, PARENTS, 8, seed=3)
    scattered = whole[:, 8:, 0].clone()
    common = random_votes(20, 1, 8, seed=4)
    noise = random_votes(20, 10, 8, seed=5)
    whole[:, :, 0] = common + 0.1 * noise
    votes = whole.clone()
    votes[:, 8:, 0] = scattered
    presence = torch.full((20, 10), 0.9).double()
    traces: list[RoutingTrace] = []
    routing(votes, presence, on_iteration=traces.append)
    before = traces[0].couplings[..., 0]  # of the first parent
    after = traces[-1].couplings[..., 0]
    belonging = after[:, :8].mean()
    outlying = after[:, 8:].mean()
    assert belonging > 1.2 * outlying
    assert belonging > before[:, :8].mean()
    from_other_images = [whole[:, child].roll(child, 0) for child in range(10)]
    scrambled = torch.stack(from_other_images, 1)
    fitting = routing(whole, presence).logits[:, 0]
    unfitting = routing(scrambled, presence).logits[:, 0]
    assert fitting.mean() > unfitting.mean()


# ----------------------------------------------------------------------------------------- the usual mistakes


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
def test_contract_catches_mistake(mistake: type[nn.Module], check: Callable[..., None]) -> None:
    """The check fails on the wrong version and passes on the correct one."""

    def run_check(module: nn.Module) -> None:
        known = {
            "reference": lambda votes: dynamic_routing_loops(votes, bias=module.bias),
            "parameters": list(module.parameters()),
            "scale": 0.0,
        }
        needed = known.keys() & inspect.signature(check).parameters
        options = {name: known[name] for name in needed}
        check(module, **options)

    dtype = torch.float32 if check is check_finite else torch.float64
    wrong_version = mistake(PARENTS, DIM).to(dtype)
    right = wrong.Right(PARENTS, DIM).to(dtype)
    wrong.check_catches(run_check, wrong_version, right)
    check_order_of_children_does_not_matter(right.double())


class WithoutParameters(UniformRouting):
    """Nothing is learned; a tensor that is neither a parameter nor a buffer is a mistake."""

    def __init__(
        self, parents: int, dim: int, *, plain: bool = False, backend: Any = "auto"
    ) -> None:
        super().__init__(parents, dim, bias=False, backend=backend)
        if plain:
            self.scale = torch.ones(dim)


def uniform_loops(votes: Tensor, _: Tensor, __: nn.Module) -> tuple[Tensor, Tensor]:
    return with_lengths(dynamic_routing_loops(votes, iterations=1))


@pytest.mark.parametrize("backend", BACKENDS_OF_VOTES)
def test_routing_without_parameters_passes_the_contract(
    backend: str, shapes_checked_in_first: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REFERENCES, WithoutParameters, Reference(uniform_loops))
    given = WithoutParameters, backend, shapes_checked_in_first
    assert not list(WithoutParameters(PARENTS, DIM).parameters())
    test_values_equal_the_loops_and_gradients_are_right(*given)
    test_couplings_sum_up_and_order_does_not_matter(*given)
    test_extreme_votes_and_activations_stay_finite(*given)
    test_backends_agree_use_the_normaliser_and_route_in_float32(WithoutParameters, backend)
    test_call_ignores_strides_and_keeps_no_state(WithoutParameters)


def test_contract_catches_a_tensor_that_is_not_registered() -> None:
    check_tensors_are_registered(WithoutParameters(PARENTS, DIM))
    mistaken = WithoutParameters(PARENTS, DIM, plain=True)
    message = "WithoutParameters has tensors as plain attributes: sc"
    with pytest.raises(AssertionError, match=message):
        check_tensors_are_registered(mistaken)
