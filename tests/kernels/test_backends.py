"""Backends are the same numbers in other time and memory; and which one answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jaxtyping
import pytest
import torch
from torch import Tensor

from capsule_lab.errors import ConfigError
from capsule_lab.functional import dense_votes, is_transformed
from capsule_lab.kernels import backends, check_backend, run_routing
from capsule_lab.kernels.base import AbstractVotes
from capsule_lab.kernels.dense import MatmulVotes, PlainVotes
from capsule_lab.kernels.fused import FusedVotes, backward_pass_number
from capsule_lab.routing import (
    AbstractRouting,
    DynamicRouting,
    EMRouting,
    Normaliser,
    UniformRouting,
    dynamic_routing,
    em_routing,
    uniform_routing,
)
from capsule_lab.routing.em import e_step, m_step
from capsule_lab.types import Votes

exact = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
both_fast = pytest.mark.parametrize("backend", ["matmul", "fused"])


class Sizes(NamedTuple):
    batch: int
    child: int
    parent: int
    rows: int
    inner: int
    columns: int

    @property
    def dim(self) -> int:
        return self.rows * self.columns


SIZES = [
    Sizes(2, 17, 3, 4, 4, 4),  # matrix capsules
    Sizes(2, 73, 2, 1, 8, 16),  # digit capsules
    Sizes(3, 72, 3, 2, 1, 1),
    Sizes(1, 3, 1, 3, 2, 1),
    Sizes(2, 1, 4, 2, 3, 5),  # one child
    Sizes(2, 5, 1, 4, 5, 3),  # one parent
    Sizes(3, 17, 2, 1, 3, 1),  # one component
    Sizes(2, 3, 2, 3, 5, 2),
    Sizes(2, 9, 3, 1, 6, 5),
]
every_size = pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes)))

ROUTINGS: dict[str, Callable[..., AbstractRouting]] = {
    "em": EMRouting,
    "em, every term": partial(EMRouting, damping=0.3, mass_eps=0.1, min_variance=0.05, iterations=4, cost="paper"),
    "em, mixing": partial(EMRouting, activation="mixing_proportions", initial="types"),
    "em, standardised": partial(EMRouting, cost="standardised"),
    "dynamic": DynamicRouting,
    "dynamic, leaky": partial(DynamicRouting, leaky=True, iterations=5, bias_inside=False),
    "dynamic, last": partial(DynamicRouting, gradient="last"),
    "uniform": UniformRouting,
}
every_routing = pytest.mark.parametrize("routing", ROUTINGS)


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def given(sizes: Sizes) -> tuple[Votes, Tensor]:
    """Poses and weights whose votes are about one."""
    batch, child, parent, rows, inner, columns = sizes
    poses = draw(batch, child, rows * inner, seed=0)
    weight = draw(child, inner, parent, columns, seed=1) * inner**-0.5
    return Votes(poses, weight), draw(batch, child, seed=2).sigmoid()


def build(routing: str, sizes: Sizes, backend: Any) -> AbstractRouting:
    """A float64 routing in which no two parents are alike."""
    module = ROUTINGS[routing](parents=sizes.parent, dim=sizes.dim, backend=backend).double()
    for seed, parameter in enumerate(module.parameters()):
        parameter.data += 0.1 * draw(*parameter.shape, seed=10 + seed)
    return module


def everything(
    module: AbstractRouting, votes: Votes, activations: Tensor, *, differentiated: int = 3, **options: Any
) -> list[Tensor]:
    """Poses, activations, logits; and of so many of these the gradients of poses, weight, activations, parameters."""
    inputs = [tensor.detach().clone().requires_grad_() for tensor in (*votes[:2], activations)]
    parents = module(Votes(*inputs[:2]), inputs[2], **options)
    scale = sum(
        (each * torch.linspace(1, 2, each.numel()).to(each).view_as(each)).sum() for each in parents[:differentiated]
    )
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [*parents, *torch.autograd.grad(scale, [*inputs, *learned], allow_unused=True, materialize_grads=True)]


@both_fast
@every_routing
@every_size
def test_values_and_gradients_are_the_references(sizes: Sizes, routing: str, backend: str) -> None:
    found, expected = (everything(build(routing, sizes, name), *given(sizes)) for name in (backend, "reference"))
    exact(found, expected)


@pytest.mark.parametrize("backend", ["reference", "matmul", "fused"])
@every_routing
@pytest.mark.parametrize("sizes", SIZES[:2], ids=str)
def test_float32_is_near(sizes: Sizes, routing: str, backend: str) -> None:
    """Relative to the largest number. Exponents of EM's distances amplify rounding, in gradients most."""
    votes, activations = given(sizes)
    expected = everything(build(routing, sizes, "reference"), votes, activations, differentiated=2)
    single = build(routing, sizes, backend).float()
    found = everything(single, votes.map(Tensor.float), activations.float(), differentiated=2)
    bounds = (2e-5, 2e-4) if routing.startswith("em") else (1e-6, 1e-5)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.dtype == torch.float32
        assert (one - other).abs().max() <= bounds[number >= 3] * max(other.abs().max(), 1e-3)


