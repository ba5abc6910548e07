"""Each fused kernel of a CPU against the same sums written out, its threads, and what it keeps in memory.

``NUMBA_DISABLE_JIT=1`` runs the kernels as Python, for coverage; ``NUMBA_BOUNDSCHECK=1`` checks every index.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from capsule_lab.kernels import cpu
from capsule_lab.kernels.cpu import threads
from capsule_lab.layers import ConvCapsules, DenseCapsules
from capsule_lab.routing import EMRouting

exact = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


class Sizes(NamedTuple):
    row: int
    parent: int
    child: int
    rows: int
    inner: int
    columns: int


SIZES = [
    Sizes(1, 1, 1, 1, 1, 1),
    Sizes(2, 3, 17, 1, 3, 2),
    Sizes(3, 2, 73, 2, 2, 2),
    Sizes(2, 1, 72, 4, 4, 4),
    Sizes(3, 4, 3, 4, 5, 3),
    Sizes(10, 2, 5, 2, 1, 5),  # more rows than dynamic routing takes at a time on the way back
    Sizes(4, 3, 7, 3, 6, 1),
    Sizes(2, 2, 9, 5, 7, 6),
    Sizes(2, 2, 300, 1, 8, 16),  # more children than the blocks of dynamic routing hold
    Sizes(1, 2, 289, 2, 3, 2),
    Sizes(0, 2, 4, 2, 2, 2),
]
every_size = pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes)))
both_types = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Case:
    """Random arguments of the kernels."""

    def __init__(self, sizes: Sizes) -> None:
        row, parent, child, rows, inner, columns = sizes
        self.inner = inner
        self.poses = draw(row, rows * inner, child, seed=0)
        self.weight = draw(parent, inner * columns, child, seed=1)
        self.activations = draw(row, child, seed=2).sigmoid()
        self.couplings = draw(row, parent, child, seed=3).softmax(1)
        self.parents = draw(row, parent, rows * columns, seed=4)
        self.variances = draw(row, parent, rows * columns, seed=5).square() + 0.1
        self.by_child = draw(row, parent, child, seed=6)

    def votes(self) -> Tensor:
        return made(self.poses, self.weight, self.inner)


def made(poses: Tensor, weight: Tensor, inner: int) -> Tensor:
    """``(row, parent, child, dim)``."""
    matrices = poses.unflatten(1, (-1, inner)), weight.unflatten(1, (inner, -1))
    return torch.einsum("nrqi,jqci->njirc", *matrices).flatten(3)


def near(found: Any, expected: Any, dtype: torch.dtype) -> None:
    """In float32 within 1e-5 of the largest number: a sum of several hundred is rounded to 1e-6 of it or so."""
    found, expected = ([each] if isinstance(each, Tensor) else list(each) for each in (found, expected))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        scale = 1e-5 * other.abs().amax().item() if dtype == torch.float32 and other.numel() else 1e-10
        torch.testing.assert_close(one.double(), other, rtol=1e-10, atol=max(scale, 1e-10))


# ------------------------------------------------------------------------------------------------ EM routing

FIT_OPTIONS = [
    pytest.param(0.0, 5e-4, 1e-7, id="plain"),
    pytest.param(0.3, 0.1, 0.5, id="all terms"),
]


def slow_fit(
    poses: Tensor,
    weight: Tensor,
    activations: Tensor,
    couplings: Tensor,
    previous: Tensor,
    inner: int,
    damping: float,
    min_variance: float,
    mass_eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    votes = made(poses, weight, inner)
    assigned = couplings * activations[:, None]
    mass = assigned.sum(2) + mass_eps
    mean = torch.einsum("nji,njid->njd", assigned, votes) / mass[..., None]
    parents = (1 - damping) * mean + damping * previous
    squared = (votes - parents[:, :, None]) ** 2
    variances = min_variance + torch.einsum("nji,njid->njd", assigned, squared) / mass[..., None]
    return mass, parents, variances, torch.einsum("njid,njd->nji", squared, 0.5 / variances)


@both_types
@pytest.mark.parametrize(("damping", "min_variance", "mass_eps"), FIT_OPTIONS)
@every_size
def test_fit(sizes: Sizes, damping: float, min_variance: float, mass_eps: float, dtype: torch.dtype) -> None:
    case = Case(sizes)
    tensors = case.poses, case.weight, case.activations, case.couplings, case.parents
    options = case.inner, damping, max(min_variance, 0.01), mass_eps  # beside a variance of zero distances are noise
    expected = slow_fit(*tensors, *options)
    given = [tensor.to(dtype) for tensor in tensors]
    near(cpu.fit(*given, *options, True), expected, dtype)
    *fitted, distances = cpu.fit(*given, *options, False)
    near(fitted, expected[:3], dtype)
    assert distances.shape == (*expected[0].shape, 0)


@both_types
@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize(("damping", "min_variance", "mass_eps"), FIT_OPTIONS)
@every_size
def test_fit_backward(
    sizes: Sizes, damping: float, min_variance: float, mass_eps: float, measured: bool, dtype: torch.dtype
) -> None:
    case = Case(sizes)
    tensors = [
        tensor.requires_grad_()
        for tensor in (case.poses, case.weight, case.activations, case.couplings, case.parents.clone())
    ]
    options = case.inner, damping, max(min_variance, 0.01)
    results = slow_fit(*tensors, *options, mass_eps)
    gradients = [draw(*result.shape, seed=10 + n) for n, result in enumerate(results)]
    asked = slice(4 if measured else 3)
    expected = torch.autograd.grad(results[asked], tensors, gradients[asked], allow_unused=True, materialize_grads=True)
    if not measured:
        gradients[3] = gradients[3][..., :0]
    given = [tensor.detach().to(dtype) for tensor in (*tensors, *results[:3], *gradients)]
    near(cpu.fit_backward(*given, *options), expected, dtype)


@both_types
@every_size
def test_distances(sizes: Sizes, dtype: torch.dtype) -> None:
    case = Case(sizes)
    error = case.votes() - case.parents[:, :, None]
    expected = (error**2 / (2 * case.variances[:, :, None])).sum(3)
    given = [tensor.to(dtype) for tensor in (case.poses, case.weight, case.parents, case.variances)]
    near(cpu.distances(*given, case.inner), expected, dtype)


def test_distances_are_those_of_the_fit() -> None:
    """The backward pass measures again what the forward pass had, and must find the same couplings."""
    case = Case(Sizes(3, 2, 73, 4, 4, 4))
    given = case.poses, case.weight, case.activations, case.couplings, case.parents
    _, parents, variances, distances = cpu.fit(*given, 4, 0.1, 5e-4, 1e-7, True)
    exact(cpu.distances(case.poses, case.weight, parents, variances, 4), distances, rtol=1e-13, atol=1e-13)


# ------------------------------------------------------------------------------------------- dynamic routing


@both_types
@every_size
def test_weighted_sum(sizes: Sizes, dtype: torch.dtype) -> None:
    case = Case(sizes)
    expected = torch.einsum("nji,njid->njd", case.by_child, case.votes())
    given = [tensor.to(dtype) for tensor in (case.poses, case.weight, case.by_child)]
    near(cpu.weighted_sum(*given, case.inner), expected, dtype)


@both_types
@every_size
def test_agreement(sizes: Sizes, dtype: torch.dtype) -> None:
    case = Case(sizes)
    expected = torch.einsum("njd,njid->nji", case.parents, case.votes())
    given = [tensor.to(dtype) for tensor in (case.poses, case.weight, case.parents)]
    near(cpu.agreement(*given, case.inner), expected, dtype)


@both_types
@every_size
def test_contraction(sizes: Sizes, dtype: torch.dtype) -> None:
    """Poses and weight have the gradient of votes that are summed, each times numbers of its child and component."""
    case = Case(sizes)
    poses, weight = case.poses.requires_grad_(), case.weight.requires_grad_()
    products = [
        (case.by_child, case.parents),
        (case.couplings, case.variances),
        (case.by_child.sin(), case.parents.cos()),
    ]
    given = [tensor.detach().to(dtype) for tensor in (poses, weight)]
    for terms in (products[:1], products):
        whole = sum(torch.einsum("nji,njid,njd->", child, case.votes(), component) for child, component in terms)
        expected = torch.autograd.grad(whole, (poses, weight))
        by_child, by_component = ([tensor.to(dtype) for tensor in each] for each in zip(*terms, strict=True))
        near(cpu.contraction(*given, by_child, by_component, case.inner), expected, dtype)


@pytest.mark.parametrize("children", [1, 63, 143, 144, 145, 287, 288, 289, 577])
def test_every_child_is_in_one_block(children: int) -> None:
    case = Case(Sizes(2, 2, children, 1, 3, 2))
    votes = case.votes()
    given = case.poses, case.weight
    exact(cpu.weighted_sum(*given, case.by_child, 3), torch.einsum("nji,njid->njd", case.by_child, votes))
    exact(cpu.agreement(*given, case.parents, 3), torch.einsum("njd,njid->nji", case.parents, votes))
    to_poses, to_weight = cpu.contraction(*given, [case.by_child], [case.parents], 3)
    exact(to_poses, torch.einsum("nji,njc,jqci->nqi", case.by_child, case.parents, case.weight.unflatten(1, (3, 2))))
    by_weight = torch.einsum("nji,njc,nqi->jqci", case.by_child, case.parents, case.poses).flatten(1, 2)
    exact(to_weight, by_weight)


# -------------------------------------------------------------------------------------------------- couplings

CHILD = torch.tensor([[0, 1, 2, 3], [2, 3, 4, 6], [4, 6, 0, 1]])  # nobody sees 5
CHILDREN = 7


def slow_shares(log_couplings: Tensor) -> Tensor:
    """Image by image and child by child."""
    images = log_couplings.unflatten(0, (-1, len(CHILD)))  # [b y j i]
    shares = torch.zeros_like(images)
    for number, image in enumerate(images):
        for child in range(CHILDREN):
            here = (child == CHILD)[:, None].expand_as(image)
            if here.any():
                shares[number][here] = image[here].softmax(0)
    return shares.flatten(0, 1)


@both_types
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
@pytest.mark.parametrize(("images", "parents"), [(1, 1), (3, 5), (0, 2)])
def test_shares(images: int, parents: int, scale: float, dtype: torch.dtype) -> None:
    logs = (scale * draw(images * 3, parents, 4, seed=0)).to(dtype).double()
    near(cpu.shares(logs.to(dtype), CHILD, CHILDREN), slow_shares(logs), dtype)


@both_types
@pytest.mark.parametrize(("images", "parents"), [(1, 1), (3, 5), (0, 2)])
def test_shares_backward(images: int, parents: int, dtype: torch.dtype) -> None:
    logs, gradient = (draw(images * 3, parents, 4, seed=seed) for seed in (0, 1))
    shares = slow_shares(logs.requires_grad_()) + 0 * logs
    (expected,) = torch.autograd.grad(shares, logs, gradient)
    given = shares.detach().to(dtype), gradient.to(dtype)
    near(cpu.shares_backward(*given, CHILD, CHILDREN), expected, dtype)


@both_types
def test_shares_of_extreme_logs_are_finite(dtype: torch.dtype) -> None:
    logs = (1e6 * draw(6, 3, 4, seed=0)).to(dtype)
    shares = cpu.shares(logs, CHILD, CHILDREN)
    near(shares, slow_shares(logs.double()), dtype)
    assert cpu.shares_backward(shares, torch.ones_like(shares), CHILD, CHILDREN).isfinite().all()


# ------------------------------------------------------------------------------------------------ memory order


def spread(tensor: Tensor) -> Tensor:
    """The same numbers with gaps between them."""
    return tensor.repeat_interleave(2, -1)[..., ::2]


def backwards(tensor: Tensor) -> Tensor:
    """The same numbers, the last dimension outermost."""
    order = tuple(range(tensor.ndim))[::-1]
    return tensor.permute(order).contiguous().permute(order)


def contract(poses: Tensor, weight: Tensor, by_child: Tensor, by_component: Tensor, inner: int) -> Any:
    return cpu.contraction(poses, weight, [by_child], [by_component], inner)


def calls(case: Case) -> dict[str, Callable[[Callable[[Tensor], Tensor]], Any]]:
    """Every kernel as a function of what to do with its tensors."""
    given = case.poses, case.weight
    tensors = *given, case.activations, case.couplings, case.parents
    fitted = cpu.fit(*tensors, case.inner, 0.1, 0.1, 0.1, True)
    behind = *tensors, *fitted[:3], *(draw(*each.shape, seed=20 + n) for n, each in enumerate(fitted))
    logs = draw(6, 3, 4, seed=7)
    all_calls: dict[str, tuple[Any, tuple[Tensor, ...], tuple[Any, ...]]] = {
        "fit": (cpu.fit, tensors, (case.inner, 0.1, 0.1, 0.1, True)),
        "fit_backward": (cpu.fit_backward, behind, (case.inner, 0.1, 0.1)),
        "distances": (cpu.distances, (*given, case.parents, case.variances), (case.inner,)),
        "weighted_sum": (cpu.weighted_sum, (*given, case.by_child), (case.inner,)),
        "agreement": (cpu.agreement, (*given, case.parents), (case.inner,)),
        "contraction": (contract, (*given, case.by_child, case.parents), (case.inner,)),
        "shares": (cpu.shares, (logs,), (CHILD, CHILDREN)),
        "shares_backward": (cpu.shares_backward, (logs, logs.sin()), (CHILD, CHILDREN)),
    }
    return {
        name: lambda change, kernel=kernel, tensors=tensors, options=options: kernel(*map(change, tensors), *options)
        for name, (kernel, tensors, options) in all_calls.items()
    }


KERNELS = cpu.__all__


def test_every_kernel_is_called() -> None:
    assert set(calls(Case(SIZES[1]))) == set(KERNELS)


@pytest.mark.parametrize("change", [spread, backwards])
@pytest.mark.parametrize("name", KERNELS)
def test_memory_order_does_not_matter(name: str, change: Callable[[Tensor], Tensor]) -> None:
    call = calls(Case(Sizes(3, 2, 17, 2, 3, 2)))[name]
    exact(call(change), call(torch.clone), rtol=0, atol=1e-12)


# --------------------------------------------------------------------------------------------------- threads


@pytest.fixture(params=["torch's threads", "a pool"])
def many_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Sets the number of threads, of both kinds."""
    if request.param == "a pool":
        monkeypatch.setattr(threads, "torchs_openmp", lambda: None)
    elif threads.torchs_openmp() is None:
        pytest.skip("torch brings no GNU OpenMP here")
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("name", KERNELS)
def test_any_number_of_threads_gives_the_same(name: str, count: int, many_threads: Callable[[int], None]) -> None:
    """Of images or, in dynamic routing, of 900 children, enough for three parts."""
    case = Case(Sizes(5, 2, 900, 1, 2, 3))
    many_threads(1)
    call = calls(case)[name]
    expected = call(torch.clone)
    many_threads(count)
    exact(call(torch.clone), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("least", [1, 3])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 11])
