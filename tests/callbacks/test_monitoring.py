"""What RoutingStats says of the capsules of a network, in a run and on its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from omegaconf import DictConfig
from torch import Tensor, nn

from capsule_lab.callbacks import NonFiniteError, NonFiniteGuard, RoutingStats, monitoring
from capsule_lab.callbacks.host_copy import HostCopy
from capsule_lab.callbacks.monitoring import layer_statistics
from capsule_lab.config.build import build_data
from capsule_lab.errors import InterruptError
from capsule_lab.networks import AbstractCapsuleNetwork, BaselineCNN, CapsNet, EMCaps
from capsule_lab.train import train
from capsule_lab.types import Batch, CapsuleOutput, Capsules, OnIteration, RoutingTrace
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, Trained, python
from tests.helpers.training import SignalAt, curves, run, trained_module

Tiny = Callable[..., DictConfig]
TINY_EM_CAPS = [
    "model=em_caps_paper", "model.channels=4", "model.primary_types=3", "model.conv_types=[3,2]", "routing.iterations=2"
]  # fmt: skip
LAYERS = {
    "capsnet": (TINY_CAPSNET, ["primary", "digits"]),
    "em_caps": (TINY_EM_CAPS, ["primary", "conv_capsules_1", "conv_capsules_2", "classes"]),
}
NETWORKS: dict[str, Callable[[], AbstractCapsuleNetwork]] = {
    "capsnet": lambda: CapsNet((1, 17, 17), 3, channels=4, primary_types=2, class_dim=4, decoder=(5,)),
    "em_caps": lambda: EMCaps((1, 17, 17), 3, channels=4, primary_types=3, conv_types=(3, 2)),
}


STATISTICS = ("activation", "dead", "coupling")


def quantities(layers: list[str]) -> set[str]:
    """Names of what is logged of a network with these layers."""
    of_layers = {f"val/{what}_{layer}" for layer in layers for what in ("activation", "activation_std", "dead")}
    return of_layers | {"val/coupling_entropy", "val/dead_capsules"}


# --- RoutingStats in a run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYERS)
def test_statistics_of_a_run_are_those_of_its_first_validation_images(tiny: Tiny, tmp_path: Path, name: str) -> None:
    model, layers = LAYERS[name]
    few = ["trainer.max_epochs=1", "data.eval_batch_size=20", "+callbacks.routing_stats.images=7", "train.test=none"]
    config = tiny("trainer.precision=32-true", *few, *NO_PICTURES, model=model)
    train(config, tmp_path / "run")
    (row,) = [row for row in curves(tmp_path / "run") if row["val/error"]]
    logged = {key for key in row if key.startswith("val/") and any(word in key for word in STATISTICS)}
    assert logged == quantities(layers)
    assert float(row["val/activation_primary"]) > 0

    module = trained_module(tmp_path / "run" / "checkpoints" / "last.ckpt")
    data = build_data(config)
    data.setup("fit")
    batch = next(iter(data.val_dataloader()))
    images = data.on_after_batch_transfer(batch, 0).images[:7]
    with torch.no_grad():
        expected = layer_statistics(module.network, images)
    found = {f"val/{key}": float(row[f"val/{key}"]) for key in expected}
    expected = {f"val/{key}": value.item() for key, value in expected.items()}
    assert expected.keys() == logged - {"val/dead_capsules"}
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


class Compiled:
    """Stands in for what ``torch.compile`` makes of a network: hooks that are there when it is called are an error."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.calls = 0
        network._compiled_call_impl = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        assert hooks(self.network) == 0, "compiled again for every validation"
        self.calls += 1
        return self.network._call_impl(*args, **kwargs)


def hooks(network: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in network.modules())


# --- RoutingStats on its own -----------------------------------------------------------------------------------------


class Layer(nn.Module):
    """A layer of capsules with given activations."""

    def __init__(self, activations: Tensor) -> None:
        super().__init__()
        self.activations = activations

    def forward(self, images: Tensor) -> Capsules:
        activations = self.activations[: len(images)]
        return Capsules(activations.unsqueeze(2), activations)


