"""The contract of every routing, and tests that the contract catches the usual mistakes.

The tests find a routing by its file in ``conf/routing``. It must have a transcription of its paper as slow loops,
``REFERENCE`` in ``tests/reference/<module>_loops.py``. Every check runs on combinations of its switches that contain
each pair of values at least once, and on each shipped configuration of EM routing.
"""

import inspect
import itertools
import re
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from torch import Tensor, nn

from capsule_lab.functional import dense_votes
from capsule_lab.layers import ConvCapsules, DenseCapsules
from capsule_lab.routing import AbstractRouting, DynamicRouting, EMRouting, LayerInfo, Normaliser
from capsule_lab.types import RoutingTrace, Votes
from tests.helpers import routing_contract as checks
from tests.helpers.compile import without_shape_checks
from tests.helpers.routing_contract import (
    BATCH,
    CHILDREN,
    DIM,
    PARENTS,
    REFERENCES,
    case_in_errors,
    combinations,
)
from tests.helpers.tiers import whole_but
from tests.reference import wrong
from tests.reference.em_bridge import preset
from tests.reference.loops import dynamic_routing_loops

every_routing = pytest.mark.parametrize("kind", REFERENCES)
BACKENDS = [(kind, backend) for kind in REFERENCES for backend in REFERENCES[kind].backends]
every_backend = pytest.mark.parametrize(  # "reference" and "dense-reference" differ in the form of the votes only
    ("kind", "backend"),
    whole_but(BACKENDS, *[pair for pair in BACKENDS if pair[1] != "dense-reference"]),
)
last_backend = pytest.mark.parametrize(
    ("kind", "backend"),
    whole_but(BACKENDS, *[(kind, REFERENCES[kind].backends[-1]) for kind in REFERENCES]),
)


def test_every_routing_has_a_reference() -> None:
    missing = [kind for kind in checks.DISCOVERED if kind not in REFERENCES]
    assert not missing, (
        f"conf/routing has {', '.join(kind.__name__ for kind in missing)} without a slow reference: transcribe the "
        "paper as loops, with a REFERENCE, in tests/reference/<module of the routing>_loops.py"
    )
    assert {DynamicRouting, EMRouting} <= {*checks.DISCOVERED}


@every_backend
def test_values_equal_the_loops_and_gradients_are_right(
    kind: type[AbstractRouting], backend: str, shapes_checked_in_first: Any
) -> None:
    """Values equal those of the loops; votes, child activations and parameters get their gradient."""
    assert torch.equal(
        dense_votes(*checks.factored(checks.random_votes())[:2]), checks.random_votes()
    )
    initial = checks.build(kind, backend=backend)
    assert list(initial.parameters()) == checks.learned(initial) != []
    checks.check_every_parameter_has_a_gradient(checks.route_of(initial), checks.learned(initial))
    build = partial(checks.build, kind, backend=backend, parameters="random")
    for name, row in shapes_checked_in_first(combinations(kind, backend)):
        with case_in_errors((name, row)):
            alike, module, one = (
                build(**{**row, "types": None}),
                build(**row),
                build(children=1, **row),
            )
            checks.check_equals(checks.route_of(module), checks.reference_of(module))
            checks.check_equals(checks.route_of(one), checks.reference_of(one), 1, 1, PARENTS, DIM)
            for parameter in checks.learned(alike):
                parameter.data *= 0.1  # large betas saturate activations
            checks.check_every_parameter_has_a_gradient(
                checks.route_of(alike), checks.learned(alike)
            )
            three = build(children=3, **{**row, "types": None})
            active = checks.child_activations(
                checks.random_votes(1, 3, PARENTS, DIM, seed=2)
            ).requires_grad_()
            checks.check_gradient(checks.route_of(three, active), [*checks.learned(three), active])


