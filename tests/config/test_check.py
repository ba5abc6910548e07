"""Values that cannot work are refused in one line, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from omegaconf import OmegaConf

from capsule_lab.config.build import build_without_weights
from capsule_lab.config.check import check
from capsule_lab.config.compose import compose
from capsule_lab.errors import ConfigError
from tests.helpers.commands import TINY, Ended


@pytest.mark.parametrize(
    ("overrides", "message"),
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
        (["trainer.max_epochs=1.5"], "trainer.max_epochs is 1.5; expected a whole number or null"),
        (["trainer.max_steps=null"], "trainer.max_steps is null; expected a whole number"),
        (["optimizer.eps=small"], "optimizer.eps is small; expected a number"),
        (["trainer.max_epochs=-1"], "the run has no end: set trainer.max_epochs or trainer.max_steps"),
        (["seed=-1"], "seed is -1; expected a whole number, 0 or more"),
        (["trainer.precision=64-true"], "trainer.precision is 64-true; expected one of auto, 32-true, bf16-mixed"),
        (["train.test=first"], "train.test is 'first'; expected 'best', 'last' or 'none'"),
        (["routing.iterations=1000"], "routing.iterations is 1000; expected 1 to 999, papers have 1 to 10"),
        (["trainer.max_time=99:99:99:99"], "trainer.max_time is 99:99:99:99; expected days:hours:minutes:seconds"),
        (["trainer.strategy=ddp_spawn"], "trainer.strategy is ddp_spawn, which copies this process; expected auto or"),
        (["model.hidden=[32,8]"], "model.hidden is [32, 8]; expected a list of lists of whole numbers, such as [[…]"),
        (["callbacks=pairs"], "callbacks=pairs is of pairs, and CapsNet classifies; expected callbacks=default"),
        (["trainer.limit_train_batches=0"], "trainer.limit_train_batches is 0, which trains nothing; expected 1 or"),
        (["trainer.limit_train_batches=0.0"], "trainer.limit_train_batches is 0, which trains nothing; expected 1 or"),
        (["callbacks=stop_at_error"], "callbacks.stop_at_error.stopping_threshold is missing; expected callbacks.stop"),
    ],
    ids=str,
)
def test_value_that_cannot_work_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(compose("train", [*TINY, *overrides]))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["schedule.learning_rate=null"], "module: the schedule has no entry; expected one named learning_rate"),
        (["schedule.learning_rate=3"], "module: schedule.learning_rate is 3; expected a schedule, such as Constant"),
        (
            ["schedule=hinton2018_scaled", "schedule.learning_rate.start=-0.1"],
            "module: schedule.learning_rate is -0.1 at the start; expected 0 or more",
        ),
        (["schedule=constant", "schedule.learning_rate.value=-1"], "module: schedule.learning_rate is -1 at the start"),
        (["+module.l2=-1"], "module: l2 is -1; expected 0 or more"),
    ],
    ids=str,
)
def test_value_that_a_constructor_refuses_is_named(overrides: list[str], message: str) -> None:
    config = compose("train", [*TINY, *overrides])
    check(config)
    with pytest.raises(ConfigError) as caught:
        build_without_weights(config)
    assert str(caught.value).startswith(message)


def test_refused_configuration_leaves_nothing_behind(cli: Callable[..., Ended], tmp_path: Path) -> None:
    ended = cli("train", *TINY, "data.batch_size=1.5")
    assert (ended.status, ended.err) == (2, "capsule_lab: data.batch_size is 1.5; expected a whole number\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("data", "data is missing; expected data= one of affnist, "),
        ("loss", "loss is missing; expected loss= one of cross_entropy, "),
        ("schedule", "schedule is missing; expected schedule= one of constant, "),
        ("optimizer", "optimizer is missing; expected optimizer= one of adam"),
        ("model", "model is missing; expected model= one of capsnet, "),
        ("module", "module is missing; expected module= one of capsnet, classifier"),
        ("trainer", "trainer is missing; expected trainer= one of default"),
    ],
)
def test_group_that_is_not_chosen_is_refused(group: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(compose("train", [f"~{group}"]))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


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
        ["model=capsnet", "loss=sigmoid_cross_entropy"],
        ["model=em_caps", "loss=cross_entropy_logits"],
        ["model=cnn_small", "loss=cross_entropy_logits"],
    ],
    ids=str,
)
def test_value_that_works_is_accepted(overrides: list[str]) -> None:
    check(compose("train", overrides))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model=cnn_smallnorb", "loss=margin"],
            "margin_loss expects activations; BaselineCNN gives logits: loss=cross_entropy",
        ),
        (
            ["model=cnn_smallnorb", "loss=cross_entropy_log_odds"],
            "cross_entropy_loss with log_odds expects activations; BaselineCNN gives logits: loss=cross_entropy",
        ),
        (
            ["model=cnn_smallnorb", f"loss.classification._target_={__name__}.hinge_loss"],
            "hinge_loss expects activations; BaselineCNN gives logits: loss=cross_entropy",
        ),
    ],
    ids=str,
)
def test_loss_that_does_not_fit_the_scores_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(compose("train", overrides))
    assert str(caught.value) == message


def hinge_loss(scores: Any, labels: Any, label_smoothing: float = 0.0) -> Any:
    """A loss of another package, which says what it is for."""


vars(hinge_loss)["expects"] = "activations"


class Base:
    def __init__(self, whole: int = 1, share: float | None = None, name: str | None = None) -> None:
        pass


class Typed(Base):
    def __init__(
        self,
        flag: bool = False,
        sizes: list[int] | int = 3,
        kind: Literal["a", "b"] | None = None,
        pair: tuple[float, float] = (0, 1),
        anything: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flag": True, "sizes": [1, 2]}, None),
        ({"whole": 2, "share": 1, "name": None}, None),
        ({"share": None, "name": "3"}, None),
        ({"flag": 1}, "mine.flag is 1; expected true or false"),
        ({"whole": True}, "mine.whole is True; expected a whole number"),
        ({"whole": 2.0}, "mine.whole is 2.0; expected a whole number"),
        ({"share": "half"}, "mine.share is half; expected a number or null"),
        ({"name": 3}, "mine.name is 3; expected text or null"),
        ({"sizes": "many"}, "mine.sizes is many; expected a list of whole numbers or a whole number"),
        ({"sizes": [1, "two"]}, "mine.sizes is [1, 'two']; expected a list of whole numbers or a whole number"),
        ({"kind": "c"}, "mine.kind is 'c'; expected 'a' or 'b' or null"),
        ({"pair": [1]}, "mine.pair is [1]; expected a list of 2 numbers"),
        ({"pair": [1, 0.5], "kind": "a", "sizes": [], "anything": "x"}, None),
    ],
    ids=str,
)
def test_values_are_held_to_the_annotations(options: dict[str, Any], message: str | None) -> None:
    config = OmegaConf.create({"mine": {"_target_": f"{__name__}.Typed", **options}})
    if message is None:
        check(config)
        return
    with pytest.raises(ConfigError) as caught:
        check(config)
    assert str(caught.value) == message
