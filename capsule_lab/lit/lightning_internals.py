"""All uses of undocumented features of Lightning 2.6.6 and its torchmetrics 1.9.0, one function each.

If an upgrade changes one, ``tests/lit/test_lightning_internals.py`` or ``tests/runs/test_resume.py`` fails.
"""

from __future__ import annotations

import functools
import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, cast

import lightning as L
from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.fabric.utilities.exceptions import (
    MisconfigurationException as MisconfigurationException,
)
from lightning.pytorch.callbacks import Callback, Timer
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason as EarlyStoppingReason
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.profilers import PassThroughProfiler
from torch import Tensor
from torch.optim import Optimizer
from torchmetrics import Metric

from capsule_lab.system.signals import end_with_parent

COLLECTIVE_TIMEOUT = timedelta(seconds=300)  # ours: torch's 1800 would keep a cluster's GPUs idle

HARMLESS_WARNINGS = (
    ".*exists and is not empty.*",  # the directory of a run that is resumed
    ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*",  # Lightning 2.6 with torch 2.13 and later
    ".*smaller than the logging interval.*",  # metrics are logged once per epoch
    ".*does not have many workers.*",  # the data is in memory
    ".*srun` command is available.*",
    ".*It is recommended to use `self.log\\(.*sync_dist=True.*",  # torchmetrics has synchronised them
    ".*Grad strides do not match bucket view strides.*",  # 1x1 kernels in channels_last: same memory
    ".*AccumulateGrad node's stream does not match.*",  # CUDA graphs are captured on another stream
    ".*This instance was constructed with capturable=True.*",  # the first steps run before the capture
    ".*across ranks is zero. Please make sure this was your intention.*",
)
"""Regular expressions of warnings about intended behaviour."""


def batches_per_epoch(trainer: L.Trainer) -> float:
    """Return the training batches per epoch in this process; also valid in ``configure_optimizers``.

    ``Trainer.estimated_stepping_batches`` loads the data in the same way, but not if ``max_epochs`` is -1.
    """
    trainer.fit_loop.setup_data()
    return trainer.num_training_batches


def mark_updated(metric: Metric) -> None:
    """Keep a metric whose state was restored from warning, in ``compute``, that it was never updated."""
    metric._update_count = 1


def batch_index(trainer: L.Trainer) -> int:
    """Return the index of the current training batch, counted over all epochs and interruptions."""
    return trainer.fit_loop.total_batch_idx


def passes(trainer: L.Trainer) -> float:
    """Return how often training has seen its whole set, also for a part of it, over all interruptions; after ``fit``.

    ``Trainer.current_epoch`` counts epochs that ended early, and those of ``limit_train_batches``, as whole ones.
    """
    loader: Any = trainer.train_dataloader
    return (trainer.fit_loop.total_batch_idx + 1) / len(loader)


def drop_anonymous(logger: WandbLogger) -> None:
    """Keep a logger from passing an unused argument to W&B, which would log a warning."""
    logger._wandb_init.pop("anonymous", None)


def disable_signal_handlers(trainer: L.Trainer) -> None:
    """Keep a Trainer from handling SIGTERM and SIGUSR1, which ``system.signals`` handles.

    Its handlers would requeue SLURM's job, and start collective communication at an arbitrary point.
    """
    connector: Any = trainer._signal_connector
    connector.register_signal_handlers = lambda: None


class LightningModule(L.LightningModule):
    """Lightning's class with a faster assignment of the name of the current hook.

    Lightning assigns it twice in each of the sixteen hooks of a step, and torch's ``__setattr__`` makes ten calls to
    find out that a name is neither a parameter nor a module.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)


class _NoProfiler(PassThroughProfiler):
    """Does nothing, like its base class, but without a generator for each hook of each callback."""

    _nothing = nullcontext()

    def profile(self, action_name: str) -> Any:
        return self._nothing


def _arguments_of_training_step(
    arguments: OrderedDict[str, Any], batch: Any, batch_idx: int
) -> OrderedDict[str, Any]:
    """Add the arguments of ``training_step``; Lightning's function inspects its signature at every step."""
    arguments["batch"] = batch
    arguments["batch_idx"] = batch_idx
    return arguments


_BATCH_HOOKS = (
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
)


def show_to_callbacks(trainer: L.Trainer, name: str, value: Tensor) -> None:
    """Set an entry of ``Trainer.callback_metrics``; ``self.log`` would take a tenth of the time of a small step."""
    trainer._logger_connector._callback_metrics[name] = value