@last_backend
def test_couplings_sum_up_and_order_does_not_matter(
    kind: type[AbstractRouting], backend: str, shapes_checked_in_first: Any
) -> None:
    """Couplings sum to what the trace promises; images, children and equal parents can be reordered."""
    reference = REFERENCES[kind]
    for name, row in shapes_checked_in_first(combinations(kind, backend)):
        with case_in_errors((name, row)):
            options = {"backend": backend, **row, "types": None}
            module = checks.build(kind, parameters="random", **options)
            route = checks.route_of(module)
            sums = {
                "leaky": module.leaky,
                "added": reference.added(module),
                "competing": module.competing,
            }
            checks.check_couplings(route, normalised=reference.normalised, **sums)
            checks.check_callback_changes_nothing(route)
            checks.check_repeatable(route)
            checks.check_images_are_independent(route)
            if reference.activations == "weighing":
                checks.check_absent_child_changes_nothing(module)
            if reference.exchangeable:
                checks.check_order_of_children_does_not_matter(route)
                initial = checks.build(kind, **options)
                checks.check_parents_are_permuted_as_their_votes(checks.route_of(initial))


@last_backend
def test_extreme_votes_and_activations_stay_finite(
    kind: type[AbstractRouting], backend: str, shapes_checked_in_first: Any
) -> None:
    """Values and gradients are finite for long, short and zero votes, and for some, no or all children active."""
    presences = None, torch.zeros(BATCH, CHILDREN), torch.ones(BATCH, CHILDREN)
    for name, row in shapes_checked_in_first(combinations(kind, backend)):
        module = checks.build(kind, backend=backend, **{**row, "types": None}).float()
        for scale, presence in itertools.product((1e4, 1.0, 1e-4, 0.0), presences):
            with case_in_errors((name, row, scale, presence)):
                checks.check_finite(checks.route_of(module, presence), scale)


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
    votes = checks.random_votes()
    route, slow = (
        checks.route_of(checks.build(kind, backend=each)) for each in (backend, "reference")
    )
    traces: list[list[RoutingTrace]] = [[], [], []]
    route(votes, on_iteration=traces[0].append)
    slow(votes, on_iteration=traces[1].append)
    torch.testing.assert_close(traces[0], traces[1], rtol=0, atol=1e-10)

    if kind.competing == "parents":
        half = HalfNormaliser()
        halved = route(votes, normalise=half, on_iteration=traces[2].append)
        once = (
            1,
            PARENTS,
            CHILDREN,
        )  # a kernel normalises the first couplings, equal for all images, once
        assert half.shapes - ({once} if backend == "fused" else set()) == {
            (BATCH, PARENTS, CHILDREN)
        }
        assert not torch.allclose(halved, route(votes))
        torch.testing.assert_close(
            route(votes, normalise=Normaliser()), route(votes), rtol=0, atol=1e-12
        )
        shares = torch.stack([trace.couplings.sum(2) for trace in traces[2]])
        torch.testing.assert_close(shares, torch.full_like(shares, 0.5), rtol=0, atol=1e-12)

    module = checks.build(kind, parameters="random", backend=backend).float()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        given = checks.in_form(votes.to(dtype), backend)
        full = checks.in_form(votes.to(dtype).float(), backend)
        activations = checks.child_activations(votes.float()).to(dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.float32):
            parents = module(given, activations)
        expected = module(full, activations.float())
        assert parents.poses.dtype == parents.activations.dtype == torch.float32
        assert torch.equal(checks.concatenate(*parents), checks.concatenate(*expected))


@every_routing
def test_call_ignores_strides_and_keeps_no_state(kind: type[AbstractRouting]) -> None:
    """Strides of dense votes do not matter; a call changes neither attributes nor buffers."""
    votes, module = checks.random_votes(), checks.build(kind, parameters="random")

    def public():
        return deepcopy({name: value for name, value in vars(module).items() if name[0] != "_"})

    before, buffers = public(), deepcopy(dict(module.named_buffers()))
    checks.route_of(module)(votes)
    assert public() == before
    torch.testing.assert_close(dict(module.named_buffers()), buffers, rtol=0, atol=0)
    strided = [
        votes.transpose(1, 2).contiguous().transpose(1, 2),
        votes.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        votes.repeat_interleave(2, 3)[..., ::2],
    ]
    for backend, other in itertools.product(
        {"dense", "dense-reference"} & {*REFERENCES[kind].backends}, strided
    ):
        assert (
            other.stride() != votes.stride()
        )  # tests/kernels/test_backends.py varies those of poses and weight
        route = checks.route_of(checks.build(kind, parameters="random", backend=backend))
        torch.testing.assert_close(route(other), route(votes), rtol=0, atol=1e-12)


