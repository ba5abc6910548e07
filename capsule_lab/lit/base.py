"""The only training loop: every Lightning hook of the project is here."""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from torch import Tensor, nn
from torch.optim import Optimizer
from torchmetrics import MeanMetric, Metric

from capsule_lab.functional import combine_crops
from capsule_lab.losses import l2_loss
from capsule_lab.metrics import ErrorRate, ExactMatchError, LabelError
from capsule_lab.networks import AbstractNetwork
from capsule_lab.schedules import Schedule
from capsule_lab.types import Batch, CapsuleOutput

Loss = Callable[..., Tensor]
SPLITS = ("train", "val", "test")


class AbstractCapsuleModule(L.LightningModule):
    """Trains a network; a subclass says which terms its loss has, and nothing else.

    Logged, per split of ``train``, ``val`` and ``test``: ``<split>/loss``, ``<split>/<term>`` for every term,
    ``<split>/error`` in percent; and ``schedule/<name>`` for every schedule. Of images with several labels, ``error``
    counts those as right that have them all, and ``<split>/label_error`` single labels. Where the DataModule's
    ``test_parts`` names parts of the test set, one loader each, ``test/…`` is of all of them and ``<part>/error`` of
    each; its ``further_validations`` are reported as ``<name>/error`` beside ``val/…``.

    A batch may hold several crops per image, ``(batch, crop, channel, height, width)``: its loss is then the mean
    over the crops, and the prediction that of ``combine_crops``.

    Args:
        network: the network, already built.
        loss: the classification loss, ``(scores, labels) -> scalar``.
        optimizer: called with ``(parameters, lr=1.0)``; the learning rate comes from the schedule.
        schedule: schedules by name; ``learning_rate`` is required, ``None`` is no schedule. One that is named like an
            argument of the loss, such as ``margin``, sets this argument in training and in the validations of it,
            whatever the configuration of the loss says; all of them go to ``loss_terms``.
        num_classes: number of classes.
        labels_per_image: how many different ones every image shows.
        l2: weight of ``l2_loss`` of the network's kernels, a term of the loss named ``l2``; 0 for none.
        seed: every batch draws its random numbers (dropout) from ``(seed, batch, rank)``, so that a
            resumed run draws what an uninterrupted one would.
        max_steps: end the run after so many steps, whatever the epoch; -1 leaves the end to the Trainer. (With
            the Trainer's own ``max_steps``, Lightning 2.6 loses count when it resumes at the end of an epoch.)
        compile: compile the network in place with ``torch.compile``.

    Raises:
        ValueError: if there is no ``learning_rate`` schedule or it goes below 0, if something is no schedule, if
            ``l2`` is negative; from ``fit``, if the run has no end.
    """

    def __init__(
        self,
        network: AbstractNetwork,
        *,
        loss: Loss,
        optimizer: Callable[..., Optimizer],
        schedule: Mapping[str, Schedule | None],
        num_classes: int,
        labels_per_image: int = 1,
        l2: float = 0.0,
        seed: int = 0,
        max_steps: int = -1,
        compile: bool = False,
    ) -> None:
        super().__init__()
        if l2 < 0:
            raise ValueError(f"l2 is {l2}; expected 0 or more")
        self.network = network.to(memory_format=torch.channels_last)  # what convolutions are fastest in
        self.loss = loss
        self.optimizer = optimizer
        self.schedule = _schedules(schedule)
        self.scheduled_arguments = self.schedule.keys() & inspect.signature(_function(loss)).parameters
        self.num_classes = num_classes
        self.labels_per_image = labels_per_image
        self.l2 = l2
        self.seed = seed
        self.max_steps = max_steps
        self.total_steps = 0
        self._schedule_of_run: dict[str, Schedule] = {}
        if compile:
            network.compile()  # in place: torch.compile(network) would rename every weight
        self.metrics = nn.ModuleDict({f"{split}/error": self._error() for split in SPLITS})
        if labels_per_image > 1:
            self.metrics.update({f"{split}/label_error": LabelError() for split in SPLITS})

    @abstractmethod
    def loss_terms(self, batch: Batch, output: CapsuleOutput, schedule: Mapping[str, float]) -> dict[str, Tensor]:
        """Terms whose sum is the loss, by name, each a scalar with its weight in it."""

    def classification_term(
        self, batch: Batch, output: CapsuleOutput, schedule: Mapping[str, float]
    ) -> dict[str, Tensor]:
        """The classification loss under its own name: ``margin_loss`` gives ``margin``."""
        scheduled = {name: schedule[name] for name in self.scheduled_arguments if name in schedule}
        name = _function(self.loss).__name__.removesuffix("_loss")
        return {name: self.loss(output.scores, batch.labels, **scheduled)}

    def penalty(self) -> dict[str, Tensor]:
        """The term on the network's kernels, named ``l2``, if it has a weight."""
        if not self.l2:
            return {}
        kernels = (kernel for name, kernel in self.network.named_parameters() if name.endswith("weight"))
        return {"l2": l2_loss(kernels, weight=self.l2)}

    def forward(self, images: Tensor) -> CapsuleOutput:
        return self.network(images)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        terms, _ = self._step(batch, "train")
        self.log("loss", terms["loss"].detach(), prog_bar=True, logger=False)
        return terms

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, CapsuleOutput]:
        if dataloader_idx == 0:
            return {"output": self._step(batch, "val")[1]}
        output = self(batch.images)
        self._update_error(self.further_validations[dataloader_idx - 1], output, batch)
        return {"output": output}

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, CapsuleOutput]:
        output = self._step(batch, "test")[1]
        if self.test_parts:
            self._update_error(self.test_parts[dataloader_idx], output, batch)
        return {"output": output}

    def _step(self, batch: Batch, split: str) -> tuple[dict[str, Tensor], CapsuleOutput]:
        terms, output = (self._of_crops if batch.images.ndim == 5 else self._of_images)(batch)  # 5: see Batch
        terms |= self.penalty()
        terms = {"loss": torch.stack(list(terms.values())).sum(), **terms}
        self._update_error(split, output, batch)
        for name, value in terms.items():
            # once per image: torchmetrics ignores weight= where nobody looks for NaN
            self._metric(f"{split}/{name}").update(value.detach().expand(len(batch.labels)))
        return terms, output

    def _of_images(self, batch: Batch) -> tuple[dict[str, Tensor], CapsuleOutput]:
        output = self(batch.images)
        return self.loss_terms(batch, output, self.schedule_values()), output

    def _of_crops(self, batch: Batch) -> tuple[dict[str, Tensor], CapsuleOutput]:
        """One crop of all images after the other, so that it takes no more memory than one alone."""
        found = [self._of_images(batch._replace(images=crop)) for crop in batch.images.unbind(1)]
        terms = {name: torch.stack([terms[name] for terms, _ in found]).mean() for name in found[0][0]}
        scores = torch.stack([output.scores for _, output in found], 1)  # [b crop k]
        return terms, CapsuleOutput(combine_crops(scores, logits=self.network.scores_are == "logits"))

    def _error(self) -> Metric:
        return ErrorRate(self.num_classes) if self.labels_per_image == 1 else ExactMatchError()

    def _update_error(self, split: str, output: CapsuleOutput, batch: Batch) -> None:
        for name in (f"{split}/error", f"{split}/label_error"):
            if name in self.metrics:
                self._metric(name).update(output.scores.detach(), batch.labels)

    def _metric(self, name: str) -> Metric:
        """The metric logged as ``name``; means of loss terms appear with the first step."""
        if name not in self.metrics:
            self.metrics[name] = MeanMetric(nan_strategy="disable").to(self.device)  # NonFiniteGuard looks after NaN
        return cast(Metric, self.metrics[name])

    def on_train_epoch_end(self) -> None:
        self._log_epoch("train")
        self.log_dict({f"schedule/{name}": value for name, value in self.schedule_values().items()})

    def on_validation_start(self) -> None:
        self._add_errors(self.further_validations)

    def on_validation_epoch_end(self) -> None:
        for split in ("val", *self.further_validations):
            self._log_epoch(split)

    @property
    def test_parts(self) -> tuple[str, ...]:
        """Parts of the test set, of which the DataModule has a loader each; none for most data sets."""
        return tuple(getattr(getattr(self.trainer, "datamodule", None), "test_parts", ()))

    @property
    def further_validations(self) -> tuple[str, ...]:
        """Sets that the DataModule has beside the validation set, a loader each; none for most data sets."""
        return tuple(getattr(getattr(self.trainer, "datamodule", None), "further_validations", ()))

    def on_test_start(self) -> None:
        self._add_errors(self.test_parts)

    def _add_errors(self, splits: Iterable[str]) -> None:
        for split in splits:
            self.metrics[f"{split}/error"] = self._error().to(self.device)

    def on_test_epoch_end(self) -> None:
        for split in ("test", *self.test_parts):
            self._log_epoch(split)

    def test_results(self) -> dict[str, float]:
        """What the test that is just over gave: its quantities, and ``<part>/error`` of every part."""
        logged = {name: float(value) for name, value in self.trainer.logged_metrics.items()}
        parts = {name: value for name, value in logged.items() if name.partition("/")[0] in self.test_parts}
        return {name.removeprefix("test/"): logged[name] for name in logged if name.startswith("test/")} | parts

    def _log_epoch(self, split: str) -> None:
        for name, metric in self._metrics_of(split):
            self.log(name, metric.compute(), prog_bar=name.endswith("/error"))  # synchronised by torchmetrics
            metric.reset()

    def _metrics_of(self, split: str) -> list[tuple[str, Metric]]:
        return [(name, cast(Metric, metric)) for name, metric in self.metrics.items() if name.startswith(f"{split}/")]

    def schedule_values(self) -> dict[str, float]:
        """Every schedule's value at this step, by name; empty outside of ``fit``."""
        if self.trainer.state.fn != "fit":
            return {}
        return {name: value(self.global_step) for name, value in self._schedule_of_run.items()}

    def configure_optimizers(self) -> Any:
        per_epoch, self.total_steps = self._length_of_run()
        self._schedule_of_run = {
            name: value.for_run(per_epoch, self.total_steps) for name, value in self.schedule.items()
        }
        optimizer = self.optimizer(self.parameters_to_train(), lr=1.0)
        rate = self._schedule_of_run["learning_rate"]
        # a plain function: of a callable object LambdaLR would save, and on resuming overwrite, the attributes
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _length_of_run(self) -> tuple[int, int]:
        """Steps per epoch, and in all."""
        trainer = self.trainer
        trainer.fit_loop.setup_data()  # as trainer.estimated_stepping_batches does, but not without max_epochs
        total = trainer.estimated_stepping_batches
        if self.max_steps >= 0:
            total = min(total, self.max_steps)
        if not math.isfinite(total):
            raise ValueError("the run has no end: set trainer.max_epochs or trainer.max_steps, schedules scale to it")
        return math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches), int(total)

    def parameters_to_train(self) -> Iterable[nn.Parameter]:
        """What the optimiser gets."""
        return self.network.parameters()

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        sequence = np.random.SeedSequence((self.seed, self.trainer.fit_loop.total_batch_idx, self.global_rank))
        torch.manual_seed(int(sequence.generate_state(1)[0]))

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        self._stop_at_the_end()

    def on_train_start(self) -> None:
        self._stop_at_the_end()  # resumed from the last step
        reasons = [callback.stopping_reason for callback in self.trainer.early_stopping_callbacks]
        if EarlyStoppingReason.STOPPING_THRESHOLD in reasons:  # resumed after it had come where it should
            self.trainer.should_stop = True

    def _stop_at_the_end(self) -> None:
        if 0 <= self.max_steps <= self.global_step:
            self.trainer.should_stop = True

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["metrics"] = {name: dict(metric.metric_state) for name, metric in self._metrics_of("train")}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name, states in checkpoint.get("metrics", {}).items():
            metric = self._metric(name)
            for state, value in states.items():
                setattr(metric, state, value)
            metric._update_count = 1  # what torchmetrics' own load_state_dict leaves out: compute() warns at 0


def _function(loss: Loss) -> Any:
    """The function behind a partial."""
    return getattr(loss, "func", loss)


def _schedules(schedule: Mapping[str, Schedule | None]) -> dict[str, Schedule]:
    """Those that are not ``None``, with a learning rate that can be one."""
    for name, value in schedule.items():
        if not isinstance(value, Schedule | None):
            raise ValueError(f"schedule.{name} is {value!r}; expected a schedule, such as Constant(value), or null")  # noqa: TRY004
    given = {name: value for name, value in schedule.items() if value is not None}
    if "learning_rate" not in given:
        raise ValueError(f"the schedule has {', '.join(given) or 'no entry'}; expected one named learning_rate")
    rate = given["learning_rate"].for_run(1, 1)
    for when, step in (("start", 0), ("end", 1)):
        if not rate(step) >= 0:
            raise ValueError(f"schedule.learning_rate is {rate(step):g} at the {when}; expected 0 or more")
    return given
