"""Training steps that are compiled or replayed as CUDA graphs: the same numbers, and nothing else is changed."""

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
from tests.helpers.cuda_graphs import FakeGraph as FakeGraphs
from tests.helpers.modules import RATE, batch, capsnet, loader, trainer
from tests.helpers.networks import small_em_caps

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeGraphs:
    return FakeGraphs(monkeypatch)


def cnn() -> AbstractClassifierModule:
    """With dropout and batch normalisation."""
    torch.manual_seed(0)
    network = SmallCNN((1, 9, 9), 3, channels=(4,), kernel_sizes=(3,), dropout=0.5)
    return of(network, cross_entropy_loss, l2=0.01)


def of(network: AbstractNetwork, loss: Callable[..., Any], **options: Any) -> AbstractClassifierModule:
    options |= {"optimizer": torch.optim.Adam, "schedule": RATE, "num_classes": 3}
    return ClassifierModule(network, loss=loss, **options)


def em_caps() -> AbstractClassifierModule:
    torch.manual_seed(0)
    return of(small_em_caps((1, 15, 15), 3, conv_types=(2,), conv_strides=(2,)), margin_loss)


def with_graphs(lit: AbstractClassifierModule, **options: Any) -> AbstractClassifierModule:
    lit.training_network = TrainingNetwork(lit.network, **(options or {"cuda_graphs": True}))
    return lit


def batches(size: int) -> list[Batch]:
    """Three that differ."""
    given = batch(size=size)
    return [given._replace(images=given.images.roll(shift, 0)) for shift in range(3)]


def fit(lit: AbstractClassifierModule, given: list[Batch], **options: Any) -> None:
    """An epoch of these batches, validated on 4 images."""
    trainer(**options).fit(lit, loader(*given), loader(batch(4, size=given[0].images.shape[2])))


@pytest.mark.parametrize(
    ("build", "size", "options"),
    [
        (cnn, 9, {}),
        (cnn, 9, {"precision": "bf16-mixed", "gradient_clip_val": 0.1}),
        (capsnet, 9, {"precision": "bf16-mixed"}),
        (em_caps, 15, {}),
    ],
    ids=["cnn", "cnn bf16 clipped", "capsnet bf16", "em_caps"],
)
def test_weights_are_the_same_to_the_bit(
    build: Callable[[], AbstractClassifierModule], size: int, options: dict[str, Any], fake: FakeGraphs
) -> None:
    """With dropout, statistics of batches, a decoder outside of the graphs, a term on weights, clipped gradients."""
    modules = build(), with_graphs(build())
    for lit in modules:
        fit(lit, batches(size), max_epochs=2, **options)
    plain, graphed = (lit.state_dict() for lit in modules)
    assert list(graphed) == list(plain)
    assert [name for name in plain if not torch.equal(graphed[name], plain[name])] == []
    assert fake.captures == [(6, 1, size, size)]
    assert fake.replays == 6, "validation called the network itself"


@pytest.mark.parametrize(("precision", "cuda_graphs"), [("bf16-mixed", True), ("32-true", True), ("bf16-mixed", False)])
def test_network_computes_in_the_same_precision(precision: str, cuda_graphs: bool, fake: FakeGraphs) -> None:
    seen = set()

    class Watched(SmallCNN):
        def forward(self, images: torch.Tensor) -> Any:
            output = super().forward(images)
            half = self.features(images).dtype == torch.bfloat16
            cached = torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled()
            seen.add((half, cached, output.scores.dtype))
            return output

    network = Watched((1, 9, 9), 3, channels=(4,), kernel_sizes=(3,))
    fit(of(network, cross_entropy_loss, cuda_graphs=cuda_graphs), batches(9), precision=precision)
    assert seen == {(precision == "bf16-mixed", False, torch.float32)}


def test_another_fit_captures_again_where_the_weights_are_then(fake: FakeGraphs) -> None:
    lit = with_graphs(capsnet())
    for _ in range(2):
        fit(lit, batches(9))
        assert lit.training_network._graphs is None, "they would hold memory while testing"
        lit.load_state_dict(lit.double().float().state_dict())  # moved, as between devices
    assert fake.captures == [(6, 1, 9, 9)] * 2


