"""The last lines of ``train``: for one run, and for a multirun ``-m``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.markup import escape

from capsule_lab.config import presets
from capsule_lab.runs.directories import attempts, config_hash, own_directory
from capsule_lab.runs.results import (
    PAUSED,
    describe_classes,
    describe_constant,
    describe_data,
    describe_metrics,
    limits_of_test,
    name_of_start,
    read_pause,
    source_of,
)
from capsule_lab.runs.select_run import finished_run
from capsule_lab.system.terminal import aligned, as_typed

_INDENT = 12  # characters before the values


def summary(
    result: dict[str, Any],
    directory: Path,
    chosen: Mapping[str, Any],
    proposals: Sequence[str] = (),
) -> str:
    """Return the last lines of the command: errors, network, data, duration, directory, and suggested commands.

    A network, routing or experiment that differs from its paper has a line that says how.

    Args:
        result: result of ``train`` in ``directory``.
        chosen: the chosen option of each group, such as ``model`` and ``routing``.
        proposals: commands to try next.
    """
    routing = f", routing {chosen['routing']}" if _routes(chosen) else ""
    record = "status.json" if result["status"] == PAUSED else "metrics.json"
    lines = [
        _outcome(result),
        *_classes(result),
        *_times(result.get("time_to_accuracy", {})),
        f"network     {chosen['model']}{routing}",
        *(f"paper       {escape(line)}" for line in presets.differences(chosen)),
        f"data        {escape(describe_data(result['provenance']))}",
        *_start(result),
        f"trained     {_training(result)}; {_parameters(result)}",
        f"run         {escape(str(as_typed(directory)))}",
        f"            {record}, metrics.csv, checkpoints, figures",
    ]
    if proposals:
        lines += ["", "[bold]try next[/]", *(f"  {escape(command)}" for command in proposals)]
    return "\n".join(lines)


def _outcome(result: Mapping[str, Any]) -> str:
    if result["test"]:
        first, others = describe_metrics("test", result["test"])
        so_far = f"; {limits_of_test(result)}" if result["status"] == PAUSED else ""
        weights = f"({result['weights_tested']} weights{so_far})"
        return f"[bold]{first}[/]{describe_constant(result)}{others}  {weights}"
    if result["val"]:
        first, _ = describe_metrics("validation", {**result["val"]})
        return f"[bold]{first}[/]  (not tested)"
    return "neither validated nor tested"


def _classes(result: Mapping[str, Any]) -> list[str]:
    described = describe_classes(result, "test")
    if not described:
        return []
    heading = "classes".ljust(_INDENT)
    return [heading + escape(described)]


def _training(result: Mapping[str, Any]) -> str:
    """Return the steps, the images, the duration and, unless all steps were done, what ended the training."""
    images = result.get("image_counts", {}).get("train")
    seen = "" if images is None else f", {images:,} images,"
    minutes = result["training_seconds"] / 60
    text = f"{result['steps']} of {result['planned_steps']} steps{seen} in {minutes:.1f} min"
    reason = result["stopped_by"]
    if reason == "steps":
        return text
    if reason == "callback":
        return f"{text}, ended by a callback"
    if reason == "trainer.max_time":
        return f"{text}, ended by trainer.max_time"
    return f"{text}, ended by the {reason} of a callback"


def _start(result: Mapping[str, Any]) -> list[str]:
    """Return lines about the initial weights, if they are those of a file."""
    start = result.get("start_from")
    if not start:
        return []
    source = name_of_start(start)
    if start["data"]:
        source += f" ({describe_data(start['data'])})"
    counts = f"{start['loaded']} tensors loaded, {start['new']} new"
    text = escape(f"{source}: {counts}")
    lines = [f"start       {text}"]
    if source_of(result) != result["provenance"]["source"]:
        lines.append("            reports count the run as one on stand-in data")
    return lines


def _parameters(result: Mapping[str, Any]) -> str:
    count = result["parameters"]
    frozen = result.get("frozen_parameters", 0)
    if not frozen:
        return f"{count:,} parameters"
    return f"{count - frozen:,} of {count:,} parameters, the others frozen"


def _routes(chosen: Mapping[str, Any]) -> bool:
    return chosen["routing"] not in (None, "none")


def listed(names: Sequence[str], configs: Sequence[DictConfig]) -> tuple[str, list[bool]]:
    """Return a table of test error, minutes and directory of each configuration, and whether each is finished."""
    rows = [("", "test error", "minutes", "run")]
    finished_runs = [finished_run(config) for config in configs]
    for name, config, finished in zip(names, configs, finished_runs, strict=True):
        directory, result = finished or _unfinished(config)
        minutes = result.get("training_seconds", 0) / 60
        run = "not finished" if directory is None else str(as_typed(directory))
        rows.append((name, _test_error(result), f"{minutes:.1f}", run))
    return "\n".join(aligned(rows)), [finished is not None for finished in finished_runs]


def _test_error(result: Mapping[str, Any]) -> str:
    error = result.get("test", {}).get("error")
    if error is None:
        return ""
    limits = limits_of_test(result)
    return f"{error:.2f} % ({limits})" if limits else f"{error:.2f} %"


def _unfinished(config: DictConfig) -> tuple[Path | None, Mapping[str, Any]]:
    """Return directory and record of a run that was paused and tested; else ``train.directory``, without a record."""
    for directory in attempts(config_hash(config))[:1]:
        paused = read_pause(directory)
        if paused and "test" in paused:
            return directory, paused
    return own_directory(config), {}


def _times(results: Mapping[str, float | None]) -> list[str]:
    """Return a line for each threshold of ``TimeToAccuracy``."""
    lines = []
    for name, seconds in results.items():
        threshold, _, quantity = name.partition("/")
        if quantity != "seconds":
            continue
        outcome = "not reached"
        if seconds is not None:
            images = results[f"{threshold}/images"]
            outcome = f"after {seconds:.0f} s of training, {images:,} images"
        error = results[f"{threshold}/test_error"]
        if error is not None:
            outcome += f", test error then {error:.2f} %"
        lines.append(f"{threshold} %".ljust(_INDENT) + outcome)
    return lines
