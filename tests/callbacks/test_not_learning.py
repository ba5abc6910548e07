"""When a run is said to learn nothing, with losses and errors of the test's own."""

import logging
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from capsule_lab.callbacks import NotLearning
from capsule_lab.types import Batch, DataSpec

LABELS = torch.arange(10).repeat_interleave(2)
MODULE: Any = object()


def trainer_of(rate: float = 0.001, first: bool = True, several: int = 1) -> Any:
    return SimpleNamespace(
        is_global_zero=first, global_step=0, callback_metrics={},
        optimizers=[SimpleNamespace(param_groups=[{"lr": rate}])],
        datamodule=SimpleNamespace(spec=DataSpec((1, 4, 4), 10, labels_per_image=several)),
    )  # fmt: skip


def batch_of(labels: torch.Tensor = LABELS) -> Batch:
    return Batch(torch.zeros(len(labels), 1, 4, 4), labels, torch.arange(len(labels)))


def warnings(
    caplog: pytest.LogCaptureFixture,
    start: float = 0.5,
    end: float = 0.5,
    steps: int = 60,
    epochs: int = 2,
    labels: torch.Tensor = LABELS,
    of_trainer: dict[str, Any] | None = None,
    **errors: float,
) -> list[str]:
    """What is said in a run whose loss goes from ``start`` to ``end`` with some noise, in every epoch."""
    caplog.clear()
    noise = 0.02 * torch.randn(steps, generator=torch.Generator().manual_seed(0))
    trainer, batch, callback, module = trainer_of(**(of_trainer or {})), batch_of(labels), NotLearning(), MODULE
    with caplog.at_level(logging.INFO):
        callback.on_train_start(trainer, module)
        for _ in range(epochs):
            callback.on_train_epoch_start(trainer, module)
            for step, loss in enumerate(torch.linspace(start, end, steps) + noise):
                callback.on_train_batch_start(trainer, module, batch, step)
                trainer.global_step += 1
                terms = {"loss": loss - 0.01 * step, "margin": loss, "reconstruction": torch.tensor(-0.01 * step)}
                callback.on_train_batch_end(trainer, module, terms, batch, step)
            trainer.callback_metrics = {f"{name}/error": torch.tensor(value) for name, value in errors.items()}
        callback.on_train_end(trainer, module)
    return [record.getMessage() for record in caplog.records]


def test_error_at_chance_and_a_flat_loss_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = warnings(caplog, train=90.5, val=89.0)
    assert message.startswith(
        "not learning: after step 60 the error is 89.0 % (always predicting the most frequent class: 90.0 %), "
        "and the classification loss has not fallen (0.49"
    )
    assert "(schedule.learning_rate, now 0.001)" in message
    assert len(warnings(caplog, end=0.7, val=90.0)) == 1, "a loss that rises, as a spread loss with its margin"
    assert len(warnings(caplog, steps=20, epochs=3, val=90.0)) == 1, "three short epochs"
    pairs = LABELS.roll(1).view(-1, 2)
    (message,) = warnings(caplog, labels=pairs, of_trainer={"several": 2}, val=98.0)
    assert "most frequent class: 97.8 %" in message, "44 of 45 pairs of digits"


def test_learning_rate_of_zero_is_said_once_at_any_error(caplog: pytest.LogCaptureFixture) -> None:
    expected = ["not learning: the learning rate of the last 3 steps was 0; see schedule.learning_rate"]
    assert warnings(caplog, of_trainer={"rate": 0.0}, steps=3, val=5.0) == expected


def test_networks_that_learn_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings(caplog, train=90.0, val=80.0) == [], "the validation error is better"
    assert warnings(caplog, train=80.0, val=90.0) == [], "the training error is better"
    assert warnings(caplog, end=0.45, train=90.0) == [], "the loss falls"
    assert warnings(caplog, steps=20, train=90.0) == [], "too few steps"
    assert warnings(caplog) == [], "nothing is known of the error"
    assert warnings(caplog, of_trainer={"first": False}, train=90.0) == [], "not the first process"
    assert warnings(caplog, labels=torch.zeros(20, dtype=torch.int64), train=0.0) == [], "a single class"


def test_no_step_leaves_a_tensor_behind() -> None:
    """750 steps with tensors between them made a CapsNet's training grow to 12.9 GB on a CPU, from 1.3."""
    callback, trainer, batch = NotLearning(), trainer_of(), batch_of()
    losses = torch.rand(3000, generator=torch.Generator().manual_seed(0))
    for step, loss in enumerate(losses):
        terms = {"loss": loss.clone()}
        callback.on_train_batch_end(trainer, MODULE, terms, batch, step)
        alive = [weakref.ref(terms["loss"]), weakref.ref(terms["loss"].untyped_storage())]
        del terms
        assert [reference() for reference in alive] == [None, None]
    torch.testing.assert_close(callback.losses[: callback.steps], losses, rtol=0, atol=0)
    assert callback.labels.tolist() == [2 * 3000] * 10
