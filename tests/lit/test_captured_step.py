"""Training steps that are replayed as CUDA graphs, with a stand-in for graphs: the same numbers to the bit."""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import BaseFinetuning, Callback, GradientAccumulationScheduler
from torch import Tensor

from benchmarks.recorded_graphs import RecordedGraph, recorded_graphs
from capsule_lab.errors import ConfigError
from capsule_lab.lit import AbstractClassifierModule, ClassifierModule, captured_step
from capsule_lab.lit.captured_step import CapturedStep
from capsule_lab.losses import cross_entropy_loss, logits_cross_entropy_loss, spread_loss
from capsule_lab.networks import AbstractNetwork, SmallCNN
from capsule_lab.schedules import Linear, Schedule, Staircase
from capsule_lab.types import Batch
from tests.helpers.commands import NO_PICTURES, Tiny
from tests.helpers.modules import batch, capsnet, loader, trainer
from tests.helpers.networks import small_em_caps
from tests.helpers.training import SMALL_MODELS, run

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")

FALLING: dict[str, Schedule | None] = {"learning_rate": Linear(1e-3, 1e-4, "1 run")}
Build = Callable[..., AbstractClassifierModule]


@pytest.fixture
def fake() -> Iterator[type[RecordedGraph]]:
    with recorded_graphs() as fake:
        yield fake


def of(
    network: AbstractNetwork, loss: Callable[..., Any], **options: Any
) -> AbstractClassifierModule:
    options["schedule"] = FALLING | options.get("schedule", {})
    options.setdefault("optimizer", functools.partial(torch.optim.Adam, fused=True))
    return ClassifierModule(network, loss=loss, num_classes=3, **options)


def cnn(**options: Any) -> AbstractClassifierModule:
    """With dropout and batch normalisation."""
    torch.manual_seed(0)
    network = SmallCNN((1, 9, 9), 3, channels=(4,), kernel_sizes=(3,), dropout=0.5)
    return of(network, cross_entropy_loss, **{"l2": 0.01, **options})


def capsnet_with_decoder(**options: Any) -> AbstractClassifierModule:
    return capsnet(optimizer=functools.partial(torch.optim.Adam, fused=True), **options)


def em_caps(loss: Callable[..., Any] = spread_loss, **options: Any) -> AbstractClassifierModule:
    torch.manual_seed(0)
    network = small_em_caps((1, 9, 9), 3, conv_types=(2,), conv_strides=(2,))
    return of(network, loss, **options)


def rising_margin(**options: Any) -> AbstractClassifierModule:
    return em_caps(schedule={"margin": Linear(0.2, 0.9, "1 run")}, **options)


def falling_temperature(**options: Any) -> AbstractClassifierModule:
    return em_caps(schedule={"routing_inverse_temperature": Linear(0.01, 0.5, "1 run")}, **options)


def more_iterations(**options: Any) -> AbstractClassifierModule:
    return em_caps(schedule={"routing_iterations": Staircase(1, 1, "10 steps", 2)}, **options)


def batches(size: int = 9) -> list[Batch]:
    """Three that differ."""
    given = batch(size=size)
    return [given._replace(images=given.images.roll(shift, 0)) for shift in range(3)]


def fit(lit: AbstractClassifierModule, given: list[Batch], **options: Any) -> L.Trainer:
    """Six epochs of these batches, each validated on 4 images."""
    fitted = trainer(**{"max_epochs": 6, **options})
    fitted.fit(lit, loader(*given), loader(batch(4, size=9)))
    return fitted


def differences(plain: AbstractClassifierModule, graphed: AbstractClassifierModule) -> list[str]:
    """Names of the weights and statistics that are not equal to the bit."""
    expected, found = plain.state_dict(), graphed.state_dict()
    assert list(found) == list(expected)
    return [name for name in expected if not torch.equal(found[name], expected[name])]


def numbers(values: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: value.item() for name, value in values.items()}


