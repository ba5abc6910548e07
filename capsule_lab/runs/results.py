"""Results of a run: its metrics, and its status: finished, paused, failed or interrupted."""

from __future__ import annotations

import functools
import math
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

from omegaconf import DictConfig
from pydantic import BaseModel, Field, TypeAdapter

from capsule_lab.config.messages import user_message
from capsule_lab.errors import InterruptError, RunError, one_line, printable
from capsule_lab.runs.directories import config_hash
from capsule_lab.runs.files import read_record, tail, write_record
from capsule_lab.system.environment import is_first_process

STANDIN = "standin"
"""The source of data that replaces real data, in a provenance."""
RESULT, STATUS, HEARTBEAT = "metrics.json", "status.json", "heartbeat.json"
PAUSED = "paused"
"""Status of a run that reached its time limit before its last step or its test."""

# ours: of the most frequent and the rarest class; 1.3 in MNIST's test set, where balanced error and error are alike
_UNBALANCED = 2
_WORST = 3  # ours: fit into a line
_LOG_LINES = 20  # ours: fits on a terminal


class Heartbeat(BaseModel, strict=True, allow_inf_nan=False):
    """The progress of a run at a time while it trains, ``heartbeat.json``; removed at the end unless the run is killed.

    Attributes:
        time: when it was written, in seconds since 1970.
        host: the machine.
        steps: steps so far.
        planned_steps: steps of the whole run.
        seconds_left: expected time until training ends, if known.
    """

    time: float
    host: str
    steps: int
    planned_steps: int
    seconds_left: float | None


_HEARTBEAT = TypeAdapter(Heartbeat)


class _Provenance(BaseModel, strict=True):
    source: str
    name: str


class _Start(BaseModel, strict=True):
    """Weights with which a training began; older records have no name."""

    file: str
    name: str | None = None
    data: _Provenance | None


class _Check(BaseModel, strict=True):
    name: str
    passed: bool | None


class _PredictionFile(BaseModel, strict=True):
    file: str
    sha256: str


