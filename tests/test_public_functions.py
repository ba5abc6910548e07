"""No public function of tensors answers a call whose tensors do not belong together.

The walk makes a valid call of each function from its annotations, then changes one tensor at a time: its batch, rank,
sizes, components and type. jaxtyping, which the checks of the package do not use, decides whether the changed call is
still valid; if it is not, the call must raise one sentence that says what arrived and what was expected.
"""

import importlib
import inspect
import itertools
import pkgutil
import re
import types
import typing
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jaxtyping
import pytest
import torch
from torch import Tensor, nn
from torchmetrics import Metric

from capsule_lab import functional, layers, losses, metrics, networks, routing
from capsule_lab.layers.classes import ReceptiveField
from capsule_lab.layers.stem import PaperConvolution
from capsule_lab.networks.base import AbstractImageNetwork, decode_one
from capsule_lab.shapes import check_range
from capsule_lab.types import Votes
from tests.helpers.networks import small_capsnet

SIZES = {
    "batch": 3,
    "child": 5,
    "parent": 4,
    "dim": 6,
    "type": 5,
    "classes": 7,
    "label": 2,
    "predicted": 2,
    "channel": 2,
    "height": 9,
    "width": 8,
    "inner": 2,
    "columns": 3,
    "child_dim": 4,
    "crop": 2,
    "capsule": 5,
    "position": 4,
    "component": 3,
    "parent_dim": 6,
    "window": 8,
    "child_type": 5,
}
"""Sizes of valid calls; no two that meet in one call are equal by chance."""

SIZES_OF = {"ConvStack.forward": {"child": 32, "dim": 4}}
REFUSED = {
    ("losses.spread_loss", "labels"): ("batch label", "batch classes"),
    ("losses.cross_entropy_loss", "labels"): ("batch label",),
    ("losses.logits_cross_entropy_loss", "labels"): ("batch label",),
    ("TransformingAutoencoder.forward", "change"): ("batch 3 3",),
    ("TransformingAutoencoder.changed", "change"): ("batch 3 3",),
    ("PairAutoencoder.forward", "change"): ("batch 3 3",),
}
"""Alternatives of an annotation that a function or object refuses with advice."""

em = partial(routing.EMRouting, iterations=2)
field = ReceptiveField((9, 9), ((3, 1),))
pairs = networks.TransformingAutoencoder(
    (1, 9, 9), capsules=4, recognition=(5,), generation=6, pose="translation"
)
windows = layers.Windows((4, 4), 2, kernel_size=3)
capsnet = small_capsnet((1, 20, 20), 4, decoder=(8,))
classes = layers.CoordinateClassCapsules((2, 2), 3, 4, 5, field=field, routing=em, rows=2)
OBJECTS: list[Any] = [
    layers.DenseCapsules(5, 4, 3, 6, routing=em),
    layers.UntransformedCapsules(4, 3, 6, routing=em),
    layers.ConvCapsules((4, 4), 2, 4, 3, 4, routing=em, rows=2),
    layers.ConvStack((4, 4), 2, 4, routing=em, rows=2, types=[3], strides=[1]),
    layers.ClassCapsules(4, 3, 4, 5, 4, routing=em, rows=2),
    classes,
    layers.Decoder(5, 6, (2, 4, 3), hidden=[7]),
    layers.PrimaryCapsules(2, types=3, dim=4, kernel_size=3),
    layers.DepthwisePrimaryCapsules(4, (6, 5), dim=2),
    layers.LinearPrimaryCapsules(2, types=3, dim=4),
    layers.ComposedPrimaryCapsules(nn.Conv2d(2, 12, 1), nn.Conv2d(2, 3, 1), types=3),
    layers.Stem([[4, 3, 1]], 2, (9, 8)),
    PaperConvolution(4, 2, (9, 8)),
    windows,
    *(layers.build_normaliser(kind, windows) for kind in typing.get_args(routing.Normalisation)),
    metrics.ErrorRate(7),
    metrics.LabelError(),
    metrics.ExactMatchError(),
    metrics.PresentError(7),
    metrics.PresentF1(7),
    metrics.CouplingEntropy(),
    metrics.DeadCapsuleRate(),
    metrics.ActivationStatistics(),
    pairs,
    networks.PairAutoencoder((1, 9, 9), hidden=[5], code=4),
    capsnet,
]
METHODS = (
    "forward",
    "update",
    "__call__",
    "poses",
    "activations",
    "changed",
    "generate",
    "energies",
    "recognise",
)


