"""Runs in W&B, offline, as W&B's own reader shows them."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wandb
from PIL import Image

from capsule_lab.callbacks import NonFiniteError
from capsule_lab.callbacks.loggers import flat_options, run_tags, with_names
from capsule_lab.commands import compose
from capsule_lab.commands.train import train
from tests.helpers.commands import NO_PICTURES, ROOT, TINY, Cli, Tiny, python
from tests.helpers.tables import write_table
from tests.helpers.wandb_reader import read_offline

SYNC = "runs/*/wandb/offline-run-*"


@pytest.fixture(autouse=True)
def _silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data of wandb"))


@pytest.mark.whole
def test_run_has_results_configuration_provenance_tags_and_pictures(
    tiny: Tiny, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    config = tiny("logger=wandb", "trainer.max_epochs=1", "trainer.log_every_n_steps=2")
    result = train(config, directory)
    shown = read_offline(directory)
    assert shown["state"] == "finished"
    assert shown["run_id"] == "run"
    assert shown["name"].startswith("run model.channels=4 ")
    assert shown["tags"] == ["CapsNet", "MNIST", "DynamicRouting", "standin", "seed 0"]

    points = [row for row in shown["history"] if "train/loss_step" in row]
    assert [row["trainer/global_step"] for row in points] == [1, 3]
    quantities = {"train/error_step", "train/gradient_norm", "schedule/learning_rate"}
    for row in points:
        assert quantities < row.keys()

    summary = shown["summary"]
    error = result["test"]["error"]
    assert summary["test/error"] == pytest.approx(error)
    assert {"train/loss", "val/coupling_entropy", "schedule/learning_rate"} <= {*summary}
    for name in ("val/reconstructions", "val/confusion", "test/confusion"):
        (picture,) = summary[name]["filenames"]
        files = (directory / "wandb").glob(f"offline-run-*/files/{picture}")
        assert [*files]

    logged = shown["config"]
    assert logged["model.primary.types"] == 2
    assert logged["provenance"]["sha256"] == result["provenance"]["sha256"]
    assert shown["run"]["job_type"] == "train"
    check_histograms(summary)
    check_worst_images(directory, summary)


def check_histograms(summary: dict[str, Any]) -> None:
    for key in (
        "test/activations/digits",
        "test/couplings/digits/iteration_1",
        "test/couplings/digits/iteration_2",
        "test/couplings/digits/iteration_3",
    ):
        histogram = summary[key]
        counts = histogram["values"]
        assert len(histogram["bins"]) == len(counts) + 1
        assert sum(counts) > 0
    assert "test/couplings/digits/iteration_4" not in summary


def check_worst_images(directory: Path, summary: dict[str, Any]) -> None:
    """The table has the smallest margins of ``predictions.npz``, with pictures that show something."""
    table = summary["test/worst_images"]
    (file,) = directory.glob(f"wandb/offline-run-*/files/{table['path']}")
    content = json.loads(file.read_text())
    assert table["nrows"] == len(content["data"]) == 32
    predictions = np.load(directory / "predictions.npz")
    margins = predictions["margin"]
    worst = margins.argsort()[:32]
    values = zip(*content["data"], strict=True)
    columns = dict(zip(content["columns"], values, strict=True))
    assert columns["margin"] == pytest.approx(margins[worst])
    assert columns["number"] == pytest.approx(worst)
    labels = predictions["label"][worst]
    written_labels = [str(label) for label in labels]
    assert [*columns["label"]] == written_labels
    assert {*columns["image"], *columns["reconstruction"]} == {"Image"}
    ranges = ranges_of_logged_pictures()
    assert len(ranges) == 64
    assert np.median(ranges) > 50


def ranges_of_logged_pictures() -> list[int]:
    """The range of the pixels of each; W&B keeps those of an offline table here until it uploads them."""
    folder = Path(os.environ["WANDB_DATA_DIR"])
    ranges = []
    for file in folder.glob("artifacts/staging/*"):
        content = file.read_bytes()
        if content.startswith(b"\x89PNG"):
            pixels = np.asarray(Image.open(file))
            ranges.append(np.ptp(pixels))
    return ranges


def test_options_have_the_names_of_overrides() -> None:
    overrides = [
        "model=em_caps",
        "routing.iterations=2",
        "trainer.max_epochs=3",
        "logger=wandb",
    ]
    config = compose("train", overrides)
    options = flat_options(config)
    assert options["routing.iterations"] == 2
    assert options["trainer.max_epochs"] == 3
    assert options["model"] == "EMCaps"
    assert options["optimizer"] == "Adam"
    assert options["trainer.plugins"] == ["AtomicCheckpointIO"]
    for key, value in options.items():
        assert not isinstance(value, dict)
        assert "_target_" not in key
        assert not key.startswith("logger")
        if key.endswith("iterations"):
            assert key == "routing.iterations"


def test_tags_without_routing() -> None:
    config = compose("train", ["model=cnn_baseline", "routing=none", "seed=3"])
    expected = {
        "model": "BaselineCNN",
        "data": "MNIST",
        "source": "standin",
        "seed": "3",
    }
    assert run_tags(config, {"source": "standin"}) == expected


@pytest.mark.parametrize("logger", ["wandb", "mlflow"])
def test_name_has_the_overrides_of_the_run(logger: str) -> None:
    overrides = ["model=capsnet", "model.channels=8", "routing=em", "seed=3"]
    config = compose("train", [*overrides, f"logger={logger}"])
    directory = Path("runs/wide-capsnet-mnist-01234567-2")
    named = with_names(config, directory, overrides)
    assert named.logger[logger].name == "wide-capsnet-mnist routing=em model.channels=8"
    assert config.logger[logger].name is None


def test_guide_has_the_command_that_uploads_all_runs() -> None:
    guide = ROOT / "docs" / "guides" / "dashboards.md"
    assert f"wandb sync {SYNC} " in guide.read_text()


@pytest.mark.whole
def test_output_is_the_command_that_uploads_the_run(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WANDB_SILENT")
    options = ["trainer.max_epochs=1", "train.directory=run", "logger=wandb", *NO_PICTURES]
    ended = cli("train", *TINY, *options)
    lines = (ended.out + ended.err).splitlines()
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    assert f"to upload this run to W&B: wandb sync {folder}" in lines
    for line in lines:
        assert not line.startswith("wandb")


@pytest.mark.whole
def test_run_that_fails_is_shown_as_failed(tiny: Tiny, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    config = tiny("logger=wandb", "schedule.learning_rate.initial=1e30", *NO_PICTURES)
    with pytest.raises(NonFiniteError):
        train(config, directory)
    assert read_offline(directory)["exit_code"] == 1


@pytest.mark.whole
@pytest.mark.usefixtures("runs_here")
def test_table_is_a_group_with_a_run_for_each_cell(cli: Cli, tmp_path: Path) -> None:
    columns = {"a": {"overrides": []}, "b": {"overrides": ["data.shift=1"]}}
    file = write_table(tmp_path, columns=columns, seeds=[3])
    ended = cli("sweep", f"table={file}", "logger=wandb")
    lines = ended.out.splitlines()
    assert lines[-2] == "mine: 2 done"
    directories = (tmp_path / "runs").glob("capsnet-*")
    shown = [read_offline(directory) for directory in directories]
    assert sorted(run["name"] for run in shown) == ["one", "one/b"]
    for run in shown:
        assert run["state"] == "finished"
        assert run["run"]["job_type"] == run["name"]
        assert run["run"]["run_group"] == "mine"
        assert {"mine", "seed 3"} < {*run["tags"]}
    folders = [str(folder) for folder in tmp_path.glob(SYNC)]
    command = ["-m", "wandb", "sync", "--dry-run", *folders]
    synced = python(*command, cwd=tmp_path, WANDB_SILENT="")
    assert "Would sync 2 run(s)" in synced.err


@pytest.mark.whole
def test_figures_leave_the_run_its_name_and_group(cli: Cli, tiny: Tiny, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    config = tiny(
        "logger=wandb",
        "trainer.max_epochs=1",
        "logger.wandb.name=row/0",
        "logger.wandb.group=table",
        "logger.wandb.job_type=row",
        *NO_PICTURES,
    )
    train(config, directory)
    shutil.rmtree(directory / "wandb")
    ended = cli("figures", "run=run", "logger=wandb", "images=2")
    assert ended.status == 0
    run = read_offline(directory)["run"]
    assert run["run_id"] == "run"
    assert run["display_name"] == "row/0"
    assert run["run_group"] == "table"
    assert run["job_type"] == "row"


# wandb leaves a file open
@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_run_of_an_agent_has_the_id_that_it_gave(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run"
    parameters = tmp_path / "given.yaml"
    parameters.write_text("wandb_version: 1\nrouting.iterations: {value: 2}\n")
    monkeypatch.setenv("WANDB_SWEEP_ID", "mine")
    monkeypatch.setenv("WANDB_RUN_ID", "given")
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", str(parameters))
    wandb.teardown()  # it reads the environment once in a process
    options = ["trainer.max_epochs=1", *NO_PICTURES, "logger=wandb", "routing.iterations=2"]
    config = tiny(*options)
    train(config, directory)
    wandb.teardown()
    shown = read_offline(directory)
    assert shown["run_id"] == "given"
    assert shown["state"] == "finished"
    assert shown["config"]["routing.iterations"] == 2
    assert "config" not in shown["config"]