def test_parts_cover_everything_once(count: int, number: int, least: int, many_threads: Callable[[int], None]) -> None:
    many_threads(number)
    seen: list[tuple[int, int, int]] = []
    threads.in_parts(lambda *part: seen.append(part), count, least=least)
    parts = threads.number_of_parts(count, least=least)
    assert parts == max(1, min(number, count // least))
    assert [part for part, _, _ in sorted(seen)] == list(range(parts))
    assert [i for _, first, last in sorted(seen) for i in range(first, last)] == list(range(count))
    assert parts == 1 or min(last - first for _, first, last in seen) >= least


def test_parts_run_at_the_same_time(many_threads: Callable[[int], None]) -> None:
    """Each waits for the others."""
    many_threads(3)
    barrier = threading.Barrier(3)
    identities: set[int] = set()

    def kernel(part: int, first: int, last: int) -> None:
        barrier.wait(timeout=30)
        identities.add(threading.get_ident())

    threads.in_parts(kernel, 3)
    assert len(identities) == 3


class Broken(BaseException):
    """Nothing that a thread would swallow."""


@pytest.mark.parametrize("where", [{0}, {1}, {2}, {0, 1, 2}], ids=str)
@pytest.mark.parametrize("kind", [ValueError, Broken])
def test_errors_reach_who_asked(
    kind: type[BaseException], where: set[int], many_threads: Callable[[int], None]
) -> None:
    many_threads(3)

    def kernel(part: int, first: int, last: int) -> None:
        if part in where:
            raise kind(f"part {first} to {last}")

    with pytest.raises(kind, match=r"part \d to \d"):
        threads.in_parts(kernel, 3)
    done: list[int] = []
    threads.in_parts(lambda part, *_: done.append(part), 3)  # and the next call is none the worse
    assert sorted(done) == [0, 1, 2]


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_can_be_called_from_threads_of_their_caller(name: str) -> None:
    call = calls(Case(SIZES[1]))[name]
    expected, found = call(torch.clone), []
    callers = [threading.Thread(target=lambda: found.append(call(torch.clone))) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert len(found) == 2
    exact(found, [expected, expected], rtol=0, atol=1e-12)


# ---------------------------------------------------------------------------------------------------- memory


def kept(routing: Any, *, conv: bool) -> tuple[list[int], int, int]:
    """Sizes of the tensors that the backward pass keeps, of couplings, and of the poses of all parents."""
    if conv:
        layer: Any = ConvCapsules((5, 5), 8, 4, 24, 4, rows=2, routing=routing)
        batch, child, parent, count = 3, 9 * 8, 24, 25 * 8
        rows = batch * layer.windows.positions
    else:
        batch, child, parent, count = 64, 256, 32, 256
        layer, rows = DenseCapsules(count, 4, parent, 4, routing=routing), batch
    poses, activations = draw(batch, count, 4, seed=0).float(), draw(batch, count, seed=1).sigmoid().float()
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // tensor.element_size()
        held.append(tensor)  # or its address may be another's next
        return tensor

    held: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        parents = layer(poses.requires_grad_(), activations.requires_grad_())
    nodes = [each.grad_fn for each in parents]
    for node in nodes:  # what a function of ours keeps on its own
        for value in vars(node).values() if hasattr(node, "__dict__") else ():
            if isinstance(value, Tensor):
                keep(value)
        nodes += [after for after, _ in node.next_functions if after is not None and after not in nodes]
    return sorted(sizes.values()), rows * child * parent, rows * parent * 4


@pytest.mark.parametrize("options", [{}, {"damping": 0.1}, {"activation": "mixing_proportions"}], ids=str)
@pytest.mark.parametrize("conv", [False, True])
def test_fused_em_keeps_no_couplings(conv: bool, options: dict[str, Any]) -> None:
    """Nothing as large as they are; and an iteration more keeps a few numbers per component of a parent's pose."""
    totals = {}
    for iterations in (2, 3, 6):
        routing = partial(EMRouting, iterations=iterations, backend="fused", **options)
        sizes, couplings, parents = kept(routing, conv=conv)
        assert 0 < sizes[-1] < couplings / 2
        totals[iterations] = sum(sizes)
    assert totals[3] - totals[2] < min(12 * parents, couplings)
    assert totals[6] - totals[3] <= 3 * (totals[3] - totals[2]) + parents


@pytest.mark.parametrize("conv", [False, True])
def test_matmul_keeps_its_votes(conv: bool) -> None:
    """What is measured above would be seen."""
    sizes, couplings, _ = kept(partial(EMRouting, backend="matmul"), conv=conv)
    assert sizes[-1] >= 4 * couplings