def values_and_gradients(
    module: nn.Module, votes: Tensor | Votes, activations: Tensor
) -> list[Tensor]:
    given = [*([votes] if isinstance(votes, Tensor) else votes[:2]), activations]
    *voting, activations = given = [tensor.detach().clone().requires_grad_() for tensor in given]
    parents = checks.concatenate(
        *module(voting[0] if isinstance(votes, Tensor) else Votes(*voting), activations)
    )
    weights = torch.linspace(1, 2, parents.numel(), dtype=parents.dtype).view_as(parents)
    options = {"allow_unused": True, "materialize_grads": True}
    return [
        parents,
        *torch.autograd.grad(
            (weights * parents).sum(), [*given, *checks.learned(module)], **options
        ),
    ]


@pytest.mark.slow  # whole layers are compiled in tests/kernels/test_ops.py
@every_routing
def test_compiled_routing_equals_eager(
    kind: type[AbstractRouting], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_shape_checks(monkeypatch)
    more = [{"activation": "mixing_proportions", "damping": 0.1}, preset("em_tutorial")]
    every = [{}, *more] if kind is EMRouting else [{}]
    for options, backend in itertools.product(
        every, {"dense", "fused"} & {*REFERENCES[kind].backends}
    ):
        with case_in_errors((options, backend)):
            torch.compiler.reset()
            module = checks.build(kind, parameters="random", **{**options, "backend": backend})
            compiled = torch.compile(
                module, backend="aot_eager", fullgraph=True
            )  # traces backward; needs no compiler
            given = (
                checks.in_form(checks.random_votes(), backend),
                checks.child_activations(checks.random_votes()),
            )
            found, expected = (values_and_gradients(each, *given) for each in (compiled, module))
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


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
        parameter.data = (
            parameter.data.flatten()[0] + torch.randn(parameter.shape, generator=generator).double()
        )
    generator = torch.Generator().manual_seed(0)
    poses, activations = (
        torch.randn(2, 32, 6, generator=generator),
        torch.rand(2, 32, generator=generator),
    )
    return tuple(layer(poses.double(), activations.double()))


@every_routing
def test_every_argument_changes_the_parents(kind: type[AbstractRouting]) -> None:
    reference = REFERENCES[kind]
    arguments = set(inspect.signature(kind).parameters) - {"parents", "dim", "backend"}
    assert arguments == {*reference.switches, *reference.elsewhere}
    for switch, (default, *others) in reference.switches.items():
        assert inspect.signature(kind).parameters[switch].default == default
        pairs = zip(
            parents_of(kind, switch, default), parents_of(kind, switch, others[0]), strict=True
        )
        changed = any(not torch.allclose(*pair, rtol=1e-4, atol=1e-6) for pair in pairs)
        assert changed, f"{switch}={others[0]} changes nothing"


POSITIVE = [(value, "more than 0") for value in (0.0, -1.0, float("inf"), float("nan"))]
NUMBERS: dict[str, list[tuple[Any, str]]] = {
    "iterations": [(0, "1 (no routing) or more"), (-1, "1 (no routing) or more")],
    "damping": [(value, "0 (none) or more and less than 1") for value in (-0.1, 1.0, float("nan"))],
    **dict.fromkeys(("inverse_temperature", "temperature", "min_variance", "mass_eps"), POSITIVE),
    "share": [(1.0, "more than 0.25, less than 1"), (0.25, "more than 0.25, less than 1")],
    "spread": [(-1.0, "0 or more")],
    "seed": [(-1, "a whole number, 0 or more"), (0.5, "a whole number, 0 or more")],
}


@pytest.mark.usefixtures("unchecked_types")  # as in training, where nothing else checks
@every_routing
def test_wrong_argument_is_refused_with_the_expected_values(kind: type[AbstractRouting]) -> None:
    for argument, hint in get_type_hints(kind.__init__).items():
        choices = [("nonsense", repr(get_args(hint)[0]))] if get_origin(hint) is Literal else []
        for value, expected in choices or NUMBERS.get(argument, []):
            with pytest.raises(
                ValueError,
                match=f"^routing {argument} is {value!r}; expected {re.escape(expected)}",
            ):
                kind(PARENTS, DIM, **{argument: value})


@pytest.mark.usefixtures("unchecked_types")
@every_routing
def test_missing_activations_or_parameters_are_named(kind: type[AbstractRouting]) -> None:
    """A routing that needs child activations, or parameters that ``build`` creates, says so; the others run."""
    module, votes = checks.build(kind), checks.factored(checks.random_votes())
    activations = checks.child_activations(checks.random_votes())
    needs = REFERENCES[kind].activations != "ignored"
    with (
        pytest.raises(ValueError, match="received no activations; exp") if needs else nullcontext()
    ):
        assert module(votes).poses.shape == (BATCH, PARENTS, DIM)
    builds = kind(PARENTS, DIM).state_dict().keys() != module.state_dict().keys()
    with (
        pytest.raises(ValueError, match=r"has no \w+ yet; call build\(LayerInfo")
        if builds
        else nullcontext()
    ):
        assert kind(PARENTS, DIM).double()(votes, activations).poses.shape == (BATCH, PARENTS, DIM)


# ----------------------------------------------------------------------------------------- agreement of votes


@pytest.mark.parametrize(
    "kind", [kind for kind, reference in REFERENCES.items() if reference.agreeing]
)
def test_agreeing_votes_activate_a_parent(kind: type[AbstractRouting]) -> None:
    """Children whose votes agree get larger couplings, and make the parent more active (Hinton 2018, section 1).

    All votes for the first parent agree except those of the last two children. Parts that are combined from different
    images belong to no object and make the parent less active.
    """
    torch.manual_seed(0)
    routing: Any = kind(parents=PARENTS, dim=8, iterations=3)
    routing.build(LayerInfo(PARENTS, 8, 10, 8, shared=True, child_types=1))
    routing.double().eval()
    whole = 1.5 * checks.random_votes(20, 10, PARENTS, 8, seed=3)
    scattered = whole[:, 8:, 0].clone()
    whole[:, :, 0] = checks.random_votes(20, 1, 8, seed=4) + 0.1 * checks.random_votes(
        20, 10, 8, seed=5
    )
    votes = whole.clone()
    votes[:, 8:, 0] = scattered
    presence, traces = torch.full((20, 10), 0.9).double(), list[RoutingTrace]()
    routing(votes, presence, on_iteration=traces.append)
    belonging, outlying = (
        traces[-1].couplings[:, rows, 0].mean().item() for rows in (slice(8), slice(8, None))
    )
    assert belonging > 1.2 * outlying
    assert belonging > traces[0].couplings[:, :8, 0].mean()
    scrambled = torch.stack([whole[:, child].roll(child, 0) for child in range(10)], 1)
    fitting, unfitting = (
        routing(votes, presence).logits[:, 0].mean() for votes in (whole, scrambled)
    )
    assert fitting > unfitting


# ----------------------------------------------------------------------------------------- the usual mistakes


@pytest.mark.parametrize(
    ("mistake", "check"),
    [
        (wrong.SoftmaxOverChildren, checks.check_equals),
        (wrong.SoftmaxOverChildren, checks.check_couplings),
        (wrong.LogitsSharedOverBatch, checks.check_equals),
        (wrong.LogitsSharedOverBatch, checks.check_images_are_independent),
        (wrong.LogitsKeptBetweenCalls, checks.check_repeatable),
        (wrong.LogitsKeptBetweenCalls, checks.check_callback_changes_nothing),
        (wrong.TransposedParents, checks.check_equals),
        (wrong.TransposedParents, checks.check_parents_are_permuted_as_their_votes),
        (wrong.DeadGradient, checks.check_gradient),
        (wrong.DeadGradient, checks.check_every_parameter_has_a_gradient),
        (wrong.UnguardedSquash, checks.check_finite),
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
        check(
            module,
            **{name: known[name] for name in inspect.signature(check).parameters if name in known},
        )

    dtype = torch.float32 if check is checks.check_finite else torch.float64
    wrong.check_catches(
        run_check, *(kind(PARENTS, DIM).to(dtype) for kind in (mistake, wrong.Right))
    )
    checks.check_order_of_children_does_not_matter(wrong.Right(PARENTS, DIM).double())