class Example(NamedTuple):
    """A function and the object that it belongs to, if it is a method."""

    name: str
    function: Callable[..., Any]
    owner: Any = None
    first: tuple[Any, ...] = ()  # arguments that are no tensors


def annotations(example: Example) -> dict[str, list[Any]]:
    """The annotations of the tensor arguments, with the attributes of the object replaced by their values."""
    function = inspect.unwrap(example.function)
    found = {}
    for name, hint in typing.get_type_hints(function).items():
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        refused = REFUSED.get((example.name, name), ())
        kinds: list[Any] = []
        for option in options:
            if hasattr(option, "dim_str") and option.dim_str not in refused:
                kinds.append(concrete(option, example.owner))
        if Votes in options:
            kinds.append(Votes)
        if name != "return" and kinds:
            found[name] = kinds
    return found


def concrete(kind: Any, owner: Any) -> Any:
    dims = kind.dim_str
    if isinstance(owner, AbstractImageNetwork) and dims == "batch channel height width":
        dims = "batch " + " ".join(map(str, owner.image_shape))

    def size(path: re.Match[str]) -> str:
        return str(eval(f"owner.{path[1]}", {"owner": owner}))

    dims = re.sub(r"\{self\.([^}]*)\}", size, dims)
    return kind.dtype[kind.array_type, dims]


def public_functions() -> Iterator[Example]:
    """Every function of ``losses``, ``functional`` and ``routing``, and every method above."""
    modules = [functional, losses]
    for file in pkgutil.iter_modules(routing.__path__):
        modules.append(importlib.import_module(f"capsule_lab.routing.{file.name}"))
    for module in modules:
        for name, value in vars(module).items():
            if home_of(value) == module.__name__ and not name.startswith("_"):
                yield Example(f"{module.__name__.rpartition('.')[2]}.{name}", value)
    decoder = layers.Decoder(5, 6, (1, 4, 3), hidden=[7])
    yield Example("networks.decode_one", decode_one, first=(decoder,))
    for owner in OBJECTS:
        for method in METHODS:
            function = getattr(type(owner), method, None)
            if home_of(function).startswith("capsule_lab"):
                label = getattr(owner, "normalisation", "")
                yield Example(f"{type(owner).__name__}{label}.{method}", function, owner)


def home_of(value: Any) -> str:
    """The module that defines a function; empty for other values."""
    return inspect.unwrap(value).__module__ if inspect.isfunction(value) else ""


INTERNAL = {
    "em.m_step": "a step of em_routing, which checks",
    "em.e_step": "a step of em_routing, which checks",
    "em.make_em_step": "a step of em_routing, which checks",
    "em_costs.activation_logit": "a step of em_routing, which checks",
    "em_costs.activate": "a step of em_routing, which checks",
    "functional.check_label_count": "a check itself",
    "functional.truncated_normal_": "any tensor",
    "batch_norm.batch_norm_of_all_processes": "what BatchNorm computes where a run has several processes",
    "base.prior_of_every_child": "a step of routings, which check",
}
EXAMPLES = [each for each in public_functions() if each.name not in INTERNAL and annotations(each)]
IDS = [each.name for each in EXAMPLES]


def drawn(kind: Any, sizes: dict[str, int]) -> Tensor:
    """A tensor of this annotation."""
    shape = []
    for dim in kind.dim_str.split():
        shape += [2, 6] if dim.startswith("*") else [int(dim) if dim.isdigit() else sizes[dim]]
    generator = torch.Generator().manual_seed(len(shape))
    if "int64" in kind.dtypes:
        return torch.randint(0, 2, shape, generator=generator)
    if "bool" in kind.dtypes:
        return torch.ones(shape, dtype=torch.bool)
    return 0.1 + 0.8 * torch.rand(shape, generator=generator)


def votes_record() -> Votes:
    poses = [SIZES[dim] for dim in ("batch", "child", "child_dim")]
    weight = [SIZES[dim] for dim in ("child", "inner", "parent", "columns")]
    return Votes(torch.rand(poses), torch.rand(weight))


def valid_call(example: Example, choice: int = 0) -> dict[str, Any]:
    """Arguments made from the annotations; ``choice`` selects among alternatives."""
    sizes = SIZES | SIZES_OF.get(example.name, {})
    call: dict[str, Any] = {}
    for name, kinds in annotations(example).items():
        kind = kinds[choice % len(kinds)]
        value = votes_record() if kind is Votes else drawn(kind, sizes)
        if name == "labels" and value.is_floating_point():
            value = value / value.sum(1, keepdim=True)  # cross-entropy takes probabilities
        call[name] = value
    return call


