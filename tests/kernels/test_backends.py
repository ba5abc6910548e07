"""Backends are the same numbers in other time and memory; and which one answers."""

import ast
import itertools
import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
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
    em_evidence,
    variational_bayes_routing,
)
from capsule_lab.routing.em import make_em_step
from capsule_lab.types import RoutingTrace, Votes
from tests.helpers.commands import ROOT
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
    activations = draw(batch, child, seed=2).sigmoid()
    return Votes(poses, weight), activations


def build(routing: str, backend: Any, sizes: Sizes = SIZES[0]) -> AbstractRouting:
    """A float64 routing in which no two parents are alike."""
    dim = sizes.rows * sizes.columns
    module = ROUTINGS[routing](parents=sizes.parent, dim=dim, backend=backend)
    module.double()
    for seed, parameter in enumerate(module.parameters()):
        parameter.data += 0.1 * draw(*parameter.shape, seed=10 + seed)
    return module


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()


def everything(
    module: AbstractRouting,
    votes: Votes,
    activations: Tensor,
    *,
    differentiated: int = 3,
    **options: Any,
) -> list[Tensor]:
    """Poses, activations, logits; and of so many of these the gradients of poses, weight, activations, parameters."""
    poses = leaf(votes.poses)
    weight = leaf(votes.weight)
    activations = leaf(activations)
    parents = module(Votes(poses, weight), activations, **options)
    totals = [weighted_total(each) for each in parents[:differentiated]]
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(
        sum(totals),
        [poses, weight, activations, *learned],
        allow_unused=True,
        materialize_grads=True,
    )
    return [*parents, *gradients]


@every_routing
@every_size
def test_values_and_gradients_are_the_references(sizes: Sizes, routing: str) -> None:
    expected = everything(build(routing, "reference", sizes), *given(sizes))
    for backend in ("matmul", "fused"):
        found = everything(build(routing, backend, sizes), *given(sizes))
        exact(found, expected)


@every_routing
def test_float32_is_near(routing: str) -> None:
    """Relative to the largest number. Exponents of EM's distances amplify rounding, in gradients most."""
    of_values = 2e-5 if routing.startswith("em") else 1e-6
    of_gradients = 10 * of_values
    for sizes, backend in product(SIZES[:2], BACKENDS):
        votes, activations = given(sizes)
        reference = build(routing, "reference", sizes)
        expected = everything(reference, votes, activations, differentiated=2)
        single = build(routing, backend, sizes).float()
        rounded = votes.map(Tensor.float), activations.float()
        found = everything(single, *rounded, differentiated=2)
        bounds = itertools.chain([of_values] * 3, itertools.repeat(of_gradients))
        for one, other, bound in zip(found, expected, bounds, strict=False):
            assert one.dtype == torch.float32
            largest = max(other.abs().max(), 1e-3)
            difference = (one - other).abs().max()
            assert difference <= bound * largest, (backend, sizes)


