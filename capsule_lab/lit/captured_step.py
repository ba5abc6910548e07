"""A training step as CUDA graphs, with the points at which Lightning calls hooks between them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from capsule_lab.errors import ConfigError, one_line
from capsule_lab.lit.lightning_internals import run_closure
from capsule_lab.lit.optimizers import has_device_values
from capsule_lab.system import cuda_graphs, torch_internals
from capsule_lab.types import Batch

log = logging.getLogger(__name__)

UseGraphs = bool | Literal["auto"]

# ours: these steps compile kernels, allocate the optimizer's state, and outlast cuda_graphs.EAGER_CALLS
EAGER_STEPS = 3


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


class StepGraphs:
    """Decides which training steps of a module are replayed, and replays them.

    The first steps run without graphs. A step is then captured for the shapes of its batch and for those options of
    routings that are whole numbers. A step with other shapes or numbers runs without graphs until it has been seen as
    often. Real values of schedules are tensors on the device, which are filled before a replay.

    Args:
        module: the ``AbstractModule`` that trains.
        use: ``"auto"`` replays where this is possible; with ``True``, an obstacle is an error.

    Attributes:
        step: the captured step that is replayed now; ``None`` in a step without graphs.
    """

    def __init__(self, module: Any, use: UseGraphs) -> None:
        self._module = module
        self.use = use
        self.step: CapturedStep | None = None
        self.enabled = False
        self._forget()

    def _forget(self) -> None:
        self.step = None
        self._captured: CapturedStep | None = None
        self._key: tuple[Any, ...] = ()
        self._seen: dict[tuple[Any, ...], int] = {}
        self._batch: Batch | None = None
        self._last: Batch | None = None
        self._names: list[str] = []
        self._schedule: dict[str, Tensor] = {}
        self._values: dict[str, float] = {}

    def check(self, trainer: L.Trainer) -> None:
        """Raise a ``ConfigError`` if graphs are required, and this Trainer cannot have them."""
        reason = self._obstacle(trainer)
        if self.use is True and reason:
            raise ConfigError(
                f"module.cuda_graphs is true, but {reason}; expected module.cuda_graphs=auto"
            )

    def start(self, trainer: L.Trainer) -> None:
        """Begin a ``fit``: the weights may have moved in memory since the last one."""
        self._forget()
        self.check(trainer)
        reason = self._obstacle(trainer)
        device = trainer.strategy.root_device
        self.enabled = bool(self.use) and not reason
        if self.enabled:
            cuda_graphs.use_side_stream(device)
        elif self.use and cuda_graphs.is_supported(device):
            log.info("training steps run without CUDA graphs: %s", reason)

    def stop(self, device: torch.device) -> None:
        """End a ``fit``, and free the memory of the graphs."""
        cuda_graphs.use_default_stream(device)
        self.enabled = False
        self._forget()

    def _obstacle(self, trainer: L.Trainer) -> str:
        """Return why steps cannot be captured, or an empty string."""
        device = trainer.strategy.root_device
        if not cuda_graphs.is_supported(device):
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

    def prepare(self, batch: Batch, values: Mapping[str, float]) -> None:
        """Decide, before the forward pass, whether the next step is replayed; capture it if it has been seen often.

        ``values`` are those of the schedules.
        """
        self.step = None
        if not self.enabled:
            return
        whole = self._module.scheduled_routing.whole_numbers(values)
        is_captured = self._captured is not None
        if is_captured and batch is self._batch and whole == self._key[1]:
            self.step = self._captured
            return
        key = (cuda_graphs.shapes_of(batch), whole)
        if not is_captured or key != self._key:
            self._seen[key] = self._seen.get(key, 0) + 1
            if self._seen[key] > EAGER_STEPS:
                self._capture(batch, key, values)
            self._last = batch
        if key == self._key:
            self.step = self._captured

    def _capture(self, batch: Batch, key: tuple[Any, ...], values: Mapping[str, float]) -> None:
        """Capture the step for a batch of this shape, or note that it cannot be captured."""
        module = self._module
        self._captured = None  # frees their memory
        self.step = None
        is_static = batch is self._last  # the result of cuda_graphs.Replayed
        self._batch = batch if is_static else cuda_graphs.copied(batch)
        device = module.trainer.strategy.root_device
        self._schedule = {}
        for name, value in values.items():
            # float64: together with float32 they are rounded where numbers of Python would be
            self._schedule[name] = torch.tensor(value, dtype=torch.float64, device=device)
        self._values = dict(values)
        on_device = module.scheduled_routing.real_numbers(self._schedule)
        module.scheduled_routing.set({**values, **on_device})
        try:
            self._captured = self._captured_step()
        except Exception as error:  # of any kind, from the user's network or loss
            self._give_up(error)
            return
        finally:
            module.scheduled_routing.set(values)
        self._key = key
        reason = self._captured.without_update
        if reason:
            log.info("the optimizer runs without CUDA graphs: %s", reason[:200])

    def _captured_step(self) -> CapturedStep:
        module = self._module
        trainer = module.trainer
        if torch_internals.has_hooks(module.network):  # such as those of wandb.watch
            raise RuntimeError("the network has hooks, which a graph would not call")

        def forward() -> tuple[Tensor, Tensor]:
            assert self._batch is not None
            with trainer.precision_plugin.train_step_context():
                terms = module.captured_terms(self._batch, self._schedule)
            self._names = list(terms)
            return terms["loss"], torch.stack([term.detach() for term in terms.values()])

        (optimizer,) = trainer.optimizers
        update = None
        if has_device_values(optimizer):
            update = functools.partial(module.update, optimizer)
        parameters = module.network.parameters()
        return CapturedStep(forward, parameters, update, trainer.strategy.root_device)

    def _give_up(self, error: Exception) -> None:
        self.enabled = False
        reason = one_line(error)
        if self.use is True:
            raise ConfigError(
                f"a step of {type(self._module.network).__name__} cannot be captured as CUDA graphs: "
                f"{reason[:300]}; set module.cuda_graphs=false"
            ) from error
        log.info("training steps run without CUDA graphs: %s", reason[:200])

    def forward(self, batch: Batch, values: Mapping[str, float]) -> dict[str, Tensor]:
        """Replay the forward pass; return the terms of the loss in memory of their own."""
        assert self.step is not None
        assert self._batch is not None
        cuda_graphs.copy_tensors(batch, self._batch)
        for name, value in values.items():
            if value != self._values[name]:
                self._schedule[name].fill_(value)
                self._values[name] = value
        terms = self.step.forward().clone()
        return dict(zip(self._names, terms.unbind(), strict=True))

    def update(self, trainer: L.Trainer, optimizer: Optimizer, closure: Callable[[], Any]) -> None:
        """Run Lightning's closure, which calls hooks and the other parts of the step, then replay the update."""
        assert self.step is not None
        run_closure(trainer, optimizer, closure)
        self.step.update()
