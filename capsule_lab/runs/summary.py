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
    describe_data,
    describe_metrics,
    limits_of_test,
    read_pause,
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
    run = escape(str(as_typed(directory)))
    routing = "" if chosen["routing"] in (None, "none") else f", routing {chosen['routing']}"
    minutes = result["training_seconds"] / 60
    is_paused = result["status"] == PAUSED
    if result["test"]:
        first, others = describe_metrics("test", result["test"])
        so_far = f"; {limits_of_test(result)}" if is_paused else ""
        outcome = f"[bold]{first}[/]{others}  ({result['weights_tested']} weights{so_far})"
    elif result["val"]:
        first, _ = describe_metrics("validation", {**result["val"]})
        outcome = f"[bold]{first}[/]  (not tested)"
    else:
        outcome = "neither validated nor tested"
    by = {"callback": "a callback", "trainer.max_time": "trainer.max_time"}.get(
        result["stopped_by"], f"the {result['stopped_by']} of a callback"
    )
    ended = "" if result["stopped_by"] == "steps" else f", ended by {by}"
    images = result.get("image_counts", {}).get("train")
    seen = "" if images is None else f", {images:,} images,"
    lines = [
        outcome,
        *_times(result.get("time_to_accuracy", {})),
        f"network     {chosen['model']}{routing}",
        *(f"paper       {escape(line)}" for line in presets.differences(chosen)),
        f"data        {escape(describe_data(result['provenance']))}",
        f"trained     {result['steps']} of {result['planned_steps']} steps{seen} in {minutes:.1f} min{ended}; "
        f"{result['parameters']:,} parameters",
        f"run         {run}",
        f"            {'status' if is_paused else 'metrics'}.json, metrics.csv, checkpoints, figures",
    ]
    if proposals:
        lines += ["", "[bold]try next[/]", *(f"  {escape(command)}" for command in proposals)]
    return "\n".join(lines)


def listed(names: Sequence[str], configs: Sequence[DictConfig]) -> tuple[str, list[bool]]:
    """Return a table of test error, minutes and directory of each configuration, and whether each is finished."""
    rows = [("", "test error", "minutes", "run")]
    finished_runs = [finished_run(config) for config in configs]
    for name, config, finished in zip(names, configs, finished_runs, strict=True):
        directory, result = finished or _unfinished(config)
        error, seconds = result.get("test", {}).get("error"), result.get("training_seconds", 0)
        limits = limits_of_test(result)
        number = "" if error is None else f"{error:.2f} %{f' ({limits})' if limits else ''}"
        rows.append(
            (
                name,
                number,
                f"{seconds / 60:.1f}",
                str(as_typed(directory)) if directory else "not finished",
            )
        )
    return "\n".join(aligned(rows)), [finished is not None for finished in finished_runs]


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
    for threshold in [
        name.removesuffix("/seconds") for name in results if name.endswith("/seconds")
    ]:
        seconds, images, error = (
            results[f"{threshold}/{name}"] for name in ("seconds", "images", "test_error")
        )
        outcome = (
            "not reached"
            if seconds is None
            else f"after {seconds:.0f} s of training, {images:,} images"
        )
        tested = "" if error is None else f", test error then {error:.2f} %"
        lines.append(f"{threshold} %".ljust(_INDENT) + outcome + tested)
    return lines
