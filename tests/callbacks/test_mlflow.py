"""Runs on a real MLflow server with an sqlite database, as its own client finds them."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from capsule_lab.callbacks import MLflow, NonFiniteError, loggers
from capsule_lab.commands.train import train
from tests.helpers.commands import NO_PICTURES, Cli, Tiny
from tests.helpers.tables import write_table


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_server_that_does_not_answer_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "require", lambda *_: None)  # as if mlflow were installed
    uri = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    start_time = time.monotonic()
    ended = cli("train", "logger=mlflow", "debug=smoke", "data.source=standin")
    assert ended.status == 2
    assert f"no MLflow server responds at {uri} (" in ended.err
    assert ended.err.rstrip().endswith("or choose another: MLFLOW_TRACKING_URI=http://…")
    assert time.monotonic() - start_time < 60, "MLflow itself asks for minutes"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of our own, in a folder of its own."""
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    beside_python = shutil.which("mlflow", path=str(Path(sys.executable).parent))
    program = beside_python or shutil.which("mlflow")
    if program is None:
        pytest.skip("there is no mlflow command to start a server with")
    folder = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    command = [program, "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", "sqlite:///ml.db", "--artifacts-destination", "art"]
    log = folder / "server.log"
    with (
        log.open("w") as out,
        subprocess.Popen(command, cwd=folder, stdout=out, stderr=out) as server,
    ):
        try:
            wait_for(f"http://127.0.0.1:{port}/health", server, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 120
    while server.poll() is None and time.monotonic() < until:
        try:
            with urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the MLflow server did not start:\n{log.read_text()}")


@pytest.fixture
def client(address: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """The client of an experiment of this test's own, as is what it trains."""
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)
    return MlflowClient(address)


@pytest.fixture
def found(client: Any, request: pytest.FixtureRequest) -> Callable[[], list[Any]]:
    """All runs of that experiment."""

    def search() -> list[Any]:
        experiment = client.get_experiment_by_name(request.node.name)
        return list(client.search_runs([experiment.experiment_id]))

    return search


of_a_server = pytest.mark.slow  # ours: it takes ten seconds to start, and twenty at worst


@of_a_server
def test_run_has_everything_and_a_resumed_one_continues_it(
    tiny: Tiny, tmp_path: Path, client: Any, found, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run"
    result = train(tiny("logger=mlflow"), directory)
    (run,) = found()
    assert run.info.status == "FINISHED"
    assert run.info.run_name.startswith("run model.channels=4 ")
    assert run.data.metrics["test/error"] == pytest.approx(result["test"]["error"])
    assert run.data.params["config/model/primary/types"] == "2"
    assert run.data.params["provenance/sha256"] == result["provenance"]["sha256"]
    point, *_ = client.get_metric_history(run.info.run_id, "train/loss_step")
    assert point.step == 2
    expected = {
        "model": "CapsNet",
        "data": "MNIST",
        "routing": "DynamicRouting",
        "source": "standin",
    }
    assert expected.items() <= run.data.tags.items()
    files = {file.path for file in client.list_artifacts(run.info.run_id, "figures")}
    assert files == {f"figures/{path.name}" for path in (directory / "figures").iterdir()}
    assert len(files) == 3

    seen: list[str] = []
    open_run = MLflow.log_hyperparams

    def look(self: MLflow, params: Any) -> None:
        open_run(self, params)
        seen.append(client.get_run(self.run_id).info.status)

    monkeypatch.setattr(MLflow, "log_hyperparams", look)
    train(tiny("logger=mlflow", "trainer.log_every_n_steps=5", "train.resume=true"), directory)
    (run,) = found()
    assert (seen, run.info.status) == (["RUNNING"], "FINISHED")
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "val/error")]
    assert len(steps) == 2
    assert steps == sorted({*steps})
    # parameters cannot change, so a file says what holds now
    path = client.download_artifacts(run.info.run_id, "config.json", str(tmp_path))
    assert '"log_every_n_steps": 5' in Path(path).read_text()


@of_a_server
def test_runs_of_the_same_name_are_kept_apart(tiny: Tiny, tmp_path: Path, found) -> None:
    for folder, learning_rate in (("a", 0.001), ("b", 1e30)):
        rate = f"schedule.learning_rate.initial={learning_rate}"
        config = tiny("logger=mlflow", *NO_PICTURES, rate)
        with pytest.raises(NonFiniteError) if folder == "b" else nullcontext():
            train(config, tmp_path / folder / "run")
    assert [run.info.run_name.partition(" model.")[0] for run in found()] == ["run", "run"]
    assert {run.info.status for run in found()} == {"FINISHED", "FAILED"}


@of_a_server
def test_table_has_a_run_for_each_cell(cli: Cli, tmp_path: Path, found) -> None:
    ended = cli("sweep", f"table={write_table(tmp_path)}", "logger=mlflow")
    assert ended.out.splitlines()[-2] == "mine: 2 done"
    runs = sorted(found(), key=lambda run: run.data.tags["seed"])
    assert [run.data.tags["seed"] for run in runs] == ["0", "1"]
    for run in runs:
        assert run.info.run_name == "one"
        assert run.data.tags["table"] == "mine"
        assert run.data.tags["row"] == "one"


@of_a_server
def test_figures_join_the_run(cli: Cli, a_copy: Path, client: Any, found) -> None:
    ended = cli("figures", f"run={a_copy}", "logger=mlflow", "images=2")
    assert ended.status == 0, ended.err
    (run,) = found()
    assert (a_copy / "mlflow_run").read_text() == run.info.run_id
    drawn = {file.path for file in client.list_artifacts(run.info.run_id, "figures")}
    assert "figures/perturbation.png" in drawn
