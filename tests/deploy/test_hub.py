"""``capsule-lab export to=hub``: a folder with weights, configuration and model card."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import capsule_lab
from capsule_lab import runs
from capsule_lab.deploy import hub
from capsule_lab.errors import RunError
from tests.helpers.commands import Cli, Trained


def parts_of_card(folder: Path) -> tuple[Any, str]:
    _, header, text = (folder / "README.md").read_text().split("---\n", 2)
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
    for name, weight in original.network.state_dict().items():
        assert torch.equal(weight, again.network.state_dict()[name]), name
    predictor = capsule_lab.load(out)
    assert predictor.classes == capsule_lab.load(trained.directory).classes
    config = json.loads((out / "config.json").read_text())["config"]
    stored = runs.checkpoints.read(original.checkpoint)["capsule_lab"]["config"]
    assert config["module"] == stored["module"]
    assert config["data"]["directory"] is None, "no folder of this machine"


def test_card_states_what_the_record_of_the_run_states(trained: Trained, tmp_path: Path) -> None:
    run = runs.open(trained.directory)
    hub.write_folder(run, tmp_path / "published")
    header, text = parts_of_card(tmp_path / "published")
    assert header["library_name"] == "capsule-lab"
    metrics = runs.results.read_metrics(trained.directory)
    assert metrics is not None
    assert f"{metrics['image_counts']['test']:,} test images" in text
    assert f"**{metrics['test']['error']:.2f} %** (95 % interval over images" in text
    assert metrics["overrides"][0] in text
    assert metrics["commit"] in text
    assert "stand-in data: its error cannot be compared" in text
    assert str(trained.directory.parent) not in text, "no path of this machine"


def test_card_of_other_weights_than_the_tested_ones_has_no_error(
    a_copy: Path, tmp_path: Path
) -> None:
    metrics = json.loads((a_copy / "metrics.json").read_text())
    (a_copy / "metrics.json").write_text(json.dumps({**metrics, "tested_step": 1}))
    hub.write_folder(runs.open(a_copy), tmp_path / "published")
    _, text = parts_of_card(tmp_path / "published")
    assert "were not tested on the whole test set" in text
    assert "**" not in text


def test_card_of_ready_weights_has_the_error_of_the_index(tmp_path: Path) -> None:
    hub.write_folder(runs.open("cnn_mnist"), tmp_path / "published")
    _, text = parts_of_card(tmp_path / "published")
    error = runs.ready_weights.index()["cnn_mnist"]["error"]
    assert f"**{error:.2f} %**" in text


def test_folders_with_other_files_are_refused(trained: Trained, tmp_path: Path) -> None:
    run = runs.open(trained.directory)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunError, match=r"has thesis\.tex; expected a new folder"):
        hub.write_folder(run, tmp_path)
    with pytest.raises(RunError, match="is a file; expected a folder"):
        hub.write_folder(run, tmp_path / "thesis.tex")
    out = tmp_path / "published"
    hub.write_folder(run, out)
    hub.write_folder(run, out)  # replaces an earlier export