@both_fast
@every_routing
def test_extremes_are_the_references(routing: str, backend: str) -> None:
    """Activations of 0 or 1, votes of 0 and of 1e4; gradients where they are no rounded differences of 1e16."""
    module = build(routing, backend)
    reference = build(routing, "reference")
    for scale, activation in ((0.0, 1.0), (1e-4, 0.0), (1e4, 0.0), (1e4, 1.0)):
        votes, activations = given()
        votes = Votes(scale * votes.poses, votes.weight)
        activations = torch.full_like(activations, activation)
        found = everything(module, votes, activations)
        expected = everything(reference, votes, activations)
        for tensor in found:
            assert tensor.isfinite().all()
        compared = slice(None if scale < 1 else 2)
        torch.testing.assert_close(found[compared], expected[compared], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("routing", ["em", "dynamic"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_order_of_poses_weight_and_activations(backend: str, routing: str) -> None:
    module = build(routing, backend)
    for which, change in product(range(3), (backwards, with_gaps, first_row_expanded)):
        votes, activations = given()
        tensors = [votes.poses, votes.weight, activations]
        tensors[which] = change(tensors[which]).contiguous()
        found = []
        for laid_out in (change, Tensor.contiguous):
            changed = leaf(tensors[which])
            inputs = [*tensors]
            inputs[which] = laid_out(changed)
            poses, weight, activations = inputs
            parents = module(Votes(poses, weight), activations)
            whole = parents.poses.sin().sum() + parents.activations.sum()
            (gradient,) = torch.autograd.grad(
                whole, changed, allow_unused=True, materialize_grads=True
            )
            # an expanded leaf has it all in its first row
            found.append((*parents, gradient.sum(0)))
        exact(*found)


def first_row_expanded(tensor: Tensor) -> Tensor:
    return tensor[:1].expand_as(tensor)


class Transposed(Normaliser):
    """Couplings as a view of memory in another order, as a softmax over the last dimension leaves them."""

    def __call__(self, log_couplings: Tensor) -> Tensor:
        by_child = log_couplings.transpose(1, 2).contiguous()
        return by_child.softmax(2).transpose(1, 2)


class Constant(Normaliser):
    """The same couplings whatever the log-couplings, with no gradient to them."""

    def __call__(self, log_couplings: Tensor) -> Tensor:
        return torch.full_like(log_couplings, 0.25)


class Returning(Normaliser):
    """These couplings whatever the log-couplings."""

    def __init__(self, couplings: Tensor) -> None:
        super().__init__()
        self.couplings = couplings

    def __call__(self, log_couplings: Tensor) -> Tensor:
        return self.couplings


class Masked(Normaliser):
    """A softmax of log-couplings and this mask, such as one for each image."""

    def __init__(self, mask: Tensor, rows: int = 1) -> None:
        super().__init__()
        self.mask = mask
        self.rows_per_image = rows

    def __call__(self, log_couplings: Tensor) -> Tensor:
        return (log_couplings + self.mask).softmax(1)


class Scaled(Normaliser):
    """A softmax at a temperature that is learned."""

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.scale = scale

    def __call__(self, log_couplings: Tensor) -> Tensor:
        return (log_couplings * self.scale).softmax(1)


NOT_LEAKY = [name for name in ROUTINGS if "leaky" not in name]


@pytest.mark.parametrize("routing", NOT_LEAKY)
def test_couplings_in_any_memory_order_and_constant(routing: str) -> None:
    fused = build(routing, "fused")
    transposed = everything(fused, *given(), normalise=Transposed())
    exact(transposed, everything(fused, *given()))

    def with_constant(module: AbstractRouting) -> list[Tensor]:
        return everything(module, *given(), normalise=Constant())

    expected = with_constant(build(routing, "reference"))
    exact(with_constant(build(routing, "matmul")), expected)
    exact(with_constant(fused), expected)


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
    votes, activations = given()
    for poses, weight in pairs:
        wrong_votes = Votes(draw(*poses, seed=0), draw(*weight, seed=1))
        with pytest.raises((ValueError, RuntimeError)):
            module(wrong_votes, activations)
    if routing != "em":
        return
    shapes = [(2, 16), (2, 18), (3, 17)]
    if backend == "fused":
        shapes.append((1, 17))  # other backends take it for every image's
    for shape in shapes:
        wrong_activations = draw(*shape, seed=2).sigmoid()
        with pytest.raises((ValueError, RuntimeError)):
            module(votes, wrong_activations)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("couplings", "message"),
    [
        (draw(1, 3, 17, seed=3), r"couplings are \(1, 3, 17\) .*; expected \(2, 3, 17\)"),
        (draw(3, 3, 17, seed=3), r"couplings are \(3, 3, 17\) "),
        (draw(2, 5, 17, seed=3), r"couplings are \(2, 5, 17\) "),
        (draw(2, 3, 16, seed=3), r"couplings are \(2, 3, 16\) "),
        (draw(2, 3, seed=3), r"couplings are \(2, 3\) "),
        (draw(2, 3, 17, seed=3).float(), "of torch.float32; expected .* of torch.float64"),
    ],
    ids=["one row", "three rows", "five parents", "16 children", "no children", "float32"],
)
def test_couplings_of_another_shape_or_type_are_refused(couplings: Tensor, message: str) -> None:
    """A kernel would read beyond the end of an array, or compile for types that it does not know."""
    votes, activations = given()
    normalise = Returning(couplings)
    with pytest.raises(ValueError, match=message):
        uniform_routing(votes, normalise=normalise, backend="fused")
    with pytest.raises(ValueError, match=message):
        FusedVotes(votes).weighted_sum(couplings)
    if couplings.shape == (1, 3, 17):
        return  # the couplings of one image are those of all
    with pytest.raises(ValueError, match=r"couplings .*; expected"):
        build("em", "fused")(votes, activations, normalise=normalise)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    "poses",
    [draw(3, 3, 16, seed=4), draw(2, 5, 16, seed=4), draw(2, 3, 15, seed=4), draw(2, 3, 16, seed=4).float()],
    ids=["three rows", "five parents", "15 components", "float32"],
)  # fmt: skip
def test_poses_of_another_shape_or_type_are_refused(poses: Tensor) -> None:
    votes, _ = given()
    with pytest.raises(ValueError, match=r"parents are .*; expected \(2, 3, 16\) of torch.float64"):
        FusedVotes(votes).agreement(poses)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("iterations", [1, 3])
def test_mask_of_every_image_needs_all_rows(
    iterations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EM computes the first couplings once for all images, and ``matmul`` routes images one after the other."""
    votes, activations = given()
    mask = draw(2, 3, 17, seed=6)
    monkeypatch.setattr(run_routing, "VOTES_IN_CACHE", 1)

    def routed(backend: Any, rows: int) -> Any:
        betas = mask.new_zeros(3)
        normalise = Masked(mask, rows)
        options: Any = {"iterations": iterations, "normalise": normalise, "backend": backend}
        return em_routing(votes, activations, betas, betas, **options)

    expected = routed("reference", 1)
    for backend in ("matmul", "fused"):
        exact(routed(backend, 2), expected)
    with pytest.raises(ValueError, match="rows_per_image"):
        routed("fused", 1)
    with pytest.raises(ValueError, match=r"returned 2 rows for 1 rows .*rows_per_image"):
        uniform_routing(votes, normalise=Masked(mask), backend="matmul")


def test_rows_that_are_no_whole_images_are_refused() -> None:
    votes, activations = given(SIZES[0]._replace(batch=6))
    with pytest.raises(ValueError, match=r"couplings are \(4, 3, 17\) .*; expected \(6, 3, 17\)"):
        build("em", "fused")(votes, activations, normalise=SeveralRows())


@pytest.mark.parametrize("initial", ["parents", "types"])
def test_gradient_of_a_tensor_in_a_normaliser(initial: Any) -> None:
    """Also where the first iteration does not depend on it, and for the poses beside it."""
    found = {}
    for backend in BACKENDS:
        poses, weight, activations = leaves()
        scale = leaf(torch.tensor(0.5, dtype=torch.float64))
        betas = weight.new_zeros(3)
        options: Any = {"initial": initial, "normalise": Scaled(scale), "backend": backend}
        parents = em_routing(Votes(poses, weight), activations, betas, betas, **options)
        total = parents.poses.sin().sum()
        found[backend] = torch.autograd.grad(total, (scale, poses, weight, activations))
    assert found["reference"][0].abs() > 0.1
    exact(found["matmul"], found["reference"])
    exact(found["fused"], found["reference"])


def test_gradient_of_the_temperature_of_normalised_em() -> None:
    found = {}
    for backend in BACKENDS:
        poses, weight, activations = leaves()
        temperature = leaf(torch.tensor(2.0, dtype=torch.float64))
        of_parents, evidence = em_evidence(
            Votes(poses, weight), activations, temperature=temperature, backend=backend
        )
        total = of_parents.sin().sum() + evidence.sum()
        found[backend] = torch.autograd.grad(total, (temperature, poses))
    assert found["reference"][0].abs() > 0.1
    exact(found["matmul"], found["reference"])
    exact(found["fused"], found["reference"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("poses", "weight", "parents"),
    [
        ((2, 0, 4), (0, 4, 3, 4), (2, 3, 4)),
        ((2, 5, 4), (5, 4, 0, 4), (2, 0, 4)),
        ((2, 5, 4), (5, 4, 3, 0), (2, 3, 0)),
    ],
    ids=["no children", "no parents", "no components"],
)
def test_votes_without_numbers(
    backend: Any, poses: tuple[int, ...], weight: tuple[int, ...], parents: tuple[int, ...]
) -> None:
    votes = Votes(torch.zeros(poses), torch.zeros(weight))
    found = uniform_routing(votes, backend=backend).poses
    assert found.shape == parents
    assert not found.any()


@pytest.mark.usefixtures("unchecked_types")
def test_weight_without_rows_is_refused() -> None:
    votes = Votes(torch.zeros(2, 17, 16), torch.zeros(17, 0, 3, 4))
    for backend in BACKENDS:
        with pytest.raises(ValueError, match="where inner is 1 or more"):
            uniform_routing(votes, backend=backend)
    with pytest.raises(ValueError, match="where inner is 1 or more"):
        FusedVotes(votes)
    with pytest.raises(ValueError, match="weights 0 rows"):
        dense_votes(*votes[:2])


@pytest.mark.parametrize("backend", BACKENDS)
@three_routings
def test_no_images(routing: str, backend: str) -> None:
    sizes = SIZES[0]._replace(batch=0)
    module = build(routing, backend, sizes)
    poses, activations, *gradients = everything(module, *given(sizes))
    assert poses.shape == (0, 3, 16)
    assert activations.shape == (0, 3)
    for gradient in gradients:
        assert not gradient.any()


# ------------------------------------------------------------------------------------- backward passes of all kinds


def scalar(module: AbstractRouting, poses: Tensor, weight: Tensor, activations: Tensor) -> Tensor:
    parents = module(Votes(poses, weight), activations)
    return parents.poses.sin().sum() + parents.activations.sum()


def leaves() -> list[Tensor]:
    votes, activations = given()
    return [leaf(votes.poses), leaf(votes.weight), leaf(activations)]


@both_fast
@pytest.mark.parametrize("routing", ["em", "dynamic", "dynamic, last", "uniform"])
def test_gradients_of_any_inputs_any_number_of_times(routing: str, backend: str) -> None:
    """Of one input, whether the others ask for none or are not asked about; after a pass for others; twice."""
    module = build(routing, backend)
    inputs = leaves()
    whole = scalar(module, *inputs)
    gradients = partial(torch.autograd.grad, whole, retain_graph=True, allow_unused=True)
    gradients(list(module.parameters()))
    once = gradients(inputs[:2])
    twice = gradients(inputs[:2])
    exact(twice, once)
    for which in (0, 1):
        alone = torch.autograd.grad(scalar(module, *inputs), inputs[which])
        exact(alone, (once[which],))
    module.requires_grad_(requires_grad=False)
    for which in (0, 1):
        only = [each.detach() for each in inputs]
        only[which] = inputs[which]
        alone = torch.autograd.grad(scalar(module, *only), inputs[which])
        exact(alone, (once[which],))


@both_fast
def test_a_backward_pass_that_an_exception_ends_does_not_change_the_next(backend: str) -> None:
    """The exception occurs when some sums have received their gradients and others have not."""
    interrupted = False

    def interrupt(_: Tensor) -> None:
        if interrupted:
            raise InterruptedError

    def watch(trace: RoutingTrace) -> None:
        if trace.iteration == 1:
            trace.poses.register_hook(interrupt)

    votes, _ = given()
    inputs = leaf(votes.poses), leaf(votes.weight)
    parents = dynamic_routing(Votes(*inputs), on_iteration=watch, backend=backend)
    gradients = partial(torch.autograd.grad, parents.poses.sin().sum(), inputs, retain_graph=True)
    expected = gradients()
    interrupted = True
    with pytest.raises(InterruptedError):
        gradients()
    interrupted = False
    exact(gradients(), expected)


@three_routings
def test_several_routings_in_one_graph_and_checkpointing(routing: str) -> None:
    """Of the same poses and weight, as in a network that shares them."""
    inputs = leaves()
    poses, weight, activations = inputs
    found = []
    for backend in BACKENDS:
        module = build(routing, backend)
        one = scalar(module, poses, weight, activations)
        other = scalar(module, 2 * poses, weight, activations)
        found.append(torch.autograd.grad(one * other, (poses, weight)))
    of_reference, of_matmul, of_fused = found
    exact(of_matmul, of_reference)
    exact(of_fused, of_reference)
    function = partial(scalar, build(routing, "fused"))
    expected = torch.autograd.grad(function(*inputs), (poses, weight))
    recomputed = torch.utils.checkpoint.checkpoint(function, *inputs, use_reentrant=False)
    exact(torch.autograd.grad(recomputed, (poses, weight)), expected)


@three_routings
def test_fused_kernels_have_no_second_derivative(routing: str) -> None:
    """Better none than a wrong one."""
    poses, weight, activations = leaves()
    whole = scalar(build(routing, "fused"), poses, weight, activations)
    of_poses, of_weight = torch.autograd.grad(whole, (poses, weight), create_graph=True)
    squares = of_poses.square().sum() + of_weight.square().sum()
    with pytest.raises(RuntimeError):
        torch.autograd.grad(squares, (poses, weight))


# ------------------------------------------------------------------------------------- what routing asks of votes


@every_size
def test_every_backend_has_the_same_sums(sizes: Sizes) -> None:
    votes, _ = given(sizes)
    dense = dense_votes(*votes[:2])
    plain = PlainVotes(dense)
    dim = sizes.rows * sizes.columns
    assert plain.shape == (sizes.batch, sizes.child, sizes.parent, dim)
    weights = draw(sizes.batch, sizes.parent, sizes.child, seed=3)
    poses = draw(sizes.batch, sizes.parent, dim, seed=4)
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
    expected = gradients_through(PlainVotes(dense_votes(poses, weight)))
    exact(found, expected)


def test_a_procedure_may_mix_steps_of_em_with_sums() -> None:
    """Gradients of poses and weight are then those of both, whichever backward pass computed them."""

    def procedure(votes: AbstractVotes, activations: Tensor) -> Tensor:
        step = make_em_step(votes, activations, damping=0.1, min_variance=0.1, mass_eps=1e-7)
        _, parents = step(None, Normaliser(), last=True)
        agreement = votes.agreement(parents.poses)
        return parents.variances.sum() + votes.weighted_sum(agreement).sin().sum()

    inputs = leaves()
    poses, weight, activations = inputs
    fused = FusedVotes(Votes(poses, weight))
    found = torch.autograd.grad(procedure(fused, activations), inputs)
    matmul = MatmulVotes(dense_votes(poses, weight))
    expected = torch.autograd.grad(procedure(matmul, activations), inputs)
    exact(found, expected)


class WithStep(PlainVotes):
    """Votes of no known class that declare a fused step."""

    def em_step(self, activations: Tensor, *before: Any, **options: Any) -> Any:
        return activations, before, options


def test_em_routing_runs_the_step_that_votes_declare() -> None:
    votes, activations = given()
    dense = dense_votes(*votes[:2])
    step = make_em_step(WithStep(dense), activations, damping=0.1)
    options = {"damping": 0.1, "couplings_with_gradient": False, "last": True}
    assert step(None, last=True) == (activations, (None,), options)
    for kind in (PlainVotes, MatmulVotes):
        assert kind(dense).em_step is None


CLASSES_OF_VOTES = {"FusedVotes", "MatmulVotes", "PlainVotes"}
"""The classes behind ``AbstractVotes``, which no routing names."""


def knowledge_of_backends(source: str) -> list[str]:
    """What a module knows of backends: classes of votes, and its own choice of ``backend``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name | ast.Attribute | ast.alias):
            found += CLASSES_OF_VOTES & {*ast.unparse(node).replace(".", " ").split()}
        if isinstance(node, ast.Name) and node.id == "backend" and isinstance(node.ctx, ast.Store):
            found.append("backend = …")
        if isinstance(node, ast.Compare) and "backend" in ast.unparse(node):
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize(
    "file", sorted((ROOT / "capsule_lab" / "routing").glob("*.py")), ids=lambda file: file.stem
)
def test_routing_does_not_know_its_backend(file: Path) -> None:
    """Votes declare what they can do, such as ``em_step``; a routing declares that it has no fused form."""
    assert knowledge_of_backends(file.read_text()) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from capsule_lab.kernels.fused import FusedVotes", ["FusedVotes"]),
        ("isinstance(votes, fused.FusedVotes)", ["FusedVotes"]),
        ("backend = 'matmul'", ["backend = …"]),
        ("fused = backend != 'reference'", ["backend != 'reference'"]),
        ("self.backend = check_backend(backend)", []),
        ("route(votes, backend, fused=prior is None)", []),
    ],
)
def test_knowledge_of_backends_would_be_found(source: str, expected: list[str]) -> None:
    assert knowledge_of_backends(source) == expected


