"""An early warning that a network does not learn."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from capsule_lab.callbacks.constant_answer import best_constant_loss, loss_of_constant
from capsule_lab.errors import printable
from capsule_lab.lit import AbstractModule
from capsule_lab.lit.classification import AbstractClassifierModule
from capsule_lab.metrics import constant_error, constant_labels
from capsule_lab.types import Batch

log = logging.getLogger(__name__)

# ours: relative; a network that has learned nothing else is within 0.01 of the best constant answer
_NEAR = 0.02
_FAR = 0.2  # ours: relative; how much worse than a constant answer the loss of a network may be for a while
_CHANCE = 0.97  # ours: 3 % for chance
_POINTS = 5  # ours: steps of a window at which a schedule of the loss is looked at
_OUTWEIGHS = (
    10  # ours: a term compared with the classification loss; about 0.1 for the decoder of a CapsNet
)

_RATE = "a learning rate that is too high or too low (schedule.learning_rate, now %.2g)"
_LABELS = "labels that do not belong to their images"
_TOO_HIGH = "a learning rate that is too high (schedule.learning_rate, now %.2g)"
_CAUSES = {
    "flat": f"{_RATE}, the margins of the loss, {_LABELS}",
    "ignores its input": f"images that are blank or alike, {_LABELS}, {_RATE}",
    "dead": f"initial weights or routing that make all class capsules 0, {_RATE}",
    "saturated": f"{_TOO_HIGH}, inputs that are not in [0, 1]",
    "worse": f"{_TOO_HIGH}, inputs that are not in [0, 1], {_LABELS}",
    "between": f"{_RATE}, inputs that are not in [0, 1], {_LABELS}",
    "slow": f"too few steps, initial weights that are too small, {_RATE}",
}


class Diagnosis(NamedTuple):
    """Why the network does not learn: a key of ``_CAUSES``, and what the classification loss shows."""

    state: str
    text: str


class Chance(NamedTuple):
    """An answer that is the same for all images, as text, and its error in percent."""

    answer: str
    error: float


class Constants(NamedTuple):
    """Losses of answers that do not depend on the image, one for each batch of a check."""

    best: Tensor
    dead: Tensor  # of activations that are all 0; NaN for logits
    saturated: Tensor  # of activations that are all 1; NaN for logits


class NotLearning(Callback):
    """Warns once, after an epoch in which the learning rate was 0, or the network has not learned to classify.

    The second warning requires errors as high as those of always predicting the most frequent class, or labels, and one
    of these classification losses:

    - one that has not fallen;
    - that of a network that ignores its input, the smallest of a constant answer for the frequencies of the labels;
    - that of class capsules that are all 0 (dead) or all 1 (saturated);
    - one well above that of a constant answer, unless it falls from that of dead capsules to that of a constant answer;
    - at the end of training, and after more than one check, any above that of a constant answer.

    All but the first are also recognised while the loss still drifts. They must last for a whole check that is not the
    first one, since a network passes through them when it begins to learn; if the loss has not fallen, or at the end
    of training, for a quarter of the check. The warning also says if other terms outweigh the classification loss.

    Epochs with fewer than ``min_steps`` steps are checked together. Nothing is read from the device before the end of
    the epoch. One tensor stores all losses: with one tensor per loss, the memory of a process on a CPU would grow by
    megabytes per step.
    """

    def __init__(
        self,
        min_steps: int = 50,  # ours: with fewer losses the mean is not exact enough
    ) -> None:
        self.min_steps = min_steps
        self.warned = False
        self.checks = 0
        self.before: Tensor | None = (
            None  # losses of the last check, in case training ends with few
        )
        self.labels_before: Tensor | None = None  # number of labels per class in all checks before
        self.images = 0  # of the whole run
        self.batch_size = 1
        self._reset()

    def _reset(self) -> None:
        self.highest_rate = 0.0
        self.steps = 0
        self.losses: Tensor | None = None  # losses so far, in a buffer that doubles when full
        self.sums: dict[str, Tensor] = {}  # of each term of the loss
        self.labels: Tensor | None = None  # number of labels per class
        self.first_step = 0

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, *_: Any
    ) -> None:
        self.highest_rate = max(self.highest_rate, _learning_rate(pl_module))
        if self.warned or not trainer.is_global_zero:
            return
        # the first term is that of the classes; the sum may fall because only the decoder learns
        terms = [name for name in outputs if name != "loss"] or ["loss"]
        loss = outputs[terms[0]].detach()
        labels = batch.classes
        if self.losses is None or self.labels is None:
            self.losses = loss.new_empty(1024)
            classes = cast(Any, trainer).datamodule.spec.num_classes
            self.labels = torch.zeros(classes, dtype=torch.int64, device=labels.device)
            self.first_step = max(trainer.global_step - 1, 0)
        if self.steps == len(self.losses):
            self.losses = torch.cat([self.losses, torch.empty_like(self.losses)])
        self.losses[self.steps] = loss
        for name in terms:
            self.sums.setdefault(name, torch.zeros_like(loss)).add_(outputs[name].detach())
        if labels.dtype == torch.bool:
            self.labels += labels.sum(0)
        else:
            self.labels.index_add_(0, labels.flatten(), torch.ones_like(labels.flatten()))
        self.steps += 1
        self.batch_size = len(batch.classes)
        self.images += self.batch_size

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check(trainer, pl_module)  # the previous epoch, whose errors are logged only now

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check(trainer, pl_module, is_last=True)

    def _check(
        self, trainer: L.Trainer, module: L.LightningModule, *, is_last: bool = False
    ) -> None:
        if self.steps == 0:
            return
        if self.highest_rate == 0:
            self._warn(
                "not learning: the learning rate of the last %d steps was 0; see schedule.learning_rate",
                self.steps,
            )
        elif self.steps >= self.min_steps or (is_last and self.before is not None):
            self._check_error(trainer, module, is_last=is_last)
            self.labels_before = self._labels_of_run()
            self._reset()

    def _check_error(self, trainer: L.Trainer, module: L.LightningModule, *, is_last: bool) -> None:
        self.checks += 1
        assert self.losses is not None
        losses = self.losses[: self.steps].double().cpu()
        if self.steps < self.min_steps and self.before is not None:  # at the end of training
            losses = torch.cat([self.before, losses])
        self.before = losses

        metrics = trainer.callback_metrics
        names = ["train/error", "val/error"]
        if getattr(cast(Any, trainer).datamodule, "sampling", None):
            names.remove("val/error")  # of other frequencies than the labels that are counted
        errors = [float(metrics[name]) for name in names if name in metrics]
        chance = self._chance(trainer)
        if not errors or not min(errors) >= _CHANCE * chance.error > 0:
            return
        flat = _flat(losses)
        is_first = self.checks == 1 and not is_last
        if is_first and flat is None:
            return
        shown = losses[-(len(losses) // 4) :] if is_last or flat else losses
        constants = self._constants(trainer, module, len(shown))
        diagnosis = None
        if constants is not None:
            has_ended = is_last and flat is None and self.checks > 1
            diagnosis = _diagnosis(shown, constants, has_ended=has_ended)
        # the next check may name the level of a flat loss
        if diagnosis is None and (constants is None or not is_first):
            diagnosis = flat
        if diagnosis is not None:
            causes = [*self._outweighing(), _CAUSES[diagnosis.state]]
            self._warn(
                "not learning: after step %d the error is %.1f %% (always predicting %s: %.1f %%), and the "
                f"classification loss {diagnosis.text}; likely causes: {', '.join(causes)}; "
                "see docs/guides/not_learning.md",
                trainer.global_step,
                min(errors),
                chance.answer,
                chance.error,
                _learning_rate(module),
            )

    def _chance(self, trainer: L.Trainer) -> Chance:
        """Return the best answer that is the same for all images; of a fixed number of labels, any set of them."""
        assert self.labels is not None
        data = cast(Any, trainer).datamodule
        labels_per_image = data.spec.labels_per_image
        if labels_per_image == 0:
            row, error = constant_labels(data.sets["train"].labels)
            classes = data.spec.class_names
            names = [printable(classes[label]) for label in row.nonzero().flatten().tolist()]
            return Chance(f"the most frequent labels, {', '.join(names) or 'no label'}", error)
        if labels_per_image > 1 and getattr(data, "same_class", "never") != "only":
            error = 100 * (1 - 1 / math.comb(len(self.labels), labels_per_image))
            return Chance(f"the same {labels_per_image} classes", error)
        error = constant_error(self.labels, int(self.labels.argmax()))
        return Chance("the most frequent class", error)

    def _outweighing(self) -> list[str]:
        """Return the cause that is the largest term of the loss, if it outweighs that of the classes."""
        sums = {name: float(total) for name, total in self.sums.items()}
        classes, *others = sums
        if not others or sums[classes] <= 0:
            return []
        largest = max(others, key=sums.__getitem__)
        times = sums[largest] / sums[classes]
        if times < _OUTWEIGHS:
            return []
        return [
            f"the weight of the loss's term {largest}, {times:.2g} times the classification loss"
        ]

    def _constants(
        self, trainer: L.Trainer, module: L.LightningModule, batches: int
    ) -> Constants | None:
        """Return the losses of constant answers for each of the last ``batches``; ``None`` for unknown losses.

        If a schedule changes the loss, they are interpolated between a few steps.
        """
        same_class = getattr(cast(Any, trainer).datamodule, "same_class", "never")
        if not isinstance(module, AbstractClassifierModule) or same_class != "never":
            return None
        labels = self._labels_of_run()
        assert labels is not None
        frequencies = labels.double().cpu() / self.images
        if (
            module.weight_of_class is not None
        ):  # a class that counts twice is as if it had twice as many images
            frequencies = frequencies * module.weight_of_class.double().cpu()
        last = trainer.global_step
        batches_per_step = self.steps / max(1, last - self.first_step)
        first = max(0.0, last - batches / batches_per_step)
        steps = np.linspace(first, last, _POINTS if module.scheduled_arguments else 1)
        found = []
        try:
            for step in steps:
                loss = module.scheduled_loss(module.schedule_values(int(step)))
                found.append(self._constants_of(loss, frequencies, logits=module.loss_takes_logits))
        except Exception:  # of any kind, from the user's loss
            log.debug("the loss of a constant answer cannot be computed", exc_info=True)
            return None
        step_of_batch = np.linspace(first, last, batches)
        best, dead, saturated = np.array(found).T
        return Constants(
            best=torch.from_numpy(np.interp(step_of_batch, steps, best)),
            dead=torch.from_numpy(np.interp(step_of_batch, steps, dead)),
            saturated=torch.from_numpy(np.interp(step_of_batch, steps, saturated)),
        )

    def _constants_of(self, loss: Any, frequencies: Tensor, *, logits: bool) -> list[float]:
        best = best_constant_loss(loss, frequencies, self.batch_size, logits=logits)
        if logits:
            return [best, math.nan, math.nan]
        answers = torch.zeros_like(frequencies), torch.ones_like(frequencies)
        of_answers = [
            float(loss_of_constant(loss, answer, frequencies, self.batch_size))
            for answer in answers
        ]
        return [best, *of_answers]

    def _labels_of_run(self) -> Tensor | None:
        if self.labels is None or self.labels_before is None:
            return self.labels
        return self.labels_before + self.labels

    def _warn(self, message: str, *facts: Any) -> None:
        log.warning(message, *facts)
        self.warned = True
        self._reset()


def _diagnosis(losses: Tensor, constants: Constants, *, has_ended: bool) -> Diagnosis | None:
    """Return what the losses of the last batches show; ``None`` if they show nothing.

    Args:
        has_ended: whether a loss that still falls to that of a constant answer will not get there.
    """
    of_best = _halves(losses / constants.best)
    of_dead = _halves(losses / constants.dead)
    of_saturated = _halves(losses / constants.saturated)
    loss, best = f"{losses.mean():.4g}", f"{constants.best.mean():.4g}"
    ignorant = "that of a network that ignores its input"
    if _differ(constants.dead, constants.best) and _are_near_one(of_dead):
        return Diagnosis("dead", f"{loss} is that of class capsules that are all 0, which are dead")
    if _are_near_one(of_best):
        return Diagnosis("ignores its input", f"{loss} is {ignorant}, {best} at best")
    if _differ(constants.saturated, constants.best) and _are_near_one(of_saturated):
        text = f"{loss} is that of class capsules that are all 1, which are saturated"
        return Diagnosis("saturated", text)
    # dead capsules that come to life pass through losses between the two
    is_between = max(of_dead) < 1
    is_passing = is_between and of_best[1] < (1 - _NEAR) * of_best[0]
    if min(of_best) > 1 + _FAR and not is_passing:
        times = f"{loss} is {of_best[-1]:.1f} times {ignorant}, {best}"
        state = "between" if is_between else "worse"
        return Diagnosis(state, f"{times}: worse than any constant answer")
    if min(of_best) > 1 and has_ended:
        return Diagnosis("slow", f"{loss} is still above {ignorant}, {best} at best")
    return None


def _halves(values: Tensor) -> list[float]:
    return [half.mean().item() for half in values.tensor_split(2)]


def _differ(constant: Tensor, best: Tensor) -> bool:
    return bool((constant > (1 + _NEAR) * best).all())


def _are_near_one(ratios: Sequence[float]) -> bool:
    return all(abs(ratio - 1) <= _NEAR for ratio in ratios)


def _flat(losses: Tensor) -> Diagnosis | None:
    quarter = len(losses) // 4
    first, last = losses[:quarter], losses[-quarter:]
    standard_error = (first.var() / len(first) + last.var() / len(last)).sqrt()
    if first.mean() - last.mean() > 2 * standard_error:  # ours: by chance in 2 of 100 cases
        return None
    return Diagnosis("flat", f"has not fallen ({first.mean():.4g}, now {last.mean():.4g})")


def _learning_rate(module: L.LightningModule) -> float:
    # the optimizer's may be on a GPU
    return cast(AbstractModule, module).step_values["learning_rate"]
