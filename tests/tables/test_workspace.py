"""The workspace of a table: valid to W&B's own model, full of what runs really log, uploaded by one command."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from capsule_lab.config.compose import compose, sweeps_dir
from capsule_lab.tables.reader import read
from capsule_lab.tables.workspace import as_json, build
from capsule_lab.train import train
from tests.helpers.commands import NO_PICTURES, TINY_DATA, Ended, Trained, python

internal = pytest.importorskip("wandb_workspaces.workspaces.internal", reason="wandb-workspaces is not installed")

Cli = Callable[..., Ended]
SHORT = ["trainer.max_epochs=1", "trainer.limit_train_batches=1", "data.batch_size=8", "data.eval_images=8"]
SHORT += ["trainer.log_every_n_steps=1"]
EM = ["model=em_caps_paper", "model.channels=4", "model.primary.types=2", "model.conv.types=[2,2]"]


def spec_of(table: str) -> dict[str, Any]:
    return json.loads(as_json(build(read(table), project="p", entity="me")))["section"]


def panels(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for part in spec["panelBankConfig"]["sections"] for panel in part["panels"]]


def shown(spec: dict[str, Any]) -> dict[str, list[str]]:
    """Titles of panels, and the metrics or the patterns in each."""
    found = {}
    for panel in panels(spec):
        config = panel["config"]
        found[config["chartTitle"]] = [config["metricRegex"]] if "metricRegex" in config else config.get("metrics", [])
    return found


def test_workspace_of_every_table_is_valid() -> None:
    for table in sorted(path.stem for path in sweeps_dir().glob("*.yaml")):
        text = as_json(build(read(table), project="p"))
        again = internal.WorkspaceViewspec.model_validate_json(text)
        assert json.loads(again.model_dump_json(by_alias=True, exclude_none=True)) == json.loads(text)


def test_rows_are_averaged_over_seeds_in_the_group_of_the_table(trained: Trained) -> None:
    spec = spec_of("smoke")
    (runs,) = spec["runSets"]
    (group,) = runs["filters"]["filters"]
    assert (group["key"]["name"], group["op"], group["value"]) == ("group", "=", "smoke")
    assert [key["name"] for key in runs["grouping"]] == ["jobType"]
    plots = [panel["config"] for panel in panels(spec) if panel["viewType"] != "Media Browser"]
    assert {(plot["groupBy"], plot["groupAgg"], plot["groupArea"]) for plot in plots} == {("jobType", "mean", "stddev")}
    keys = [key for panel in panels(spec) for key in panel["config"].get("mediaKeys", [])]
    drawn = {path.stem for path in (trained.directory / "figures").iterdir()}
    assert {key.replace("/", "_") for key in keys} == drawn
    # 30 runs of training; columns that show two quantities of one run count it once
    assert as_json(build(read("sabour2017_table1"), project="p")).count('"maxRuns": 30') == 1
    results = [title for title, names in shown(spec_of("hinton2018_viewpoints")).items() if names == [title]]
    assert results == ["test/familiar/error", "test/novel/error"]


def check_all_is_logged(logged: list[str]) -> None:
    """Everything that is shown is logged, and every statistic of a layer and every schedule is shown once."""
    names = [name for names in shown(spec_of("smoke")).values() for name in names]
    exact = [name for name in names if "^" not in name]
    assert len(exact) == 10
    assert set(exact) <= set(logged)
    patterns = [name if "^" in name else f"^{name}$" for name in names]
    found = {name: sum(bool(re.search(pattern, name)) for pattern in patterns) for name in logged}
    of_layers = [name for name in logged if re.match("val/(activation|dead)_|schedule/", name)]
    assert len(of_layers) >= 8
    assert {found[name] for name in of_layers} == {1}


def names_in(directory: Path) -> list[str]:
    return (directory / "metrics.csv").read_text().splitlines()[0].split(",")


def test_what_is_shown_is_logged_by_capsnet(trained: Trained) -> None:
    check_all_is_logged(names_in(trained.directory))


@pytest.mark.whole
def test_what_is_shown_is_logged_by_em_caps(tmp_path: Path) -> None:
    train(compose("train", [*EM, *TINY_DATA, *NO_PICTURES, *SHORT]), tmp_path / "run")
    check_all_is_logged(names_in(tmp_path / "run"))


def test_report_writes_it(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = cli("report", "table=smoke", "workspace=write", "out=there")
    assert (ended.status, ended.err) == (0, "")
    written = json.loads((tmp_path / "there" / "smoke_workspace.json").read_text())
    assert shown(written["section"]) == shown(spec_of("smoke"))
    assert "workspace is 'uplod'" in cli("report", "table=smoke", "workspace=uplod").err.replace(
        "is uplod", "is 'uplod'"
    )
    monkeypatch.setattr("capsule_lab.tables.workspace.find_spec", lambda name: None)
    ended = cli("report", "table=smoke", "workspace=write")
    assert ended.status == 2
    assert "pip install 'capsule-lab[workspace]'" in ended.err


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """What stands for W&B's server: it knows a user, takes a view, and keeps what it was asked."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer: dict[str, Any] = {}
            if self.path == "/graphql":
                asked.append(json.loads(body))
                user = {"id": "1", "entity": "me", "username": "me", "email": "", "flags": "{}", "teams": {"edges": []}}
                view = {"upsertView": {"view": {"id": "1", "name": "nw-abc-v"}, "inserted": True}}
                answer = {"data": view if "upsertView" in asked[-1]["query"] else {"viewer": user}}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as started:
        threading.Thread(target=started.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{started.server_port}", asked
        started.shutdown()


UPLOAD = ["-m", "capsule_lab.report", "table=smoke", "workspace=upload", "project=mine"]


@pytest.mark.whole
def test_one_command_uploads_it(server: tuple[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    address, asked = server
    ended = python(*UPLOAD, cwd=tmp_path, HOME=str(tmp_path), WANDB_BASE_URL=address, WANDB_API_KEY="0" * 40)
    assert ended.status == 0, ended.err
    (sent,) = (request["variables"] for request in asked if "upsertView" in request["query"])
    assert (sent["entityName"], sent["projectName"], sent["displayName"]) == ("me", "mine", "smoke")
    assert shown(json.loads(sent["spec"])["section"]) == shown(spec_of("smoke"))
    assert f"uploaded: {address}/me/mine" in ended.out


@pytest.mark.whole
def test_without_an_account_it_says_so_in_one_sentence(tmp_path: Path) -> None:
    ended = python(*UPLOAD, cwd=tmp_path, HOME=str(tmp_path), NETRC=str(tmp_path / "none"), WANDB_API_KEY="")
    assert ended.status == 2
    (sentence,) = ended.err.splitlines()
    assert sentence.startswith("capsule_lab: W&B did not take the workspace (No API key configured.")
    assert sentence.endswith("log in with wandb login, name the project with project=… and entity=…, and try again")
    assert (tmp_path / "runs" / "reports" / "smoke_workspace.json").is_file()