@pytest.mark.parametrize(
    ("build", "options", "graphs"),
    [
        # test_runs_are_the_same_to_the_bit shows it of a run
        pytest.param(cnn, {}, 3, marks=pytest.mark.whole),
        pytest.param(cnn, {"precision": "bf16-mixed"}, 3, marks=pytest.mark.whole),
        (capsnet_with_decoder, {"precision": "bf16-mixed"}, 3),
        pytest.param(em_caps, {}, 3, marks=pytest.mark.whole),
        pytest.param(rising_margin, {}, 3, marks=pytest.mark.whole),
        pytest.param(falling_temperature, {"precision": "bf16-mixed"}, 3, marks=pytest.mark.whole),
        pytest.param(more_iterations, {}, 6, marks=pytest.mark.whole),
    ],
    ids=[
        "cnn",
        "cnn bf16",
        "capsnet bf16",
        "em_caps",
        "rising margin",
        "falling temperature",
        "more iterations",
    ],
)
def test_weights_and_means_are_the_same_to_the_bit(
    build: Build, options: dict[str, Any], graphs: int, fake: type[RecordedGraph]
) -> None:
    """With dropout, statistics of batches, a decoder, a term on weights, and schedules of all kinds."""
    plain, graphed = build(cuda_graphs=False), build()
    expected = fit(plain, batches(), **options).callback_metrics
    found = fit(graphed, batches(), **options).callback_metrics
    assert differences(plain, graphed) == []
    assert numbers(found) == numbers(expected)
    assert fake.captures == graphs
    steps = 18 - graphs  # without the three before each capture; validation runs as it is
    assert fake.replays == 3 * steps


class Watcher(Callback):
    """Records what hooks see of a step."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        self.seen.append(("loss", loss.item()))
        self.seen.append([each.grad is None for each in pl_module.parameters()])

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        gradients = [each.grad for each in pl_module.parameters()]
        self.seen.append([each.tolist() for each in gradients if each is not None])

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.seen.append([each.tolist() for each in pl_module.parameters()])

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, given: Batch, index: int
    ) -> None:
        self.seen.append(numbers(outputs))
        self.seen.append((trainer.global_step, index, given.images.sum().item()))
        self.seen.append(float(trainer.callback_metrics["loss"]))
        self.seen.append([each.tolist() for each in pl_module.parameters()])


def test_hooks_see_the_same_at_the_same_points(fake: type[RecordedGraph]) -> None:
    watchers = [Watcher(), Watcher()]
    for watcher, use in zip(watchers, (False, "auto"), strict=True):
        fit(cnn(cuda_graphs=use), batches(), callbacks=[watcher])
    assert fake.captures == 3
    assert watchers[0].seen == watchers[1].seen


class Keeper(Callback):
    """Keeps the terms of all steps, as ``NonFiniteGuard`` keeps those of 50 steps on a GPU."""

    def __init__(self) -> None:
        self.terms: list[dict[str, Tensor]] = []

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: dict[str, Tensor], *_: Any
    ) -> None:
        self.terms.append(outputs)


def test_terms_of_the_loss_stay_after_later_steps(fake: type[RecordedGraph]) -> None:
    keepers = [Keeper(), Keeper()]
    for keeper, use in zip(keepers, (False, "auto"), strict=True):
        fit(cnn(cuda_graphs=use), batches(), callbacks=[keeper])
    plain = [numbers(terms) for terms in keepers[0].terms]
    graphed = [numbers(terms) for terms in keepers[1].terms]
    assert plain == graphed
    assert len({terms["loss"] for terms in graphed}) == 18


SGD = functools.partial(torch.optim.SGD, momentum=0.9)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        pytest.param(torch.optim.Adam, {}, marks=pytest.mark.whole),
        (SGD, {"gradient_clip_val": 0.1}),
        pytest.param(torch.optim.RMSprop, {"gradient_clip_val": 0.1}, marks=pytest.mark.whole),
    ],
    ids=["adam", "sgd", "rmsprop"],
)
def test_optimizer_that_cannot_be_captured_runs_as_it_is(
    optimizer: Any, options: Any, fake: type[RecordedGraph], caplog: pytest.LogCaptureFixture
) -> None:
    """SGD looks as if it could be: without an error, a graph would repeat its first learning rate."""
    plain, graphed = cnn(optimizer=optimizer, cuda_graphs=False), cnn(optimizer=optimizer)
    with caplog.at_level(logging.INFO):
        for lit in (plain, graphed):
            fit(lit, batches(), **options)
    assert "the optimizer runs without CUDA graphs: it counts its steps on the host" in caplog.text
    assert fake.captures == 2
    assert differences(plain, graphed) == []


def reading_loss(scores: Tensor, labels: Tensor) -> Tensor:
    loss = cross_entropy_loss(scores, labels)
    return loss if loss.item() < 100 else loss * 0


def test_fused_optimizer_whose_step_fails_in_a_capture_runs_as_it_is(
    fake: type[RecordedGraph], caplog: pytest.LogCaptureFixture
) -> None:
    class Reading(torch.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            loss = super().step(closure)
            assert self.param_groups[0]["params"][0].sum().item() < 1000
            return loss

    optimizer = functools.partial(Reading, fused=True)
    plain, graphed = cnn(optimizer=optimizer, cuda_graphs=False), cnn(optimizer=optimizer)
    with caplog.at_level(logging.INFO):
        for lit in (plain, graphed):
            fit(lit, batches())
    reason = "CUDA error: operation not permitted"
    assert f"the optimizer runs without CUDA graphs: {reason}" in caplog.text
    assert differences(plain, graphed) == []


@pytest.mark.parametrize("use", ["auto", True])
def test_loss_that_cannot_be_captured_runs_as_it_is_or_is_named(
    use: Any, fake: type[RecordedGraph], caplog: pytest.LogCaptureFixture
) -> None:
    def build(use: Any) -> AbstractClassifierModule:
        return of(cnn().network, reading_loss, cuda_graphs=use)

    reason = "CUDA error: operation not permitted"
    if use is True:
        message = f"a step of SmallCNN cannot be captured as CUDA graphs: {reason}"
        with pytest.raises(ConfigError, match=message):
            fit(build(use), batches())
        return
    plain, graphed = build(False), build(use)
    with caplog.at_level(logging.INFO):
        for lit in (plain, graphed):
            fit(lit, batches())
    assert f"training steps run without CUDA graphs: {reason}" in caplog.text
    assert differences(plain, graphed) == []


@pytest.mark.parametrize("register", ["module", "parameter"])
def test_hooks_of_a_network_are_called_in_every_step(
    register: str, fake: type[RecordedGraph], caplog: pytest.LogCaptureFixture
) -> None:
    lit, calls = cnn(), []
    if register == "module":
        lit.network.register_forward_hook(lambda *_: calls.append(1))
    else:
        next(lit.network.parameters()).register_hook(lambda _: calls.append(1))
    with caplog.at_level(logging.INFO):
        fit(lit, batches(), limit_val_batches=0)
    assert len(calls) == 18
    reason = "the network has hooks, which a graph would not call"
    assert f"training steps run without CUDA graphs: {reason}" in caplog.text


class AtEpoch3(Callback):
    """Changes something after nine steps, of which the last six were replays."""

    def __init__(self, change: Callable[[L.Trainer, Any], object]) -> None:
        self.change = change

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.current_epoch == 3:
            self.change(trainer, pl_module)


class FinetuningFromEpoch3(BaseFinetuning):
    """The optimizer has all parameters from the start, also those that are not trained yet."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.network.features)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 3:
            self.unfreeze_and_add_param_group(pl_module.network.features, optimizer, lr=1e-2)


