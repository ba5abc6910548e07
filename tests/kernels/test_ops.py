"""Fused kernels as operators: torch's own checks, and networks that are compiled or exported through them."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.library import opcheck

from capsule_lab.kernels import ops
from capsule_lab.layers import ClassCapsules, ConvCapsules, DenseCapsules
from capsule_lab.routing import DynamicRouting, EMRouting, UniformRouting
from tests.helpers.closeness import assert_close
from tests.helpers.compile import without_shape_checks
from tests.helpers.kernels import backwards, draw, weighted_total
from tests.helpers.tiers import whole_but

ROW, PARENT, CHILD, ROWS, INNER, COLUMNS = 4, 3, 5, 2, 2, 3


POSES = draw(ROW, ROWS * INNER, CHILD, seed=0)
WEIGHT = draw(PARENT, INNER * COLUMNS, CHILD, seed=1)
ACTIVATIONS = draw(ROW, CHILD, seed=2).sigmoid()
COUPLINGS = draw(ROW, PARENT, CHILD, seed=3).softmax(1)
PARENTS = draw(ROW, PARENT, ROWS * COLUMNS, seed=4)
VARIANCES = PARENTS.square() + 0.1
MASS = draw(ROW, PARENT, seed=5).square() + 1
CHILD_AT = torch.tensor([[0, 1, 2, 3, 4], [3, 4, 5, 6, 0]])
EM = POSES, WEIGHT, ACTIVATIONS, COUPLINGS, PARENTS
FITTED = MASS, PARENTS, VARIANCES
NOTHING = COUPLINGS[..., :0]

CALLS: dict[str, tuple[Any, ...]] = {
    "fit": (*EM, INNER, 0.1, 5e-4, 1e-7, True),
    "fit, no distances": (*EM, INNER, 0.0, 5e-4, 1e-7, False),
    "fit_backward": (*EM, *FITTED, *FITTED, COUPLINGS, INNER, 0.1, 5e-4),
    "fit_backward, not measured": (*EM, *FITTED, *FITTED, NOTHING, INNER, 0.1, 5e-4),
    "distances": (POSES, WEIGHT, PARENTS, VARIANCES, INNER),
    "weighted_sum": (POSES, WEIGHT, COUPLINGS, INNER),
    "agreement": (POSES, WEIGHT, PARENTS, INNER),
    "contraction": (POSES, WEIGHT, [COUPLINGS, COUPLINGS], [PARENTS, VARIANCES], INNER),
    "softmax_by_child": (COUPLINGS, CHILD_AT, 7),
    "softmax_by_child_backward": (COUPLINGS, COUPLINGS.square(), CHILD_AT, 7),
    "e_step_by_child": (MASS, COUPLINGS, CHILD_AT, 7),
    "e_step_by_child_backward": (COUPLINGS, COUPLINGS.square(), CHILD_AT, 7),
}
WITH_GRADIENT = {"fit", "weighted_sum", "agreement", "softmax_by_child"}


def operator_of(call: str) -> str:
    return call.split(",")[0]


def test_every_operator_is_checked() -> None:
    operators = set()
    for name, value in vars(ops).items():
        if isinstance(value, torch.library.CustomOpDef):
            operators.add(name)
    called = {operator_of(call) for call in CALLS}
    assert called == operators


# torch's own check reads it
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("call", whole_but(CALLS, "weighted_sum"))
def test_operator_is_what_torch_expects(call: str) -> None:
    """Schema, gradient, results without numbers, and compilation, for arguments in any memory order."""
    name = operator_of(call)
    operator = getattr(torch.ops.capsule_lab, name).default

    def prepared(value: Any, change: Any) -> Any:
        if isinstance(value, list):
            return [prepared(each, change) for each in value]
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return change(value.detach()).requires_grad_(name in WITH_GRADIENT)

    for change in (torch.clone, backwards):
        opcheck(operator, prepared(list(CALLS[call]), change))


@pytest.mark.parametrize(
    "shape", [(3, PARENT, CHILD), (ROW, PARENT, CHILD - 1), (ROW, CHILD)], ids=str
)
def test_log_couplings_of_another_layer_are_refused(shape: tuple[int, ...]) -> None:
    """A kernel would read beyond the end of an array."""
    wrong = draw(*shape, seed=3)
    message = r"log-couplings are .*; expected \(row, parent, 5\) and a multiple of 2 rows"
    with pytest.raises(ValueError, match=message):
        ops.softmax_by_child(wrong, CHILD_AT, 7)
    with pytest.raises(ValueError, match=message):
        ops.e_step_by_child(MASS, wrong, CHILD_AT, 7)


def conv(backend: str, **options: Any) -> nn.Module:
    routing = partial(EMRouting, backend=backend, **options)
    sizes: Any = {"rows": 2, "stride": 2, "weight_std": 0.8}
    return ConvCapsules((4, 6), 2, 4, 3, 4, routing=routing, **sizes)


def classes(backend: str) -> nn.Module:
    options: Any = {
        "rows": 2,
        "weight_std": 0.8,
        "routing": partial(EMRouting, backend=backend, damping=0.1),
        "coordinates": draw(6, 4, seed=9),
    }
    return ClassCapsules(6, 2, 4, 3, 4, **options)


def dense(kind: Any, backend: str) -> nn.Module:
    routing = partial(kind, backend=backend)
    return DenseCapsules(12, 4, 3, 5, weight_std=0.8, routing=routing)


LAYERS: dict[str, Any] = {
    "convolution": conv,
    "convolution, legacy": partial(conv, normalisation="official_legacy", initial="types"),
    "convolution, mixing": partial(conv, activation="mixing_proportions"),
    "classes": classes,
    "dense": partial(dense, DynamicRouting),
    "dense, uniform": partial(dense, UniformRouting),
}
USED = {"dense": {"weighted_sum", "agreement"}, "dense, uniform": {"weighted_sum"}}


def layer_and_children(name: str, backend: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    layer = LAYERS[name](backend).double()
    count = 48 if name.startswith("convolution") else 12
    poses = draw(2, count, 4, seed=0)
    activations = draw(2, count, seed=1).sigmoid()
    return layer, (poses, activations)


def values_and_gradients(
    function: Any, layer: nn.Module, below: tuple[Tensor, Tensor]
) -> list[Tensor]:
    inputs = [tensor.clone().requires_grad_() for tensor in below]
    parents = function(*inputs)
    totals = [weighted_total(each) for each in parents]
    learned = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(
        sum(totals),
        [*inputs, *learned],
        allow_unused=True,
        materialize_grads=True,
    )
    return [*parents, *gradients]


SLOW = [("convolution, legacy", "fused"), ("convolution, mixing", "fused"), ("convolution", "auto")]
"""They differ from others in options that compiling does not see; on a CPU, ``auto`` is ``fused``."""
COMPILED: list[Any] = [(name, "fused") for name in LAYERS if (name, "fused") not in SLOW]
COMPILED += [("dense", "matmul"), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]


@pytest.mark.whole
@pytest.mark.parametrize(("name", "backend"), COMPILED)
def test_layer_is_the_same_when_compiled_and_exported(
    name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph of torch's operators and ours, in which votes are materialised by ``matmul`` only."""
    layer, below = layer_and_children(name, backend)
    expected = values_and_gradients(layer, layer, below)
    without_shape_checks(monkeypatch)
    # "aot_eager" traces the backward pass, too, and needs no compiler
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    found = values_and_gradients(compiled, layer, below)
    assert_close(found, expected)
    used = set() if backend == "matmul" else USED.get(name, {"fit"})
    for strict in (False, True) if name == "convolution" else (False,):
        program = torch.export.export(layer, below, strict=strict)
        values = [*program.module()(*below)]
        assert_close(values, expected[: len(values)])
        assert operators_of_ours(program) == used


def operators_of_ours(program: torch.export.ExportedProgram) -> set[str]:
    found = set()
    for node in program.graph.nodes:
        namespace, _, operator = str(node.target).partition(".")
        if "capsule_lab" in namespace:
            found.add(operator.split(".")[0])
    return found
