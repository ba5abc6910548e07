"""What is asked of every routing, as functions, so that wrong versions are put to the same questions."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError, gradcheck

from capsule_lab.config.compose import conf_dir
from capsule_lab.routing import AbstractRouting, LayerInfo
from capsule_lab.types import RoutingTrace, Votes
from tests.helpers.pairwise import pairwise
from tests.reference.reference import Reference

BATCH, CHILDREN, PARENTS, DIM = 3, 5, 4, 3

Route = Callable[..., Tensor]
"""``route(votes, **options) -> poses``, each followed by its activation if it has one; knows ``on_iteration``."""


def shipped_routings(folder: Path) -> list[type[AbstractRouting]]:
    """The classes that the files of ``conf/routing`` name."""
    found = set()
    for file in sorted(folder.glob("*.yaml")):
        config = OmegaConf.load(file)
        config = config.get("routing", config)
        if config is not None and "_target_" in config:
            module, _, name = config["_target_"].rpartition(".")
            found.add(getattr(importlib.import_module(module), name))
    return sorted(found, key=lambda kind: kind.__name__)


def reference_for(kind: type[AbstractRouting]) -> Reference | None:
    """``REFERENCE`` of ``tests/reference/<module>_loops.py``; ``None`` without one."""
    name = f"tests.reference.{kind.__module__.rpartition('.')[2]}_loops"
    if importlib.util.find_spec(name) is None:
        return None
    return importlib.import_module(name).REFERENCE


DISCOVERED = shipped_routings(conf_dir() / "routing")
REFERENCES = {kind: reference for kind in DISCOVERED if (reference := reference_for(kind)) is not None}


@cache
def combinations(kind: type[AbstractRouting]) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, backend and arguments of a routing, so that every two values of different switches occur together."""
    reference = REFERENCES[kind]
    given = reference.given()
    rows = pairwise({"backend": reference.backends, "types": (1, CHILDREN), **reference.switches}, given.values())
    names = [*given, *([""] * (len(rows) - len(given)))]
    return [(name, row.pop("backend"), row) for name, row in zip(names, rows, strict=True)]


@contextmanager
def noted(text: object) -> Iterable[None]:
    """Errors say with what they came."""
    try:
        yield
    except Exception as error:
        error.add_note(f"with {text}")
        raise


def random_votes(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Votes that agree enough for couplings far from 1/parents."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*(shape or (BATCH, CHILDREN, PARENTS, DIM)), generator=generator, dtype=dtype)


def build(
    kind: type[AbstractRouting],
    *,
    parameters: str = "initial",
    types: int | None = None,
    children: int = CHILDREN,
    **options: Any,
) -> AbstractRouting:
    """A float64 routing; with ``parameters="random"`` no two parents have the same ones.

    Args:
        kind: what to build.
        parameters: ``"initial"`` or ``"random"``.
        types: kinds of children, which have parameters of their own in some routings; those of one kind have no order.
            By default one, where children are exchangeable.
        children: how many there are.
        options: of the routing; a backend that begins with ``dense`` is one of dense votes.
    """
    torch.manual_seed(0)  # of initial parameters that are drawn
    exchangeable = kind not in REFERENCES or REFERENCES[kind].exchangeable
    types = (1 if exchangeable else children) if types is None else min(types, children)
    if "backend" in options:
        options["backend"] = {"dense": "auto", "dense-reference": "reference"}.get(
            options["backend"], options["backend"]
        )
    module = kind(parents=PARENTS, dim=DIM, **options)
    child_dim = PARENTS * DIM  # see ``factored``
    module.build(LayerInfo(PARENTS, DIM, children, child_dim, shared=types != children, child_types=types))
    module.double().eval()  # images of a batch apart from each other
    if parameters == "random":
        generator = torch.Generator().manual_seed(1)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5, generator=generator)
    return module


def factored(votes: Tensor) -> Votes:
    """The same votes as poses and weight: a pose is all votes of a child, the weight picks those of a parent."""
    _, child, parent, dim = votes.shape
    pick = torch.eye(parent * dim, dtype=votes.dtype).view(parent * dim, parent, dim)
    return Votes(votes.flatten(2), pick.expand(child, -1, -1, -1))


def in_form(votes: Tensor, backend: str) -> Tensor | Votes:
    """As a tensor for the backends of dense votes."""
    return votes if backend.startswith("dense") else factored(votes)


def child_activations(votes: Tensor) -> Tensor:
    """Activations of the children, larger for larger mean votes, for the algorithms that use them."""
    return votes.mean((2, 3)).sigmoid()


