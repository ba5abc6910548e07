"""Callbacks and loggers of training runs."""

from capsule_lab.callbacks.at_equal_error import AtEqualError
from capsule_lab.callbacks.averaged_weights import AveragedWeights
from capsule_lab.callbacks.checkpoints import (
    AtomicCheckpointIO,
    BestCheckpoint,
    EmbedConfig,
    LastCheckpoint,
    pause_at,
)
from capsule_lab.callbacks.csv_logger import MetricsTable
from capsule_lab.callbacks.figures import ConfusionMatrix, DrawnPairs, Reconstructions
from capsule_lab.callbacks.histograms import CapsuleHistograms
from capsule_lab.callbacks.learning import LearningDiagnostics, VarianceFloor
from capsule_lab.callbacks.loggers import (
    MLflow,
    TensorBoard,
    WeightsAndBiases,
    close_loggers,
    log_run_facts,
    with_names,
)
from capsule_lab.callbacks.monitoring import (
    NonFiniteError,
    NonFiniteGuard,
    RoutingStats,
    StepMetrics,
)
from capsule_lab.callbacks.not_learning import NotLearning
from capsule_lab.callbacks.progress import ProgressBar, ProgressLines, progress_callback
from capsule_lab.callbacks.time_to_accuracy import TimeToAccuracy, weights_reached
from capsule_lab.callbacks.worst_images import WorstImages

__all__ = [
    "AtEqualError",
    "AtomicCheckpointIO",
    "AveragedWeights",
    "BestCheckpoint",
    "CapsuleHistograms",
    "ConfusionMatrix",
    "DrawnPairs",
    "EmbedConfig",
    "LastCheckpoint",
    "LearningDiagnostics",
    "MLflow",
    "MetricsTable",
    "NonFiniteError",
    "NonFiniteGuard",
    "NotLearning",
    "ProgressBar",
    "ProgressLines",
    "Reconstructions",
    "RoutingStats",
    "StepMetrics",
    "TensorBoard",
    "TimeToAccuracy",
    "VarianceFloor",
    "WeightsAndBiases",
    "WorstImages",
    "close_loggers",
    "log_run_facts",
    "pause_at",
    "progress_callback",
    "weights_reached",
    "with_names",
]
