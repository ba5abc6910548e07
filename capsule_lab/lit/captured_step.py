"""A training step as CUDA graphs, with the points at which Lightning calls hooks between them."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from capsule_lab.errors import ConfigError, one_line
from capsule_lab.lit.lightning_internals import run_closure
from capsule_lab.lit.training_steps import TrainingStep, TrainingSteps, UseGraphs
from capsule_lab.system import cuda_graphs, environment, torch_internals
from capsule_lab.types import Batch

log = logging.getLogger(__name__)

# ours: these steps compile kernels, allocate the optimizer's state, and outlast cuda_graphs.EAGER_CALLS
EAGER_STEPS = 3
KINDS_OF_STEPS = 100  # ours: most that are counted; a callback may change an option in every step


class CapturedStep:
    """A training step as three CUDA graphs: the forward pass, the backward pass, and the update of the parameters.

    Capturing runs nothing. Replays must follow each other in this order.

    Args:
        forward: computes the loss, with its autograd graph, and other tensors.
        parameters: what the backward pass computes gradients of; they must not move in memory.
        update: steps the optimizer with these gradients; ``None`` if it cannot be repeated.
        device: of the parameters.

    Attributes:
        outputs: the other tensors of ``forward``, in memory that the next replay overwrites.
        without_update: why the update could not be captured and runs without a graph; empty if it was captured.

    Raises:
        RuntimeError: if the forward or the backward pass cannot be captured.
    """

    def __init__(
        self,
        forward: Callable[[], tuple[Tensor, Any]],
        parameters: Iterable[nn.Parameter],
        update: Callable[[], object] | None,
        device: torch.device,
    ) -> None:
        pool = cuda_graphs.new_pool()
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._forward = cuda_graphs.Graph(pool)
        self._backward = cuda_graphs.Graph(pool)
        self._update = cuda_graphs.Graph(pool)
        before = [parameter.grad for parameter in self.parameters]
        try:
            self.forget_gradients()
            loss, self.outputs = self._forward.capture(forward)
            # with autocast, the backward pass would compute routing in half precision
            with torch.autocast(device.type, enabled=False):
                self._backward.capture(loss.backward)
                self.gradients = [parameter.grad for parameter in self.parameters]
                self.without_update = self._capture_update(update)
        finally:
            torch.clear_autocast_cache()  # of values that were not computed
            for parameter, gradient in zip(self.parameters, before, strict=True):
                parameter.grad = gradient

    def _capture_update(self, update: Callable[[], object] | None) -> str:
        if update is None:
            return "it counts its steps on the host"
        try:
            self._update.capture(update)
        except Exception as error:  # of any kind, from the user's optimizer
            return one_line(error)
        return ""

    def forward(self) -> Any:
        """Compute the loss; return the outputs."""
        self._forward.replay()
        return self.outputs

    def backward(self) -> None:
        """Compute the gradients, and set those of the parameters."""
        self._backward.replay()
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient

    def update(self) -> None:
        """Update the parameters."""
        self._update.replay()

    def forget_gradients(self) -> None:
        """Set the gradients of the parameters to ``None``; their memory stays."""
        for parameter in self.parameters:
            parameter.grad = None


def has_device_values(optimizer: Optimizer) -> bool:
    """Return whether a step of the optimizer reads everything that changes from the memory of the device.

    Others count their steps in Python, or take the learning rate from it, which a CUDA graph would repeat.
    """
    return all(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)


def _repeated_options(optimizer: Optimizer) -> tuple[Any, ...]:
    """Return the options of the optimizer that a CUDA graph of its step would repeat: numbers that are no tensors."""
    if not has_device_values(optimizer):  # its step runs without a graph
        return ()
    options: list[Any] = []
    for group in optimizer.param_groups:
        options.append(len(group["params"]))
        options += [value for value in group.values() if isinstance(value, (int, float, tuple))]
    return tuple(options)


class ReplayedStep(TrainingStep):
    """A training step that was captured, and is replayed between Lightning's hooks with the same results.

    Real values of schedules are tensors on the device, which are filled before a replay.

    Args:
        batch: the batch of the capture; every replay reads its memory.
        repeated: see ``suits``.

    Raises:
        Exception: of any kind, from the user's network or loss, if the step cannot be captured.
    """

    def __init__(self, module: Any, batch: Batch, repeated: tuple[Any, ...]) -> None:
        super().__init__(module)
        if torch_internals.has_hooks(module.network):  # such as those of wandb.watch
            raise RuntimeError("the network has hooks, which a graph would not call")
        self._batch = batch
        self._shapes = cuda_graphs.shapes_of(batch)
        self._repeated = repeated
        self._names: list[str] = []
        self._values = dict(module.step_values)
        self._schedule: dict[str, Tensor] = {}
        device = module.trainer.strategy.root_device
        for name, value in self._values.items():
            # float64: together with float32 they are rounded where numbers of Python would be
            self._schedule[name] = torch.tensor(value, dtype=torch.float64, device=device)
        self._graphs = self._capture(device)

    def _capture(self, device: torch.device) -> CapturedStep:
        module = self.module
        (optimizer,) = module.trainer.optimizers
        update = None
        if has_device_values(optimizer):
            update = functools.partial(_clip_and_step, module, optimizer)
        parameters = module.network.parameters()
        on_device = module.scheduled_routing.real_numbers(self._schedule)
        module.scheduled_routing.set({**self._values, **on_device})
        module.schedule_on_device = self._schedule
        try:
            return CapturedStep(self._terms, parameters, update, device)
        finally:
            module.schedule_on_device = None
            module.scheduled_routing.set(self._values)

    def _terms(self) -> tuple[Tensor, Tensor]:
        """Return the loss, with its autograd graph, and all terms, ``(term,)``."""
        module = self.module
        with (
            module.trainer.precision_plugin.train_step_context(),
            module.metrics.in_place("train"),
        ):
            terms, _ = module.measured_terms(self._batch, "train")
        self._names = list(terms)
        return terms["loss"], torch.stack([term.detach() for term in terms.values()])

    @property
    def without_update(self) -> str:
        """Why the optimizer runs without a graph, as in ``CapturedStep``."""
        return self._graphs.without_update

    def suits(self, batch: Batch, repeated: tuple[Any, ...]) -> bool:
        """Return whether a replay computes the step of this batch, with these values of what every replay repeats."""
        if repeated != self._repeated:
            return False
        return batch is self._batch or cuda_graphs.shapes_of(batch) == self._shapes

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Replay the forward pass; return the terms of the loss in memory of their own."""
        cuda_graphs.copy_tensors(batch, self._batch)
        for name, value in self.module.step_values.items():
            if value != self._values[name]:
                self._schedule[name].fill_(value)
                self._values[name] = value
        terms = self._graphs.forward().clone()
        return dict(zip(self._names, terms.unbind(), strict=True))

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        self._graphs.backward()

    def zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        self._graphs.forget_gradients()

    def clip(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        if self.without_update:  # else the graph of the update clips
            super().clip(optimizer, *args, **kwargs)

    def update(
        self, epoch: int, batch_idx: int, optimizer: Any, closure: Callable[[], Any]
    ) -> None:
        if self.without_update:
            super().update(epoch, batch_idx, optimizer, closure)
            return
        run_closure(self.module.trainer, optimizer.optimizer, closure)
        self._graphs.update()


def _clip_and_step(module: Any, optimizer: Optimizer) -> None:
    """Clip the gradients and step the optimizer, without hooks."""
    trainer = module.trainer
    limit = trainer.gradient_clip_val
    if limit is not None:
        module.clip_gradients(optimizer, limit, trainer.gradient_clip_algorithm)
    optimizer.step()


class _StepBetweenReplays(TrainingStep):
    """A training step without graphs, whose metrics stay in the memory that graphs update."""

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        with self.module.metrics.in_place("train"):
            return super().forward(batch)


class StepGraphs(TrainingSteps):
    """Decides which training steps of a module are replayed as CUDA graphs.

    The first steps run without graphs. A step is then captured for the shapes of its batch and for what a replay
    repeats. If one of these changes, steps run without graphs until as many have been seen without a replay between
    them; another step is then captured in place of the first.

    A replay repeats the options of routings that are whole numbers, the mode of each module (``training``), which
    parameters have gradients, the numbers of the optimizer's parameter groups, and the limit of the gradients. These
    are compared before every step, after ``on_train_batch_start`` of all callbacks. Hooks of the network take longer to
    find and are looked for in the first step of every epoch. Other changes of a callback during training, such as
    another loss, are not seen.

    Args:
        module: the ``AbstractModule`` that trains.
        use: ``"auto"`` replays where this is possible; with ``True``, an obstacle is an error.
    """

    def __init__(self, module: Any, use: UseGraphs) -> None:
        super().__init__(module)
        self._module = module
        self._use = use
        self._forget()

    def _forget(self) -> None:
        self.step = TrainingStep(self._module)
        self._captured: ReplayedStep | None = None
        self._last_batch: Batch | None = None  # of a step without graphs
        # steps without graphs since the last replay, by shapes and what a replay repeats
        self._seen: Counter[Any] = Counter()
        self._epoch = -1  # in which the network was last searched for the following
        self._parts: list[nn.Module] = []
        self._parameters: list[nn.Parameter] = []
        self._has_hooks = False

    def check(self, trainer: L.Trainer) -> None:
        """Raise a ``ConfigError`` if graphs are required, and this Trainer cannot have them."""
        reason = self._obstacle(trainer)
        if self._use is True and reason:
            raise ConfigError(
                f"module.cuda_graphs is true, but {reason}; expected module.cuda_graphs=auto"
            )

    def start(self, trainer: L.Trainer) -> None:
        """Begin a ``fit``: the weights may have moved in memory since the last one."""
        self._forget()
        self.check(trainer)
        reason = self._obstacle(trainer)
        device = trainer.strategy.root_device
        self.enabled = not reason
        if self.enabled:
            cuda_graphs.use_side_stream(device)
        elif environment.is_gpu(device):
            log.info("training steps run without CUDA graphs: %s", reason)

    def stop(self, device: torch.device) -> None:
        """End a ``fit``, and free the memory of the graphs."""
        cuda_graphs.use_default_stream(device)
        self.enabled = False
        self._forget()

    def _obstacle(self, trainer: L.Trainer) -> str:
        """Return why steps cannot be captured, or an empty string."""
        device = trainer.strategy.root_device
        if not environment.is_gpu(device):
            return f"training is on {device.type}"
        if trainer.world_size > 1:
            return f"the run has {trainer.world_size} processes, which communicate during a step"
        if trainer.accumulate_grad_batches > 1:
            return f"trainer.accumulate_grad_batches is {trainer.accumulate_grad_batches}, so steps differ"
        if trainer.precision == "16-mixed":
            return "trainer.precision is 16-mixed, whose scale the host reads in every step"
        if self._module.training_network.has_graphs:
            return f"module.compile={self._module.training_network.compile} makes its own"
        return ""

    def prepare(self, batch: Batch) -> None:
        """Choose whether the next step is replayed; capture it if it has been seen often."""
        if not self.enabled:
            return
        module = self._module
        if module.trainer.accumulate_grad_batches > 1:  # a callback may change it
            self.check(module.trainer)
            self.step = _StepBetweenReplays(module)
            return
        repeated = self._repeated()
        if self._captured is not None and self._captured.suits(batch, repeated):
            self.step = self._captured
            self._seen.clear()
            return
        self.step = _StepBetweenReplays(module)
        key = (cuda_graphs.shapes_of(batch), repeated)
        if len(self._seen) >= KINDS_OF_STEPS:
            self._seen.clear()
        self._seen[key] += 1
        if self._seen[key] > EAGER_STEPS:
            self._capture(batch, repeated)
        self._last_batch = batch

    def _repeated(self) -> tuple[Any, ...]:
        """Return what a replay would repeat, as it is now."""
        module, trainer = self._module, self._module.trainer
        if trainer.current_epoch != self._epoch:
            self._epoch = trainer.current_epoch
            self._parts = list(module.network.modules())
            self._parameters = list(module.network.parameters())
            self._has_hooks = torch_internals.has_hooks(module.network)
        return (
            module.scheduled_routing.whole_numbers(module.step_values),
            self._has_hooks,
            tuple([part.training for part in self._parts]),
            tuple([parameter.requires_grad for parameter in self._parameters]),
            tuple([_repeated_options(optimizer) for optimizer in trainer.optimizers]),
            trainer.gradient_clip_val,
            trainer.gradient_clip_algorithm,
        )

    def _capture(self, batch: Batch, repeated: tuple[Any, ...]) -> None:
        """Capture the step for batches of this shape and replay it, or note that it cannot be captured."""
        self._captured = None  # frees the memory of its graphs
        is_static = batch is self._last_batch  # the result of cuda_graphs.Replayed
        own_batch = batch if is_static else cuda_graphs.copied(batch)
        try:
            captured = ReplayedStep(self._module, own_batch, repeated)
        except Exception as error:  # of any kind, from the user's network or loss
            self._give_up(error)
            return
        self._captured = captured
        self._seen.clear()
        self.step = captured
        if captured.without_update:
            log.info("the optimizer runs without CUDA graphs: %s", captured.without_update[:200])

    def _give_up(self, error: Exception) -> None:
        self.enabled = False
        self.step = TrainingStep(self._module)
        reason = one_line(error)
        if self._use is True:
            raise ConfigError(
                f"a step of {type(self._module.network).__name__} cannot be captured as CUDA graphs: "
                f"{reason[:300]}; set module.cuda_graphs=false"
            ) from error
        log.info("training steps run without CUDA graphs: %s", reason[:200])
