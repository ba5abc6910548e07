"""Shared checks of the routing contract: every routing must pass them, and every wrong version must fail one."""

import importlib
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from functools import cache, partial
from itertools import zip_longest
from typing import Any

import torch
from hydra.utils import get_class
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.autograd import gradcheck

from capsule_lab.config.folders import conf_dir
from capsule_lab.routing import AbstractRouting, LayerInfo
from capsule_lab.types import RoutingTrace, Votes
from tests.helpers.pairwise import pairwise
from tests.reference.contract import Reference

BATCH, CHILDREN, PARENTS, DIM = 3, 5, 4, 3

close = partial(torch.testing.assert_close, rtol=0, atol=1e-12)

Route = Callable[..., Tensor]
"""``route(votes, **options) -> poses``, each followed by its activation if it has one; takes ``on_iteration``."""


CONFIGS = [OmegaConf.load(file) for file in (conf_dir() / "routing").glob("*.yaml")]
TARGETS = {(each.get("routing", each) or {}).get("_target_") for each in CONFIGS} - {None}
DISCOVERED: list[type[AbstractRouting]] = sorted(
    map(get_class, TARGETS), key=lambda kind: kind.__name__
)
"""The classes that the files of ``conf/routing`` name."""

LOOPS = {kind: f"tests.reference.{kind.__module__.rpartition('.')[2]}_loops" for kind in DISCOVERED}
REFERENCES: dict[type[AbstractRouting], Reference] = {
    kind: importlib.import_module(name).REFERENCE
    for kind, name in LOOPS.items()
    if importlib.util.find_spec(name)
}