def run(example: Example, call: dict[str, Any]) -> Any:
    if isinstance(example.owner, Metric):
        example.owner.reset()
    bound = example.first if example.owner is None else (example.owner,)
    with torch.no_grad():
        return example.function(*bound, **call)


def is_consistent(example: Example, call: dict[str, Any]) -> bool:
    """Whether jaxtyping accepts the call."""
    with jaxtyping.jaxtyped("context"):
        for name, kinds in annotations(example).items():
            value = call[name]
            if isinstance(value, Votes):
                value = votes_of(value)
                kinds = [jaxtyping.Float[Tensor, "batch child parent dim"]]
            if not any(isinstance(value, kind) for kind in kinds if kind is not Votes):
                return False
    return True


def votes_of(record: Votes) -> Tensor | None:
    """A tensor of the shape of the votes; ``None`` if the tensors of the record do not fit."""
    poses, weight, _ = record
    for tensor, ndim in ((poses, 3), (weight, 4)):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.ndim != ndim:
            return None
    batch, child, child_dim = poses.shape
    children, inner, parent, columns = weight.shape
    if child != children or child_dim % inner:
        return None
    return torch.zeros(batch, child, parent, child_dim // inner * columns)


def batch(value: Tensor) -> Tensor:
    return torch.cat([value, value[:1]]) if value.ndim else value


def half_the_batch(value: Tensor) -> Tensor:
    return value[:1] if value.ndim else value


def components(value: Tensor) -> Tensor:
    return torch.cat([value, value[..., :1]], -1) if value.ndim else value


def one_component(value: Tensor) -> Tensor:
    return value[..., :1] if value.ndim else value


def second(value: Tensor) -> Tensor:
    return torch.cat([value, value[:, :1]], 1) if value.ndim > 1 else value


def another_axis(value: Tensor) -> Tensor:
    return value.unsqueeze(-1)


def leading_axis(value: Tensor) -> Tensor:
    return value.unsqueeze(0)


def axis_missing(value: Tensor) -> Tensor:
    return value[..., 0] if value.ndim else value


def transposed(value: Tensor) -> Tensor:
    return value.transpose(0, -1) if value.ndim > 1 else value


def other_type(value: Tensor) -> Tensor:
    return value.long() if value.is_floating_point() else value.float()


def truth_values(value: Tensor) -> Tensor:
    return value > 0


def short_integers(value: Tensor) -> Tensor:
    return value.to(torch.int32)


def a_list(value: Tensor) -> Any:
    return value.tolist()


CHANGES = [
    batch,
    half_the_batch,
    components,
    one_component,
    second,
    another_axis,
    leading_axis,
    axis_missing,
    transposed,
    other_type,
    truth_values,
    short_integers,
    a_list,
]


def changed_calls(example: Example) -> Iterator[tuple[str, dict[str, Any]]]:
    """Calls with one tensor changed that are no longer valid, for each choice of alternatives."""
    widest = max(len(kinds) for kinds in annotations(example).values())
    for choice, change in itertools.product(range(widest), CHANGES):
        call = valid_call(example, choice)
        for name, value in call.items():
            for place, other in changed_values(value, change):
                changed = {**call, name: other}
                if not is_consistent(example, changed):
                    yield f"{change.__name__} of {name}{place}", changed


def changed_values(value: Any, change: Callable[[Tensor], Any]) -> Iterator[tuple[str, Any]]:
    """A changed tensor, or a record with one of its tensors changed."""
    if not isinstance(value, Votes):
        yield "", change(value)
        return
    yield ".poses", value._replace(poses=change(value.poses))
    yield ".weight", value._replace(weight=change(value.weight))


@pytest.fixture(autouse=True)
def _calls_of_a_user(unchecked_types: None) -> None:
    """Without the type checks of pytest."""


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_a_call_made_from_the_annotations_is_valid(example: Example) -> None:
    """Otherwise the walk would see errors that have other reasons."""
    for choice in range(max(len(kinds) for kinds in annotations(example).values())):
        run(example, valid_call(example, choice))


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_no_number_comes_out_of_tensors_that_do_not_belong_together(example: Example) -> None:
    wrong = {}
    for name, call in changed_calls(example):
        try:
            wrong[name] = run(example, call)
        except (ValueError, TypeError) as error:
            if not OUR_SENTENCE.fullmatch(str(error)):
                wrong[name] = error
    assert not wrong


OUR_SENTENCE = re.compile(
    r"[^\n]*(received|takes|there are|has shape)[^\n]*(expected|use loss=)[^\n]*"
)


def test_the_walk_is_not_empty() -> None:
    assert len(EXAMPLES) >= 60
    assert sum(1 for example in EXAMPLES for _ in changed_calls(example)) >= 1000


scores, labels = torch.rand(4, 10), torch.tensor([3, 5, 7, 9])
one_hot = nn.functional.one_hot(labels, 10)
logits = torch.linspace(-9, 9, 8).expand(2, 8)
votes = torch.randn(2, 8, 3, 16)
betas = torch.zeros(3), torch.zeros(3)
images = torch.rand(4, 1, 20, 20)


@pytest.mark.parametrize(
    ("call", "sentence"),
    {
        "integer rows": (
            lambda: losses.margin_loss(scores, one_hot),
            "rows of 0 and 1 must be floats",
        ),
        "integer rows of logits": (
            lambda: losses.sigmoid_cross_entropy_loss(scores, one_hot),
            "must be floats",
        ),
        "negative classes": (
            lambda: losses.margin_loss(scores, labels - 5),
            "expected classes, 0 to 9",
        ),
        "classes from 1": (
            lambda: losses.spread_loss(scores, labels + 1),
            "expected classes, 0 to 9",
        ),
        "numbers as shares": (
            lambda: losses.margin_loss(scores, 3.0 * one_hot),
            "shares of classes from 0 to 3",
        ),
        "several as probabilities": (
            lambda: losses.cross_entropy_loss(scores, scores),
            "do not sum to 1",
        ),
        "logits as lengths": (
            lambda: losses.margin_loss(20 * scores - 10, labels),
            "not its logits",
        ),
        "logits as activations": (
            lambda: losses.spread_loss(20 * scores - 10, labels),
            "not its logits",
        ),
        "target of 0 to 255": (
            lambda: losses.reconstruction_loss(images, 255 * images),
            "divide by 255",
        ),
        "one tensor as many": (lambda: losses.l2_loss(torch.rand(3, 3)), "expected several"),
        "crops of logits": (
            lambda: functional.combine_crops(torch.randn(2, 3, 5)),
            "or logits=True",
        ),
        "EM of logits": (
            lambda: routing.em_routing(votes, logits, *betas),
            "expected probabilities",
        ),
        "EM of integers": (lambda: routing.em_evidence(votes, logits), "expected probabilities"),
        "Bayes of logits": (
            lambda: routing.variational_bayes_routing(votes, logits),
            "expected probabilities",
        ),
        "negative lengths": (
            lambda: routing.scaled_distance_agreement(votes, logits),
            "expected lengths of poses",
        ),
        "Heinsen of logits": (
            lambda: routing.heinsen_routing(votes, logits, torch.zeros(8, 3), torch.zeros(8, 3)),
            "expected probabilities",
        ),
        "images of 0 to 255": (lambda: capsnet(255 * images), "expected floats in"),
        "images of another type": (
            lambda: capsnet(images.double()),
            "its weights are torch.float32",
        ),
        "a class too many": (
            lambda: capsnet.reconstruct(capsnet(images), torch.tensor([0, 1, 2, 4])),
            "expected class numbers, 0 to 3",
        ),
        "labels that are no classes": (
            lambda: metrics.ErrorRate(10).update(scores, labels + 1),
            "expected classes",
        ),
        "couplings that are logits": (
            lambda: metrics.CouplingEntropy().update(torch.randn(2, 3, 4)),
            "not logits",
        ),
        "another layer": (lambda: two_layers(metrics.DeadCapsuleRate()), "expected one layer"),
        "poses of another precision": (
            lambda: layers.DenseCapsules(8, 16, 3, 4, routing=em)(
                torch.rand(2, 8, 16).double(), torch.rand(2, 8).double()
            ),
            "expected one type",
        ),
    }.values(),
)
def test_tensors_with_another_meaning_are_refused(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(sentence)):
        call()


def two_layers(rate: metrics.DeadCapsuleRate) -> None:
    rate.update(torch.rand(2, 5))
    rate.update(torch.rand(2, 1))


def test_values_are_not_read_where_this_would_wait() -> None:
    """A tensor without values, as on a device that has not finished, is compared by shape alone."""
    without_values = torch.empty(2, 8, device="meta")
    check_range("em_routing", "activations", without_values, 0, 1, "probabilities")
    torch.vmap(lambda row: losses.margin_loss(row[None], labels[:1]))(5 * scores)
