"""What RoutingStats says of the capsules of a network, in a run and on its own."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from capsule_lab.callbacks import NonFiniteError, NonFiniteGuard, RoutingStats, host_copy
from capsule_lab.callbacks.host_copy import HostCopies
from capsule_lab.callbacks.monitoring import layer_statistics
from capsule_lab.commands.train import train
from capsule_lab.config.build import build_data
from capsule_lab.networks import AbstractCapsuleNetwork, BaselineCNN
from capsule_lab.routing import SelfAttentionRouting
from capsule_lab.types import Batch, CapsuleOutput, Capsules, OnIteration, RoutingTrace
from tests.helpers.commands import NO_PICTURES, Tiny, Trained
from tests.helpers.networks import small_capsnet, small_em_caps
from tests.helpers.training import curves, interrupted_and_resumed, run, trained_module

NETWORKS: dict[str, Callable[[], AbstractCapsuleNetwork]] = {
    "capsnet": lambda: small_capsnet((1, 17, 17), 3, class_dim=4, decoder=(5,)),
    "em_caps": lambda: small_em_caps((1, 17, 17), 3, types=3),
}


OF_CAPSULES = re.compile("val/.*(activ|dead|coupl)")
"""The columns of statistics of capsules."""


def test_statistics_of_a_run_are_those_of_its_first_validation_images(
    tiny: Tiny, tmp_path: Path
) -> None:
    config = tiny(
        "trainer.precision=32-true",
        "trainer.max_epochs=1",
        "data.eval_batch_size=20",
        "+callbacks.routing_stats.images=7",
        "train.test=none",
        *NO_PICTURES,
    )
    directory = tmp_path / "run"
    train(config, directory)
    (row,) = [row for row in curves(directory) if row["val/error"]]
    logged = {key for key in row if OF_CAPSULES.match(key)}
    assert {"val/activation_primary", "val/activation_std_digits", "val/dead_digits"} < logged
    assert float(row["val/activation_primary"]) > 0
    module = trained_module(directory / "checkpoints" / "last.ckpt")
    data = build_data(config)
    data.setup("fit")
    stored = next(iter(data.val_dataloader()))
    first_batch = data.on_after_batch_transfer(stored, 0)
    with torch.no_grad():
        expected = layer_statistics(module.network, first_batch.images[:7])
    assert logged == {f"val/{key}" for key in expected} | {"val/dead_capsules"}
    for key, value in expected.items():
        found = float(row[f"val/{key}"])
        assert found == pytest.approx(value.item(), rel=1e-4, abs=1e-6)


def hooks(network: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in network.modules())


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
        low = [[0.0, 0.5, 1.0, 0.5], [0.001, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]
        self.low = Layer(torch.tensor(low))
        self.high = Layer(torch.tensor([[0.2, 0.005], [0.4, 0.009], [0.9, 0.9]]))

    def capsule_layers(self) -> dict[str, nn.Module]:
        return {"low": self.low, "high": self.high}

    def forward(self, images: Tensor, *, on_iteration: OnIteration | None = None) -> CapsuleOutput:
        self.low(images)
        classes = self.high(images)
        if on_iteration is not None and self.reports:
            uniform = torch.full((len(images), 4, 2), 0.5)
            decided = torch.eye(2)[[0, 1, 1, 0]]
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


class Lit(SimpleNamespace):
    """As much of a LightningModule as the callback sees."""

    device = torch.device("cpu")

    def log(self, name: str, value: Tensor, **options: Any) -> None:
        self.logged.append((name, float(value)))


def validate(
    callback: Any, lit: Lit, sizes: list[int], processes: int = 1, loader: int = 0
) -> dict[str, float]:
    """Validate batches of these sizes, return what is logged."""
    trainer: Any = SimpleNamespace(world_size=processes, is_global_zero=True)
    lit.logged = []
    for number, images in enumerate(sizes):
        pictures = torch.zeros(images, 1, 4, 4)
        labels = torch.zeros(images, dtype=torch.int64)
        batch = Batch(pictures, labels, torch.arange(images))
        output = {"output": lit.network(pictures)}
        callback.on_validation_batch_end(trainer, lit, output, batch, number, loader)
    callback.on_validation_epoch_end(trainer, lit)
    logged = dict(lit.logged)
    assert len(logged) == len(lit.logged)
    return logged


@pytest.mark.parametrize(
    ("images", "processes", "sizes"),
    [
        (2, 1, [2, 3]),
        (5, 2, [3, 1]),
    ],
)
def test_statistics_are_of_the_first_images_of_the_first_batch(
    images: int, processes: int, sizes: list[int]
) -> None:
    callback = RoutingStats(images=images)
    found = validate(callback, Lit(network=Fake()), sizes, processes)
    expected = {f"val/{name}": value for name, value in EXPECTED.items()}
    expected["val/dead_capsules"] = 0.0
    assert found == pytest.approx(expected, abs=1e-5)


def test_routing_that_reports_no_iterations_has_the_other_statistics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lit, callback = Lit(network=Fake(reports=False)), RoutingStats(images=2)
    for _ in range(2):
        found = validate(callback, lit, [2])
        assert "val/coupling_entropy" not in found
        found["val/coupling_entropy"] = EXPECTED["coupling_entropy"]
        for name, value in EXPECTED.items():
            assert found[f"val/{name}"] == pytest.approx(value, abs=1e-5)
    assert caplog.messages == [
        "val/coupling_entropy is not logged: the routing of the class capsules does not call on_iteration"
    ]


def test_statistics_of_couplings_with_a_prior_below_zero() -> None:
    network = small_capsnet((1, 17, 17), 3, channels=8, routing=SelfAttentionRouting).eval()
    with torch.no_grad():
        network.digits.routing.prior.fill_(-1)
    entropy = layer_statistics(network, torch.rand(2, 1, 17, 17))["coupling_entropy"]
    assert 0 <= entropy <= 1


@pytest.mark.whole
@pytest.mark.parametrize("name", NETWORKS)
def test_statistics_leave_no_hook_and_a_compiled_network_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, images = NETWORKS[name](), torch.rand(2, 1, 17, 17)
    expected = layer_statistics(network, images)
    assert hooks(network) == 0
    with pytest.raises(ValueError, match="images of shape"):
        layer_statistics(network, torch.rand(2, 3, 17, 17))
    assert hooks(network) == 0, "also after an error"
    monkeypatch.setattr(
        network, "_compiled_call_impl", lambda *_, **__: pytest.fail("hooks would compile it again")
    )
    torch.testing.assert_close(layer_statistics(network, images), expected)


def guarded(callback: NonFiniteGuard, first: int, steps: int, device: str = "cpu") -> int:
    """The step after which training stops, if the margin is not a number from step ``first`` on."""
    lit: Any = SimpleNamespace(device=torch.device(device))
    for step in range(1, steps + 1):
        margin = torch.tensor(float("nan") if step >= first else 1.0)
        l2 = torch.tensor(0.1)
        terms = {"loss": margin + l2, "margin": margin, "l2": l2}
        trainer: Any = SimpleNamespace(global_step=step)
        try:
            callback.on_train_batch_end(trainer, lit, terms, None, 0)
        except NonFiniteError as error:
            assert f"the margin term of the loss is nan at step {first};" in str(error)  # noqa: PT017
            return step
    return 0


def test_guard_names_the_term_and_the_first_step() -> None:
    for every_n_steps, device, stopped in (
        (2, "cpu", 8),
        (5, "cpu", 10),
        (None, "cpu", 7),
        (None, "meta", 50),
    ):
        callback = NonFiniteGuard(every_n_steps)
        assert guarded(callback, first=7, steps=60, device=device) == stopped


def test_every_process_looks_at_an_image_at_least() -> None:
    callback = RoutingStats(images=1)
    found = validate(callback, Lit(network=Fake()), [3], processes=64)
    assert found["val/activation_high"] == pytest.approx(0.1025)


def test_each_validation_counts_dead_capsules_anew() -> None:
    lit = Lit(network=Fake())
    callback = RoutingStats(images=1)
    for size, dead in ((3, 0.0), (2, 50.0)):
        found = validate(callback, lit, [size])
        assert found["val/dead_capsules"] == dead


def test_statistics_are_of_the_first_of_several_sets_and_of_capsules_alone() -> None:
    second_set = validate(RoutingStats(images=1), Lit(network=Fake()), [2], loader=1)
    assert second_set == {}
    cnn = BaselineCNN((1, 4, 4), 3, channels=(2,), kernel_size=3, hidden=(4,), dropout=0.0)
    assert validate(RoutingStats(), Lit(network=cnn), [2]) == {}


@pytest.mark.parametrize("every_n_steps", [5, 10])
def test_guard_goes_on_until_the_copy_is_complete(
    monkeypatch: pytest.MonkeyPatch, every_n_steps: int
) -> None:
    """Which it is at the fourth look, as of a GPU that is steps behind."""
    looks = itertools.cycle([False, False, False, True])
    monkeypatch.setattr(host_copy, "_is_complete", lambda _: next(looks))
    guard = NonFiniteGuard(every_n_steps)
    assert guarded(guard, first=7, steps=60) == 13


def test_copy_from_a_gpu_is_read_when_its_event_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    event = MagicMock()
    event.query.return_value = False
    tensor = MagicMock(is_cuda=True)
    tensor.to.return_value = torch.tensor([1.0, 2.0])
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    copies = HostCopies()
    copies.add("facts", tensor)
    tensor.to.assert_called_with("cpu", non_blocking=True)
    event.record.assert_called_with(f"stream of {tensor.device}")
    without_waiting = [*copies.read(wait=False)]
    assert without_waiting == []
    event.synchronize.assert_not_called()
    read = [*copies.read(wait=True)]
    assert read == [("facts", [1.0, 2.0])]
    event.synchronize.assert_called_once()


@pytest.mark.parametrize(("hook", "arguments"), [("on_save_checkpoint", 3), ("on_train_end", 2)])
def test_guard_checks_pending_steps_before_anything_is_saved(hook: str, arguments: int) -> None:
    callback = NonFiniteGuard(every_n_steps=5)
    assert guarded(callback, first=2, steps=3) == 0
    check = getattr(callback, hook)
    with pytest.raises(NonFiniteError, match="nan at step 2"):
        check(*[None] * arguments)
    check(*[None] * arguments)  # of those steps no more


class Norms(Callback):
    def __init__(self) -> None:
        self.found: list[float] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        gradients = [parameter.grad.flatten() for parameter in pl_module.parameters()]
        self.found.append(torch.cat(gradients).norm().item())


def points(directory: Path, name: str) -> dict[int, float]:
    """The values of a column of ``metrics.csv``, by step."""
    found = {}
    for row in curves(directory):
        if row[name]:
            found[int(row["step"])] = float(row[name])
    return found


def test_point_is_the_mean_since_the_last_one_also_of_another_epoch(
    tiny: Tiny, tmp_path: Path
) -> None:
    norms = Norms()
    directory = tmp_path / "run"
    run(tiny("trainer.log_every_n_steps=8", *NO_PICTURES), directory, norms)
    for name in ("loss", "error"):
        epochs = points(directory, f"train/{name}")
        assert [*epochs] == [3, 7]
        mean = pytest.approx(sum(epochs.values()) / 2)
        of_steps = points(directory, f"train/{name}_step")
        assert of_steps == {7: mean}
    norm = pytest.approx(norms.found[7], rel=1e-4)
    assert points(directory, "train/gradient_norm") == {7: norm}
    learning_rates = points(directory, "schedule/learning_rate")
    assert [*learning_rates] == [3, 7]


@pytest.mark.whole
def test_late_copies_and_resumed_runs_give_the_same_points(
    trained: Trained, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run"
    of_steps = points(trained.directory, "train/loss_step")
    assert [*of_steps] == [2, 5]
    monkeypatch.setattr(host_copy, "_is_complete", lambda _: False)
    interrupted_and_resumed(tiny(*NO_PICTURES), directory, 5)
    assert curves(directory) == curves(trained.directory)