def concatenate(poses: Tensor, activations: Tensor, _: Tensor | None = None) -> Tensor:
    return torch.cat([poses, activations.unsqueeze(2)], 2)


def route_of(module: nn.Module, activations: Tensor | None = None, *, backend: str = "dense") -> Route:
    """Poses and activations of the parents; those of the children are ``child_activations`` unless they are given."""
    return lambda votes, **options: concatenate(
        *module(in_form(votes, backend), child_activations(votes) if activations is None else activations, **options)
    )


def reference_of(module: AbstractRouting) -> Callable[[Tensor], Tensor]:
    return lambda votes: concatenate(*REFERENCES[type(module)].loops(votes, child_activations(votes), module))


def learned(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def check_equals(route: Route, reference: Callable[[Tensor], Tensor], *shape: int) -> None:
    votes = random_votes(*shape)
    torch.testing.assert_close(route(votes), reference(votes), rtol=0, atol=1e-10)


def check_gradient(route: Route, parameters: Iterable[Tensor] = ()) -> None:
    """``parameters`` are other tensors that the route depends on."""
    votes = random_votes(1, 3, PARENTS, DIM).requires_grad_()
    try:
        gradcheck(lambda votes, *_: route(votes), (votes, *parameters), fast_mode=True)
    except GradcheckError as error:
        raise AssertionError(str(error)) from error


def check_couplings(
    route: Route,
    *,
    leaky: bool = False,
    added: float | Tensor = 0.0,
    normalised: bool = False,
    competing: str = "parents",
) -> None:
    traces: list[RoutingTrace] = []
    poses = route(random_votes(), on_iteration=traces.append)
    assert [trace.iteration for trace in traces] == list(range(len(traces)))
    couplings = torch.stack([trace.couplings for trace in traces])
    assert couplings.shape == (len(traces), BATCH, CHILDREN, PARENTS)
    assert (couplings > 0).all() or added
    mass = couplings.sum(3 if competing == "parents" else 2)
    if leaky:
        assert (mass < 1).all()
    else:
        torch.testing.assert_close(mass, torch.ones_like(mass) + added, rtol=0, atol=1e-12)
    if not normalised:
        torch.testing.assert_close(traces[-1].poses, poses[..., :DIM])


def check_callback_changes_nothing(route: Route) -> None:
    votes = random_votes()
    torch.testing.assert_close(route(votes, on_iteration=lambda _: None), route(votes), rtol=0, atol=1e-12)


def check_repeatable(route: Route) -> None:
    votes = random_votes()
    assert torch.equal(route(votes), route(votes))


def check_order_of_children_does_not_matter(route: Route) -> None:
    votes = random_votes()
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(route(votes[:, order]), route(votes), rtol=0, atol=1e-12)


def check_parents_are_permuted_as_their_votes(route: Route) -> None:
    """Only for parents with the same parameters, as at the start."""
    votes = random_votes()
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(route(votes[:, :, order]), route(votes)[:, order], rtol=0, atol=1e-12)


def check_images_are_independent(route: Route) -> None:
    votes = random_votes()
    alone = torch.cat([route(image) for image in votes.split(1)])
    torch.testing.assert_close(alone, route(votes), rtol=0, atol=1e-12)


def check_absent_child_changes_nothing(module: nn.Module, backend: str) -> None:
    """The last one, of those of one kind: beside it there are as many as before without it."""
    votes, others = random_votes(), random_votes()[:, :-1]
    if all(CHILDREN not in parameter.shape for parameter in module.parameters()):
        active = child_activations(votes)
        active[:, -1] = 0
        found = concatenate(*module(in_form(votes, backend), active))
        expected = concatenate(*module(in_form(others, backend), active[:, :-1]))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def check_finite(route: Route, scale: float) -> None:
    votes = (scale * random_votes(dtype=torch.float32)).requires_grad_()
    poses = route(votes)
    poses.square().sum().backward()
    assert votes.grad is not None
    assert poses.isfinite().all()
    assert votes.grad.isfinite().all()


def check_every_parameter_has_a_gradient(route: Route, parameters: Iterable[Tensor]) -> None:
    votes = random_votes().requires_grad_()
    inputs = [votes, *parameters]
    parents = route(votes)
    weighted = (parents * torch.linspace(1, 2, parents[0].numel()).view(parents.shape[1:])).sum()
    gradients = torch.autograd.grad(weighted, inputs, allow_unused=True)
    unused = [i for i, gradient in enumerate(gradients) if gradient is None or not (gradient != 0).all()]
    assert not unused, f"no gradient reaches input {unused} of {len(inputs)}; 0 are the votes"
