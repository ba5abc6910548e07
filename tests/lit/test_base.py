"""What the training loop itself does: schedules that reach the loss, the L2 term, crops and parts of the test set."""

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from omegaconf import DictConfig
from torch import Tensor

from capsule_lab import runs
from capsule_lab.commands import compose
from capsule_lab.commands.evaluate import evaluate
from capsule_lab.commands.train import summary, train
from capsule_lab.config import build
from capsule_lab.data import MNISTDataModule
from capsule_lab.data.loader import Images
from capsule_lab.errors import ConfigError
from capsule_lab.functional import combine_crops
from capsule_lab.lit import ClassifierModule
from capsule_lab.lit.metrics import SplitMetrics
from capsule_lab.losses import (
    cross_entropy_loss,
    l2_loss,
    logits_cross_entropy_loss,
    margin_loss,
    sigmoid_cross_entropy_loss,
    spread_loss,
)
from capsule_lab.networks import AbstractNetwork, CapsNet, EMCaps
from capsule_lab.routing import DynamicRouting, EMRouting, SelfRouting
from capsule_lab.schedules import Constant
from capsule_lab.types import Batch, CapsuleOutput
from tests.helpers.commands import CHOSEN, NO_PICTURES, TINY_CNN, TINY_DATA
from tests.helpers.modules import RATE, batch, capsnet, classifier, loader, trainer
from tests.helpers.training import (
    checkpoint,
    curves,
    interrupted_and_resumed,
    results,
    trained_module,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


class Saturated(AbstractNetwork):
    """Scores of all classes round to 1, as lengths do that softmax cross-entropy of logits has trained."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 4)

    def forward(self, images: Tensor) -> CapsuleOutput:
        labels = (4 * images.flatten(1)[:, :1]).long()
        of_labels = torch.zeros(len(images), 4).scatter(1, labels, 1.0)
        logits = 30 + of_labels + 0 * self.linear.weight.sum()
        return CapsuleOutput(logits.sigmoid(), None, logits)


def test_predictions_are_by_logits_where_scores_round_to_one() -> None:
    labels = torch.arange(4).repeat(3)
    greys = (labels + 0.5) / 4
    images = greys.view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    network = Saturated()
    output = network(images)
    assert (output.scores == 1).all(), "which is what this is about"
    lit = ClassifierModule(
        network,
        loss=logits_cross_entropy_loss,
        optimizer=torch.optim.SGD,
        schedule=RATE,
        num_classes=4,
    )
    (found,) = trainer().test(lit, loader(Batch(images, labels, labels)), verbose=False)
    assert found["test/error"] == 0


def test_schedules_named_like_an_argument_of_the_loss_reach_it() -> None:
    names = ["margin", "present", "absent", "temperature"]
    schedule = RATE | dict.fromkeys(names, Constant(0.5))
    for loss, arguments in (
        (functools.partial(spread_loss, margin=0.9), {"margin"}),
        (margin_loss, {"present", "absent"}),
        (cross_entropy_loss, set()),
    ):
        lit = classifier(loss, schedule=schedule)
        assert lit.scheduled_arguments == arguments
    without = classifier(schedule={**RATE, "margin": None})
    assert without.schedule == RATE


def test_scheduled_argument_holds_within_fit_and_the_configured_one_outside() -> None:
    loss = functools.partial(spread_loss, margin=0.7)
    lit = classifier(loss, schedule={**RATE, "margin": Constant(0.3)})
    given = batch()
    output = lit(given.images)
    in_fit = {"margin": 0.3, "learning_rate": 1e-3}
    for values, margin in ((in_fit, 0.3), ({}, 0.7)):
        terms = lit.classification_term(given, output, values)
        expected = spread_loss(output.scores, given.labels, margin=margin)
        assert terms == {"spread": expected}


@pytest.mark.parametrize("weight", [0.0, 10.0])
def test_l2_is_a_term_of_its_own(weight: float) -> None:
    lit = classifier(cross_entropy_loss, l2=weight)
    (found,) = trainer().test(lit, loader(batch()), verbose=False)
    assert ("test/l2" in found) is bool(weight)
    l2 = found.get("test/l2", 0)
    expected = l2_loss(lit.network.parameters(), weight=weight)
    assert l2 == pytest.approx(expected.item())
    assert found["test/loss"] == pytest.approx(found["test/cross_entropy"] + l2)


def test_l2_shrinks_the_kernels() -> None:
    sizes = []
    for weight in (0.0, 10.0):
        lit = classifier(cross_entropy_loss, l2=weight)
        trainer().fit(lit, loader(*[batch()] * 4), loader(batch()))
        size = l2_loss(lit.network.parameters(), weight=1.0)
        sizes.append(size.item())
    without, with_l2 = sizes
    assert with_l2 < without


def test_negative_l2_is_refused() -> None:
    with pytest.raises(ValueError, match=r"l2 is -1; expected 0 or more"):
        classifier(l2=-1)


def test_loss_is_a_mean_over_images_of_any_batches() -> None:
    whole = batch(9)
    images, labels, keys, *_ = whole
    first = Batch(images[:7], labels[:7], keys[:7])
    second = Batch(images[7:], labels[7:], keys[7:])
    expected, _ = outcome_of(classifier(cross_entropy_loss), whole)
    found, _ = outcome_of(classifier(cross_entropy_loss), first, second)
    assert found == pytest.approx(expected)
    of_first, _ = outcome_of(classifier(cross_entropy_loss), first)
    assert found != pytest.approx(of_first)


def test_metric_whose_state_was_loaded_counts_as_updated() -> None:
    """Else ``compute`` warns."""
    metrics = SplitMetrics()
    state = {"train/loss": {"mean_value": torch.tensor(6.0)}}
    metrics.load_state(state, torch.device("cpu"))
    ((_, metric),) = metrics.of_split("train")
    assert metric.update_called


def test_each_process_continues_its_own_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 0 writes the checkpoint; without the sums of the other, it would count its own images twice."""
    first = in_process(0)
    second = in_process(1)
    first.metrics.update_means("train", {"loss": torch.tensor(1.0)}, images=3)
    second.metrics.update_means("train", {"loss": torch.tensor(2.0)}, images=3)
    state = first.metrics.state_of("train")
    of_second = second.metrics.state_of("train")
    gathered = torch.utils._pytree.tree_map(lambda *values: torch.stack(values), state, of_second)
    monkeypatch.setattr(first, "all_gather", lambda own: gathered if own == state else None)
    saved: dict[str, Any] = {}
    first.on_save_checkpoint(saved)

    for rank, processes, loss in (
        (0, 2, 3.0),
        (1, 2, 6.0),
        (2, 3, 0.0),  # one process more than there were
        (0, 1, 3.0),
    ):
        restored = in_process(rank, processes)
        restored.on_load_checkpoint(saved)
        assert restored.metrics.sums("train")[0] == loss


def in_process(rank: int, processes: int = 2) -> ClassifierModule:
    """A module in one of several processes that train."""
    lit = classifier(cross_entropy_loss)
    state = SimpleNamespace(fn="fit")
    lit._trainer = SimpleNamespace(world_size=processes, global_rank=rank, state=state)
    return lit


def test_every_process_draws_its_own_random_numbers_and_again_after_a_resume() -> None:
    drawn = [numbers_of_batch(rank) for rank in (0, 1, 1)]
    first, second, resumed = drawn
    assert not torch.equal(first, second)
    assert torch.equal(second, resumed)


def numbers_of_batch(rank: int) -> Tensor:
    """What dropout of process ``rank`` draws in the sixth batch, in a process that has just started."""
    lit = in_process(rank)
    loop = SimpleNamespace(total_batch_idx=5)
    vars(lit.trainer).update(global_step=5, fit_loop=loop)
    lit.on_train_batch_start(batch(), 5)
    return torch.rand(4)


def outcome_of(
    lit: L.LightningModule, *batches: Batch
) -> tuple[dict[str, float], list[CapsuleOutput]]:
    """What a test of these batches logs and hands to callbacks."""
    outputs: list[CapsuleOutput] = []

    class Watch(L.Callback):
        def on_test_batch_end(self, *arguments: Any) -> None:
            outputs.append(arguments[2]["output"])

    (found,) = trainer(callbacks=[Watch()]).test(lit, loader(*batches), verbose=False)
    return dict(found), outputs


@pytest.mark.parametrize(
    ("build", "size", "logits"),
    [
        (classifier, 4, True),
        (capsnet, 9, False),
    ],
)
def test_crops_are_one_prediction_and_their_losses_a_mean(
    build: Callable[[], Any], size: int, logits: bool
) -> None:
    lit = build().eval()
    given = batch(8, crops=3, size=size)
    assert (lit.network.scores_are == "logits") is logits
    found, (output,) = outcome_of(lit, given)
    crops = [given._replace(images=crop) for crop in given.images.unbind(1)]
    with torch.no_grad():
        scores = [lit(crop.images).scores for crop in crops]
    expected = combine_crops(torch.stack(scores, 1), logits=logits)
    torch.testing.assert_close(output.scores, expected)
    assert output.capsules is None
    is_wrong = expected.argmax(1) != given.labels
    error = 100 * is_wrong.float().mean()
    assert found.pop("test/error") == pytest.approx(error.item())
    errors = []
    for label in range(3):
        is_of_class = given.labels == label
        error = is_wrong[is_of_class].float().mean()
        errors.append(100 * error.item())
    balanced = sum(errors) / 3
    assert found.pop("test/balanced_error") == pytest.approx(balanced, abs=1e-4)
    auroc = found.pop("test/auroc")  # of one prediction for each image, too
    assert 0 <= auroc <= 1
    alone = [outcome_of(build(), crop)[0] for crop in crops]
    for name, value in found.items():
        mean = sum(each[name] for each in alone) / 3
        assert value == pytest.approx(mean, rel=1e-5)


def test_crops_of_images_with_any_number_of_labels_are_refused() -> None:
    """Sums of scores over crops cannot be compared with a threshold for one label."""
    given = batch(8, crops=3, size=4)
    several = given._replace(labels=torch.ones(8, 3, dtype=torch.bool))
    with pytest.raises(
        ConfigError, match="several crops and any number of labels; expected one or"
    ):
        classifier().terms(several)


@pytest.mark.parametrize(
    ("network", "loss"),
    [
        (CapsNet, spread_loss),
        (functools.partial(EMCaps, class_routing=None), margin_loss),
    ],
)
def test_losses_of_probabilities_refuse_lengths_without_a_bound(network: Any, loss: Any) -> None:
    def build(squash: str, loss: Any) -> ClassifierModule:
        routing = functools.partial(DynamicRouting, squash=squash)
        with torch.device("meta"):
            built = network((1, 28, 28), 3, routing=routing)
        options = {"optimizer": torch.optim.Adam, "schedule": RATE, "num_classes": 3}
        return ClassifierModule(built, loss=loss, **options)

    message = r"routing.squash=none lengths have no bound; expected loss=cross_entropy_lo"
    with pytest.raises(ValueError, match=message):
        build("none", loss)
    build("none", logits_cross_entropy_loss)
    build("exponential", loss)


@pytest.mark.parametrize(
    ("network", "routing"),
    [
        (CapsNet, functools.partial(DynamicRouting, squash="none")),
        (CapsNet, functools.partial(SelfRouting)),
        (
            functools.partial(EMCaps, class_routing=None),
            functools.partial(EMRouting, activation="mixing_proportions"),
        ),
    ],
)
def test_sigmoid_cross_entropy_refuses_logits_of_one_sign(network: Any, routing: Any) -> None:
    """With lengths every class would be present, with logarithms of activations none."""
    with torch.device("meta"):
        built = network((1, 28, 28), 3, routing=routing)
    options = {"optimizer": torch.optim.Adam, "schedule": RATE, "num_classes": 3}
    message = "lengths or logarithms of activations, which have one sign; expected "
    with pytest.raises(ValueError, match=message):
        ClassifierModule(built, loss=sigmoid_cross_entropy_loss, **options)
    ClassifierModule(built, loss=logits_cross_entropy_loss, **options)


class InParts(MNISTDataModule):
    """The first 100 test images are familiar, the others novel."""

    test_parts = ("familiar", "novel")

    def split_test(self, everything: Images) -> tuple[Images, ...]:
        indices = torch.arange(len(everything.labels))
        return everything.subset(indices[:100]), everything.subset(indices[100:])


PARTS = "data._target_=tests.lit.test_base.InParts"


def test_parts_of_the_test_set(tmp_path: Path) -> None:
    overrides = [
        *TINY_CNN,
        *TINY_DATA,
        PARTS,
        "trainer.max_epochs=1",
        "trainer.precision=32-true",
        "callbacks.reconstructions=null",
    ]
    directory = tmp_path / "run"
    found = train(compose("train", overrides), directory)
    module = trained_module(directory)
    data = build.build_data(compose("train", [*TINY_CNN, *TINY_DATA]))
    trainer().test(module, datamodule=data, verbose=False)
    test = found["test"]
    whole = module.test_results()
    images = len(data.test_dataloader().dataset)
    assert set(test) == {*whole, "familiar/error", "novel/error"}
    assert test["error"] == pytest.approx(whole["error"])
    together = 100 * test["familiar/error"] + (images - 100) * test["novel/error"]
    assert together / images == pytest.approx(test["error"])
    assert test["loss"] == pytest.approx(whole["loss"], rel=1e-4)

    written = json.loads((directory / "metrics.json").read_text())
    assert written["test"] == test
    (row,) = [row for row in curves(directory) if row["test/error"]]
    for name in row:
        assert "dataloader" not in name
    assert float(row["novel/error"]) == test["novel/error"]
    on_cpu = compose("evaluate", ["trainer.accelerator=cpu"]).trainer
    evaluated = evaluate(runs.open(directory, trust=["tests"]), trainer=on_cpu)
    assert evaluated["test"] == pytest.approx(test)
    line = summary(found, directory, CHOSEN).splitlines()[0]
    assert f"  familiar {test['familiar/error']:.2f} %  novel {test['novel/error']:.2f} %" in line


def stopping(*overrides: str) -> DictConfig:
    options = [
        *TINY_CNN,
        *TINY_DATA,
        *NO_PICTURES,
        "callbacks=stop_at_error",
        "callbacks.stop_at_error.stopping_threshold=101",
        "train.test=last",
        "trainer.max_epochs=3",
    ]
    return compose("train", [*options, *overrides])


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run that stopped at its first validation, and its result."""
    directory = tmp_path_factory.mktemp("stopped") / "run"
    return directory, train(stopping(), directory)


def assert_tested_where_it_stopped(directory: Path, found: dict[str, Any], steps: int) -> None:
    last = checkpoint(directory)
    best = checkpoint(directory, "best")
    assert found["weights_tested"] == "last"
    assert found["steps"] == steps
    assert found["planned_steps"] == 12
    assert last["global_step"] == best["global_step"] == steps
    assert last["capsule_lab"]["val"] == found["val"]


def test_run_stops_at_the_first_validation_below_the_threshold(
    stopped: tuple[Path, dict[str, Any]],
) -> None:
    assert_tested_where_it_stopped(*stopped, steps=4)


@pytest.mark.whole
def test_run_stops_at_a_validation_within_an_epoch(tmp_path: Path) -> None:
    within = ["trainer.check_val_every_n_epoch=null", "trainer.val_check_interval=3"]
    assert_tested_where_it_stopped(tmp_path, train(stopping(*within), tmp_path), steps=3)


@pytest.mark.whole
def test_interrupted_run_stops_where_it_would_have(
    stopped: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    _, expected = stopped
    found = interrupted_and_resumed(stopping(), tmp_path, 2)
    assert results(found) == results(expected)


def test_stopped_run_is_tested_again_and_not_trained_on(
    stopped: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    original, expected = stopped
    directory = Path(shutil.copytree(original, tmp_path / "run"))
    (directory / "metrics.json").unlink()  # as if it had been killed while testing
    found = train(stopping("train.resume=true"), directory)
    assert results(found) == results(expected)
