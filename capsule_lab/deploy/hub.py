"""A folder to publish a trained network: weights, configuration, and a model card filled from the record of the run.

The files have the names that model hubs expect. ``capsule_lab.load`` and ``runs.open`` read the folder.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from capsule_lab import runs
from capsule_lab.deploy.export import complete_test, published_command, record_of
from capsule_lab.errors import RunError
from capsule_lab.runs.directories import PUBLISHED_WEIGHTS
from capsule_lab.runs.files import json_text, write_text
from capsule_lab.runs.results import STANDIN, describe_data, name_of_start, source_of
from capsule_lab.statistics import interval_of_error
from capsule_lab.system.extras import require

_CONFIGURATION = "config.json"
_CARD = "README.md"
FILES = (PUBLISHED_WEIGHTS, _CONFIGURATION, _CARD)

_ONE_CLASS = (
    "It classifies every image as one of its classes, also an image that shows none of them."
)
_SCORES = "Scores are not calibrated probabilities."
_NOT_TESTED = (
    "These weights were not tested on the whole test set, or the record of their test is not here."
)


def write_folder(run: runs.Run, out: Path) -> None:
    """Write ``model.safetensors``, ``config.json`` and ``README.md``, the card, into the folder ``out``.

    Args:
        run: as returned by ``runs.open``.
        out: a new folder, or one of an earlier export, whose files are replaced.

    Raises:
        RunError: if ``out`` has other files, or is one.
    """
    _check_folder(out)
    require("to=hub", "data", "scipy")
    out.mkdir(parents=True, exist_ok=True)
    record = record_of(run)
    weights = out / PUBLISHED_WEIGHTS
    runs.checkpoints.write_safetensors(weights, run.network.state_dict(), record)
    configuration = out / _CONFIGURATION
    write_text(configuration, json_text(record, configuration, indent=2) + "\n")
    write_text(out / _CARD, card(run, record))


def _check_folder(out: Path) -> None:
    """Check that a folder does not exist, or has no other files than ``FILES``."""
    if out.is_file():
        raise RunError(f"{out} is a file; expected a folder for to=hub: choose another out=")
    if not out.exists():
        return
    for name in sorted(file.name for file in out.iterdir()):
        if name not in FILES:
            raise RunError(
                f"{out} has {name}; expected a new folder, or one of an earlier export: choose another out="
            )


def card(run: runs.Run, record: dict[str, Any]) -> str:
    """Return the model card: what the network is, its measured error, its training, its use and its limits."""
    network = type(run.network).__name__
    header = {
        "library_name": "capsule-lab",
        "pipeline_tag": "image-classification",
        "tags": ["capsule-networks", network],
    }
    written = yaml.safe_dump(header, sort_keys=False)
    parts = [
        f"---\n{written}---",
        f"# {network} trained on {run.provenance['name']}",
        *_sections(run, record),
    ]
    return "\n\n".join(parts) + "\n"


def _sections(run: runs.Run, record: dict[str, Any]) -> Iterator[str]:
    metrics = runs.results.read_metrics(run.directory) or {}
    yield "## Result"
    yield _result(run, metrics)
    yield "## Training"
    yield _as_list(_training(run, record, metrics))
    yield "## Use"
    yield _use(record)
    yield "## Limits"
    yield _as_list(_limits(run, record))


def _result(run: runs.Run, metrics: dict[str, Any]) -> str:
    ready = runs.ready_weights.entry_of(run.checkpoint)
    if ready:
        measured = f"**{ready['error']:.2f} %**"
        return f"Error on the test images: {measured}, one training run: `{ready['command']}`"
    error = complete_test(run, metrics).get("error")
    if error is None:
        return _NOT_TESTED
    images = metrics["image_counts"]["test"]
    text = f"Error on all {images:,} test images: **{error:.2f} %**"
    predictions = runs.predictions.read(run.directory, metrics)
    if predictions is not None:
        interval = interval_of_error(predictions.wrong, predictions.cluster)
        if interval is not None:
            low, high, over = interval
            text += f" (95 % interval over {over}: {low:.2f} to {high:.2f} %)"
    always = runs.results.describe_constant(metrics)
    of_classes = runs.results.describe_classes(metrics, "test")
    result = f"{text}, one training run{always}."
    return f"{result}\n\nBy class: {of_classes}." if of_classes else result


def _training(run: runs.Run, record: dict[str, Any], metrics: dict[str, Any]) -> Iterator[str]:
    parameters = sum(parameter.numel() for parameter in run.network.parameters())
    yield f"Data: {describe_data(run.provenance)}"
    start = record["start_from"]
    if start:
        data = start["data"]["name"] if start["data"] else "unknown data"
        yield f"Start: the weights {name_of_start(start)}, trained on {data}"
    yield f"Network: {type(run.network).__name__}, {parameters:,} parameters"
    if run.spec.classes:
        yield f"Classes: {', '.join(run.spec.classes)}"
    yield f"Steps: {run.step:,} in {run.seconds / 60:.1f} minutes"
    if metrics:
        command = published_command(shlex.join(["capsule-lab", "train", *metrics["overrides"]]))
        version = metrics["versions"]["capsule-lab"]
        yield f"Command: `{command}`, seed {metrics['seed']}"
        yield f"Hardware: {metrics['hardware']}"
        yield f"Version: capsule-lab {version}, commit {metrics['commit']}"


_CODE = """\
```python
import capsule_lab

network = capsule_lab.load("path/of/this/folder")
network("picture.png")
```
"""


def _use(record: dict[str, Any]) -> str:
    form = record["input_form"]
    return (
        f"{_CODE}\n"
        f"The input is a {form['kind']}. "
        "`config.json` has the whole configuration, with the version of capsule-lab, "
        f"{record['version']}, that wrote it."
    )


def _limits(run: runs.Run, record: dict[str, Any]) -> Iterator[str]:
    if source_of(record) == STANDIN:
        first = "first " if run.provenance["source"] != STANDIN else ""
        yield f"It was {first}trained on stand-in data: its error cannot be compared with published results."
    if run.spec.labels_per_image == 1:
        yield _ONE_CLASS
    yield _SCORES


def _as_list(lines: Iterator[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