def skip_idle_hooks(trainer: L.Trainer) -> None:
    """Keep a Trainer from calling, at every batch, the hooks that callbacks and the module do not override.

    Lightning calls each hook of each callback, six times a batch, inside of a profiler's context, which takes longer
    than what the callbacks do. It skips a hook that cannot be called.
    """
    inside = cast(Any, trainer)
    if type(inside.profiler) is PassThroughProfiler:
        inside.profiler = _NoProfiler()
    inside.fit_loop.epoch_loop._build_kwargs = _arguments_of_training_step
    hooks = inside._data_connector._datahook_selector
    if hooks is not None:  # looks for overrides of three hooks at every batch
        hooks.get_instance = functools.cache(hooks.get_instance)
    owners: list[tuple[Any, type]] = [(callback, Callback) for callback in inside.callbacks]
    owners.append((trainer.lightning_module, L.LightningModule))
    for owner, base in owners:
        for hook in _BATCH_HOOKS:
            is_inherited = getattr(type(owner), hook) is getattr(base, hook)
            if is_inherited and hook not in vars(owner):
                setattr(owner, hook, None)


def run_closure(trainer: L.Trainer, optimizer: Optimizer, closure: Callable[[], Any]) -> None:
    """Run what Lightning runs before an optimizer's step: forward and backward pass, hooks and clipping."""
    cast(Any, trainer.precision_plugin)._wrap_closure(trainer.lightning_module, optimizer, closure)


def next_batch_follows(trainer: L.Trainer) -> bool:
    """Return whether another batch of the epoch follows, with no validation before it; in ``on_train_batch_end``."""
    loop = trainer.fit_loop
    assert loop._data_fetcher is not None
    stops = trainer.should_stop and loop._can_stop_early
    if trainer.is_last_batch or stops:
        return False
    return not loop.epoch_loop._should_check_val_fx(loop._data_fetcher)


def limit_waiting(trainer: L.Trainer) -> None:
    """Limit the time for which the processes of a run wait for a process that does not respond.

    ``COLLECTIVE_TIMEOUT`` applies unless the strategy configures a timeout. When a process that Lightning has started
    fails, Lightning kills the others; this enables its log message. A process ends if its parent process is gone.
    """
    strategy: Any = trainer.strategy
    if getattr(strategy, "_timeout", None) == default_pg_timeout:
        strategy._timeout = COLLECTIVE_TIMEOUT
    launcher = logging.getLogger("lightning.fabric.strategies.launchers.subprocess_script")
    launcher.setLevel(logging.INFO)
    if os.environ.get("LOCAL_RANK", "0") != "0":
        end_with_parent(grace=10.0)  # ours: gloo detects a lost process at once, NCCL does not


def epoch_metrics(trainer: L.Trainer) -> tuple[dict[str, Any], int]:
    """Return the metrics that Lightning will log for the ending epoch, and their step; in ``on_train_epoch_end``.

    All processes must call it, as the metrics may be synchronised.
    """
    metrics = trainer._logger_connector.metrics["log"] | {"epoch": trainer.current_epoch}
    step = trainer.fit_loop.epoch_loop._batches_that_stepped - 1
    return metrics, step


def stopped_at_threshold(trainer: L.Trainer) -> bool:
    """Return whether a callback with a ``stopping_reason`` has reached its threshold, also before an interruption."""
    callbacks = cast(Any, trainer).callbacks
    reasons = [getattr(callback, "stopping_reason", None) for callback in callbacks]
    return EarlyStoppingReason.STOPPING_THRESHOLD in reasons


def stop_reason(trainer: L.Trainer, steps: int) -> str:
    """Return why training ended: ``steps`` (all are done), ``threshold``, ``time limit``, or else ``callback``."""
    if trainer.global_step >= steps:
        return "steps"
    if stopped_at_threshold(trainer):
        return "threshold"
    for callback in cast(Any, trainer).callbacks:
        if isinstance(callback, Timer) and (callback.time_remaining() or 1) <= 0:
            return "time limit"
    return "callback"


def relocated_state(state: dict[str, Any], path: str, directory: str) -> dict[str, Any]:
    """Return the state of a ``ModelCheckpoint`` that keeps one file, after this file was moved to ``path``.

    Lightning forgets the best score if the ``dirpath`` of the callback differs from the state's, now ``directory``.
    """
    moved = dict(state, dirpath=directory)
    for name in ("best_model_path", "kth_best_model_path", "last_model_path"):
        moved[name] = path if state.get(name) else ""
    scores = [*state["best_k_models"].values()]
    moved["best_k_models"] = {path: scores[0]} if scores else {}
    return moved
