"""What the training loop itself does: schedules that reach the loss, the L2 term, crops and parts of the test set."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from omegaconf import DictConfig
from torch import Tensor

from capsule_lab.config import build
from capsule_lab.config.compose import compose
from capsule_lab.data import MNISTDataModule
from capsule_lab.data.loader import Images
from capsule_lab.errors import ConfigError, InterruptError
from capsule_lab.functional import combine_crops
from capsule_lab.lit import CapsNetModule, ClassifierModule
from capsule_lab.losses import cross_entropy_loss, l2_loss, logits_cross_entropy_loss, margin_loss, spread_loss
from capsule_lab.networks import AbstractNetwork, CapsNet, EMCaps
from capsule_lab.routing import DynamicRouting
from capsule_lab.schedules import Constant, Exponential, Linear, Schedule
from capsule_lab.train import summary, train
from capsule_lab.types import Batch, CapsuleOutput, Capsules
from tests.helpers.commands import CHOSEN, NO_PICTURES, TINY_CNN, TINY_DATA, Ended
from tests.helpers.modules import RATE, batch, capsnet, classifier, loader, trainer
from tests.helpers.training import SignalAt, checkpoint, curves, results, run, trained_module

Tiny = Callable[..., DictConfig]


@pytest.mark.parametrize("shown", [True, False])
def test_loss_is_read_for_a_progress_bar_of_lightning_only(shown: bool) -> None:
    fitted = trainer(enable_progress_bar=shown, callbacks=[NoBar()] if shown else [], num_sanity_val_steps=0)
    fitted.fit(classifier(cross_entropy_loss), *(loader(batch(), batch()) for _ in range(2)))
    assert ("loss" in fitted.progress_bar_metrics) is shown


class NoBar(L.pytorch.callbacks.ProgressBar):
    """A progress bar that shows nothing."""

    def disable(self) -> None: ...

    def enable(self) -> None: ...


# --- predictions -----------------------------------------------------------------------------------------------------


class Saturated(AbstractNetwork):
    """Scores of all classes round to 1, as lengths do that softmax cross-entropy of logits has trained."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 4)

    def forward(self, images: Tensor) -> CapsuleOutput:
        labels = (4 * images.flatten(1)[:, :1]).long()
        logits = 30 + torch.zeros(len(images), 4).scatter(1, labels, 1.0) + 0 * self.linear.weight.sum()
        return CapsuleOutput(logits.sigmoid(), None, logits)


def test_predictions_are_by_logits_where_scores_round_to_one() -> None:
    labels = torch.arange(4).repeat(3)
    images = ((labels + 0.5) / 4).view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    network = Saturated()
    output = network(images)
    assert (output.scores == 1).all(), "which is what this is about"
    lit = ClassifierModule(
        network, loss=logits_cross_entropy_loss, optimizer=torch.optim.SGD, schedule=RATE, num_classes=4
    )
    (found,) = trainer().test(lit, loader(Batch(images, labels, labels)), verbose=False)
    assert found["test/error"] == 0


def test_predictions_of_a_network_without_logits_are_by_scores() -> None:
    scores = torch.tensor([[0.1, 0.9]])
    assert CapsuleOutput(scores).ranking is scores
    shown = (
        "CapsuleOutput(scores=(1, 2), capsules=Capsules(poses=(1, 2, 1), activations=(1, 2), logits=None), logits=None)"
    )
    assert repr(CapsuleOutput(scores, Capsules(scores[..., None], scores))) == shown


# --- schedules and the loss ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "schedules", "reach"),
    [
        (spread_loss, ["margin"], {"margin"}),
        (functools.partial(spread_loss, margin=0.9), ["margin"], {"margin"}),
        (functools.partial(spread_loss, reduction="official"), ["margin"], {"margin"}),
        (margin_loss, ["margin"], set()),
        (margin_loss, ["present", "absent", "margin"], {"present", "absent"}),
        (cross_entropy_loss, ["margin", "temperature"], set()),
    ],
)
def test_schedules_named_like_an_argument_of_the_loss_reach_it(
    loss: Callable[..., Tensor], schedules: list[str], reach: set[str]
) -> None:
    lit = classifier(loss, schedule={**RATE, **dict.fromkeys(schedules, Constant(0.5))})
    assert lit.scheduled_arguments == reach


@pytest.mark.parametrize(
    ("schedule", "margin"), [({"margin": 0.3, "learning_rate": 1e-3}, 0.3), ({}, 0.7)], ids=["scheduled", "outside fit"]
)
def test_scheduled_value_wins_over_the_configured_one(schedule: Mapping[str, float], margin: float) -> None:
    lit = classifier(functools.partial(spread_loss, margin=0.7), schedule={**RATE, "margin": Constant(0.3)})
    output = lit(batch().images)
    (term,) = lit.classification_term(batch(), output, schedule).items()
    assert term == ("spread", spread_loss(output.scores, batch().labels, margin=margin))


