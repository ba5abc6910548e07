"""What happens around training."""

from capsule_lab.callbacks.checkpoints import AtomicCheckpointIO, BestCheckpoint, EmbedConfig, LastCheckpoint
from capsule_lab.callbacks.dashboards import MLflow, close, tell_loggers
from capsule_lab.callbacks.display import ProgressBar, ProgressLines, progress
from capsule_lab.callbacks.history import MetricsTable
from capsule_lab.callbacks.pictures import ConfusionMatrix, Reconstructions
from capsule_lab.callbacks.watch import NonFiniteError, NonFiniteGuard, RoutingStats

__all__ = [
    "AtomicCheckpointIO",
    "BestCheckpoint",
    "ConfusionMatrix",
    "EmbedConfig",
    "LastCheckpoint",
    "MLflow",
    "MetricsTable",
    "NonFiniteError",
    "NonFiniteGuard",
    "ProgressBar",
    "ProgressLines",
    "Reconstructions",
    "RoutingStats",
    "close",
    "progress",
    "tell_loggers",
]
