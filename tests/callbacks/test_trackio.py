"""A run in trackio's files, as its own reader finds it."""

import json
from pathlib import Path

import pytest

from tests.helpers.commands import python

READ = """
import json
from trackio.sqlite_storage import SQLiteStorage
(name,) = SQLiteStorage.get_runs("capsule-lab")
logs, config = (read("capsule-lab", name) for read in (SQLiteStorage.get_logs, SQLiteStorage.get_run_config))
print(json.dumps([{key: value for entry in logs for key, value in entry.items()}, config]))
"""


@pytest.mark.whole
def test_metrics_and_configuration_are_read_back(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="trackio is not installed")
    folder = {"TRACKIO_DIR": str(tmp_path / "trackio")}
    options = ["debug=smoke", "data.source=standin", "seed=3", "train.directory=mine"]
    ended = python("-m", "capsule_lab", "train", "logger=trackio", *options, cwd=tmp_path, **folder)
    assert ended.status == 0, ended.err
    assert (tmp_path / "mine" / "trackio_run").read_text().startswith("mine-")
    values, config = json.loads(python("-c", READ, cwd=tmp_path, **folder).out.splitlines()[-1])
    result = json.loads((tmp_path / "mine" / "metrics.json").read_text())
    assert values["test/error"] == pytest.approx(result["test"]["error"])
    assert "train/loss" in values
    assert (config["config"]["seed"], config["provenance"]["source"]) == (3, "standin")
