"""Everything that this project uses of Lightning beyond its documentation, one function each; read from 2.6.6.

``tests/test_lightning_internals.py`` names each of them, so that an upgrade that changes one fails there.
"""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

__all__ = [
    "HARMLESS_WARNINGS",
    "MisconfigurationException",
    "batch_index",
    "batches_per_epoch",
    "relocated_state",
    "stopped_at_threshold",
    "validation_follows",
]

HARMLESS_WARNINGS = (
    ".*exists and is not empty.*",  # the directory of a run that is resumed
    ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*",  # Lightning 2.6 with torch 2.13 and later
    ".*smaller than the logging interval.*",  # metrics are logged once per epoch
    ".*does not have many workers.*",  # the data is in memory
    ".*srun` command is available.*",
    ".*It is recommended to use `self.log\\(.*sync_dist=True.*",  # torchmetrics has synchronised them
    ".*Grad strides do not match bucket view strides.*",  # of 1x1 kernels in channels_last, the same in memory
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


def validation_follows(trainer: L.Trainer, batch_idx: int) -> bool:
    """Whether a validation comes between this batch of an epoch and the next; not asked of the last batch."""
    index = batch_idx if trainer.check_val_every_n_epoch is not None else batch_index(trainer)
    return trainer.enable_validation and (index + 1) % (trainer.val_check_batch or 1) == 0


def stopped_at_threshold(trainer: L.Trainer) -> bool:
    """Whether an ``EarlyStopping`` callback has met its threshold, also before an interruption."""
    reasons = [callback.stopping_reason for callback in trainer.early_stopping_callbacks]
    return EarlyStoppingReason.STOPPING_THRESHOLD in reasons


def relocated_state(state: dict[str, Any], path: str, directory: str) -> dict[str, Any]:
    """The state of a ``ModelCheckpoint`` that keeps one file, after that file was moved.

    Args:
        state: as ``ModelCheckpoint.state_dict`` gave it.
        path: where the file is now.
        directory: the callback's ``dirpath`` now; Lightning forgets the best score if it is another.
    """
    paths = {name: path if state.get(name) else "" for name in _PATHS}
    scores = list(state["best_k_models"].values())
    return {**state, **paths, "dirpath": directory, "best_k_models": dict(zip([path], scores, strict=False))}


_PATHS = ("best_model_path", "kth_best_model_path", "last_model_path")
