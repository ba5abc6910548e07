"""Everything that this project uses of Lightning beyond its documentation, one function each; read from 2.6.6.

An upgrade that changes one fails in ``tests/lit/test_lightning_internals.py`` or in ``tests/runs/test_resume.py``.
"""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import Any, cast

import lightning as L
from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.fabric.utilities.exceptions import MisconfigurationException as MisconfigurationException
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason as EarlyStoppingReason
from lightning.pytorch.loggers import WandbLogger

from capsule_lab.system.signals import end_with_parent

COLLECTIVE_TIMEOUT = timedelta(seconds=300)  # ours: torch's 1800 would keep a cluster's GPUs idle

HARMLESS_WARNINGS = (
    ".*exists and is not empty.*",  # the directory of a run that is resumed
    ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*",  # Lightning 2.6 with torch 2.13 and later
    ".*smaller than the logging interval.*",  # metrics are logged once per epoch
    ".*does not have many workers.*",  # the data is in memory
    ".*srun` command is available.*",
    ".*It is recommended to use `self.log\\(.*sync_dist=True.*",  # torchmetrics has synchronised them
    ".*Grad strides do not match bucket view strides.*",  # of 1x1 kernels in channels_last, the same in memory
    ".*AccumulateGrad node's stream does not match.*",  # CUDA graphs are captured on a stream of their own
    ".*across ranks is zero. Please make sure this was your intention.*",
)
"""Regular expressions of warnings about what is intended here."""


def batches_per_epoch(trainer: L.Trainer) -> float:
    """Training batches of one epoch in this process, already known in ``configure_optimizers``.

    ``Trainer.estimated_stepping_batches`` loads the data in the same way, but not if ``max_epochs`` is -1.
    """
    trainer.fit_loop.setup_data()
    return trainer.num_training_batches


def batch_index(trainer: L.Trainer) -> int:
    """Index of the training batch under way, counted over all epochs and over interruptions."""
    return trainer.fit_loop.total_batch_idx


def drop_anonymous(logger: WandbLogger) -> None:
    """Keep a logger from handing W&B an argument that does nothing there, which W&B would warn of."""
    logger._wandb_init.pop("anonymous", None)


def disable_signal_handlers(trainer: L.Trainer) -> None:
    """Keep a Trainer from handling SIGTERM and SIGUSR1, which is for ``callbacks.stop_signals``.

    Its handlers would requeue SLURM's job, and start collective communication at an arbitrary point.
    """
    connector: Any = trainer._signal_connector
    connector.register_signal_handlers = lambda: None


def next_batch_follows(trainer: L.Trainer) -> bool:
    """Whether neither a validation nor an end comes before the next batch of the epoch; in ``on_train_batch_end``."""
    loop = trainer.fit_loop
    assert loop._data_fetcher is not None
    stops = trainer.should_stop and loop._can_stop_early
    return not (trainer.is_last_batch or stops or loop.epoch_loop._should_check_val_fx(loop._data_fetcher))


def limit_waiting(trainer: L.Trainer) -> None:
    """Let the processes of a run wait no longer for each other than for one that may still answer.

    ``COLLECTIVE_TIMEOUT`` holds unless the configuration of the strategy has a timeout. When a process that Lightning
    has started ends with an error, Lightning kills the others; this lets it log that. One whose starter is gone ends.
    """
    strategy: Any = trainer.strategy
    if getattr(strategy, "_timeout", None) == default_pg_timeout:
        strategy._timeout = COLLECTIVE_TIMEOUT
    logging.getLogger("lightning.fabric.strategies.launchers.subprocess_script").setLevel(logging.INFO)
    if os.environ.get("LOCAL_RANK", "0") != "0":
        end_with_parent(grace=10.0)  # ours: gloo notices a lost process at once, NCCL does not


def epoch_metrics(trainer: L.Trainer) -> tuple[dict[str, Any], int]:
    """What Lightning will log of the epoch that ends, and the step it will log it at; in ``on_train_epoch_end``.

    To be called by all processes, as the metrics may be synchronised.
    """
    metrics = trainer._logger_connector.metrics["log"]
    return {**metrics, "epoch": trainer.current_epoch}, trainer.fit_loop.epoch_loop._batches_that_stepped - 1


def stopped_at_threshold(trainer: L.Trainer) -> bool:
    """Whether a callback has met its threshold, also before an interruption: ``EarlyStopping``, or one that says so."""
    reasons = [getattr(callback, "stopping_reason", None) for callback in cast(Any, trainer).callbacks]
    return EarlyStoppingReason.STOPPING_THRESHOLD in reasons


def stop_reason(trainer: L.Trainer, steps: int) -> str:
    """Why training ended: ``steps``, all of them; ``threshold``; ``time limit``; ``callback`` for any other."""
    timers = [callback for callback in cast(Any, trainer).callbacks if isinstance(callback, Timer)]
    if trainer.global_step >= steps:
        return "steps"
    if stopped_at_threshold(trainer):
        return "threshold"
    return "time limit" if any((timer.time_remaining() or 1) <= 0 for timer in timers) else "callback"


def relocated_state(state: dict[str, Any], path: str, directory: str) -> dict[str, Any]:
    """The state of a ``ModelCheckpoint`` that keeps one file, after that was moved to ``path``.

    Lightning forgets the best score if the callback's ``dirpath`` is not that of the state: it is ``directory`` now.
    """
    names = ("best_model_path", "kth_best_model_path", "last_model_path")
    paths = {name: path if state.get(name) else "" for name in names}
    scores = list(state["best_k_models"].values())
    return {**state, **paths, "dirpath": directory, "best_k_models": dict(zip([path], scores, strict=False))}
