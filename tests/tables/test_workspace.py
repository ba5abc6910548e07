"""The W&B workspace of a table: valid for W&B's own model, and about what runs log."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from capsule_lab.commands import tables
from capsule_lab.system import extras
from tests.helpers.commands import Cli, Trained
from tests.helpers.messages import one_sentence

internal = pytest.importorskip(
    "wandb_workspaces.workspaces.internal", reason="wandb-workspaces is not installed"
)


def written(cli: Cli, tmp_path: Path, table: str) -> str:
    ended = cli("workspace", f"table={table}", "out=w/workspace.json", "project=mine")
    assert (ended.status, ended.err) == (0, "")
    return (tmp_path / "w" / "workspace.json").read_text()


def panels_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for section in spec["section"]["panelBankConfig"]["sections"]:
        found += section["panels"]
    return found


@pytest.mark.parametrize("table", ["smoke", "hinton2018_viewpoints"])
def test_written_workspace_passes_through_the_librarys_own_model(
    cli: Cli, tmp_path: Path, table: str
) -> None:
    text = written(cli, tmp_path, table)
    model = internal.WorkspaceViewspec.model_validate_json(text)
    again = model.model_dump_json(by_alias=True, exclude_none=True)
    spec = json.loads(text)
    assert json.loads(again) == spec
    metrics = []
    for panel in panels_of(spec):
        if panel["viewType"] == "Bar Chart":
            (metric,) = panel["config"]["metrics"]
            metrics.append(metric)
    columns = tables.read_table(table).columns
    expected = dict.fromkeys(column.metric for column in columns)
    assert metrics == [*expected]


def test_rows_are_averaged_over_seeds_in_the_group_of_the_table(cli: Cli, tmp_path: Path) -> None:
    spec = json.loads(written(cli, tmp_path, "smoke"))
    (runs,) = spec["section"]["runSets"]
    (group,) = runs["filters"]["filters"]
    assert group["key"]["name"] == "group"
    assert group["op"] == "="
    assert group["value"] == "smoke"
    (key,) = runs["grouping"]
    assert key["name"] == "jobType"
    configs = [panel["config"] for panel in panels_of(spec)]
    plots = [config for config in configs if "groupBy" in config]
    assert len(plots) == 10
    for plot in plots:
        assert plot["groupBy"] == "jobType"
        assert plot["groupAgg"] == "mean"
        assert plot["groupArea"] == "stddev"


def test_curves_and_pictures_are_logged_by_a_run(
    cli: Cli, tmp_path: Path, trained: Trained
) -> None:
    spec = json.loads(written(cli, tmp_path, "smoke"))
    curves = (trained.directory / "metrics.csv").read_text()
    heading, *_ = curves.splitlines()
    figures = (trained.directory / "figures").iterdir()
    metrics: list[str] = []
    keys: list[str] = []
    for panel in panels_of(spec):
        config = panel["config"]
        metrics += config.get("metrics", [])
        keys += config.get("mediaKeys", [])
    logged = {*heading.split(",")}
    assert {"train/loss", "val/error", "test/error"} <= {*metrics} <= logged
    drawn = {path.stem for path in figures}
    assert {key.replace("/", "_") for key in keys} == drawn
    assert "test/worst_images" in json.dumps(spec)


def test_missing_library_is_one_sentence(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> Any:
        return None if name == "wandb_workspaces" else importlib.util.find_spec(name)

    monkeypatch.setattr(extras, "find_spec", find_spec)
    ended = cli("workspace", "table=smoke")
    assert 'pip install "capsule-lab[workspace]"' in one_sentence(ended)


def test_rejection_is_one_sentence(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    class Api:
        def __init__(self) -> None:
            raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "Api", Api)
    ended = cli("workspace", "table=smoke")
    assert "out=workspace.json" in one_sentence(ended)
