"""The training loop: it contains all hooks of the LightningModules; a subclass defines the loss and the metrics."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from capsule_lab.errors import check_choice, check_number, suggest
from capsule_lab.lit.lightning_internals import (
    LightningModule,
    batch_index,
    batches_per_epoch,
    show_to_callbacks,
    skip_idle_hooks,
    stopped_at_threshold,
)
from capsule_lab.lit.metrics import SplitMetrics
from capsule_lab.lit.optimizers import Muon, parameter_groups, use_device_values
from capsule_lab.lit.scheduled_routing import ScheduledRouting
from capsule_lab.lit.training_network import Compile, TrainingNetwork
from capsule_lab.lit.training_steps import TrainingSteps, UseGraphs
from capsule_lab.lit.warm_up import compile_kernels
from capsule_lab.losses import l2_loss
from capsule_lab.schedules import Schedule, check_learning_rate, check_schedules
from capsule_lab.system import torch_internals
from capsule_lab.types import Batch


class AbstractModule(LightningModule):
    """Trains a network on batches; a subclass defines the terms of the loss and additional metrics.

    For each of the splits ``train``, ``val`` and ``test``, it logs ``<split>/loss``, and ``<split>/<term>`` for every
    term; it also logs ``schedule/<name>`` for every schedule. If the DataModule has ``test_parts``, with one loader
    each, ``test/…`` is measured on all parts together and ``<part>/…`` on each of them. Its ``further_validations``
    are logged as ``<name>/…`` beside ``val/…``.

    Args:
        optimizer: called with ``(parameters, lr=1.0)`` or with parameter groups; the schedule sets the learning rate.
        schedule: schedules by name; ``learning_rate`` is required, ``None`` means no schedule. ``loss_terms`` receives
            the values of all of them. A schedule named ``routing_<option>`` sets this option of all routings, see
            ``ScheduledRouting``.
        metrics: metrics in addition to the loss.
        l2: weight of the loss term ``l2``, the ``l2_loss`` of the network's kernels; 0 for none.
        decay_all: apply the optimizer's weight decay to biases, betas and scales, too: see ``parameter_groups``.
        seed: every batch seeds its random numbers (dropout) with ``(seed, batch, rank)``, so that a resumed run
            draws the same numbers as an uninterrupted one.
        max_steps: number of steps after which the run ends, also within an epoch; -1 lets the Trainer decide. (With
            the Trainer's ``max_steps``, Lightning 2.6 miscounts when it resumes at the end of an epoch.)
        compile: how training steps call the network, see ``TrainingNetwork``; others call it directly.
        cuda_graphs: whether training steps are replayed as CUDA graphs, see ``captured_step.StepGraphs``; the results
            are the same.

    Attributes:
        step_values: values of all schedules in the current training step; from ``on_train_batch_start``.
        frozen: parameters that are not trained, see ``freeze_modules``.
        image_counts: number of images that all processes have processed: of ``train`` in the whole run, with
            repetitions; of every other split or part in its last validation or test.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        optimizer: Callable[..., Optimizer],
        schedule: Mapping[str, Schedule | None],
        metrics: SplitMetrics,
        l2: float = 0.0,
        decay_all: bool = False,
        seed: int = 0,
        max_steps: int = -1,
        compile: Compile = False,
        cuda_graphs: UseGraphs = "auto",
    ) -> None:
        super().__init__()
        check_number("l2", l2, 0)
        check_number("seed", seed, 0)
        check_choice("cuda_graphs", cuda_graphs, ("auto", True, False))
        self.network = network.to(memory_format=torch.channels_last)  # fastest for convolutions
        self.optimizer = optimizer
        self.schedule = check_schedules(schedule)
        self.scheduled_routing = ScheduledRouting(network, self.schedule)
        self.l2 = l2
        self.decay_all = decay_all
        self.seed = seed
        self.max_steps = max_steps
        self.frozen: set[nn.Parameter] = set()
        self._frozen_modules: list[nn.Module] = []
        self.steps_per_epoch = 0
        self.total_steps = 0
        self._schedule_of_run: dict[str, Schedule] = {}
        self.step_values: dict[str, float] = {}
        self.image_counts: dict[str, int] = {}
        self.training_network = TrainingNetwork(network, compile=compile)
        self.step_graphs = TrainingSteps(self)
        # this file and system.cuda_graphs may be removed
        if cuda_graphs is True or (cuda_graphs and find_spec("capsule_lab.lit.captured_step")):
            from capsule_lab.lit.captured_step import StepGraphs

            self.step_graphs = StepGraphs(self, cuda_graphs)
        self.schedule_on_device: Mapping[str, Tensor] | None = None  # while a step is captured
        self.metrics = metrics
        if self.scheduled_routing.names and self.training_network.has_graphs:
            raise ValueError(
                f"schedule.{self.scheduled_routing.names[0]} changes the routing, which the CUDA graphs of "
                f"module.compile={compile} cannot repeat; expected another module.compile, or no such schedule"
            )

    @abstractmethod
    def loss_terms(
        self, batch: Batch, output: Any, schedule: Mapping[str, float]
    ) -> dict[str, Tensor]:
        """Return the terms of the loss by name: weighted scalars whose sum is the loss."""

    @abstractmethod
    def measure(self, split: str, batch: Batch, output: Any) -> None:
        """Update the metrics of a split with the output for a batch."""

    @abstractmethod
    def add_split(self, split: str) -> None:
        """Add metrics for another split, such as a part of the test set."""

    def freeze_modules(self, names: Iterable[str]) -> None:
        """Exclude modules of the network with these names from training, such as ``conv`` or ``conv.layer1``.

        Their parameters get no gradient and no weight decay and are not given to the optimizer. In training steps, they
        are in eval mode: statistics of batch normalisation stay, and dropout has no effect.

        Raises:
            ValueError: if the network has no such module with parameters, or if nothing would be trained.
        """
        kind = type(self.network).__name__
        modules = dict(self.network.named_modules())
        for name in names:
            parameters = {*modules[name].parameters()} if name in modules else set()
            if not parameters:
                options = {of.partition(".")[0] for of, _ in self.network.named_parameters()}
                raise ValueError(
                    f"{kind} has no module {name!r} with parameters; {suggest(name, options)}"
                )
            modules[name].requires_grad_(requires_grad=False)
            self._frozen_modules.append(modules[name])
            self.frozen |= parameters
        if not any(parameter.requires_grad for parameter in self.network.parameters()):
            raise ValueError(
                f"{kind} has no parameters besides those of {', '.join(names)}; expected some that are trained"
            )

    def inputs_of(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the network's inputs from a batch."""
        return (batch.images,)

    def penalty(self) -> dict[str, Tensor]:
        """Return the term ``l2`` of the network's kernels, if its weight is not 0."""
        if not self.l2:
            return {}
        parameters = self.network.named_parameters()
        kernels = []
        for name, parameter in parameters:
            if name.endswith("weight") and parameter not in self.frozen:
                kernels.append(parameter)
        return {"l2": l2_loss(kernels, weight=self.l2)}

    def forward(self, *inputs: Tensor) -> Any:
        return self.training_network(*inputs) if self.training else self.network(*inputs)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        terms = self.step_graphs.step.forward(batch)
        # training batches have equal sizes in all processes
        self._count(batch, "train", self.trainer.world_size)
        if self.trainer.progress_bar_callback is not None:  # its bar reads the loss of every step
            self.log("loss", terms["loss"].detach(), prog_bar=True, logger=False)
        else:
            show_to_callbacks(self.trainer, "loss", terms["loss"].detach())
        return terms

    def validation_step(
        self, batch: Batch, batch_idx: int, dataloader_idx: int = 0
    ) -> dict[str, Any]:
        split = ("val", *self.further_validations)[dataloader_idx]
        self._count(batch, split)
        if dataloader_idx == 0:
            return {"output": self.measured_terms(batch, split)[1]}
        output = self(*self.inputs_of(batch))
        self.measure(split, batch, output)
        return {"output": output}

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
        output = self.measured_terms(batch, "test")[1]
        self._count(batch, "test")
        if self.test_parts:
            part = self.test_parts[dataloader_idx]
            self.measure(part, batch, output)
            self._count(batch, part)
        return {"output": output}

    def _count(self, batch: Batch, split: str, processes: int = 1) -> None:
        images = len(batch.labels) * processes
        self.image_counts[split] = self.image_counts.get(split, 0) + images

    def measured_terms(self, batch: Batch, split: str) -> tuple[dict[str, Tensor], Any]:
        """Compute and measure the terms of the loss, with their sum ``loss`` first, and the output."""
        terms, output = self.terms(batch)
        terms |= self.penalty()
        terms = {"loss": torch.stack(list(terms.values())).sum(), **terms}
        self.measure(split, batch, output)
        self.metrics.update_means(split, terms, len(batch.labels))
        return terms, output

    def terms(self, batch: Batch) -> tuple[dict[str, Tensor], Any]:
        """Return the terms of the loss for a batch, and the network's output."""
        output = self(*self.inputs_of(batch))
        values: Any = self.schedule_on_device
        if values is None:
            values = self.schedule_values()
        return self.loss_terms(batch, output, values), output

    @property
    def test_parts(self) -> tuple[str, ...]:
        """Parts of the test set with one loader each, from the DataModule; most data sets have none."""
        return tuple(getattr(self._data, "test_parts", ()))

    @property
    def further_validations(self) -> tuple[str, ...]:
        """Additional validation sets with one loader each, from the DataModule; most data sets have none."""
        return tuple(getattr(self._data, "further_validations", ()))

    @property
    def _data(self) -> Any:
        return getattr(self.trainer, "datamodule", None)

    def on_validation_start(self) -> None:
        self.scheduled_routing.set(self.schedule_values())
        self.image_counts |= dict.fromkeys(("val", *self.further_validations), 0)
        for split in self.further_validations:
            self.add_split(split)

    def on_test_start(self) -> None:
        self.scheduled_routing.set({})  # in case a fit has ended with an error
        self.image_counts |= dict.fromkeys(("test", *self.test_parts), 0)
        for split in self.test_parts:
            self.add_split(split)

    def on_train_epoch_end(self) -> None:
        self.metrics.mark_updated("train")
        self._log_epoch("train")
        for name, value in self.schedule_values().items():
            self.log(f"schedule/{name}", value)

    def on_validation_epoch_end(self) -> None:
        self._log_epoch("val", *self.further_validations)
        self._add_counts_of_processes("val", *self.further_validations)

    def on_test_epoch_end(self) -> None:
        self._log_epoch("test", *self.test_parts)
        self._add_counts_of_processes("test", *self.test_parts)

    def _add_counts_of_processes(self, *splits: str) -> None:
        if self.trainer.world_size == 1:
            return
        for split in splits:
            count = torch.tensor(self.image_counts[split], device=self.device)
            self.image_counts[split] = int(self.trainer.strategy.reduce(count, reduce_op="sum"))

    def _log_epoch(self, *splits: str) -> None:
        for split in splits:
            for name, metric in self.metrics.of_split(split):
                result = metric.compute()  # synchronised by torchmetrics
                if not isinstance(result, dict):
                    self.log(name, result, prog_bar=name.endswith("/error"))
                    continue
                for quantity, value in result.items():
                    self.log(f"{split}/{quantity}", value, prog_bar=quantity == "error")
            self.metrics.reset(split)

    def test_results(self) -> dict[str, float]:
        """Return the results of the last test: its quantities, and ``<part>/<quantity>`` for every part."""
        of_test, of_parts = {}, {}
        for name, value in self.trainer.logged_metrics.items():
            split, _, quantity = name.partition("/")
            if split == "test":
                of_test[quantity] = float(value)
            elif split in self.test_parts:
                of_parts[name] = float(value)
        return of_test | of_parts

    def test_predictions(self) -> dict[str, Any]:
        """Return arrays with a prediction for each image of the last test; empty for a network without classes."""
        return {}

    def class_results(self, split: str, train_counts: Sequence[int] | None) -> dict[str, Any]:
        """Return results by class of the last validation or test; empty for a network without classes."""
        return {}

    def schedule_values(self, step: int | None = None) -> dict[str, float]:
        """Return the values of all schedules by name at ``step``, by default this one; empty outside of ``fit``."""
        if self.trainer.state.fn != "fit":
            return {}
        if step is None:
            step = self.global_step
        return {name: value(step) for name, value in self._schedule_of_run.items()}

    def configure_optimizers(self) -> Any:
        trainer = self.trainer
        self.steps_per_epoch, self.total_steps = training_length(
            batches_per_epoch(trainer),
            accumulate=trainer.accumulate_grad_batches,
            max_epochs=-1 if trainer.max_epochs is None else trainer.max_epochs,
            max_steps=(trainer.max_steps, self.max_steps),
        )
        for name, schedule in self.schedule.items():
            self._schedule_of_run[name] = schedule.for_run(self.steps_per_epoch, self.total_steps)
        optimizer = self.build_optimizer(clipped=trainer.gradient_clip_val is not None)
        rate = self._schedule_of_run["learning_rate"]
        check_learning_rate(rate, self.total_steps)
        # a plain function: LambdaLR would save the attributes of a callable object, and overwrite them on resuming
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def build_optimizer(self, *, clipped: bool = False) -> Optimizer:
        """Build the optimizer; with weight decay, its parameters are in groups that exempt biases and scales.

        Without weight decay there is one group, whose steps torch computes together. If gradients are ``clipped``, the
        optimizer is not fused, as Lightning cannot clip the gradients of a fused one.
        """
        build = functools.partial(self.optimizer, lr=1.0)
        parameters = [each for each in self.network.parameters() if each not in self.frozen]
        optimizer = build(parameters)
        if clipped and optimizer.defaults.get("fused"):
            build = functools.partial(build, fused=False)
            optimizer = build(parameters)
        if not optimizer.defaults.get("weight_decay") and not isinstance(optimizer, Muon):
            return optimizer
        return build(parameter_groups(self.network, self.frozen, decay_all=self.decay_all))

    def on_fit_start(self) -> None:
        self.training_network.check(self.trainer)
        self.step_graphs.start(self.trainer)
        self._tell_data(self.step_graphs.enabled)
        skip_idle_hooks(self.trainer)
        compile_kernels(self)

    def on_fit_end(self) -> None:
        self.scheduled_routing.set({})
        self.step_graphs.stop(self.device)
        self._tell_data(False)

    def _tell_data(self, graphs: bool) -> None:
        if hasattr(self._data, "use_cuda_graphs"):  # a DataModule of another package has none
            self._data.use_cuda_graphs(graphs)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        entropy = (self.seed, batch_index(self.trainer), self.global_rank)
        (seed,) = np.random.SeedSequence(entropy).generate_state(1)
        torch_internals.seed_generators(int(seed), self.device)
        self.step_values = self.schedule_values()
        self.scheduled_routing.set(self.step_values)
        self.step_graphs.prepare(batch)

    # --- the parts of a training step: Lightning calls these between its hooks

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        self.step_graphs.step.backward(loss, *args, **kwargs)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        self.step_graphs.step.zero_grad(epoch, batch_idx, optimizer)

    def configure_gradient_clipping(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        self.step_graphs.step.clip(optimizer, *args, **kwargs)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        self.step_graphs.step.update(epoch, batch_idx, optimizer, optimizer_closure)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Step the schedule, then stop after the last step, before the callbacks' ``on_train_batch_end``."""
        super().lr_scheduler_step(scheduler, metric)
        self._stop_after_last_step()

    def on_train_start(self) -> None:
        for module in self._frozen_modules:
            module.eval()  # Lightning restores modes after each validation, and warns of this before
        for optimizer in self.trainer.optimizers:
            use_device_values(optimizer, self.device)
        self._stop_after_last_step()  # a resumed run may already be complete
        self.trainer.should_stop |= stopped_at_threshold(self.trainer)

    def _stop_after_last_step(self) -> None:
        self.trainer.should_stop |= 0 <= self.max_steps <= self.global_step

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["metrics"] = self.metrics.state_of("train")
        if self.trainer.world_size > 1:
            # only process 0 writes, but each has seen other images of the epoch
            checkpoint["metrics_of_processes"] = self.all_gather(checkpoint["metrics"])
        checkpoint["image_counts"] = dict(self.image_counts)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        metrics = checkpoint.get("metrics", {})
        of_processes = checkpoint.get("metrics_of_processes")
        if of_processes and self.trainer.world_size > 1:
            metrics = _of_process(of_processes, self.global_rank)
        self.metrics.load_state(metrics, self.device)
        if self.trainer.state.fn == "fit":
            # not in a test, whose weights may be older than the end of training
            self.image_counts = dict(checkpoint.get("image_counts", {}))


def _of_process(
    gathered: Mapping[str, Mapping[str, Tensor]], rank: int
) -> dict[str, dict[str, Tensor]]:
    """Return the states of metrics in process ``rank`` from those of all processes, ``(process, ...)``."""
    states: dict[str, dict[str, Tensor]] = {}
    for name, of_metric in gathered.items():
        states[name] = {}
        for state, values in of_metric.items():
            if rank < len(values):
                states[name][state] = values[rank]
    return states


def training_length(
    batches: float, *, accumulate: int = 1, max_epochs: int = -1, max_steps: Iterable[int] = ()
) -> tuple[int, int]:
    """Compute the optimizer steps per epoch and in the whole run; schedules scale to the latter.

    ``batches`` is their number per epoch and process, ``accumulate`` that per step; the last step of an epoch may have
    fewer. The smallest limit applies; -1 is none.

    >>> training_length(5, accumulate=2, max_epochs=3, max_steps=[8, -1])
    (3, 8)
    >>> training_length(4, max_epochs=0), training_length(4, max_steps=[-1, 7]), training_length(4, max_epochs=2)
    ((4, 4), (4, 7), (4, 8))
    """
    per_epoch = math.ceil(batches / accumulate)
    limits = [steps for steps in max_steps if steps >= 0]
    if max_epochs != -1:
        limits.append(per_epoch * max(max_epochs, 1))
    if not limits:
        raise ValueError(
            "the run has no end: set trainer.max_epochs or trainer.max_steps; schedules scale to it"
        )
    return per_epoch, min(limits)
