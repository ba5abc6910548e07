"""Training steps that torch compiles: nothing else is changed."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import open_dict

from capsule_lab.errors import ConfigError
from capsule_lab.lit import AbstractClassifierModule, ClassifierModule
from capsule_lab.lit.training_network import TrainingNetwork
from capsule_lab.losses import cross_entropy_loss, margin_loss
from capsule_lab.networks import AbstractNetwork, SmallCNN
from capsule_lab.runs.directories import config_hash
from capsule_lab.types import Batch
from tests.helpers.commands import Tiny
from tests.helpers.compile import without_shape_checks
from tests.helpers.modules import RATE, batch, capsnet, loader, trainer
from tests.helpers.networks import small_em_caps

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


def cnn() -> AbstractClassifierModule:
    """With dropout and batch normalisation."""
    torch.manual_seed(0)
    network = SmallCNN((1, 9, 9), 3, channels=(4,), kernel_sizes=(3,), dropout=0.5)
    return of(network, cross_entropy_loss, l2=0.01)


def of(
    network: AbstractNetwork, loss: Callable[..., Any], **options: Any
) -> AbstractClassifierModule:
    options |= {"optimizer": torch.optim.Adam, "schedule": RATE, "num_classes": 3}
    return ClassifierModule(network, loss=loss, **options)


def em_caps() -> AbstractClassifierModule:
    torch.manual_seed(0)
    return of(small_em_caps((1, 15, 15), 3, conv_types=(2,), conv_strides=(2,)), margin_loss)


def compiled_by_torch(lit: AbstractClassifierModule, compile: Any) -> AbstractClassifierModule:
    lit.training_network = TrainingNetwork(lit.network, compile=compile)
    return lit


def batches(size: int) -> list[Batch]:
    """Three that differ."""
    given = batch(size=size)
    return [given._replace(images=given.images.roll(shift, 0)) for shift in range(3)]


def fit(lit: AbstractClassifierModule, given: list[Batch], **options: Any) -> None:
    """An epoch of these batches, validated on 4 images."""
    size = given[0].images.shape[2]
    trainer(**options).fit(lit, loader(*given), loader(batch(4, size=size)))


@pytest.mark.parametrize(
    ("compile", "of_trainer", "message"),
    [
        (
            "max-autotune",
            {"accumulate_grad_batches": 3},
            "is 3 with module.compile=max-autotune, whose",
        ),
        (True, {"accumulate_grad_batches": 3, "world_size": 2}, None),
        ("reduce-overhead", {}, None),
    ],
)
def test_trainers_that_cannot_have_graphs(
    compile: Any, of_trainer: dict[str, Any], message: str | None
) -> None:
    given = SimpleNamespace(**{"world_size": 1, "accumulate_grad_batches": 1, **of_trainer})
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        TrainingNetwork(capsnet().network, compile=compile).check(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("compile", "mode"),
    [
        ("reduce-overhead", "reduce-overhead"),
        (True, None),
        ("max-autotune-no-cudagraphs", "max-autotune-no-cudagraphs"),
    ],
)
def test_only_training_steps_are_compiled(
    compile: Any, mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[tuple[str, str | None]] = []
    calls: list[int] = []

    def fake_compile(call: Callable[..., Any], *, mode: str | None) -> Callable[..., Any]:
        def compiled_call(images: torch.Tensor) -> Any:
            calls.append(len(images))
            return call(images)

        compiled.append((call.__name__, mode))
        return compiled_call

    monkeypatch.setattr(torch, "compile", fake_compile)
    lit = compiled_by_torch(capsnet(), compile)
    names = list(lit.state_dict())
    fit(lit, batches(9))
    assert compiled == [("forward", mode)]
    assert set(calls) == {6}, "validation has 4 images"
    after = lit.state_dict()
    assert {*names} <= {*after}
    for name in after:
        assert "training_network" not in name
        assert "_orig_mod" not in name


@pytest.mark.slow
@pytest.mark.parametrize(("build", "size"), [(cnn, 9), (capsnet, 9), (em_caps, 15)])
def test_compiled_steps_are_one_graph(
    build: Any, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_shape_checks(monkeypatch)
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    as_one_graph = functools.partial(torch.compile, backend=backend, fullgraph=True)
    monkeypatch.setattr(torch, "compile", as_one_graph)
    fit(compiled_by_torch(build(), True), batches(size), max_epochs=2)
    assert len(graphs) == 1


def test_graphs_leave_the_hash_of_a_configuration_alone(tiny: Tiny) -> None:
    """They change no result, and runs from before the option existed can be resumed."""
    config = tiny("module.cuda_graphs=true")
    hashes = [config_hash(config)]
    for option, value in (("cuda_graphs", "auto"), ("cuda_graphs", False), ("compile", True)):
        config.module[option] = value
        hashes.append(config_hash(config))
    config.module.compile = False
    with open_dict(config):
        del config.module.cuda_graphs
    assert hashes[:3] == [config_hash(config)] * 3
    assert hashes[3] != hashes[0]