@both_fast
@pytest.mark.parametrize("presence", [0.0, 1.0])
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1e4])
@every_routing
def test_extremes_are_the_references(routing: str, scale: float, presence: float, backend: str) -> None:
    """Activations of 0 or 1, votes of 0 and of 1e4; gradients where they are no rounded differences of 1e16."""
    sizes = SIZES[0]
    votes, activations = given(sizes)
    votes, activations = Votes(scale * votes.poses, votes.weight), torch.full_like(activations, presence)
    found, expected = (everything(build(routing, sizes, name), votes, activations) for name in (backend, "reference"))
    assert all(tensor.isfinite().all() for tensor in found)
    torch.testing.assert_close(found[:2], expected[:2], rtol=1e-9, atol=1e-9)
    if scale < 1:
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("backend", ["reference", "matmul", "fused"])
@every_routing
def test_float32_is_finite(routing: str, backend: str, scale: float) -> None:
    votes, activations = given(SIZES[0])
    single = Votes((scale * votes.poses).float(), votes.weight.float())
    found = everything(build(routing, SIZES[0], backend).float(), single, activations.float())
    assert all(tensor.isfinite().all() for tensor in found)


STRIDED = {
    "backwards": lambda t: t.permute(*range(t.ndim)[::-1]).contiguous().permute(*range(t.ndim)[::-1]),
    "with gaps": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda t: t[:1].expand_as(t),
}


@pytest.mark.parametrize("which", [0, 1, 2], ids=["poses", "weight", "activations"])
@pytest.mark.parametrize("strided", STRIDED)
@pytest.mark.parametrize("routing", ["em", "dynamic"])
@pytest.mark.parametrize("backend", ["reference", "matmul", "fused"])
def test_memory_order_of_poses_weight_and_activations(backend: str, routing: str, strided: str, which: int) -> None:
    sizes, change = SIZES[0], STRIDED[strided]
    votes, activations = given(sizes)
    module, leaves = build(routing, sizes, backend), [*votes[:2], activations]
    if strided == "expanded":
        leaves[which] = change(leaves[which]).contiguous()
    found = []
    for laid_out in (change, torch.Tensor.contiguous):
        leaf = leaves[which].clone().requires_grad_()
        inputs = [*leaves[:which], laid_out(leaf), *leaves[which + 1 :]]
        parents = module(Votes(*inputs[:2]), inputs[2])
        whole = parents.poses.sin().sum() + parents.activations.sum()
        (gradient,) = torch.autograd.grad(whole, leaf, allow_unused=True, materialize_grads=True)
        found.append((*parents, gradient.sum(0) if strided == "expanded" else gradient))
    exact(*found)


