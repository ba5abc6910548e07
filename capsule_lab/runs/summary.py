"""The last lines of ``train``: for one run, and for a multirun ``-m``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.markup import escape

from capsule_lab.config import presets
from capsule_lab.errors import RunError
from capsule_lab.runs.directories import (
    config_hash,
    continues_another,
    latest_directory,
    own_directory,
)
from capsule_lab.runs.results import (
    PAUSED,
    describe_classes,
    describe_constant,
    describe_data,
    describe_metrics,
    limits_of_test,
    name_of_start,
    read_pause,
    read_result,
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

    They are markup of rich. A network, routing or experiment that differs from its paper has a line that says how.

    Args:
        result: result of ``train`` in ``directory``.
        chosen: the chosen option of each group, such as ``model`` and ``routing``.
        proposals: commands to try next.
    """
    routing = f", routing {chosen['routing']}" if _routes(chosen) else ""
    record = "status.json" if result["status"] == PAUSED else "metrics.json"
    first, others = _outcome(result)
    lines = [
        *_classes(result),
        *_times(result.get("time_to_accuracy", {})),
        f"network     {chosen['model']}{routing}",
        *(f"paper       {line}" for line in presets.differences(chosen)),
        f"data        {describe_data(result['provenance'])}",
        *_start(result),
        f"trained     {_training(result)}; {_parameters(result)}",
        f"run         {as_typed(directory)}",
        f"            {record}, metrics.csv, checkpoints, figures",
    ]
    # names of classes, data and directories may contain brackets
    marked = [f"[bold]{escape(first)}[/]{escape(others)}", *map(escape, lines)]
    if proposals:
        marked += ["", "[bold]try next[/]", *(f"  {escape(command)}" for command in proposals)]
    return "\n".join(marked)


def _outcome(result: Mapping[str, Any]) -> tuple[str, str]:
    """Return the error to emphasise, and what is known about it."""
    if result["test"]:
        first, others = describe_metrics("test", result["test"])
        so_far = f"; {limits_of_test(result)}" if result["status"] == PAUSED else ""
        weights = f"({result['weights_tested']} weights{so_far})"
        return first, f"{describe_constant(result)}{others}  {weights}"
    if result["val"]:
        first, _ = describe_metrics("validation", {**result["val"]})
        return first, "  (not tested)"
    return "neither validated nor tested", ""


def _classes(result: Mapping[str, Any]) -> list[str]:
    described = describe_classes(result, "test")
    if not described:
        return []
    heading = "classes".ljust(_INDENT)
    return [heading + described]


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
    lines = [f"start       {source}: {counts}"]
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
    finished = []
    for name, config in zip(names, configs, strict=True):
        try:
            directory, result = recorded_run(config)
        except RunError:  # its ckpt was removed meanwhile
            directory, result = None, {}
        minutes = result.get("training_seconds", 0) / 60
        run = str(as_typed(directory)) if directory and "test" in result else "not finished"
        rows.append((name, _test_error(result), f"{minutes:.1f}", run))
        finished.append(result.get("status") == "finished")
    return "\n".join(aligned(rows)), finished


def recorded_run(config: DictConfig) -> tuple[Path | None, Mapping[str, Any]]:
    """Return the directory of the latest run of a configuration, and its record if it is finished or paused.

    Runs with ``train.directory``, and those that continue another configuration, count only for themselves.
    """
    if own_directory(config) is None and not continues_another(config):
        counted = finished_run(config)
        if counted:
            return counted
    directory = latest_directory(config)
    if directory is None:
        return None, {}
    return directory, read_result(directory, config_hash(config)) or read_pause(directory) or {}


def _test_error(result: Mapping[str, Any]) -> str:
    error = result.get("test", {}).get("error")
    if error is None:
        return ""
    limits = limits_of_test(result)
    return f"{error:.2f} % ({limits})" if limits else f"{error:.2f} %"


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