def test_batches_of_another_size_are_refused(fake: FakeGraphs) -> None:
    with pytest.raises(ConfigError, match=r"shape \(4, 1, 9, 9\) after \(6, 1, 9, 9\); expected batches of one size"):
        fit(with_graphs(capsnet()), [*batches(9), batch(4, size=9)])


def test_second_call_before_the_backward_pass_is_refused(fake: FakeGraphs) -> None:
    network = with_graphs(capsnet()).training_network
    with torch.no_grad():
        network(batch(size=9).images)
    for _ in range(2):
        network(batch(size=9).images).scores.sum().backward()
    network(batch(size=9).images)
    with pytest.raises(ConfigError, match="the network is called twice before a backward pass, which would overwrite"):
        network(batch(size=9).images)


def test_network_that_cannot_be_captured_is_named(fake: FakeGraphs, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: operation not permitted\nwhen stream is capturing")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", fail)
    with pytest.raises(ConfigError, match="CapsNet cannot be captured as CUDA graphs: CUDA error: operation not perm"):
        with_graphs(capsnet()).training_network(batch(size=9).images)


@pytest.mark.parametrize(
    ("options", "of_trainer", "message"),
    [
        ({"cuda_graphs": True}, {"world_size": 2}, "but the run has 2 processes; expected one, or module.cuda_graphs="),
        ({"cuda_graphs": True}, {"accumulate_grad_batches": 3}, "batches is 3 with module.cuda_graphs=true, whose"),
        ({"compile": "max-autotune"}, {"accumulate_grad_batches": 3}, "is 3 with module.compile=max-autotune, whose"),
        ({"compile": True}, {"accumulate_grad_batches": 3, "world_size": 2, "device": "cpu"}, None),
        ({"cuda_graphs": True}, {}, None),
    ],
)
def test_trainers_that_cannot_have_graphs(options: Any, of_trainer: dict[str, Any], message: str | None) -> None:
    device = torch.device(of_trainer.pop("device", "cuda"))
    known = {"world_size": 1, "accumulate_grad_batches": 1, "strategy": SimpleNamespace(root_device=device)}
    network, given = TrainingNetwork(capsnet().network, **options), SimpleNamespace(**{**known, **of_trainer})
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        network.check(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({"compile": "reduce-overhead"}, "reduce-overhead"),
        ({"compile": True, "cuda_graphs": True}, None),
        ({"compile": "max-autotune-no-cudagraphs", "cuda_graphs": True}, "max-autotune-no-cudagraphs"),
    ],
)
def test_only_training_steps_are_compiled(
    options: dict[str, Any], mode: str | None, fake: FakeGraphs, monkeypatch: pytest.MonkeyPatch
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
    lit = with_graphs(capsnet(), **options)
    names = list(lit.state_dict())
    fit(lit, batches(9))
    assert compiled == [("forward", mode)]
    assert set(calls) == {6}, "validation has 4 images"
    assert [name for name in names if name not in lit.state_dict()] == []
    assert not [name for name in lit.state_dict() if "training_network" in name or "_orig_mod" in name]


@pytest.mark.slow
@pytest.mark.parametrize(("build", "size"), [(cnn, 9), (capsnet, 9), (em_caps, 15)])
def test_compiled_steps_are_one_graph(build: Any, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    without_shape_checks(monkeypatch)
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend, fullgraph=True))
    fit(with_graphs(build(), compile=True), batches(size), max_epochs=2)
    assert len(graphs) == 1


def test_graphs_leave_the_hash_of_a_configuration_alone(tiny: Tiny) -> None:
    """They change no result, and runs from before the option existed can be resumed."""
    config = tiny("module.cuda_graphs=true")
    hashes = [config_hash(config)]
    for option, value in (("cuda_graphs", False), ("compile", True), ("compile", "max-autotune")):
        config.module[option] = value
        hashes.append(config_hash(config))
    config.module.compile = False
    with open_dict(config):
        del config.module.cuda_graphs
    assert hashes[:2] == [config_hash(config)] * 2
    assert len(set(hashes)) == 3
