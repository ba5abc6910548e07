"""What the training loop itself does: schedules that reach the loss, the L2 term, crops and parts of the test set."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import Tensor

from capsule_lab.data import MNISTDataModule
from capsule_lab.data.loader import Images
from capsule_lab.functional import combine_crops
from capsule_lab.lit import CapsNetModule, ClassifierModule
from capsule_lab.losses import cross_entropy_loss, l2_loss, margin_loss, spread_loss
from capsule_lab.networks import AbstractNetwork, BaselineCNN, CapsNet
from capsule_lab.routing import DynamicRouting
from capsule_lab.schedules import Constant, Exponential, Linear, Schedule
from capsule_lab.train import summary, train
from capsule_lab.types import Batch, CapsuleOutput
from tests.helpers.commands import NO_PICTURES, TINY_CNN, Ended
from tests.helpers.training import SignalAt, curves, run

Tiny = Callable[..., DictConfig]
RATE = {"learning_rate": Constant(1e-3)}


def module(loss: Callable[..., Tensor] = spread_loss, **options: Any) -> ClassifierModule:
    torch.manual_seed(0)
    network = BaselineCNN((1, 4, 4), 3, channels=(2,), kernel_size=3, hidden=(4,), dropout=0.0)
    schedule = options.pop("schedule", RATE)
    return ClassifierModule(network, loss=loss, optimizer=torch.optim.Adam, schedule=schedule, num_classes=3, **options)


def batch(images: int = 6, crops: int | None = None, size: int = 4) -> Batch:
    shape = (images, 1, size, size) if crops is None else (images, crops, 1, size, size)
    pixels = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    return Batch(pixels, torch.arange(images) % 3, torch.arange(images))


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
    lit = module(loss, schedule={**RATE, **dict.fromkeys(schedules, Constant(0.5))})
    assert lit.scheduled_arguments == reach


@pytest.mark.parametrize(
    ("schedule", "margin"), [({"margin": 0.3, "learning_rate": 1e-3}, 0.3), ({}, 0.7)], ids=["scheduled", "outside fit"]
)
def test_scheduled_value_wins_over_the_configured_one(schedule: Mapping[str, float], margin: float) -> None:
    lit = module(functools.partial(spread_loss, margin=0.7), schedule={**RATE, "margin": Constant(0.3)})
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
    logged = [float(row["schedule/margin"]) for row in curves(tmp_path / "run") if row["schedule/margin"]]
    assert logged == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ({}, "the schedule has no entry; expected one named learning_rate"),
        ({"learning_rate": None}, "the schedule has no entry; expected one named learning_rate"),
        ({"margin": Constant(0.9)}, "the schedule has margin; expected one named learning_rate"),
        ({"learning_rate": 0.1}, r"schedule\.learning_rate is 0\.1; expected a schedule, such as Constant"),
        ({**RATE, "margin": 0.9}, r"schedule\.margin is 0\.9; expected a schedule, such as Constant"),
        ({"learning_rate": Constant(-0.1)}, r"schedule\.learning_rate is -0\.1 at the start; expected 0 or more"),
        ({"learning_rate": Linear(0.1, -0.2, "1 run")}, r"schedule\.learning_rate is -0\.2 at the end; expected 0"),
        ({"learning_rate": Constant(float("nan"))}, r"schedule\.learning_rate is nan at the start; expected 0"),
    ],
)
def test_schedule_that_cannot_work_is_named(schedule: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        module(schedule=schedule)


@pytest.mark.parametrize("rate", [Linear(0.0, 1e-3, "1 run"), Exponential(1e-3, 0.5, "3 steps"), Constant(0.0)])
def test_learning_rate_that_starts_or_ends_at_zero_is_accepted(rate: Schedule) -> None:
    assert module(schedule={"learning_rate": rate, "margin": None}).schedule == {"learning_rate": rate}


# --- L2 --------------------------------------------------------------------------------------------------------------


def trainer(**options: Any) -> L.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(accelerator="cpu", enable_checkpointing=False, max_epochs=1, **quiet, **options)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_l2_is_a_term_of_its_own(weight: float) -> None:
    lit = module(cross_entropy_loss, l2=weight)
    (found,) = trainer().test(lit, torch.utils.data.DataLoader([batch()], batch_size=None), verbose=False)
    assert ("test/l2" in found) is bool(weight)
    assert found.get("test/l2", 0) == pytest.approx(l2_loss(lit.network.parameters(), weight=weight).item())
    assert found["test/loss"] == pytest.approx(found["test/cross_entropy"] + found.get("test/l2", 0))


def test_l2_of_a_configured_run_shrinks_the_kernels(tiny: Tiny, tmp_path: Path) -> None:
    def size(weight: float) -> float:
        config = tiny(f"+module.l2={weight}", "train.test=none", *NO_PICTURES, model=TINY_CNN)
        train(config, tmp_path / str(weight))
        rows = [row for row in curves(tmp_path / str(weight)) if row["train/loss"]]
        assert ("train/l2" in rows[-1]) is bool(weight)
        path = tmp_path / str(weight) / "checkpoints" / "last.ckpt"
        weights = torch.load(path, weights_only=True)["state_dict"].values()
        return l2_loss(weights, weight=1.0).item()

    assert size(10.0) < size(0.0)


def test_negative_l2_is_named() -> None:
    with pytest.raises(ValueError, match=r"l2 is -1; expected 0 or more"):
        module(l2=-1)


# --- means -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_loss_is_a_mean_over_images_whatever_the_batches() -> None:
    whole = batch(9)
    parts = [Batch(*(value[cut] for value in whole[:3])) for cut in (slice(0, 7), slice(7, 9))]
    expected, _ = outcome_of(module(cross_entropy_loss), whole)
    found, _ = outcome_of(module(cross_entropy_loss), *parts)
    assert found == pytest.approx(expected)
    assert found != pytest.approx(outcome_of(module(cross_entropy_loss), parts[0])[0])


# --- several crops per image -----------------------------------------------------------------------------------------


def outcome_of(lit: L.LightningModule, *batches: Batch) -> tuple[dict[str, float], list[CapsuleOutput]]:
    """What a test of these batches logs and hands to callbacks."""
    outputs: list[CapsuleOutput] = []

    class Watch(L.Callback):
        def on_test_batch_end(self, *arguments: Any) -> None:
            outputs.append(arguments[2]["output"])

    loader = torch.utils.data.DataLoader(list(batches), batch_size=None)
    (found,) = trainer(callbacks=[Watch()]).test(lit, loader, verbose=False)
    return dict(found), outputs


def capsnet() -> CapsNetModule:
    torch.manual_seed(0)
    options = {"channels": 2, "kernel_size": 3, "primary_types": 2, "class_dim": 4, "decoder": (5,)}
    network = CapsNet((1, 9, 9), 3, routing=DynamicRouting, **options)
    reconstruction = functools.partial(lambda decoded, images: (decoded - images).square().mean())
    return CapsNetModule(
        network,
        loss=margin_loss,
        reconstruction=reconstruction,
        optimizer=torch.optim.Adam,
        schedule=RATE,
        num_classes=3,
    )


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize(("build", "size", "logits"), [(module, 4, True), (capsnet, 9, False)], ids=["CNN", "CapsNet"])
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
    plain, (whole,) = outcome_of(module(), batch())
    cropped, (output,) = outcome_of(module(), batch()._replace(images=batch().images[:, None]))
    assert cropped == pytest.approx(plain)
    assert torch.equal(output.scores.argmax(1), whole.scores.argmax(1))


@pytest.mark.parametrize("network", [CapsNet, AbstractNetwork])
def test_scores_are_activations_unless_a_network_says_otherwise(network: type[AbstractNetwork]) -> None:
    assert network.scores_are == "activations"


# --- parts of the test set -------------------------------------------------------------------------------------------


class InParts(MNISTDataModule):
    """The first 100 test images are familiar, the others novel."""

    test_parts = ("familiar", "novel")

    def split_test(self, everything: Images) -> tuple[Images, ...]:
        indices = torch.arange(len(everything.labels))
        return everything.subset(indices[:100]), everything.subset(indices[100:])


PARTS = "data._target_=tests.lit.test_base.InParts"


@pytest.mark.parametrize("confusion", ["confusion", "null"])
def test_parts_of_the_test_set(tiny: Tiny, tmp_path: Path, confusion: str) -> None:
    options = ["callbacks.confusion=null"] if confusion == "null" else []
    full = ["trainer.max_epochs=1", "trainer.precision=32-true", "callbacks.reconstructions=null"]
    config = tiny(PARTS, *full, *options, model=TINY_CNN)
    found = train(config, tmp_path / "parts")
    config.data._target_ = "capsule_lab.data.MNISTDataModule"
    whole = train(config, tmp_path / "whole")
    test = found["test"]
    images = len(instantiate(config.data, _convert_="all").load(train=False, real=False).labels)
    assert set(test) == {*whole["test"], "familiar/error", "novel/error"}
    assert test["error"] == pytest.approx(whole["test"]["error"])
    together = 100 * test["familiar/error"] + (images - 100) * test["novel/error"]
    assert together / images == pytest.approx(test["error"])
    assert test["loss"] == pytest.approx(whole["test"]["loss"], rel=1e-4)

    assert json.loads((tmp_path / "parts" / "metrics.json").read_text())["test"] == test
    (row,) = [row for row in curves(tmp_path / "parts") if row["test/error"]]
    assert [name for name in row if "dataloader" in name] == []
    assert float(row["novel/error"]) == test["novel/error"]
    line = summary(found, tmp_path / "parts").splitlines()[0]
    assert f"  familiar {test['familiar/error']:.2f} %  novel {test['novel/error']:.2f} %" in line
    assert "familiar" not in summary(whole, tmp_path / "whole")


def test_evaluate_says_the_error_of_every_part(cli: Callable[..., Ended], tiny: Tiny, tmp_path: Path) -> None:
    found = train(tiny(PARTS, *NO_PICTURES, "trainer.max_epochs=1", model=TINY_CNN), tmp_path / "run")
    ended = cli("evaluate", f"ckpt={tmp_path / 'run'}", "trainer.accelerator=cpu")
    assert (ended.status, ended.err) == (0, "")
    errors = (found["test"][name] for name in ("error", "familiar/error", "novel/error"))
    assert "test error {:.2f} %  familiar {:.2f} %  novel {:.2f} %  of ".format(*errors) in ended.out
    (file,) = (tmp_path / "run" / "evaluations").iterdir()
    assert json.loads(file.read_text())["test"] == pytest.approx(found["test"])
    assert cli("evaluate", f"ckpt={tmp_path / 'run'}", "trainer.accelerator=cpu", "split=validation").status == 0


# --- callbacks=stop_at_error -----------------------------------------------------------------------------------------


def stopping(tiny: Tiny, threshold: float, *overrides: str) -> DictConfig:
    options = ["callbacks=stop_at_error", f"callbacks.stop_at_error.stopping_threshold={threshold}", "train.test=last"]
    return tiny(*options, "trainer.max_epochs=3", *overrides, *NO_PICTURES, model=TINY_CNN)


WITHIN_EPOCHS = ["trainer.check_val_every_n_epoch=null", "trainer.val_check_interval=3"]


@pytest.mark.parametrize(
    ("threshold", "overrides", "steps"),
    [
        (101, [], 4),
        (101, WITHIN_EPOCHS, 3),
        (101, ["trainer.max_steps=2"], 2),
        (0, [], 12),
        (0, ["trainer.max_steps=6"], 6),
        (0, ["trainer.max_steps=6", *WITHIN_EPOCHS], 6),
    ],
    ids=str,
)
def test_run_stops_at_the_first_validation_below_the_threshold(
    tiny: Tiny, tmp_path: Path, threshold: float, overrides: list[str], steps: int
) -> None:
    found = train(stopping(tiny, threshold, *overrides), tmp_path / "run")
    assert found["steps"] == steps


@pytest.mark.parametrize("overrides", [[], WITHIN_EPOCHS], ids=["epochs", "steps"])
def test_weights_that_are_tested_are_those_at_which_the_run_stopped(
    tiny: Tiny, tmp_path: Path, overrides: list[str]
) -> None:
    stopped = train(stopping(tiny, 101, *overrides), tmp_path / "stopped")
    checkpoint = torch.load(tmp_path / "stopped" / "checkpoints" / "last.ckpt", weights_only=True)
    assert stopped["weights_tested"] == "last"
    assert checkpoint["global_step"] == stopped["steps"] < stopped["planned_steps"]
    assert checkpoint["capsule_lab"]["val"] == stopped["val"]
    best = torch.load(tmp_path / "stopped" / "checkpoints" / "best.ckpt", weights_only=True)
    assert best["global_step"] == stopped["steps"]


@pytest.mark.parametrize(("threshold", "signal_at"), [(101, 2), (0, 6)], ids=["stops", "never stops"])
def test_run_that_is_interrupted_stops_where_it_would_have(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold: float, signal_at: int
) -> None:
    config = stopping(tiny, threshold)
    expected = train(config, tmp_path / "whole")
    with pytest.raises(Exception, match="to continue exactly"):
        run(config, tmp_path / "parts", monkeypatch, SignalAt(signal_at))
    config.train.resume = True
    found = train(config, tmp_path / "parts")
    assert {k: found[k] for k in ("steps", "test", "val")} == {k: expected[k] for k in ("steps", "test", "val")}


def test_run_that_had_stopped_is_tested_again_and_not_trained_on(tiny: Tiny, tmp_path: Path) -> None:
    config = stopping(tiny, 101)
    expected = train(config, tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()  # as if it had been killed while testing
    config.train.resume = True
    found = train(config, tmp_path / "run")
    assert {k: found[k] for k in ("steps", "test", "val")} == {k: expected[k] for k in ("steps", "test", "val")}