_Seconds = Annotated[float, Field(ge=0, le=1e100)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Number = Annotated[
    float, Field(ge=-1e100, le=1e100)
]  # ours: statistics square numbers, which must not overflow
Quantities = dict[str, Number | None]


class ClassResults(BaseModel, strict=True, allow_inf_nan=False):
    """Results of a test or validation by name of class.

    Attributes:
        images: number of images; with any number of labels, those that have the class.
        recall: percentage of the images that are right, for classes with images.
        constant_error: error in percent of always answering the most frequent class of the training set; ``None`` for
            weights whose checkpoint does not have the frequencies. With any number of labels, of the most frequent set
            of labels of the test.
        constant_labels: this set of labels; ``None`` if images have one label.
    """

    images: dict[str, Count] = {}
    recall: dict[str, Number] = {}
    constant_error: Number | None = None
    constant_labels: list[str] | None = None


class Evaluation(BaseModel, strict=True, allow_inf_nan=False):
    """The fields that reports and their figures read, of runs and of the commands that measure weights.

    A command that measures something else adds fields in a subclass.
    """

    provenance: _Provenance
    test: dict[str, Number] = {}
    val: dict[str, Number] = {}
    time_to_accuracy: Quantities = {}
    at_equal_error: Quantities = {}
    couplings: str = "trained"
    checks: list[_Check] = []
    parameters: Count = 0
    steps: Count = 0
    device: str = ""
    hardware: str = ""
    precision: str = ""
    commit: str | None = None
    curves: str | None = None
    weights_tested: str | None = None
    predictions: _PredictionFile | None = None
    training_cpu_seconds: _Seconds | None = None
    image_counts: dict[str, Count] = {}
    classes: ClassResults = ClassResults()
    evaluation_seconds: _Seconds = 0.0
    start_from: _Start | None = None


class _Result(Evaluation):
    status: str
    config_hash: str
    test: dict[str, Number]
    val: dict[str, Number]
    training_seconds: _Seconds
    steps: Count
    hardware: str
    commit: str | None


class _Status(BaseModel, strict=True, allow_inf_nan=False):
    """The fields that are read, also those of a paused run that was tested."""

    status: str
    error: str = ""
    steps: int = 0
    planned_steps: int = 0
    test: dict[str, Number] = {}
    image_counts: dict[str, Count] = {}
    training_seconds: _Seconds = 0.0


_RESULT = TypeAdapter(_Result)
_STATUS = TypeAdapter(_Status)


def is_finished(directory: Path, config: DictConfig) -> bool:
    """Return whether the run in ``directory`` finished with this configuration."""
    return read_result(directory, config_hash(config)) is not None


def read_result(directory: Path, fingerprint: str) -> dict[str, Any] | None:
    """Return ``metrics.json`` of a finished run of the configuration with this hash; ``None`` if there is none."""
    result = read_metrics(directory)
    complete = result and (result["status"], result["config_hash"]) == ("finished", fingerprint)
    return result if complete else None


def read_metrics(directory: Path) -> dict[str, Any] | None:
    """Return ``metrics.json`` in a run directory; ``None`` if it is missing or damaged."""
    return read_record(directory / RESULT, _RESULT, directory)


def read_evaluation(path: Path, schema: type[BaseModel] = Evaluation) -> dict[str, Any] | None:
    """Return the result of an evaluation, in a folder of a run; ``None`` if it is missing or damaged."""
    return read_record(path, _adapter(schema), path.parent.parent)


@functools.cache
def _adapter(schema: type[BaseModel]) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def read_status(directory: Path) -> dict[str, Any] | None:
    """Return ``status.json`` of a run that ended early; ``None`` if it is missing or damaged."""
    return read_record(directory / STATUS, _STATUS, directory)


def read_pause(directory: Path) -> dict[str, Any] | None:
    """Return ``status.json`` of a paused run; ``None`` for any other run."""
    status = read_status(directory)
    return status if status and status["status"] == PAUSED else None


def describe_pause(status: Mapping[str, Any]) -> str:
    """Describe the progress of a paused run: ``paused 40 %``."""
    return f"{PAUSED} {100 * status['steps'] // max(status['planned_steps'], 1)} %"


def write_pause(
    directory: Path, steps: int, planned_steps: int, tested: Mapping[str, Any] | None = None
) -> None:
    """Write ``status.json`` of a paused run: its steps so far, the planned steps, and the record if it was tested."""
    progress = {"status": PAUSED, "steps": steps, "planned_steps": planned_steps}
    write_record(directory / STATUS, {**(tested or {}), **progress})


def write_heartbeat(
    directory: Path, steps: int, planned_steps: int, seconds_left: float | None
) -> None:
    """Write the progress of a training run, and that it trains now."""
    beat = Heartbeat(
        time=time.time(),
        host=socket.gethostname(),
        steps=steps,
        planned_steps=planned_steps,
        seconds_left=seconds_left,
    )
    write_record(directory / HEARTBEAT, beat.model_dump())


def read_heartbeat(directory: Path) -> Heartbeat | None:
    """Return the last heartbeat of a run; ``None`` if it removed the file at its end or has not trained yet."""
    content = read_record(directory / HEARTBEAT, _HEARTBEAT, directory)
    return Heartbeat(**content) if content else None


def describe_error(error: BaseException) -> str:
    """Return a one-line message, with the type of the error unless it is a mistake of the user."""
    return user_message(error) or f"{type(error).__name__}: {one_line(error)}"


def write_failure(directory: Path, error: BaseException) -> None:
    """Write ``status.json``: whether the run failed or was interrupted, the reason, and the end of its log."""
    status = "interrupted" if isinstance(error, InterruptError | KeyboardInterrupt) else "failed"
    log = tail(directory / "train.log", _LOG_LINES)
    write_record(directory / STATUS, {"status": status, "error": describe_error(error), "log": log})


@contextmanager
def recording_failure(directory: Path) -> Iterator[None]:
    """If this block raises, the first process of the run writes the reason to ``status.json`` in ``directory``."""
    try:
        yield
    except BaseException as error:
        if is_first_process():
            with suppress(RunError):  # the disk may be full, which is then the error
                write_failure(directory, error)
        raise


def check_finite(metrics: Mapping[str, float], what: str) -> None:
    """Check that all metrics are finite; ``what`` is their source, such as ``"the test of last.ckpt"``."""
    wrong = [f"{name} {value}" for name, value in metrics.items() if not math.isfinite(value)]
    if wrong:
        raise RunError(
            f"{what} gives {', '.join(wrong)}; expected finite numbers: these weights are useless; use an earlier "
            "checkpoint with ckpt=… (best.ckpt had the best validation), or train again with a smaller learning rate "
            "(schedule.learning_rate.…)"
        )


def split_metrics(metrics: Mapping[str, Any], split: str) -> dict[str, float]:
    """Return logged metrics of one split as plain numbers: ``{"val/error": tensor(3.6)}`` -> ``{"error": 3.6}``."""
    return {
        name.removeprefix(f"{split}/"): float(value)
        for name, value in metrics.items()
        if name.startswith(f"{split}/")
    }


def image_counts(module: Any, data: Any) -> dict[str, int]:
    """Return how many images the splits had in training, validation and test, and add it to the provenance of the data.

    ``test_set`` is the number of images in the whole test set, which options such as ``trainer.limit_test_batches`` and
    ``data.eval_images`` do not change. ``module`` and ``data`` have been trained or tested with a Trainer.
    """
    counts = dict(module.image_counts)
    if "test" in counts:
        data.record_tested({name: counts[name] for name in data.test_names})
        counts["test_set"] = data.whole_test_size()
    return counts


def partial_test(result: Mapping[str, Any]) -> str:
    """Describe the test if it did not use the whole test set: ``32 of 24300 images``; else an empty string.

    Older records do not have the counts; their tests count as complete.
    """
    counts = result.get("image_counts", {})
    tested, available = counts.get("test", 0), counts.get("test_set", 0)
    return f"{tested} of {available} images" if tested < available else ""


def limits_of_test(result: Mapping[str, Any]) -> str:
    """Describe what was incomplete before a test: ``32 of 359 images, at step 400 of 1000``; empty if nothing was.

    Args:
        result: of a run, or of a paused one, see ``read_pause``.
    """
    limits = [partial_test(result)]
    if result.get("status") == PAUSED:
        limits.append(f"at step {result['steps']} of {result['planned_steps']}")
    return ", ".join(filter(None, limits))


def describe_metrics(split: str, metrics: Mapping[str, float]) -> tuple[str, str]:
    """Describe the metrics of a split: the error, then the errors of its parts; or, without an error, all metrics.

    >>> describe_metrics("test", {"copying": 79.4, "loss": 40.5})
    ('test loss 40.5', '  copying 79.4')
    """
    if "error" not in metrics:
        losses_first = sorted(metrics.items(), key=lambda item: item[0] != "loss")
        first, *quantities = [f"{name} {value:.4g}" for name, value in losses_first]
        return f"{split} {first}", "".join(f"  {quantity}" for quantity in quantities)
    parts = {
        name.removesuffix("/error"): value
        for name, value in metrics.items()
        if name.endswith("/error")
    }
    others = "".join(f"  {part} {value:.2f} %" for part, value in parts.items())
    return f"{split} error {metrics['error']:.2f} %", others


def describe_constant(result: Mapping[str, Any]) -> str:
    """Describe the error of always answering the most frequent class, or labels, if the record of a test has it."""
    classes = result.get("classes", {})
    error = classes.get("constant_error")
    if error is None:
        return ""
    labels = classes.get("constant_labels")
    answer = "the most frequent class"
    if labels is not None:
        answer = printable(", ".join(labels)) or "no label"
    return f" (always answering {answer}: {error:.2f} %)"


def describe_classes(result: Mapping[str, Any], split: str) -> str:
    """Describe what the error does not tell: of single labels, and of classes; ``""`` if that is nothing.

    With several labels per image, these are the error of labels, balanced error and AUROC; if the tested classes are
    unbalanced, balanced error, AUROC and the lowest recalls.
    """
    metrics = result[split]
    described = []
    if "label_error" in metrics:
        described.append(f"label error {metrics['label_error']:.2f} %")
    lowest = _lowest_recalls(result.get("classes", {}))
    if (described or lowest) and "balanced_error" in metrics:
        described.append(f"balanced error {metrics['balanced_error']:.2f} %")
    if (described or lowest) and "auroc" in metrics:
        described.append(f"AUROC {metrics['auroc']:.3f}")
    return ", ".join(described) + lowest


def _lowest_recalls(classes: Mapping[str, Any]) -> str:
    """Describe the lowest recalls, if the tested classes are unbalanced; else ``""``."""
    recalls = classes.get("recall", {})
    images = classes.get("images", {})
    counts = [images[name] for name in recalls]
    if not counts or max(counts) < _UNBALANCED * min(counts):
        return ""
    worst = sorted(recalls, key=recalls.__getitem__)
    lowest = []
    for name in worst[:_WORST]:
        recall = f"{recalls[name]:.1f} % of {images[name]} images"
        lowest.append(f"{printable(name)} {recall}")
    return f"; lowest recall: {', '.join(lowest)}"


def describe_data(provenance: Mapping[str, Any]) -> str:
    """Describe the data: its name, and the number of test images if the test set was used."""
    tested = (
        f", tested on {provenance['test_images']} images" if "test_images" in provenance else ""
    )
    return f"{provenance['name']}{tested}"


def source_of(result: Mapping[str, Any]) -> str:
    """Return the source of the data: a stand-in also if the initial weights were trained on one."""
    start = result.get("start_from") or {}
    data = start.get("data") or {}
    if data.get("source") == STANDIN:
        return STANDIN
    return str(result["provenance"]["source"])


def describe_start(result: Mapping[str, Any]) -> str:
    """Describe the initial weights of a run: ``started from capsnet_mnist (real)``; empty if they were random.

    Args:
        result: of a run, or the record in its checkpoint.
    """
    start = result.get("start_from")
    if not start:
        return ""
    source = start["data"]["source"] if start["data"] else "unknown data"
    shown = "stand-in" if source == STANDIN else source
    return f"started from {name_of_start(start)} ({shown})"


def name_of_start(start: Mapping[str, Any]) -> str:
    """Return the name of initial weights, as in the record ``start_from``."""
    return str(start.get("name") or start["file"])


def short_name(provenance: Mapping[str, Any]) -> str:
    """Return the name of the data without details, for headings: ``stand-in for MNIST``."""
    return str(provenance["name"]).partition(":")[0]
