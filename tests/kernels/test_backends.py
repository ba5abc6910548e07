"""Backends are the same numbers in other time and memory; and which one answers."""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from capsule_lab import dynamic_routing, em_routing, uniform_routing
from capsule_lab.errors import ConfigError
from capsule_lab.functional import dense_votes
from capsule_lab.kernels import backends, run_routing
from capsule_lab.kernels.base import AbstractVotes
from capsule_lab.kernels.dense import MatmulVotes, PlainVotes
from capsule_lab.kernels.fused import FusedVotes
from capsule_lab.routing import (
    AbstractRouting,
    DynamicRouting,
    EMRouting,
    Normaliser,
    UniformRouting,
)
from capsule_lab.types import Votes
from tests.helpers.kernels import assert_exact as exact
from tests.helpers.kernels import backwards, draw, weighted_total, with_gaps

BACKENDS = ("reference", "matmul", "fused")
both_fast = pytest.mark.parametrize("backend", ["matmul", "fused"])


class Sizes(NamedTuple):
    batch: int
    child: int
    parent: int
    rows: int
    inner: int
    columns: int


SIZES = [
    Sizes(2, 17, 3, 4, 4, 4),  # matrix capsules
    Sizes(2, 73, 2, 1, 8, 16),  # digit capsules
    Sizes(3, 72, 3, 2, 1, 1),
    Sizes(1, 3, 1, 3, 2, 1),
    Sizes(2, 1, 4, 2, 3, 5),  # one child
    Sizes(2, 5, 1, 4, 5, 3),  # one parent
    Sizes(3, 17, 2, 1, 3, 1),  # one component
    Sizes(2, 9, 3, 1, 6, 5),
]
every_size = pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes)))

ROUTINGS: dict[str, Callable[..., AbstractRouting]] = {
    "em": EMRouting,
    "em, every term": partial(
        EMRouting, damping=0.3, mass_eps=0.1, min_variance=0.05, iterations=4, cost="paper"
    ),
    "em, mixing": partial(EMRouting, activation="mixing_proportions", initial="types"),
    "em, standardised": partial(EMRouting, cost="standardised"),
    "dynamic": DynamicRouting,
    "dynamic, leaky": partial(DynamicRouting, leaky=True, iterations=5),
    "dynamic, last": partial(DynamicRouting, gradient="last"),
    "uniform": UniformRouting,
}
every_routing = pytest.mark.parametrize("routing", ROUTINGS)
three_routings = pytest.mark.parametrize("routing", ["em", "dynamic", "uniform"])


def given(sizes: Sizes = SIZES[0]) -> tuple[Votes, Tensor]:
    """Poses and weights whose votes are about one."""
    batch, child, parent, rows, inner, columns = sizes
    weight = draw(child, inner, parent, columns, seed=1) * inner**-0.5
    poses = draw(batch, child, rows * inner, seed=0)
    return Votes(poses, weight), draw(batch, child, seed=2).sigmoid()


def build(routing: str, backend: Any, sizes: Sizes = SIZES[0]) -> AbstractRouting:
    """A float64 routing in which no two parents are alike."""
    dim = sizes.rows * sizes.columns
    module = ROUTINGS[routing](parents=sizes.parent, dim=dim, backend=backend).double()
    for seed, parameter in enumerate(module.parameters()):
        parameter.data += 0.1 * draw(*parameter.shape, seed=10 + seed)
    return module


def everything(
    module: AbstractRouting,
    votes: Votes,
    activations: Tensor,
    *,
    differentiated: int = 3,
    **options: Any,
) -> list[Tensor]:
    """Poses, activations, logits; and of so many of these the gradients of poses, weight, activations, parameters."""
    inputs = [tensor.detach().clone().requires_grad_() for tensor in (*votes[:2], activations)]
    parents = module(Votes(*inputs[:2]), inputs[2], **options)
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(
        sum(map(weighted_total, parents[:differentiated])),
        [*inputs, *learned],
        allow_unused=True,
        materialize_grads=True,
    )
    return [*parents, *gradients]


