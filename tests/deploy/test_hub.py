"""``capsule-lab export to=hub``: a folder with weights, configuration and model card."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import capsule_lab
from capsule_lab import runs
from capsule_lab.deploy import hub
from capsule_lab.errors import RunError
from capsule_lab.statistics import interval_over_clusters
from tests.helpers.commands import Cli, Trained


def published(run: runs.Run, folder: Path) -> tuple[Any, str]:
    """The header and the text of the card of a run."""
    out = folder / "published"
    hub.write_folder(run, out)
    card = (out / "README.md").read_text()
    _, header, text = card.split("---\n", 2)
    return yaml.safe_load(header), text


def test_folder_is_read_back_with_the_same_weights(
    cli: Cli, trained: Trained, tmp_path: Path
) -> None:
    out = tmp_path / "published"
    ended = cli("export", f"ckpt={trained.directory}", "to=hub", f"out={out}")
    assert ended.status == 0, ended.err
    assert {file.name for file in out.iterdir()} == {*hub.FILES}
    original = runs.open(trained.directory)
    again = runs.open(out)
    weights = again.network.state_dict()
    for name, weight in original.network.state_dict().items():
        assert torch.equal(weight, weights[name]), name
    of_run = capsule_lab.load(trained.directory)
    assert capsule_lab.load(out).classes == of_run.classes
    published = json.loads((out / "config.json").read_text())
    config = published["config"]
    record = runs.checkpoints.read(original.checkpoint)["capsule_lab"]
    assert config["module"] == record["config"]["module"]
    assert config["data"]["directory"] is None, "no folder of this machine"


def test_card_states_what_the_record_of_the_run_states(trained: Trained, tmp_path: Path) -> None:
    run = runs.open(trained.directory)
    header, text = published(run, tmp_path)
    assert header["library_name"] == "capsule-lab"
    metrics = runs.results.read_metrics(trained.directory)
    assert metrics is not None
    images = metrics["image_counts"]["test"]
    error = metrics["test"]["error"]
    assert f"{images:,} test images" in text
    assert f"**{error:.2f} %** (95 % interval over test images: " in text
    assert metrics["overrides"][0] in text
    constant = metrics["classes"]["constant_error"]
    assert f"(always answering the most frequent class: {constant:.2f} %)" in text
    assert metrics["commit"] in text
    assert "stand-in data: its error cannot be compared" in text
    assert str(trained.directory.parent) not in text, "no path of this machine"


def test_interval_of_the_card_is_over_groups_where_there_are_some(
    a_copy: Path, tmp_path: Path
) -> None:
    file = a_copy / "metrics.json"
    metrics = json.loads(file.read_text())
    predictions = runs.predictions.read(a_copy, metrics)
    assert predictions is not None
    arrays = {
        "label": predictions.label,
        "prediction": predictions.prediction,
        "margin": predictions.margin,
        "cluster": np.arange(len(predictions.label), dtype=np.int32) // 5,
    }
    metrics["predictions"] = runs.predictions.write(a_copy, runs.predictions.FILE, arrays)
    file.write_text(json.dumps(metrics))
    _, text = published(runs.open(a_copy), tmp_path)
    interval = interval_over_clusters(predictions.wrong, arrays["cluster"])
    assert interval is not None
    low, high = interval
    assert f"(95 % interval over groups: {low:.2f} to {high:.2f} %)" in text


def test_card_of_unbalanced_classes_has_their_errors(a_copy: Path, tmp_path: Path) -> None:
    file = a_copy / "metrics.json"
    metrics = json.loads(file.read_text())
    metrics["classes"]["images"] = {"0": 90, "1": 10}
    metrics["classes"]["recall"] = {"0": 100.0, "1": 20.0}
    metrics["test"]["balanced_error"] = 40.0
    file.write_text(json.dumps(metrics))
    _, text = published(runs.open(a_copy), tmp_path)
    assert "By class: balanced error 40.00 %" in text
    assert "lowest recall: 1 20.0 % of 10 images" in text


def test_card_of_other_weights_than_the_tested_ones_has_no_error(
    a_copy: Path, tmp_path: Path
) -> None:
    file = a_copy / "metrics.json"
    metrics = json.loads(file.read_text())
    metrics["tested_step"] = 1
    file.write_text(json.dumps(metrics))
    _, text = published(runs.open(a_copy), tmp_path)
    assert "were not tested on the whole test set" in text
    assert "**" not in text


def test_card_of_ready_weights_has_the_error_of_the_index(tmp_path: Path) -> None:
    _, text = published(runs.open("cnn_mnist"), tmp_path)
    entry = runs.ready_weights.index()["cnn_mnist"]
    error = entry["error"]
    assert f"**{error:.2f} %**" in text


def test_card_names_the_classes(tmp_path: Path) -> None:
    run = runs.open("em_caps_toynorb")
    _, text = published(run, tmp_path)
    first, second, *_ = run.spec.classes
    assert f"- Classes: {first}, {second}, " in text


def test_folders_with_other_files_are_refused(trained: Trained, tmp_path: Path) -> None:
    run = runs.open(trained.directory)
    file = tmp_path / "thesis.tex"
    file.touch()
    with pytest.raises(RunError, match=r"has thesis\.tex; expected a new folder"):
        hub.write_folder(run, tmp_path)
    with pytest.raises(RunError, match="is a file; expected a folder"):
        hub.write_folder(run, file)
    out = tmp_path / "published"
    hub.write_folder(run, out)
    hub.write_folder(run, out)  # replaces an earlier export