def test_schedule_reaches_the_loss_of_a_configured_run(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training and its validations; the test afterwards has the margin of the configuration."""
    seen: list[tuple[str, int, float]] = []
    real = CapsNetModule.loss_terms

    def terms(self: CapsNetModule, batch: Batch, output: CapsuleOutput, schedule: Mapping[str, float]) -> Any:
        found = real(self, batch, output, schedule)
        margins = [m for m in (0.1, 0.4, 0.6, 0.8, 1.0) if close(found, spread_loss(*of(output, batch), margin=m))]
        seen.append((self.trainer.state.stage.value, self.global_step, margins[0] if len(margins) == 1 else -1))
        return found

    def of(output: CapsuleOutput, batch: Batch) -> tuple[Tensor, Tensor]:
        return output.scores, batch.labels

    def close(found: dict[str, Tensor], expected: Tensor) -> bool:
        return torch.allclose(found["spread"], expected)

    monkeypatch.setattr(CapsNetModule, "loss_terms", terms)
    staircase = "_target_: capsule_lab.schedules.Staircase, start: 0.4, increment: 0.2, every: 1 epoch, limit: 1"
    margin = f"+schedule.margin={{{staircase}}}"
    config = tiny("loss=spread", "loss.classification.margin=0.1", margin, "trainer.precision=32-true", *NO_PICTURES)
    train(config, tmp_path / "run")
    steps = [("train", step, 0.4 if step < 4 else 0.6) for step in range(8)]
    assert [one for one in seen if one[0] == "train"] == steps
    assert [one for one in seen if one[0] == "validate"] == [("validate", 4, 0.6), ("validate", 8, 0.8)]
    assert {margin for stage, _, margin in seen if stage == "test"} == {0.1}
    logged = {row["step"]: row["schedule/margin"] for row in curves(tmp_path / "run") if row["schedule/margin"]}
    assert [float(logged[last]) for last in ("3", "7")] == pytest.approx([0.6, 0.8])  # steps of the two epochs


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({}, "the schedule has no entry; expected one named learning_rate"),
        ({"learning_rate": None}, "the schedule has no entry; expected one named learning_rate"),
        ({"margin": Constant(0.9)}, "the schedule has margin; expected one named learning_rate"),
        ({"learning_rate": 0.1}, r"schedule\.learning_rate is 0\.1; expected a schedule, such as Constant"),
        ({**RATE, "margin": 0.9}, r"schedule\.margin is 0\.9; expected a schedule, such as Constant"),
        ({"learning_rate": Constant(-0.1)}, r"schedule\.learning_rate is -0\.1 at the start; expected 0 or more"),
        ({"learning_rate": Linear(0.1, -0.2, "1 run")}, r"schedule\.learning_rate is -0\.2 at the end; expected 0"),
    ],
)
def test_schedule_that_cannot_work_is_named(schedule: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classifier(schedule=schedule)


@pytest.mark.parametrize("rate", [Linear(0.0, 1e-3, "1 run"), Exponential(1e-3, 0.5, "3 steps"), Constant(1e-3)])
def test_learning_rate_that_starts_or_ends_at_zero_is_accepted(rate: Schedule) -> None:
    assert classifier(schedule={"learning_rate": rate, "margin": None}).schedule == {"learning_rate": rate}


# --- L2 --------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_l2_is_a_term_of_its_own(weight: float) -> None:
    lit = classifier(cross_entropy_loss, l2=weight)
    (found,) = trainer().test(lit, loader(batch()), verbose=False)
    assert ("test/l2" in found) is bool(weight)
    assert found.get("test/l2", 0) == pytest.approx(l2_loss(lit.network.parameters(), weight=weight).item())
    assert found["test/loss"] == pytest.approx(found["test/cross_entropy"] + found.get("test/l2", 0))


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_l2_shrinks_the_kernels() -> None:
    def size(weight: float) -> float:
        lit = classifier(cross_entropy_loss, l2=weight)
        trainer().fit(lit, loader(*[batch()] * 4), loader(batch()))
        return l2_loss(lit.network.parameters(), weight=1.0).item()

    assert size(10.0) < size(0.0)


def test_negative_l2_is_named() -> None:
    with pytest.raises(ValueError, match=r"l2 is -1; expected 0 or more"):
        classifier(l2=-1)


# --- means -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_loss_is_a_mean_over_images_of_any_batches() -> None:
    whole = batch(9)
    parts = [Batch(*(value[cut] for value in whole[:3])) for cut in (slice(0, 7), slice(7, 9))]
    expected, _ = outcome_of(classifier(cross_entropy_loss), whole)
    found, _ = outcome_of(classifier(cross_entropy_loss), *parts)
    assert found == pytest.approx(expected)
    assert found != pytest.approx(outcome_of(classifier(cross_entropy_loss), parts[0])[0])


# --- several crops per image -----------------------------------------------------------------------------------------


def outcome_of(lit: L.LightningModule, *batches: Batch) -> tuple[dict[str, float], list[CapsuleOutput]]:
    """What a test of these batches logs and hands to callbacks."""
    outputs: list[CapsuleOutput] = []

    class Watch(L.Callback):
        def on_test_batch_end(self, *arguments: Any) -> None:
            outputs.append(arguments[2]["output"])

    (found,) = trainer(callbacks=[Watch()]).test(lit, loader(*batches), verbose=False)
    return dict(found), outputs


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize(
    ("build", "size", "logits"), [(classifier, 4, True), (capsnet, 9, False)], ids=["CNN", "CapsNet"]
)
def test_crops_of_an_image_are_one_prediction(build: Callable[[], Any], size: int, logits: bool) -> None:
    lit, images = build().eval(), batch(8, crops=3, size=size)
    assert (lit.network.scores_are == "logits") is logits
    found, (output,) = outcome_of(lit, images)
    with torch.no_grad():
        scores = torch.stack([lit(crop).scores for crop in images.images.unbind(1)], 1)
    expected = combine_crops(scores, logits=logits)
    torch.testing.assert_close(output.scores, expected)
    assert output.capsules is None
    error = 100 * (expected.argmax(1) != images.labels).float().mean()
    assert found["test/error"] == pytest.approx(error.item())


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_loss_of_crops_is_their_mean() -> None:
    images = batch(8, crops=3, size=9)
    found, _ = outcome_of(capsnet(), images)
    each = [outcome_of(capsnet(), images._replace(images=crop))[0] for crop in images.images.unbind(1)]
    terms = ["test/loss", "test/margin", "test/reconstruction"]
    assert {n: found[n] for n in terms} == pytest.approx({n: sum(one[n] for one in each) / 3 for n in terms}, rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_one_crop_is_the_image_itself() -> None:
    plain, (whole,) = outcome_of(classifier(), batch())
    cropped, (output,) = outcome_of(classifier(), batch()._replace(images=batch().images[:, None]))
    assert cropped == pytest.approx(plain)
    assert torch.equal(output.scores.argmax(1), whole.scores.argmax(1))


@pytest.mark.parametrize("network", [CapsNet, AbstractNetwork])
def test_scores_are_activations_unless_a_network_says_otherwise(network: type[AbstractNetwork]) -> None:
    assert network.scores_are == "activations"


@pytest.mark.parametrize("loss", [margin_loss, spread_loss, functools.partial(cross_entropy_loss, log_odds=True)])
@pytest.mark.parametrize("network", [CapsNet, functools.partial(EMCaps, class_routing=None)], ids=["CapsNet", "EMCaps"])
def test_losses_of_probabilities_refuse_lengths_without_a_bound(network: Any, loss: Any) -> None:
    options = {"optimizer": torch.optim.Adam, "schedule": RATE, "num_classes": 3}
    with torch.device("meta"):
        unbounded, bounded = (
            network((1, 28, 28), 3, routing=functools.partial(DynamicRouting, squash=squash))
            for squash in ("none", "exponential")
        )
    with pytest.raises(ValueError, match=r"routing.squash=none lengths have no bound; expected loss=cross_entropy_lo"):
        ClassifierModule(unbounded, loss=loss, **options)
    assert ClassifierModule(unbounded, loss=logits_cross_entropy_loss, **options).loss is logits_cross_entropy_loss
    assert ClassifierModule(bounded, loss=loss, **options).loss is loss


def test_unbounded_lengths_are_refused_before_a_run() -> None:
    config = compose("train", ["routing.squash=none"])
    with pytest.raises(ConfigError, match=r"module: margin_loss expects activations in .*, or routing.squash=squash$"):
        build.build_without_weights(config)


# --- parts of the test set -------------------------------------------------------------------------------------------


class InParts(MNISTDataModule):
    """The first 100 test images are familiar, the others novel."""

    test_parts = ("familiar", "novel")

    def split_test(self, everything: Images) -> tuple[Images, ...]:
        indices = torch.arange(len(everything.labels))
        return everything.subset(indices[:100]), everything.subset(indices[100:])


PARTS = "data._target_=tests.lit.test_base.InParts"


@pytest.fixture(scope="module")
def in_parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run whose test set has parts, and its result."""
    full = ["trainer.max_epochs=1", "trainer.precision=32-true", "callbacks.reconstructions=null"]
    directory = tmp_path_factory.mktemp("parts") / "run"
    return directory, train(compose("train", [*TINY_CNN, *TINY_DATA, PARTS, *full]), directory)


@pytest.mark.xdist_group("in_parts")
def test_parts_of_the_test_set(in_parts: tuple[Path, dict[str, Any]]) -> None:
    directory, found = in_parts
    module = trained_module(directory)
    data = build.build_data(compose("train", [*TINY_CNN, *TINY_DATA]))
    trainer().test(module, datamodule=data, verbose=False)
    test, whole = found["test"], module.test_results()
    images = len(data.test_dataloader().dataset)
    assert set(test) == {*whole, "familiar/error", "novel/error"}
    assert test["error"] == pytest.approx(whole["error"])
    together = 100 * test["familiar/error"] + (images - 100) * test["novel/error"]
    assert together / images == pytest.approx(test["error"])
    assert test["loss"] == pytest.approx(whole["loss"], rel=1e-4)

    assert json.loads((directory / "metrics.json").read_text())["test"] == test
    (row,) = [row for row in curves(directory) if row["test/error"]]
    assert [name for name in row if "dataloader" in name] == []
    assert float(row["novel/error"]) == test["novel/error"]
    line = summary(found, directory, CHOSEN).splitlines()[0]
    assert f"  familiar {test['familiar/error']:.2f} %  novel {test['novel/error']:.2f} %" in line
    assert "familiar" not in summary({**found, "test": whole}, directory, CHOSEN).splitlines()[0]


@pytest.mark.xdist_group("in_parts")
def test_evaluate_prints_the_error_of_every_part(
    cli: Callable[..., Ended], in_parts: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    directory, found = in_parts
    directory = Path(shutil.copytree(directory, tmp_path / "run"))
    ended = cli("evaluate", f"ckpt={directory}", "trust=[tests]", "trainer.accelerator=cpu")
    assert (ended.status, ended.err) == (0, "")
    errors = (found["test"][name] for name in ("error", "familiar/error", "novel/error"))
    assert "test error {:.2f} %  familiar {:.2f} %  novel {:.2f} %  of ".format(*errors) in ended.out
    (file,) = (directory / "evaluations").iterdir()
    assert json.loads(file.read_text())["test"] == pytest.approx(found["test"])


# --- callbacks=stop_at_error -----------------------------------------------------------------------------------------


def stopping(threshold: float, *overrides: str) -> DictConfig:
    options = ["callbacks=stop_at_error", f"callbacks.stop_at_error.stopping_threshold={threshold}", "train.test=last"]
    return compose("train", [*TINY_CNN, *TINY_DATA, *options, "trainer.max_epochs=3", *overrides, *NO_PICTURES])


WITHIN_EPOCHS = ["trainer.check_val_every_n_epoch=null", "trainer.val_check_interval=3"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run that stopped at its first validation, and its result."""
    directory = tmp_path_factory.mktemp("stopped") / "run"
    return directory, train(stopping(101), directory)


def assert_tested_where_it_stopped(directory: Path, found: dict[str, Any]) -> None:
    last, best = checkpoint(directory), checkpoint(directory, "best")
    assert found["weights_tested"] == "last"
    assert last["global_step"] == best["global_step"] == found["steps"] < found["planned_steps"] == 12
    assert last["capsule_lab"]["val"] == found["val"]


@pytest.mark.xdist_group("stopped")
def test_run_stops_at_the_first_validation_below_the_threshold(stopped: tuple[Path, dict[str, Any]]) -> None:
    directory, found = stopped
    assert found["steps"] == 4
    assert_tested_where_it_stopped(directory, found)


def test_run_stops_at_a_validation_within_an_epoch(tmp_path: Path) -> None:
    found = train(stopping(101, *WITHIN_EPOCHS), tmp_path)
    assert found["steps"] == 3
    assert_tested_where_it_stopped(tmp_path, found)


@pytest.mark.parametrize("threshold", [101, 0])
def test_run_ends_after_its_last_step_if_that_comes_first(tmp_path: Path, threshold: float) -> None:
    found = train(stopping(threshold, *WITHIN_EPOCHS, f"trainer.max_steps={2 if threshold else 6}"), tmp_path)
    assert found["steps"] == found["planned_steps"] == (2 if threshold else 6)


@pytest.mark.xdist_group("stopped")
def test_run_that_is_interrupted_stops_where_it_would_have(
    stopped: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = stopping(101)
    with pytest.raises(InterruptError):
        run(config, tmp_path, monkeypatch, SignalAt(2))
    config.train.resume = True
    assert results(train(config, tmp_path)) == results(stopped[1])


@pytest.mark.xdist_group("stopped")
def test_run_that_had_stopped_is_tested_again_and_not_trained_on(
    stopped: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(stopped[0], tmp_path / "run"))
    (directory / "metrics.json").unlink()  # as if it had been killed while testing
    assert results(train(stopping(101, "train.resume=true"), directory)) == results(stopped[1])