def freeze_first(_: L.Trainer, lit: Any) -> None:
    next(lit.network.parameters()).requires_grad_(requires_grad=False)


def stop_dropout_and_statistics(_: L.Trainer, lit: Any) -> None:
    for part in lit.network.modules():
        if isinstance(part, torch.nn.Dropout | torch.nn.BatchNorm2d):
            part.eval()


def decay_weights(trainer: L.Trainer, _: Any) -> None:
    trainer.optimizers[0].param_groups[0]["weight_decay"] = 0.5


def clip_gradients(trainer: L.Trainer, _: Any) -> None:
    trainer.gradient_clip_val = 0.01


@pytest.mark.parametrize(
    ("callback", "options", "graphs"),
    [
        pytest.param(
            FinetuningFromEpoch3,
            {},
            6,
            marks=pytest.mark.filterwarnings("ignore:The provided params to be frozen"),
        ),
        (functools.partial(AtEpoch3, freeze_first), {}, 6),
        (functools.partial(AtEpoch3, stop_dropout_and_statistics), {}, 6),
        (functools.partial(AtEpoch3, decay_weights), {}, 6),
        # its optimizer is not fused
        (functools.partial(AtEpoch3, clip_gradients), {"gradient_clip_val": 0.1}, 4),
    ],
    ids=["finetuning", "frozen", "eval", "weight decay", "clipping"],
)
def test_changes_of_a_callback_are_captured_again(
    callback: Callable[[], Callback],
    options: dict[str, Any],
    graphs: int,
    fake: type[RecordedGraph],
) -> None:
    """A replay would repeat what was there before."""
    plain, graphed = cnn(l2=0.0, cuda_graphs=False), cnn(l2=0.0)
    for lit in (plain, graphed):
        fit(lit, batches(), callbacks=[callback()], **options)
    assert differences(plain, graphed) == []
    assert fake.captures == graphs
    of_each_step = graphs // 2
    assert fake.replays == of_each_step * (18 - 2 * 3)