class Transposed(Normaliser):
    """Couplings as a view of memory in another order, as a softmax over the last dimension leaves them."""

    def __call__(self, log_couplings: Tensor) -> Tensor:
        return log_couplings.transpose(1, 2).contiguous().softmax(2).transpose(1, 2)


@pytest.mark.parametrize("routing", [name for name in ROUTINGS if "leaky" not in name])
def test_memory_order_of_couplings(routing: str) -> None:
    module = build(routing, SIZES[0], "fused")
    exact(everything(module, *given(SIZES[0]), normalise=Transposed()), everything(module, *given(SIZES[0])))


class Constant(Normaliser):
    """The same couplings whatever the log-couplings, with no gradient to them."""

    def __call__(self, log_couplings: Tensor) -> Tensor:
        return torch.full_like(log_couplings, 0.25)


@both_fast
@pytest.mark.parametrize("routing", [name for name in ROUTINGS if "leaky" not in name])
def test_couplings_need_not_depend_on_anything(routing: str, backend: str) -> None:
    found, expected = (
        everything(build(routing, SIZES[0], name), *given(SIZES[0]), normalise=Constant())
        for name in (backend, "reference")
    )
    exact(found, expected)


@pytest.mark.parametrize("backend", ["reference", "matmul", "fused"])
@pytest.mark.parametrize("routing", ["em", "dynamic", "uniform"])
@pytest.mark.parametrize(
    ("poses", "weight"),
    [
        pytest.param((2, 17, 15), (17, 4, 3, 4), id="no whole row"),
        pytest.param((2, 17, 16), (16, 4, 3, 4), id="fewer weights"),
        pytest.param((2, 17, 16), (18, 4, 3, 4), id="more weights"),
    ],
)
def test_poses_that_do_not_go_with_the_weight_are_refused(
    poses: tuple[int, ...], weight: tuple[int, ...], routing: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel would read beyond the end of an array."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # in training nothing else checks
    votes = Votes(draw(*poses, seed=0), draw(*weight, seed=1))
    with pytest.raises((ValueError, RuntimeError)):
        build(routing, SIZES[0], backend)(votes, draw(2, 17, seed=2).sigmoid())


@pytest.mark.parametrize(
    ("backend", "shape"),
    [
        *((backend, shape) for backend in ("reference", "matmul", "fused") for shape in ((2, 16), (2, 18), (3, 17))),
        ("fused", (1, 17)),  # the others take it for those of every image
    ],
)
def test_activations_of_other_children_are_refused(
    backend: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises((ValueError, RuntimeError)):
        build("em", SIZES[0], backend)(given(SIZES[0])[0], draw(*shape, seed=2).sigmoid())


@pytest.mark.parametrize("backend", ["reference", "matmul", "fused"])
@every_routing
def test_no_images(routing: str, backend: str) -> None:
    sizes = SIZES[0]._replace(batch=0)
    poses, activations, *gradients = everything(build(routing, sizes, backend), *given(sizes))
    assert (poses.shape, activations.shape) == ((0, sizes.parent, sizes.dim), (0, sizes.parent))
    assert not any(gradient.any() for gradient in gradients)


# ------------------------------------------------------------------------------------- backward passes of all kinds


def scalar(module: AbstractRouting, votes: Votes, activations: Tensor) -> Tensor:
    parents = module(votes, activations)
    return parents.poses.sin().sum() + parents.activations.sum()


def leaves(sizes: Sizes = SIZES[0]) -> tuple[Tensor, Tensor, Tensor]:
    votes, activations = given(sizes)
    poses, weight, activations = (tensor.clone().requires_grad_() for tensor in (*votes[:2], activations))
    return poses, weight, activations


@both_fast
@pytest.mark.parametrize("routing", ["em", "dynamic", "dynamic, last", "uniform"])
@pytest.mark.parametrize("which", [0, 1])
def test_gradient_of_one_input_alone(which: int, routing: str, backend: str) -> None:
    """Whether the others ask for none, or are not asked about."""
    module, inputs = build(routing, SIZES[0], backend), leaves()
    expected = torch.autograd.grad(scalar(module, Votes(*inputs[:2]), inputs[2]), inputs[which])
    not_asked = [each if number == which else each.detach() for number, each in enumerate(inputs)]
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    found = torch.autograd.grad(scalar(module, Votes(*not_asked[:2]), not_asked[2]), inputs[which])
    exact(found, expected)


@both_fast
@pytest.mark.parametrize("routing", ["em", "dynamic", "uniform"])
def test_backward_pass_may_be_repeated(routing: str, backend: str) -> None:
    """After one that asked for other gradients, and again through the same graph."""
    module, inputs = build(routing, SIZES[0], backend), leaves()
    once = torch.autograd.grad(scalar(module, Votes(*inputs[:2]), inputs[2]), inputs[:2])
    whole = scalar(module, Votes(*inputs[:2]), inputs[2])
    torch.autograd.grad(whole, list(module.parameters()), retain_graph=True)
    for _ in range(2):
        exact(torch.autograd.grad(whole, inputs[:2], retain_graph=True), once)


@both_fast
@pytest.mark.parametrize("routing", ["em", "dynamic", "uniform"])
def test_one_graph_may_hold_several_routings(routing: str, backend: str) -> None:
    """Of the same poses and weight, as in a network that shares them."""
    inputs, modules = leaves(), [build(routing, SIZES[0], name) for name in (backend, "reference")]
    found, expected = (
        torch.autograd.grad(
            scalar(module, Votes(*inputs[:2]), inputs[2]) * scalar(module, Votes(2 * inputs[0], inputs[1]), inputs[2]),
            inputs[:2],
        )
        for module in modules
    )
    exact(found, expected)


@pytest.mark.parametrize("routing", ["em", "dynamic", "uniform"])
def test_checkpointing_changes_nothing(routing: str) -> None:
    module, inputs = build(routing, SIZES[0], "fused"), leaves()
    plain = torch.autograd.grad(scalar(module, Votes(*inputs[:2]), inputs[2]), inputs[:2])
    again = torch.utils.checkpoint.checkpoint(
        lambda poses, weight, activations: scalar(module, Votes(poses, weight), activations),
        *inputs,
        use_reentrant=False,
    )
    exact(torch.autograd.grad(again, inputs[:2]), plain)


@pytest.mark.parametrize("routing", ["em", "dynamic", "uniform"])
def test_fused_kernels_have_no_second_derivative(routing: str) -> None:
    """Better none than a wrong one."""
    module, inputs = build(routing, SIZES[0], "fused"), leaves()
    first = torch.autograd.grad(scalar(module, Votes(*inputs[:2]), inputs[2]), inputs[:2], create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(sum(each.square().sum() for each in first), inputs[:2])


# ------------------------------------------------------------------------------------- what routing asks of votes


@pytest.mark.parametrize("kind", [MatmulVotes, FusedVotes])
@every_size
def test_every_backend_has_the_same_sums(sizes: Sizes, kind: Any) -> None:
    votes, _ = given(sizes)
    plain = PlainVotes(dense_votes(*votes[:2]))
    other = FusedVotes(votes) if kind is FusedVotes else MatmulVotes(dense_votes(*votes[:2]))
    batch, child, parent, dim = other.shape
    assert other.shape == plain.shape == (sizes.batch, sizes.child, sizes.parent, sizes.dim)
    weights, poses = draw(batch, parent, child, seed=3), draw(batch, parent, dim, seed=4)
    exact(other.zero_logits(), plain.zero_logits())
    exact(other.weighted_sum(weights), plain.weighted_sum(weights))
    exact(other.agreement(poses), plain.agreement(poses))
    exact(other.dense(), dense_votes(*votes[:2]))


def test_dense_votes_of_the_fused_backend_have_gradients() -> None:
    """Beside those of its sums, in one graph."""
    poses, weight, _ = leaves()
    found, expected = (
        torch.autograd.grad((kind.dense() ** 2).sum() + kind.agreement(kind.dense().sum(1)).sum(), (poses, weight))
        for kind in (FusedVotes(Votes(poses, weight)), PlainVotes(dense_votes(poses, weight)))
    )
    exact(found, expected)


@pytest.mark.parametrize("measure", [True, False])
@pytest.mark.parametrize("first", [True, False])
@every_size
def test_fused_step_is_the_e_step_and_the_m_step(sizes: Sizes, first: bool, measure: bool) -> None:
    votes, activations = given(sizes)
    dense, fused, normalise = dense_votes(*votes[:2]).transpose(1, 2), FusedVotes(votes), Normaliser()
    log_height = draw(sizes.batch, sizes.parent, seed=5)
    options = {"damping": 0.2, "min_variance": 0.01, "mass_eps": 0.1}

    equal = normalise(fused.zero_logits())
    parents = m_step(dense, equal, activations, None, **options)
    couplings, found = fused.em_step(None, activations, normalise, measure=True, **options)
    exact((couplings, *found[:3]), (equal, *parents[:3]))
    if not first:
        expected = e_step(parents, log_height, normalise)
        before, parents = parents.poses, m_step(dense, expected, activations, parents.poses, **options)
        couplings, found = fused.em_step((found, log_height), activations, normalise, measure=measure, **options)
        exact((couplings, *found[:3]), (expected, *parents[:3]))
        assert (parents.poses - before).abs().max() > 0 or sizes.child == 1
        assert found.deviations.shape == (
            (sizes.batch, sizes.parent, sizes.child) if measure else (*found.mass.shape, 0)
        )


def test_number_of_a_backward_pass() -> None:
    """``torch._C._current_graph_task_id``: one number per pass, another one in the next, -1 outside."""
    numbers = []
    x = torch.ones(2, requires_grad=True)
    for _ in range(2):
        y = x * 2
        for node in (y, y + 1):
            node.register_hook(lambda _: numbers.append(backward_pass_number()))
        (y.sum() + (y * 3).sum()).backward()
    one, other = sorted(set(numbers))
    assert numbers == [one, other]
    assert backward_pass_number() == -1 < one


# --------------------------------------------------------------------------------------------------- rows in cache


@pytest.mark.parametrize("with_activations", [True, False])
@pytest.mark.parametrize(
    ("images_in_cache", "rows_per_image", "rows", "expected"),
    [
        (0, 1, 5, [1, 1, 1, 1, 1]),  # an image larger than the cache comes alone
        (1, 1, 5, [1, 1, 1, 1, 1]),
        (2, 1, 5, [2, 2, 1]),
        (2.9, 1, 5, [2, 2, 1]),
        (5, 1, 5, [5]),
        (100, 1, 5, [5]),
        (0, 4, 12, [4, 4, 4]),
        (2, 4, 12, [8, 4]),
        (2, 4, 4, [4]),
        (2, 1, 0, [0]),
    ],
)
def test_rows_of_a_call(
    images_in_cache: float,
    rows_per_image: int,
    rows: int,
    expected: list[int],
    with_activations: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = SIZES[0]._replace(batch=rows)
    votes, activations = given(sizes)
    monkeypatch.setattr(run_routing, "VOTES_IN_CACHE", int(images_in_cache * rows_per_image * 17 * 3 * 16 * 8))
    seen: list[tuple[Tensor, Tensor | None]] = []

    def procedure(votes: AbstractVotes, present: Tensor | None) -> tuple[Tensor, ...]:
        assert type(votes) is MatmulVotes
        seen.append((votes.votes, present))
        return votes.weighted_sum(votes.zero_logits() + 1), votes.zero_logits()

    given_activations = activations if with_activations else None
    route = partial(
        run_routing.route, procedure, votes, given_activations, backend="matmul", rows_per_image=rows_per_image
    )
    sums, zeros = route()
    dense = dense_votes(*votes[:2])
    assert [len(some) for some, _ in seen] == expected
    exact(torch.cat([some for some, _ in seen]), dense)
    assert with_activations == all(present is not None for _, present in seen)
    if with_activations:
        assert torch.equal(torch.cat([present for _, present in seen if present is not None]), activations)
    exact(sums, dense.sum(1))
    assert zeros.shape == (rows, 3, 17)
    seen.clear()
    exact(route(whole_batch=True), (sums, zeros))
    assert [len(some) for some, _ in seen] == [rows]


# ------------------------------------------------------------------------------------------- choice of a backend


@pytest.fixture
def without_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine on which numba cannot be imported."""

    def refuse(name: str) -> Any:
        raise ImportError("No module named\n 'numba'")

    with monkeypatch.context() as patch:
        patch.setattr(backends.importlib, "import_module", refuse)
        clear_caches()
        yield
    clear_caches()


@pytest.fixture
def cleared_caches() -> Iterator[None]:
    clear_caches()
    yield
    clear_caches()


def clear_caches() -> None:
    backends._imported.cache_clear()
    backends._log_once.cache_clear()


def kind_of_votes(backend: Any, votes: Tensor | Votes) -> type[AbstractVotes]:
    """Kind of votes that a procedure is given."""
    seen: list[type[AbstractVotes]] = []

    def procedure(votes: AbstractVotes, _: Tensor | None) -> tuple[Tensor]:
        seen.append(type(votes))
        return (votes.zero_logits(),)

    run_routing.route(procedure, votes, None, backend=backend)
    return seen[0]


@pytest.mark.parametrize(
    ("backend", "dense", "expected"),
    [
        ("auto", True, MatmulVotes),
        ("matmul", True, MatmulVotes),
        ("reference", True, PlainVotes),
        ("auto", False, FusedVotes),
        ("fused", False, FusedVotes),
        ("matmul", False, MatmulVotes),
        ("reference", False, PlainVotes),
    ],
)
def test_backend_that_was_asked_for(backend: str, dense: bool, expected: type) -> None:
    votes, _ = given(SIZES[0])
    assert kind_of_votes(backend, dense_votes(*votes[:2]) if dense else votes) is expected


@pytest.mark.usefixtures("cleared_caches")
def test_auto_logs_its_choice_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "capsule_lab")
    votes, _ = given(SIZES[0])
    for _ in range(3):
        kind_of_votes("auto", votes)
        kind_of_votes("matmul", votes)
        kind_of_votes("auto", dense_votes(*votes[:2]))
    assert caplog.messages == ["routing backend on cpu: fused"]


@pytest.mark.usefixtures("without_numba")
def test_auto_without_numba_multiplies_matrices(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "capsule_lab")
    votes, _ = given(SIZES[0])
    assert [kind_of_votes("auto", votes) for _ in range(2)] == [MatmulVotes, MatmulVotes]
    assert caplog.messages == ["routing backend on cpu: matmul (no fused kernels: No module named 'numba')"]


@pytest.mark.usefixtures("without_numba")
@every_routing
def test_routing_without_numba(routing: str) -> None:
    found, expected = (everything(build(routing, SIZES[0], name), *given(SIZES[0])) for name in ("auto", "reference"))
    exact(found, expected)


@pytest.mark.usefixtures("without_numba")
def test_fused_without_numba_is_refused_with_the_reason() -> None:
    votes, _ = given(SIZES[0])
    with pytest.raises(ValueError, match="'fused'") as caught:
        kind_of_votes("fused", votes)
    assert str(caught.value) == (
        "routing backend is 'fused', which does not run here: No module named 'numba'; expected auto or matmul"
    )


def test_other_devices_have_no_fused_kernels() -> None:
    votes = given(SIZES[0])[0].map(lambda tensor: tensor.to("meta"))
    with pytest.raises(ValueError, match="does not run here: there are none for meta; expected auto or matmul"):
        backends.chosen("fused", votes)
    assert backends.chosen("auto", votes) == "matmul"


def test_a_vote_tensor_cannot_be_fused() -> None:
    dense = dense_votes(*given(SIZES[0])[0][:2])
    with pytest.raises(ValueError, match=r"'fused' but votes are a tensor; expected Votes\(poses, weight\)$"):
        kind_of_votes("fused", dense)


CALLS: dict[str, Callable[[Any], Any]] = {
    "check": check_backend,
    "EMRouting": lambda backend: EMRouting(3, 16, backend=backend),
    "DynamicRouting": lambda backend: DynamicRouting(3, 16, backend=backend),
    "UniformRouting": lambda backend: UniformRouting(3, 16, backend=backend),
    "em_routing": lambda backend: em_routing(
        *given(SIZES[0]), torch.zeros(3).double(), torch.zeros(3).double(), backend=backend
    ),
    "dynamic_routing": lambda backend: dynamic_routing(given(SIZES[0])[0], backend=backend).poses,
    "uniform_routing": lambda backend: uniform_routing(given(SIZES[0])[0], backend=backend).poses,
}


@pytest.mark.parametrize("call", CALLS)
def test_unknown_backend_is_named_with_those_that_are(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # in training nothing else checks
    with pytest.raises(ValueError, match="backend") as caught:
        CALLS[call]("triton")
    assert str(caught.value) == ("routing backend is 'triton'; expected 'auto', 'reference', 'matmul' or 'fused'")


@pytest.mark.parametrize("backend", ["reference", "matmul", "fused"])
@pytest.mark.parametrize("routing", ["em", "dynamic", "uniform"])
def test_votes_of_bfloat16_are_routed_in_float32(routing: str, backend: str) -> None:
    """Poses and weight are cast, and votes are then exact."""
    votes, activations = given(SIZES[0])
    half = votes.map(Tensor.bfloat16)
    module = build(routing, SIZES[0], backend).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parents = module(half, activations.bfloat16())
    expected = module(half.map(Tensor.float), activations.bfloat16().float())
    assert parents.poses.dtype == parents.activations.dtype == torch.float32
    assert torch.equal(parents.poses, expected.poses)
    assert torch.equal(parents.activations, expected.activations)


def routed_by(name: str, backend: Any, weight: Tensor, poses: Tensor, activations: Tensor) -> Tensor:
    votes = Votes(poses, weight)
    if name == "em":
        betas = poses.new_zeros(weight.shape[2])
        return em_routing(votes, activations, betas, betas, backend=backend).poses
    return (dynamic_routing if name == "dynamic" else uniform_routing)(votes, backend=backend).poses


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")  # of torch.func.jvp
@pytest.mark.parametrize("name", ["em", "dynamic", "uniform"])
def test_transforms_of_torch_take_dense_votes(name: str) -> None:
    """``auto`` is ``fused`` outside of them, which has no rule for them."""
    random = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inputs = random(17, 4, 3, 4), random(2, 17, 16), random(2, 17).sigmoid()
    several = tuple(torch.stack([each, 0.5 * each]) for each in inputs)
    for transformed in (
        lambda function: torch.func.jvp(function, inputs, inputs)[1],
        lambda function: torch.func.vmap(function)(*several),
        lambda function: torch.func.vmap(function, in_dims=(None, 0, 0))(inputs[0], *several[1:]),
        lambda function: torch.func.grad(lambda *each: function(*each).square().sum())(*inputs),
    ):
        found, expected = (transformed(partial(routed_by, name, backend)) for backend in ("auto", "matmul"))
        exact(found, expected)
        with pytest.raises(ConfigError, match=r"is 'fused', which does not run here: torch\.func transforms what it"):
            transformed(partial(routed_by, name, "fused"))
    assert not is_transformed()
    assert backends.chosen("auto", Votes(inputs[1], inputs[0])) == "fused"