# ------------------------------------------------------------------------------------------- choice of a backend


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[AbstractVotes]:
    """What a routing was given."""
    found: list[AbstractVotes] = []

    def build_and_keep(kind: type[AbstractVotes], votes: Any) -> AbstractVotes:
        built = kind(votes)
        found.append(built)
        return built

    for kind in (PlainVotes, MatmulVotes, FusedVotes):
        monkeypatch.setattr(run_routing, kind.__name__, partial(build_and_keep, kind))
    return found


class SeveralRows(Normaliser):
    rows_per_image = 4


BYTES_PER_ROW = 17 * 3 * 16 * 8


@pytest.mark.parametrize(
    ("normalise", "images_in_cache", "rows", "expected"),
    [
        (Normaliser(), 0, 5, [1] * 5),
        (Normaliser(), 1, 5, [1] * 5),
        (Normaliser(), 2, 5, [2, 2, 1]),
        (Normaliser(), 2.9, 5, [2, 2, 1]),
        (Normaliser(), 5, 5, [5]),
        (Normaliser(), 2, 0, [0]),
        (SeveralRows(), 0, 12, [4, 4, 4]),
        (SeveralRows(), 2, 12, [8, 4]),
        (SeveralRows(), 2, 4, [4]),
    ],
)
def test_rows_of_a_call(
    normalise: Normaliser,
    images_in_cache: float,
    rows: int,
    expected: list[int],
    seen: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many whole images as the cache holds; all rows where every iteration is watched."""
    votes, _ = given(SIZES[0]._replace(batch=rows))
    bytes_in_cache = images_in_cache * normalise.rows_per_image * BYTES_PER_ROW
    monkeypatch.setattr(run_routing, "VOTES_IN_CACHE", int(bytes_in_cache))
    route = partial(uniform_routing, votes, normalise=normalise)
    found = route(backend="matmul")
    calls = [each.votes for each in seen]
    assert [len(call) for call in calls] == expected
    exact(torch.cat(calls), dense_votes(*votes[:2]))
    exact(found, route(backend="reference"))
    seen.clear()
    watched = route(backend="matmul", on_iteration=lambda _: None)
    exact(watched, found)
    assert [len(each.votes) for each in seen] == [rows]


def test_activations_of_a_call_are_those_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    votes, activations = given(SIZES[0]._replace(batch=5))
    monkeypatch.setattr(run_routing, "VOTES_IN_CACHE", 2 * BYTES_PER_ROW)
    found = build("em", "matmul")(votes, activations)
    exact(found, build("em", "reference")(votes, activations))


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
    dense = dense_votes(*votes[:2])
    cases: list[tuple[Any, Any, type[AbstractVotes]]] = [
        (dense, "auto", MatmulVotes),
        (dense, "matmul", MatmulVotes),
        (dense, "reference", PlainVotes),
        (votes, "auto", FusedVotes),
        (votes, "matmul", MatmulVotes),
        (votes, "reference", PlainVotes),
        (votes, "fused", FusedVotes),
    ]
    for argument, backend, kind in [*cases, *cases]:
        uniform_routing(argument, backend=backend)
        assert type(seen[-1]) is kind
    assert caplog.messages == ["routing backend on cpu: fused"]


@pytest.mark.usefixtures("without_numba")
def test_without_numba(seen: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """Any routing multiplies matrices, and says so once; ``fused`` is refused with the reason."""
    caplog.set_level(logging.INFO, "capsule_lab")
    for routing in ROUTINGS:
        found = everything(build(routing, "auto"), *given())
        assert type(seen[-1]) is MatmulVotes
        expected = everything(build(routing, "reference"), *given())
        exact(found, expected)
    assert caplog.messages == [
        "routing backend on cpu: matmul (no fused kernels: No module named 'numba')"
    ]
    votes, _ = given()
    message = (
        "^routing backend is 'fused', which does not run here: No module named 'numba'; "
        "expected auto or matmul$"
    )
    with pytest.raises(ValueError, match=message):
        uniform_routing(votes, backend="fused")


def without_a_fused_form(votes: Votes | Tensor, activations: Tensor, backend: Any) -> None:
    def procedure(votes: AbstractVotes, _: Tensor) -> tuple[Tensor]:
        return (votes.dense(),)

    run_routing.route(procedure, votes, activations, None, None, backend, fused=False)


def variational_bayes(votes: Votes | Tensor, activations: Tensor, backend: Any) -> None:
    variational_bayes_routing(votes, activations, backend=backend)


def em_with_a_prior(votes: Votes | Tensor, activations: Tensor, backend: Any) -> None:
    prior = torch.zeros(3, 17, dtype=torch.float64)
    em_evidence(votes, activations, prior=prior, backend=backend)


not_fused = pytest.mark.parametrize(
    "route", [without_a_fused_form, variational_bayes, em_with_a_prior]
)


def check_votes_are_stored(route: Callable[..., None], seen: list[Any]) -> None:
    votes, activations = given()
    dense = dense_votes(*votes[:2])
    for argument, backend in product((votes, dense), ("auto", "fused", "matmul", "reference")):
        route(argument, activations, backend)
        expected = PlainVotes if backend == "reference" else MatmulVotes
        assert type(seen[-1]) is expected, backend


@not_fused
@pytest.mark.usefixtures("cleared_caches")
def test_routing_without_a_fused_form_takes_every_backend_and_stores_votes(
    route: Callable[..., None], seen: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """``fused`` is then ``matmul``; no kernel is loaded, and nothing is logged."""
    caplog.set_level(logging.INFO, "capsule_lab")
    check_votes_are_stored(route, seen)
    assert caplog.messages == []
    assert backends._imported.cache_info().currsize == 0


@not_fused
@pytest.mark.usefixtures("unchecked_types")  # in training nothing else checks
def test_routing_without_a_fused_form_refuses_an_unknown_backend(
    route: Callable[..., None],
) -> None:
    with pytest.raises(ValueError, match="routing backend is 'mathmul'"):
        route(*given(), "mathmul")


@not_fused
@pytest.mark.usefixtures("without_numba")
def test_routing_without_a_fused_form_does_not_need_numba(
    route: Callable[..., None], seen: list[Any]
) -> None:
    check_votes_are_stored(route, seen)


def test_votes_that_cannot_be_fused() -> None:
    votes = given()[0].map(lambda tensor: tensor.to("meta"))
    message = "does not run here: there are none for meta; expected auto or matmul"
    with pytest.raises(ValueError, match=message):
        backends.select_backend("fused", votes)
    assert backends.select_backend("auto", votes) == "matmul"
    dense = dense_votes(*given()[0][:2])
    message = r"'fused' but votes are a tensor; expected Votes\(poses, weight\)$"
    with pytest.raises(ValueError, match=message):
        uniform_routing(dense, backend="fused")


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
    several = [torch.stack([each, 0.5 * each]) for each in inputs]

    def forward_gradient(function: Any) -> Tensor:
        return torch.func.jvp(function, inputs, inputs)[1]

    def of_several(function: Any) -> Tensor:
        return torch.func.vmap(function)(*several)

    def of_several_with_one_weight(function: Any) -> Tensor:
        each = torch.func.vmap(function, in_dims=(None, 0, 0))
        return each(votes.weight, *several[1:])

    def gradient(function: Any) -> Tensor:
        def squares(*given: Tensor) -> Tensor:
            return function(*given).square().sum()

        return torch.func.grad(squares)(*inputs)

    message = r"is 'fused', which does not run here: torch\.func transforms what it"
    for transformed in (forward_gradient, of_several, of_several_with_one_weight, gradient):
        found = transformed(partial(routed_by, routing, "auto"))
        expected = transformed(partial(routed_by, routing, "matmul"))
        exact(found, expected)
        with pytest.raises(ConfigError, match=message):
            transformed(partial(routed_by, routing, "fused"))
    assert backends.select_backend("auto", votes) == "fused"