class DecayOfEveryStep(Callback):
    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        trainer.optimizers[0].param_groups[0]["weight_decay"] = 0.01 * trainer.global_step


def test_option_that_a_callback_changes_in_every_step_is_not_captured(
    fake: type[RecordedGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured_step, "KINDS_OF_STEPS", 5)
    plain, graphed = cnn(l2=0.0, cuda_graphs=False), cnn(l2=0.0)
    kinds: list[int] = []

    class Counted(DecayOfEveryStep):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            kinds.append(len(pl_module.step_graphs._seen))

    for lit in (plain, graphed):
        fit(lit, batches(), callbacks=[DecayOfEveryStep() if lit is plain else Counted()])
    assert differences(plain, graphed) == []
    assert fake.captures == 0
    assert max(kinds) == 5


def test_hooks_that_are_registered_after_the_capture_are_called(
    fake: type[RecordedGraph], caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def register(_: L.Trainer, lit: Any) -> None:
        lit.network.register_forward_hook(lambda *_: calls.append(1))

    with caplog.at_level(logging.INFO):
        fit(cnn(), batches(), callbacks=[AtEpoch3(register)], limit_val_batches=0)
    assert len(calls) == 9
    assert "the network has hooks, which a graph would not call" in caplog.text


@pytest.mark.filterwarnings("ignore:.*overriding `LightningModule.optimizer_")
def test_gradients_that_a_callback_accumulates_are_not_replayed(fake: type[RecordedGraph]) -> None:
    """A replay would overwrite the gradients, and they would not be divided by the number of batches."""
    schedule = {0: 1, 2: 3, 4: 1}
    plain, graphed = cnn(cuda_graphs=False), cnn()
    for lit in (plain, graphed):
        fit(lit, batches(), callbacks=[GradientAccumulationScheduler(schedule)])
    assert differences(plain, graphed) == []
    assert fake.captures == 3
    assert fake.replays == 3 * (3 + 6)
    message = "but trainer.accumulate_grad_batches is 3, so steps differ"
    with pytest.raises(ConfigError, match=message):
        fit(cnn(cuda_graphs=True), batches(), callbacks=[GradientAccumulationScheduler(schedule)])


def test_batches_of_two_sizes_in_turn_are_not_captured_again_and_again(
    fake: type[RecordedGraph],
) -> None:
    given = [batches()[0], batch(4, size=9)]
    plain, graphed = cnn(cuda_graphs=False), cnn()
    for lit in (plain, graphed):
        fit(lit, given, max_epochs=8)
    assert differences(plain, graphed) == []
    assert fake.captures == 3
    assert fake.replays == 3 * 5


class ReadingModule(ClassifierModule):
    """Reads a value of the device after its metrics have been updated."""

    def measure(self, split: str, given: Batch, output: Any) -> None:
        super().measure(split, given, output)
        assert output.scores.abs().max().item() < 1e9

    def measured_terms(self, given: Batch, split: str) -> tuple[dict[str, Tensor], Any]:
        terms, output = super().measured_terms(given, split)
        assert terms["loss"].item() < 1e9
        return terms, output


def test_metrics_do_not_count_a_step_that_could_not_be_captured(
    fake: type[RecordedGraph],
) -> None:
    """Their new states are in the memory of a graph that has computed nothing."""
    seen = []
    for use in (False, "auto"):
        torch.manual_seed(0)
        lit = ReadingModule(
            cnn().network,
            loss=cross_entropy_loss,
            num_classes=3,
            schedule=FALLING,
            optimizer=functools.partial(torch.optim.Adam, fused=True),
            cuda_graphs=use,
        )
        keeper = MetricKeeper()
        fit(lit, batches(), callbacks=[keeper])
        seen.append(keeper.states)
    assert fake.captures == 1
    assert seen[0] == seen[1]


class MetricKeeper(Callback):
    """Keeps the states of the metrics after every step."""

    def __init__(self) -> None:
        self.states: list[dict[str, dict[str, float]]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        of_metrics = pl_module.metrics.of_split("train")
        self.states.append({name: numbers(metric.metric_state) for name, metric in of_metrics})


@pytest.mark.whole
def test_batches_of_another_size_run_as_they_are(fake: type[RecordedGraph]) -> None:
    given = [*batches(), batch(4, size=9)]
    plain = em_caps(logits_cross_entropy_loss, cuda_graphs=False)
    graphed = em_caps(logits_cross_entropy_loss)
    expected = fit(plain, given, max_epochs=3).callback_metrics
    found = fit(graphed, given, max_epochs=3).callback_metrics
    assert differences(plain, graphed) == []
    assert numbers(found) == numbers(expected)
    assert fake.captures == 3
    assert fake.replays == 3 * 6


def test_a_capture_leaves_no_half_precision_weights_to_later_steps(
    fake: type[RecordedGraph],
) -> None:
    """An outer context keeps autocast's copies of the weights, and a capture on a GPU has not computed them."""
    layer = torch.nn.Linear(4, 1)
    images = torch.ones(2, 4)

    def forward() -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = layer(images).sum()
        return loss, loss.detach()

    with torch.autocast("cpu", enabled=False):
        CapturedStep(forward, layer.parameters(), None, torch.device("cpu"))
        with torch.no_grad():
            layer.weight.fill_(1.0)
            layer.bias.fill_(2.0)
        loss, _ = forward()
    assert loss.item() == 2 * (4 * 1.0 + 2.0)


def test_another_fit_captures_again_where_the_weights_are_then(fake: type[RecordedGraph]) -> None:
    lit = cnn()
    for _ in range(2):
        fit(lit, batches())
        assert not lit.step_graphs.enabled
        assert lit.step_graphs._captured is None, "it would hold memory while testing"
        lit.load_state_dict(lit.double().float().state_dict())  # moved, as between devices
    assert fake.captures == 6


@pytest.mark.parametrize(
    ("of_trainer", "message"),
    [
        ({"device": "cpu"}, "but training is on cpu; expected module.cuda_graphs=auto"),
        ({"world_size": 2}, "but the run has 2 processes, which communicate"),
        (
            {"accumulate_grad_batches": 3},
            "but trainer.accumulate_grad_batches is 3, so steps differ",
        ),
        (
            {"precision": "16-mixed"},
            "but trainer.precision is 16-mixed, whose scale the host reads",
        ),
    ],
    ids=str,
)
def test_trainers_that_cannot_have_graphs(of_trainer: dict[str, Any], message: str) -> None:
    device = torch.device(of_trainer.pop("device", "cuda"))
    known = {"world_size": 1, "accumulate_grad_batches": 1, "precision": "bf16-mixed"}
    strategy = SimpleNamespace(root_device=device)
    given: Any = SimpleNamespace(**{**known, "strategy": strategy, **of_trainer})
    cnn(cuda_graphs="auto").step_graphs.check(given)
    with pytest.raises(ConfigError, match=message):
        cnn(cuda_graphs=True).step_graphs.check(given)


RUN = [
    *NO_PICTURES,
    "data.batch_size=4",
    "data.train_images=32",
    "data.eval_images=8",
    "trainer.precision=32-true",
    "trainer.max_epochs=2",
]
AVERAGED = ["callbacks=averaged_weights", "callbacks.averaged_weights.start=4"]


@pytest.mark.parametrize(
    ("model", "overrides"),
    [
        ("cnn_small", []),
        pytest.param("capsnet", [], marks=pytest.mark.slow),
        pytest.param("em_caps_small", [], marks=pytest.mark.whole),
        pytest.param("capsnet", ["data=multimnist", "model.decoder=null"], marks=pytest.mark.whole),
        pytest.param(
            "capsnet", [*AVERAGED, "data.mixup=0.2", "model.decoder=null"], marks=pytest.mark.whole
        ),
        pytest.param(
            "capsnet", [*AVERAGED, "callbacks.averaged_weights.decay=null"], marks=pytest.mark.slow
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_runs_are_the_same_to_the_bit(
    model: str, overrides: list[str], tiny: Tiny, tmp_path: Path, fake: type[RecordedGraph]
) -> None:
    """Also batches, their transformations, averaged weights, and what is logged."""
    small = [f"model={model}", *SMALL_MODELS[model]]
    results = []
    for use in ("false", "true"):
        config = tiny(*RUN, *overrides, f"module.cuda_graphs={use}", model=small)
        result = run(config, tmp_path / use)
        metrics = (tmp_path / use / "metrics.csv").read_text()
        results.append([result["val"], result["test"], metrics])
        if use == "false":
            assert fake.captures == 0
    assert results[0] == results[1]
    graphs = 5
    if model == "em_caps_small":  # its clipping needs an optimizer that is not fused
        graphs -= 1
    if "callbacks=averaged_weights" in overrides:
        graphs += 1
    assert fake.captures == graphs