@cache
def combinations(kind: type[AbstractRouting], backend: str) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments of routings with this backend; over all backends every pair of switch values occurs."""
    reference, given = REFERENCES[kind], REFERENCES[kind].given()
    rows = pairwise(
        {"backend": reference.backends, "types": (1, CHILDREN), **reference.switches},
        given.values(),
    )
    return [
        (name, row)
        for name, row in zip_longest(given, rows, fillvalue="")
        if row.pop("backend") == backend
    ]


@contextmanager
def case_in_errors(case: object) -> Iterable[None]:
    """Add the case to the notes of an error that is raised in the block."""
    try:
        yield
    except Exception as error:
        error.add_note(f"with {case}")
        raise


def random_votes(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Votes that agree enough for couplings far from 1/parents."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(
        *(shape or (BATCH, CHILDREN, PARENTS, DIM)), generator=generator, dtype=dtype
    )


def build(
    kind: type[AbstractRouting],
    *,
    backend: str = "auto",
    parameters: str = "initial",
    types: int | None = None,
    children: int = CHILDREN,
    **options: Any,
) -> AbstractRouting:
    """A float64 routing in evaluation mode; ``parameters="random"`` gives every parent different parameters.

    ``types`` is the number of child types, which have their own parameters in some routings. By default it is 1 where
    children are exchangeable. ``route_of`` gives dense votes to a backend whose name begins with ``dense``.
    """
    torch.manual_seed(0)  # some initial parameters are random
    exchangeable = kind not in REFERENCES or REFERENCES[kind].exchangeable
    types = (1 if exchangeable else children) if types is None else min(types, children)
    own = {"dense": "auto", "dense-reference": "reference"}.get(backend, backend)
    module = kind(parents=PARENTS, dim=DIM, backend=own, **options)
    sizes = PARENTS, DIM, children, PARENTS * DIM  # poses of children as in ``factored``
    module.build(LayerInfo(*sizes, shared=types != children, child_types=types))
    module.double().eval()  # no statistics over the images of a batch
    module.form = backend
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters() if parameters == "random" else ():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return module


def factored(votes: Tensor) -> Votes:
    """The same votes as poses and weight: a pose holds all votes of a child, the weight selects those of a parent."""
    _, child, parent, dim = votes.shape
    pick = torch.eye(parent * dim, dtype=votes.dtype).view(parent * dim, parent, dim)
    return Votes(votes.flatten(2), pick.expand(child, -1, -1, -1))


def in_form(votes: Tensor, backend: str) -> Tensor | Votes:
    return votes if backend.startswith("dense") else factored(votes)


def child_activations(votes: Tensor) -> Tensor:
    return votes.mean((2, 3)).sigmoid()


def concatenate(poses: Tensor, activations: Tensor, _: Tensor | None = None) -> Tensor:
    return torch.cat([poses, activations.unsqueeze(2)], 2)


def route_of(module: nn.Module, activations: Tensor | None = None) -> Route:
    """A function from votes to poses and activations of the parents; children get ``child_activations`` by default."""

    def route(votes: Tensor, **options: Any) -> Tensor:
        active = child_activations(votes) if activations is None else activations
        return concatenate(*module(in_form(votes, module.form), active, **options))

    return route


def reference_of(module: AbstractRouting) -> Callable[[Tensor], Tensor]:
    return lambda votes: concatenate(
        *REFERENCES[type(module)].loops(votes, child_activations(votes), module)
    )


def learned(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def check_equals(route: Route, reference: Callable[[Tensor], Tensor], *shape: int) -> None:
    votes = random_votes(*shape)
    torch.testing.assert_close(route(votes), reference(votes), rtol=0, atol=1e-10)


def check_gradient(route: Route, parameters: Iterable[Tensor] = ()) -> None:
    votes = random_votes(1, 3, PARENTS, DIM).requires_grad_()
    options = {"fast_mode": True, "raise_exception": False}
    assert gradcheck(lambda votes, *_: route(votes), (votes, *parameters), **options)


def check_couplings(
    route: Route,
    *,
    leaky: bool = False,
    added: Any = 0.0,
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
        close(mass, torch.ones_like(mass) + added)
    if not normalised:
        torch.testing.assert_close(traces[-1].poses, poses[..., :DIM])


def check_callback_changes_nothing(route: Route) -> None:
    close(route(random_votes(), on_iteration=lambda _: None), route(random_votes()))


def check_repeatable(route: Route) -> None:
    assert torch.equal(route(random_votes()), route(random_votes()))


def check_order_of_children_does_not_matter(route: Route) -> None:
    close(route(random_votes()[:, [3, 0, 4, 1, 2]]), route(random_votes()))


def check_parents_are_permuted_as_their_votes(route: Route) -> None:
    """Holds only for parents with equal parameters, such as the initial ones."""
    close(route(random_votes()[:, :, [2, 0, 3, 1]]), route(random_votes())[:, [2, 0, 3, 1]])


def check_images_are_independent(route: Route) -> None:
    close(torch.cat([route(image) for image in random_votes().split(1)]), route(random_votes()))


def check_absent_child_changes_nothing(module: nn.Module) -> None:
    """Routing with the last child inactive equals routing without it, unless children have their own parameters."""
    if all(CHILDREN not in parameter.shape for parameter in module.parameters()):
        active = child_activations(random_votes())
        active[:, -1] = 0
        parents = route_of(module, active)(random_votes())
        close(parents, route_of(module, active[:, :-1])(random_votes()[:, :-1]))


def check_finite(route: Route, scale: float) -> None:
    votes = (scale * random_votes(dtype=torch.float32)).requires_grad_()
    poses = route(votes)
    poses.square().sum().backward()
    assert poses.isfinite().all()
    assert votes.grad.isfinite().all()


def check_every_parameter_has_a_gradient(route: Route, parameters: Iterable[Tensor]) -> None:
    votes = random_votes().requires_grad_()
    inputs = [votes, *parameters]
    parents = route(votes)
    weighted = (parents * torch.linspace(1, 2, parents[0].numel()).view(parents.shape[1:])).sum()
    gradients = torch.autograd.grad(weighted, inputs, allow_unused=True)
    unused = [
        i for i, gradient in enumerate(gradients) if gradient is None or not (gradient != 0).all()
    ]
    assert not unused, f"no gradient reaches input {unused} of {len(inputs)}; 0 are the votes"