class Fake(AbstractCapsuleNetwork):
    """Two layers of known activations, and a routing of known couplings after one of no interest."""

    def __init__(self, *, reports: bool = True) -> None:
        super().__init__()
        self.reports = reports
        self.low = Layer(torch.tensor([[0.0, 0.5, 1.0, 0.5], [0.001, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]))
        self.high = Layer(torch.tensor([[0.2, 0.005], [0.4, 0.009], [0.9, 0.9]]))

    def capsule_layers(self) -> dict[str, nn.Module]:
        return {"low": self.low, "high": self.high}

    def forward(self, images: Tensor, *, on_iteration: OnIteration | None = None) -> CapsuleOutput:
        self.low(images)
        classes = self.high(images)
        if on_iteration is not None and self.reports:
            uniform, decided = torch.full((len(images), 4, 2), 0.5), torch.eye(2)[[0, 1, 1, 0]]
            on_iteration(RoutingTrace(0, uniform, classes.poses))
            half = torch.stack([uniform[0]] + [decided] * (len(images) - 1))
            on_iteration(RoutingTrace(1, half, classes.poses))
        return CapsuleOutput(classes.activations, classes)


EXPECTED = {
    "coupling_entropy": 0.5,  # one of two images undecided
    "activation_low": 2.001 / 8,
    "activation_std_low": 0.353465,
    "dead_low": 25.0,
    "activation_high": 0.1535,
    "activation_std_high": 0.162678,
    "dead_high": 50.0,
}


def test_statistics_of_known_activations() -> None:
    found = layer_statistics(Fake(), torch.zeros(2, 1, 1, 1))
    assert {name: value.item() for name, value in found.items()} == pytest.approx(EXPECTED, abs=1e-5)


class Lit(SimpleNamespace):
    """As much of a LightningModule as the callback sees."""

    device = torch.device("cpu")

    def log(self, name: str, value: Tensor, **options: Any) -> None:
        self.logged.append((name, float(value)))


def validate(callback: RoutingStats, lit: Lit, sizes: list[int], processes: int = 1) -> None:
    trainer: Any = SimpleNamespace(world_size=processes, is_global_zero=True)
    for number, images in enumerate(sizes):
        pictures = torch.zeros(images, 1, 1, 1)
        batch = Batch(pictures, torch.zeros(images, dtype=torch.int64), torch.arange(images))
        callback.on_validation_batch_end(trainer, lit, {"output": lit.network(pictures)}, batch, number)
    callback.on_validation_epoch_end(trainer, lit)


@pytest.mark.parametrize(("images", "processes"), [(2, 1), (4, 2), (5, 2)])
@pytest.mark.parametrize("sizes", [[2, 3], [3, 1]], ids=str)
def test_first_images_of_the_first_batch_count_and_all_of_them_for_the_classes(
    images: int, processes: int, sizes: list[int]
) -> None:
    lit = Lit(network=Fake(), logged=[])
    validate(RoutingStats(images=images), lit, sizes, processes)
    found = dict(lit.logged)
    assert found == pytest.approx({**{f"val/{k}": v for k, v in EXPECTED.items()}, "val/dead_capsules": 0.0}, abs=1e-5)
    assert len(lit.logged) == len(found)


@pytest.mark.parametrize("processes", [1, 2, 64])
def test_every_process_looks_at_an_image_at_least(processes: int) -> None:
    lit = Lit(network=Fake(), logged=[])
    validate(RoutingStats(images=1), lit, [3], processes)
    assert dict(lit.logged)["val/activation_high"] == pytest.approx(0.1025)


def test_each_validation_counts_dead_capsules_anew() -> None:
    lit, callback = Lit(network=Fake(), logged=[]), RoutingStats(images=1)
    validate(callback, lit, [3])
    validate(callback, lit, [2])
    assert [value for name, value in lit.logged if name == "val/dead_capsules"] == [0.0, 50.0]
    assert [name for name, _ in lit.logged].count("val/activation_low") == 2


@pytest.mark.parametrize("loader", [1, 2])
def test_only_the_first_of_several_sets_counts(loader: int) -> None:
    lit: Any = Lit(network=Fake(), logged=[])
    trainer: Any = SimpleNamespace(world_size=1)
    callback = RoutingStats(images=1)
    images = torch.zeros(2, 1, 1, 1)
    batch = Batch(images, torch.zeros(2, dtype=torch.int64), torch.arange(2))
    callback.on_validation_batch_end(trainer, lit, {"output": lit.network(images)}, batch, 0, loader)
    callback.on_validation_epoch_end(trainer, lit)
    assert lit.logged == []


def test_network_without_capsules_logs_nothing() -> None:
    lit = Lit(network=BaselineCNN((1, 4, 4), 3, channels=(2,), kernel_size=3, hidden=(4,), dropout=0.0), logged=[])
    trainer: Any = SimpleNamespace(world_size=1)
    callback, images = RoutingStats(), torch.zeros(2, 1, 4, 4)
    batch = Batch(images, torch.zeros(2, dtype=torch.int64), torch.arange(2))
    callback.on_validation_batch_end(trainer, lit, {"output": lit.network(images)}, batch, 0)
    callback.on_validation_epoch_end(trainer, lit)
    assert lit.logged == []


def test_routing_that_reports_no_iterations_has_the_other_statistics(caplog: pytest.LogCaptureFixture) -> None:
    lit, callback = Lit(network=Fake(reports=False), logged=[]), RoutingStats(images=2)
    for _ in range(2):
        validate(callback, lit, [2])
    expected = {f"val/{name}": value for name, value in EXPECTED.items() if name != "coupling_entropy"}
    assert {name: value for name, value in lit.logged if name != "val/dead_capsules"} == pytest.approx(
        expected, abs=1e-5
    )
    assert [record.getMessage() for record in caplog.records] == [
        "val/coupling_entropy is not logged: the routing of the class capsules does not call on_iteration"
    ]


@pytest.mark.parametrize("images", [0, -1])
def test_no_images_are_refused(images: int) -> None:
    with pytest.raises(ValueError, match=rf"RoutingStats\.images is {images}; expected 1 or more"):
        RoutingStats(images=images)


@pytest.mark.parametrize("name", NETWORKS)
def test_no_hook_stays_behind(name: str) -> None:
    network = NETWORKS[name]()
    layer_statistics(network, torch.rand(2, 1, 17, 17))
    assert hooks(network) == 0


def test_no_hook_stays_behind_after_an_error() -> None:
    network = NETWORKS["em_caps"]()
    with pytest.raises(ValueError, match="images of shape"):
        layer_statistics(network, torch.rand(2, 3, 17, 17))
    assert hooks(network) == 0


@pytest.mark.parametrize("name", NETWORKS)
def test_statistics_leave_a_compiled_network_alone(name: str) -> None:
    network, images = NETWORKS[name](), torch.rand(2, 1, 17, 17)
    expected = layer_statistics(network, images)
    compiled = Compiled(network)
    torch.testing.assert_close(layer_statistics(network, images), expected)
    assert compiled.calls == 0


# --- NonFiniteGuard --------------------------------------------------------------------------------------------------


def guarded(callback: NonFiniteGuard, first: int, steps: int, device: str = "cpu") -> int:
    """The step after which training stops, if the margin is not a number from step ``first`` on."""
    lit: Any = SimpleNamespace(device=torch.device(device))
    for step in range(1, steps + 1):
        nan = float("nan") if step >= first else 1.0
        terms = {name: torch.tensor(value) for name, value in (("loss", nan), ("margin", nan), ("l2", 0.1))}
        trainer: Any = SimpleNamespace(global_step=step)
        try:
            callback.on_train_batch_end(trainer, lit, terms, None, 0)
        except NonFiniteError as error:
            assert f"the margin term of the loss is nan at step {first};" in str(error)  # noqa: PT017
            return step
    return 0


@pytest.mark.parametrize(
    ("every_n_steps", "device", "stopped"),
    [(1, "cpu", 7), (2, "cpu", 8), (5, "cpu", 10), (None, "cpu", 7), (None, "meta", 50)],
)
def test_guard_names_the_term_and_the_first_step(every_n_steps: int | None, device: str, stopped: int) -> None:
    assert guarded(NonFiniteGuard(every_n_steps), first=7, steps=60, device=device) == stopped


class Late(HostCopy):
    """A copy that is not complete when it is first asked for, as of a GPU that is steps behind."""

    asked = 0

    def is_complete(self) -> bool:
        self.asked += 1
        return self.asked > 3

    def tolist(self) -> list[float]:
        assert self.asked == 0 or self.asked > 3, "read before it is complete"
        return super().tolist()


@pytest.mark.parametrize(("every_n_steps", "stopped"), [(5, 13), (10, 13)])
def test_guard_goes_on_until_the_copy_is_complete(
    every_n_steps: int, stopped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "HostCopy", Late)
    assert guarded(NonFiniteGuard(every_n_steps), first=7, steps=60) == stopped


class Device:
    """A tensor of a GPU, and the events there: what is copied arrives when ``complete`` is set."""

    is_cuda, device, complete = True, torch.device("cuda", 0), False

    def to(self, device: str, *, non_blocking: bool) -> Tensor:
        assert (device, non_blocking) == ("cpu", True)
        return torch.tensor([1.0, 2.0])

    def __call__(self) -> Any:
        return self

    def record(self, stream: str) -> None:
        assert stream == "stream of cuda:0"

    def query(self) -> bool:
        return self.complete

    def synchronize(self) -> None:
        self.complete = True


def test_copy_from_a_gpu_is_read_when_its_event_has_passed(
    monkeypatch: pytest.MonkeyPatch, unchecked_types: None
) -> None:
    device: Any = Device()
    monkeypatch.setattr(torch.cuda, "Event", device)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    copied = HostCopy(device)
    assert not copied.is_complete()
    assert copied.tolist() == [1.0, 2.0]
    assert copied.is_complete()


@pytest.mark.parametrize("hook", ["on_save_checkpoint", "on_train_end"])
def test_guard_checks_pending_steps_before_anything_is_saved(hook: str) -> None:
    callback, arguments = NonFiniteGuard(every_n_steps=5), [None] * (3 if hook == "on_save_checkpoint" else 2)
    assert guarded(callback, first=2, steps=3) == 0
    with pytest.raises(NonFiniteError, match="nan at step 2"):
        getattr(callback, hook)(*arguments)
    getattr(callback, hook)(*arguments)  # of those steps no more


# --- StepMetrics -----------------------------------------------------------------------------------------------------


class Norms(Callback):
    """The norm of the gradient of each step."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.found.append(torch.cat([each.grad.flatten() for each in pl_module.parameters()]).norm().item())


def points(directory: Path, name: str) -> dict[int, float]:
    """What was logged under a name, by step."""
    return {int(row["step"]): float(row[name]) for row in curves(directory) if row[name]}


def test_point_is_the_mean_since_the_last_one_also_of_another_epoch(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms, two_epochs = Norms(), tiny("trainer.log_every_n_steps=8", *NO_PICTURES)
    run(two_epochs, tmp_path / "run", monkeypatch, norms)
    for name in ("loss", "error"):
        epochs = points(tmp_path / "run", f"train/{name}")
        assert [*epochs] == [3, 7]
        assert points(tmp_path / "run", f"train/{name}_step") == {7: pytest.approx(sum(epochs.values()) / 2)}
    assert points(tmp_path / "run", "train/gradient_norm") == {7: pytest.approx(norms.found[7], rel=1e-4)}
    assert points(tmp_path / "run", "schedule/learning_rate").keys() == {3, 7}


class Unfinished(HostCopy):
    def is_complete(self) -> bool:
        return False


def test_points_are_the_same_when_their_copies_arrive_late_or_the_run_is_resumed(
    trained: Trained, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [*points(trained.directory, "train/loss_step")] == [2, 5]
    monkeypatch.setattr(monitoring, "HostCopy", Unfinished)
    with pytest.raises(InterruptError):
        run(tiny(*NO_PICTURES), tmp_path / "run", monkeypatch, SignalAt(5))
    train(tiny("train.resume=true", *NO_PICTURES), tmp_path / "run")
    assert curves(tmp_path / "run") == curves(trained.directory)


def test_steps_are_not_logged_where_no_interval_is_set(tiny: Tiny, tmp_path: Path) -> None:
    train(tiny("trainer.log_every_n_steps=0", "trainer.max_epochs=1", *NO_PICTURES), tmp_path / "run")
    assert "train/loss_step" not in curves(tmp_path / "run")[0]


# --- torch.compile ---------------------------------------------------------------------------------------------------

COMPILE = """
import torch
from capsule_lab.callbacks.monitoring import layer_statistics
from capsule_lab.networks import CapsNet, EMCaps

sizes = {"channels": 4, "primary_types": 3}
network, images = {network}((1, 17, 17), 3, **sizes), torch.rand(2, 1, 17, 17)
graphs = []

def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward

network.compile(backend=backend)
with torch.no_grad():
    found = []
    for _ in range(2):
        network(images)
        found.append((len(graphs), layer_statistics(network, images)))
assert found[0][0] == found[1][0] > 0
torch.testing.assert_close(found[0][1], found[1][1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("network", ["CapsNet", "EMCaps"])
def test_truly_compiled_network_is_compiled_once(network: str, tmp_path: Path) -> None:
    """In a process without the type checks of the tests, which torch cannot compile."""
    ended = python("-c", COMPILE.replace("{network}", network), cwd=tmp_path)
    assert ended.status == 0, ended.err
