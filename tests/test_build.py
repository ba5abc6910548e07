"""Values that cannot work end in one sentence, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from capsule_lab.check import check
from capsule_lab.config import compose
from capsule_lab.errors import ConfigError
from tests.helpers.commands import TINY, Ended


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["data.batch_size=1.5"], "data.batch_size is 1.5; expected a whole number"),
        (["data.batch_size=many"], "data.batch_size is many; expected a whole number"),
        (["data.batch_size=true"], "data.batch_size is True; expected a whole number"),
        (["data.eval_batch_size=null"], "data.eval_batch_size is null; expected a whole number"),
        (["data.train_images=0.5"], "data.train_images is 0.5; expected a whole number or null"),
        (["data.augment=3"], "data.augment is 3; expected true or false"),
        (["data.directory=3"], "data.directory is 3; expected text or null"),
        (["callbacks.last.every_minutes=abc"], "callbacks.last.every_minutes is abc; expected a number"),
        (["loss.classification.present=much"], "loss.classification.present is much; expected a number"),
        (["schedule.learning_rate.initial=high"], "schedule.learning_rate.initial is high; expected a number"),
        (["schedule.learning_rate=null"], "module: the schedule has no entry; expected one named learning_rate"),
        (["schedule.learning_rate=3"], "module: schedule.learning_rate is 3; expected a schedule, such as Constant"),
        (
            ["schedule.learning_rate.initial=-0.1", "schedule.learning_rate.floor=-1"],
            "module: schedule.learning_rate is -0.1 at the start; expected 0 or more",
        ),
        (["schedule=constant", "schedule.learning_rate.value=-1"], "module: schedule.learning_rate is -1 at the start"),
        (["trainer.limit_train_batches=0"], "trainer.limit_train_batches is 0, which trains nothing; expected 1 or"),
        (["trainer.limit_train_batches=0.0"], "trainer.limit_train_batches is 0, which trains nothing; expected 1 or"),
        (["callbacks=stop_at_error"], "callbacks.stop_at_error.stopping_threshold is missing; expected callbacks.stop"),
        (["+module.l2=-1"], "module: l2 is -1; expected 0 or more"),
    ],
    ids=str,
)
def test_value_that_cannot_work_is_refused_in_a_sentence(
    cli: Callable[..., Ended], tmp_path: Path, overrides: list[str], sentence: str
) -> None:
    ended = cli("train", *TINY, *overrides)
    assert ended.status == 2
    assert ended.err.startswith(f"capsule_lab: {sentence}")
    assert ended.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("group", "sentence"),
    [
        ("data", "data is missing; expected data= one of affnist, "),
        ("loss", "loss is missing; expected loss= one of cross_entropy, "),
        ("schedule", "schedule is missing; expected schedule= one of constant, "),
        ("optimizer", "optimizer is missing; expected optimizer= one of adam"),
        ("model", "model is missing; expected model= one of capsnet, "),
        ("trainer", "trainer is missing; expected trainer= one of default"),
    ],
)
def test_group_that_is_not_chosen_is_refused_in_a_sentence(
    cli: Callable[..., Ended], tmp_path: Path, group: str, sentence: str
) -> None:
    ended = cli("train", f"~{group}")
    assert ended.status == 2
    assert ended.err.startswith(f"capsule_lab: {sentence}")
    assert ended.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "overrides",
    [
        ["callbacks.last.every_minutes=1"],
        ["loss.classification.present=1"],
        ["data.train_images=null"],
        ["trainer.limit_train_batches=0.5"],
        ["trainer.limit_train_batches=1"],
        ["data.validation_share=0.1"],
        ["schedule.learning_rate.every=2000"],
        ["schedule=hinton2018", "loss=spread", "schedule.margin=null"],
    ],
    ids=str,
)
def test_value_that_works_is_accepted(overrides: list[str]) -> None:
    check(compose("train", overrides))


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        ("margin", "the margin loss is for lengths of capsules; BaselineCNN gives logits: loss=cross_entropy"),
        ("spread", "the spread loss is for activations of capsules; BaselineCNN gives logits: loss=cross_entropy"),
        (
            "cross_entropy_log_odds",
            "cross-entropy on log-odds is for activations of capsules; BaselineCNN gives logits: loss=cross_entropy",
        ),
    ],
)
def test_loss_of_activations_on_logits_is_refused(loss: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(compose("train", ["model=cnn_smallnorb", f"loss={loss}"]))
    assert str(caught.value) == sentence