@every_routing
@every_size
def test_values_and_gradients_are_the_references(sizes: Sizes, routing: str) -> None:
    expected = everything(build(routing, "reference", sizes), *given(sizes))
    for backend in ("matmul", "fused"):
        exact(everything(build(routing, backend, sizes), *given(sizes)), expected)


@every_routing
def test_float32_is_near(routing: str) -> None:
    """Relative to the largest number. Exponents of EM's distances amplify rounding, in gradients most."""
    for sizes, backend in zip(SIZES[:2] * 3, BACKENDS * 2, strict=True):
        votes, activations = given(sizes)
        reference = build(routing, "reference", sizes)
        expected = everything(reference, votes, activations, differentiated=2)
        single = build(routing, backend, sizes).float()
        found = everything(single, votes.map(Tensor.float), activations.float(), differentiated=2)
        of_values, of_gradients = (2e-5, 2e-4) if routing.startswith("em") else (1e-6, 1e-5)
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert one.dtype == torch.float32
            bound = of_values if number < 3 else of_gradients
            largest = max(other.abs().max(), 1e-3)
            assert (one - other).abs().max() <= bound * largest, (backend, sizes)


@both_fast
@every_routing
def test_extremes_are_the_references(routing: str, backend: str) -> None:
    """Activations of 0 or 1, votes of 0 and of 1e4; gradients where they are no rounded differences of 1e16."""
    for scale, activation in ((0.0, 1.0), (1e-4, 0.0), (1e4, 0.0), (1e4, 1.0)):
        votes, activations = given()
        votes = Votes(scale * votes.poses, votes.weight)
        activations = torch.full_like(activations, activation)
        found = everything(build(routing, backend), votes, activations)
        expected = everything(build(routing, "reference"), votes, activations)
        assert all(tensor.isfinite().all() for tensor in found)
        compared = slice(None if scale < 1 else 2)
        torch.testing.assert_close(found[compared], expected[compared], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("routing", ["em", "dynamic"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_order_of_poses_weight_and_activations(backend: str, routing: str) -> None:
    module = build(routing, backend)
    for which in range(3):
        for change in (backwards, with_gaps, lambda tensor: tensor[:1].expand_as(tensor)):
            votes, activations = given()
            leaves = [*votes[:2], activations]
            leaves[which] = change(leaves[which]).contiguous()
            found = []
            for laid_out in (change, Tensor.contiguous):
                leaf = leaves[which].clone().requires_grad_()
                inputs = [*leaves[:which], laid_out(leaf), *leaves[which + 1 :]]
                parents = module(Votes(*inputs[:2]), inputs[2])
                whole = parents.poses.sin().sum() + parents.activations.sum()
                (gradient,) = torch.autograd.grad(
                    whole, leaf, allow_unused=True, materialize_grads=True
                )
                # an expanded leaf has it all in its first row
                found.append((*parents, gradient.sum(0)))
            exact(*found)


class Transposed(Normaliser):
    """Couplings as a view of memory in another order, as a softmax over the last dimension leaves them."""

    def __call__(self, log_couplings: Tensor) -> Tensor:
        return log_couplings.transpose(1, 2).contiguous().softmax(2).transpose(1, 2)


class Constant(Normaliser):
    """The same couplings whatever the log-couplings, with no gradient to them."""

    def __call__(self, log_couplings: Tensor) -> Tensor:
        return torch.full_like(log_couplings, 0.25)


NOT_LEAKY = [name for name in ROUTINGS if "leaky" not in name]


@pytest.mark.parametrize("routing", NOT_LEAKY)
def test_couplings_in_any_memory_order_and_constant(routing: str) -> None:
    module = build(routing, "fused")
    exact(everything(module, *given(), normalise=Transposed()), everything(module, *given()))
    constant = partial(everything, votes=given()[0], activations=given()[1], normalise=Constant())
    expected = constant(build(routing, "reference"))
    exact(constant(build(routing, "matmul")), expected)
    exact(constant(module), expected)


@pytest.mark.usefixtures("unchecked_types")  # in training nothing else checks
@pytest.mark.parametrize("backend", BACKENDS)
@three_routings
def test_arguments_that_do_not_go_together_are_refused(routing: str, backend: str) -> None:
    """A kernel would read beyond the end of an array."""
    pairs = [
        ((2, 17, 15), (17, 4, 3, 4)),
        ((2, 17, 16), (16, 4, 3, 4)),
        ((2, 17, 16), (18, 4, 3, 4)),
    ]
    module = build(routing, backend)
    for poses, weight in pairs:
        votes = Votes(draw(*poses, seed=0), draw(*weight, seed=1))
        with pytest.raises((ValueError, RuntimeError)):
            module(votes, draw(2, 17, seed=2).sigmoid())
    if routing == "em":
        shapes = [(2, 16), (2, 18), (3, 17)]
        if backend == "fused":
            shapes.append((1, 17))  # other backends take it for every image's
        for shape in shapes:
            with pytest.raises((ValueError, RuntimeError)):
                module(given()[0], draw(*shape, seed=2).sigmoid())


@pytest.mark.parametrize("backend", BACKENDS)
@three_routings
def test_no_images(routing: str, backend: str) -> None:
    sizes = SIZES[0]._replace(batch=0)
    poses, activations, *gradients = everything(build(routing, backend, sizes), *given(sizes))
    assert (poses.shape, activations.shape) == ((0, 3, 16), (0, 3))
    assert not any(gradient.any() for gradient in gradients)


# ------------------------------------------------------------------------------------- backward passes of all kinds


def scalar(module: AbstractRouting, poses: Tensor, weight: Tensor, activations: Tensor) -> Tensor:
    parents = module(Votes(poses, weight), activations)
    return parents.poses.sin().sum() + parents.activations.sum()


def leaves() -> list[Tensor]:
    votes, activations = given()
    return [tensor.clone().requires_grad_() for tensor in (*votes[:2], activations)]


@both_fast
@pytest.mark.parametrize("routing", ["em", "dynamic", "dynamic, last", "uniform"])
def test_gradients_of_any_inputs_any_number_of_times(routing: str, backend: str) -> None:
    """Of one input, whether the others ask for none or are not asked about; after a pass for others; twice."""
    module, inputs = build(routing, backend), leaves()
    whole = scalar(module, *inputs)
    torch.autograd.grad(whole, list(module.parameters()), retain_graph=True, allow_unused=True)
    once = torch.autograd.grad(whole, inputs[:2], retain_graph=True)
    exact(torch.autograd.grad(whole, inputs[:2], retain_graph=True), once)
    for which in (0, 1):
        exact(torch.autograd.grad(scalar(module, *inputs), inputs[which]), (once[which],))
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    for which in (0, 1):
        others = [each if number == which else each.detach() for number, each in enumerate(inputs)]
        exact(torch.autograd.grad(scalar(module, *others), inputs[which]), (once[which],))


@three_routings
def test_several_routings_in_one_graph_and_checkpointing(routing: str) -> None:
    """Of the same poses and weight, as in a network that shares them."""
    poses, weight, activations = inputs = leaves()
    found = []
    for backend in BACKENDS:
        module = build(routing, backend)
        both = scalar(module, *inputs) * scalar(module, 2 * poses, weight, activations)
        found.append(torch.autograd.grad(both, inputs[:2]))
    exact(found[1:], [found[0]] * 2)
    module = build(routing, "fused")
    plain = torch.autograd.grad(scalar(module, *inputs), inputs[:2])
    again = torch.utils.checkpoint.checkpoint(partial(scalar, module), *inputs, use_reentrant=False)
    exact(torch.autograd.grad(again, inputs[:2]), plain)


@three_routings
def test_fused_kernels_have_no_second_derivative(routing: str) -> None:
    """Better none than a wrong one."""
    module, inputs = build(routing, "fused"), leaves()
    first = torch.autograd.grad(scalar(module, *inputs), inputs[:2], create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(sum(each.square().sum() for each in first), inputs[:2])


# ------------------------------------------------------------------------------------- what routing asks of votes


@every_size
def test_every_backend_has_the_same_sums(sizes: Sizes) -> None:
    votes, _ = given(sizes)
    dense = dense_votes(*votes[:2])
    plain = PlainVotes(dense)
    batch, child, parent, dim = plain.shape
    assert plain.shape == (sizes.batch, sizes.child, sizes.parent, sizes.rows * sizes.columns)
    weights, poses = draw(batch, parent, child, seed=3), draw(batch, parent, dim, seed=4)
    for other in (FusedVotes(votes), MatmulVotes(dense)):
        assert other.shape == plain.shape
        exact(other.zero_logits(), plain.zero_logits())
        exact(other.weighted_sum(weights), plain.weighted_sum(weights))
        exact(other.agreement(poses), plain.agreement(poses))
        exact(other.dense(), dense)


def test_dense_votes_of_the_fused_backend_have_gradients() -> None:
    """Beside those of its sums, in one graph."""
    poses, weight, _ = leaves()

    def gradients_through(votes: AbstractVotes) -> tuple[Tensor, ...]:
        squares = (votes.dense() ** 2).sum()
        agreement = votes.agreement(votes.dense().sum(1)).sum()
        return torch.autograd.grad(squares + agreement, (poses, weight))

    found = gradients_through(FusedVotes(Votes(poses, weight)))
    exact(found, gradients_through(PlainVotes(dense_votes(poses, weight))))


# ------------------------------------------------------------------------------------------- choice of a backend


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[AbstractVotes]:
    """What a routing was given."""
    found: list[AbstractVotes] = []

    def build_and_keep(kind: type[AbstractVotes], votes: Any) -> AbstractVotes:
        found.append(kind(votes))
        return found[-1]

    for kind in (PlainVotes, MatmulVotes, FusedVotes):
        monkeypatch.setattr(run_routing, kind.__name__, partial(build_and_keep, kind))
    return found


class SeveralRows(Normaliser):
    rows_per_image = 4


def test_rows_of_a_call(seen: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As many whole images as the cache holds; all rows where every iteration is watched."""
    cases = [
        (Normaliser(), 0, 5, [1] * 5),
        (Normaliser(), 1, 5, [1] * 5),
        (Normaliser(), 2, 5, [2, 2, 1]),
        (Normaliser(), 2.9, 5, [2, 2, 1]),
        (Normaliser(), 5, 5, [5]),
        (Normaliser(), 2, 0, [0]),
        (SeveralRows(), 0, 12, [4, 4, 4]),
        (SeveralRows(), 2, 12, [8, 4]),
        (SeveralRows(), 2, 4, [4]),
    ]
    for normalise, images_in_cache, rows, expected in cases:
        votes, _ = given(SIZES[0]._replace(batch=rows))
        bytes_per_image = normalise.rows_per_image * 17 * 3 * 16 * 8
        monkeypatch.setattr(run_routing, "VOTES_IN_CACHE", int(images_in_cache * bytes_per_image))
        seen.clear()
        found = uniform_routing(votes, normalise=normalise, backend="matmul")
        assert [len(each.votes) for each in seen] == expected
        exact(torch.cat([each.votes for each in seen]), dense_votes(*votes[:2]))
        exact(found, uniform_routing(votes, normalise=normalise, backend="reference"))
        seen.clear()
        matmul = partial(uniform_routing, normalise=normalise, backend="matmul")
        exact(matmul(votes, on_iteration=lambda _: None), found)
        assert [len(each.votes) for each in seen] == [rows]
    votes, activations = given(SIZES[0]._replace(batch=5))
    monkeypatch.setattr(run_routing, "VOTES_IN_CACHE", 2 * 17 * 3 * 16 * 8)
    exact(build("em", "matmul")(votes, activations), build("em", "reference")(votes, activations))


@pytest.fixture
def cleared_caches() -> Iterator[None]:
    clear_caches()
    yield
    clear_caches()


@pytest.fixture
def without_numba(monkeypatch: pytest.MonkeyPatch, cleared_caches: None) -> None:
    """As on a machine on which numba cannot be imported."""

    def refuse(name: str) -> Any:
        raise ImportError("No module named\n 'numba'")

    monkeypatch.setattr(backends.importlib, "import_module", refuse)


def clear_caches() -> None:
    backends._imported.cache_clear()
    backends._log_once.cache_clear()


@pytest.mark.usefixtures("cleared_caches")
def test_backend_that_was_asked_for(seen: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """And ``auto`` logs its choice once."""
    caplog.set_level(logging.INFO, "capsule_lab")
    votes, _ = given()
    of_dense = {"auto": MatmulVotes, "matmul": MatmulVotes, "reference": PlainVotes}
    of_votes = {**of_dense, "auto": FusedVotes, "fused": FusedVotes}
    for expected, argument in ((of_dense, dense_votes(*votes[:2])), (of_votes, votes)):
        for backend, kind in 2 * [*expected.items()]:
            uniform_routing(argument, backend=backend)  # type: ignore[arg-type]
            assert type(seen[-1]) is kind
    assert caplog.messages == ["routing backend on cpu: fused"]


@pytest.mark.usefixtures("without_numba")
def test_without_numba(seen: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """Any routing multiplies matrices, and says so once; ``fused`` is refused with the reason."""
    caplog.set_level(logging.INFO, "capsule_lab")
    for routing in ROUTINGS:
        found = everything(build(routing, "auto"), *given())
        assert type(seen[-1]) is MatmulVotes
        exact(found, everything(build(routing, "reference"), *given()))
    assert caplog.messages == [
        "routing backend on cpu: matmul (no fused kernels: No module named 'numba')"
    ]
    with pytest.raises(ValueError, match="'fused'") as caught:
        uniform_routing(given()[0], backend="fused")
    assert str(caught.value) == (
        "routing backend is 'fused', which does not run here: No module named 'numba'; expected auto or matmul"
    )


def test_votes_that_cannot_be_fused() -> None:
    votes = given()[0].map(lambda tensor: tensor.to("meta"))
    message = "does not run here: there are none for meta; expected auto or matmul"
    with pytest.raises(ValueError, match=message):
        backends.select_backend("fused", votes)
    assert backends.select_backend("auto", votes) == "matmul"
    message = r"'fused' but votes are a tensor; expected Votes\(poses, weight\)$"
    with pytest.raises(ValueError, match=message):
        uniform_routing(dense_votes(*given()[0][:2]), backend="fused")


def routed_by(
    name: str, backend: Any, weight: Tensor, poses: Tensor, activations: Tensor
) -> Tensor:
    votes = Votes(poses, weight)
    if name == "em":
        betas = poses.new_zeros(weight.shape[2])
        return em_routing(votes, activations, betas, betas, backend=backend).poses
    routing = dynamic_routing if name == "dynamic" else uniform_routing
    return routing(votes, backend=backend).poses


@pytest.mark.usefixtures("unchecked_types")
# of torch.func.jvp
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
@three_routings
def test_transforms_of_torch_take_dense_votes(routing: str) -> None:
    """``auto`` is ``fused`` outside of them, which has no rule for them."""
    votes, activations = given()
    inputs = votes.weight, votes.poses, activations
    several = tuple(torch.stack([each, 0.5 * each]) for each in inputs)
    for transformed in (
        lambda function: torch.func.jvp(function, inputs, inputs)[1],
        lambda function: torch.func.vmap(function)(*several),
        lambda function: torch.func.vmap(function, in_dims=(None, 0, 0))(inputs[0], *several[1:]),
        lambda function: torch.func.grad(lambda *each: function(*each).square().sum())(*inputs),
    ):
        found = transformed(partial(routed_by, routing, "auto"))
        exact(found, transformed(partial(routed_by, routing, "matmul")))
        message = r"is 'fused', which does not run here: torch\.func transforms what it"
        with pytest.raises(ConfigError, match=message):
            transformed(partial(routed_by, routing, "fused"))
    assert backends.select_backend("auto", votes) == "fused"
