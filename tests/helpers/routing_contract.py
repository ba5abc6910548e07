"""Shared checks of the routing contract: every routing must pass them, and every wrong version must fail one."""

import importlib
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from functools import cache
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
from tests.helpers.closeness import assert_close
from tests.helpers.pairwise import pairwise
from tests.reference.contract import Reference

BATCH, CHILDREN, PARENTS, DIM = 3, 5, 4, 3

Route = Callable[..., Tensor]
"""``route(votes, **options) -> poses``, each followed by its activation if it has one; takes ``on_iteration``."""


def _discovered() -> list[type[AbstractRouting]]:
    """The classes that the files of ``conf/routing`` name."""
    targets = set()
    for file in (conf_dir() / "routing").glob("*.yaml"):
        config = OmegaConf.load(file)
        options = config.get("routing", config) or {}
        if "_target_" in options:
            targets.add(options["_target_"])
    return sorted(map(get_class, targets), key=lambda kind: kind.__name__)


def _references() -> dict[type[AbstractRouting], Reference]:
    references = {}
    for kind in DISCOVERED:
        file = kind.__module__.rpartition(".")[2]
        loops = f"tests.reference.{file}_loops"
        if importlib.util.find_spec(loops):
            references[kind] = importlib.import_module(loops).REFERENCE
    return references


DISCOVERED = _discovered()
REFERENCES = _references()


@cache
def combinations(kind: type[AbstractRouting], backend: str) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments of routings with this backend; over all backends every pair of switch values occurs."""
    reference = REFERENCES[kind]
    given = reference.given()
    switches = {
        "backend": reference.backends,
        "types": (1, CHILDREN),
        **reference.switches,
    }
    rows = pairwise(switches, given.values())
    found = []
    for name, row in zip_longest(given, rows, fillvalue=""):
        if row.pop("backend") == backend:
            found.append((name, row))
    return found


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
    shape = shape or (BATCH, CHILDREN, PARENTS, DIM)
    return torch.randn(*shape, generator=generator, dtype=dtype)


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
    # some initial parameters are random; torch.manual_seed is slow, since it seeds every kind of device
    torch.default_generator.manual_seed(0)
    if types is None:
        exchangeable = kind not in REFERENCES or REFERENCES[kind].exchangeable
        types = 1 if exchangeable else children
    types = min(types, children)
    own = {"dense": "auto", "dense-reference": "reference"}.get(backend, backend)
    module = kind(parents=PARENTS, dim=DIM, backend=own, **options)
    layer = LayerInfo(
        PARENTS,
        DIM,
        children,
        child_dim=PARENTS * DIM,  # as in ``factored``
        shared=types != children,
        child_types=types,
    )
    module.build(layer)
    module.double().eval()  # no statistics over the images of a batch
    module.form = backend
    if parameters == "random":
        generator = torch.Generator().manual_seed(1)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5, generator=generator)
    return module


def factored(votes: Tensor) -> Votes:
    """The same votes as poses and weight: a pose holds all votes of a child, the weight selects those of a parent."""
    _, child, parent, dim = votes.shape
    components = parent * dim
    one_hot = torch.eye(components, dtype=votes.dtype)
    of_a_child = one_hot.view(components, parent, dim)
    weight = of_a_child.expand(child, -1, -1, -1)
    return Votes(votes.flatten(2), weight)


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
        parents = module(in_form(votes, module.form), active, **options)
        return concatenate(*parents)

    return route


def reference_of(module: AbstractRouting) -> Callable[[Tensor], Tensor]:
    loops = REFERENCES[type(module)].loops

    def reference(votes: Tensor) -> Tensor:
        parents = loops(votes, child_activations(votes), module)
        return concatenate(*parents)

    return reference


def learned(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def check_tensors_are_registered(module: AbstractRouting) -> None:
    """Initially every parameter is learned, and every other tensor is a buffer; there may be none of either."""
    assert all(parameter.requires_grad for parameter in module.parameters())
    attributes = {**vars(module), **module.options}
    plain = [name for name, value in attributes.items() if isinstance(value, Tensor)]
    assert not plain, (
        f"{type(module).__name__} has tensors as plain attributes: {', '.join(plain)}; expected nn.Parameter, which is "
        "learned, or register_buffer: both are saved and follow the module to a device"
    )


def check_equals(route: Route, reference: Callable[[Tensor], Tensor], *shape: int) -> None:
    votes = random_votes(*shape)
    assert_close(route(votes), reference(votes), atol=1e-10)


def check_gradient(route: Route, parameters: Iterable[Tensor] = ()) -> None:
    votes = random_votes(1, 3, PARENTS, DIM).requires_grad_()

    def parents(votes: Tensor, *_: Tensor) -> Tensor:
        return route(votes)

    inputs = (votes, *parameters)
    assert gradcheck(parents, inputs, fast_mode=True, raise_exception=False)


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
        assert_close(mass, torch.ones_like(mass) + added)
    if not normalised:
        torch.testing.assert_close(traces[-1].poses, poses[..., :DIM])


def check_callback_changes_nothing(route: Route) -> None:
    votes = random_votes()
    observed = route(votes, on_iteration=lambda _: None)
    assert_close(observed, route(votes))


def check_repeatable(route: Route) -> None:
    first = route(random_votes())
    second = route(random_votes())
    assert torch.equal(first, second)


def check_order_of_children_does_not_matter(route: Route) -> None:
    votes = random_votes()
    reordered = votes[:, [3, 0, 4, 1, 2]]
    assert_close(route(reordered), route(votes))


def check_parents_are_permuted_as_their_votes(route: Route) -> None:
    """Holds only for parents with equal parameters, such as the initial ones."""
    order = [2, 0, 3, 1]
    votes = random_votes()
    found = route(votes[:, :, order])
    expected = route(votes)[:, order]
    assert_close(found, expected)


def check_images_are_independent(route: Route) -> None:
    votes = random_votes()
    one_by_one = [route(image) for image in votes.split(1)]
    assert_close(torch.cat(one_by_one), route(votes))


def check_absent_child_changes_nothing(module: nn.Module) -> None:
    """Routing with the last child inactive equals routing without it, unless children have their own parameters."""
    for parameter in module.parameters():
        if CHILDREN in parameter.shape:
            return
    votes = random_votes()
    active = child_activations(votes)
    active[:, -1] = 0
    route = route_of(module, active)
    route_without = route_of(module, active[:, :-1])
    assert_close(route(votes), route_without(votes[:, :-1]))


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
    weights = torch.linspace(1, 2, parents[0].numel()).view(parents.shape[1:])
    weighted = (parents * weights).sum()
    gradients = torch.autograd.grad(weighted, inputs, allow_unused=True)
    unused = []
    for number, gradient in enumerate(gradients):
        if gradient is None or (gradient == 0).any():
            unused.append(number)
    assert not unused, f"no gradient reaches input {unused} of {len(inputs)}; 0 are the votes"
