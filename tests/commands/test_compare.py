"""The command ``compare``."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from capsule_lab import runs
from tests.helpers.commands import Cli, Trained
from tests.helpers.messages import one_sentence


def test_options_results_and_images_of_two_runs(cli: Cli, trained: Trained, tmp_path: Path) -> None:
    other = Path(shutil.copytree(trained.directory, tmp_path / "other"))
    text = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(text.replace("iterations: 3", "iterations: 1"))
    found = runs.predictions.read(other, trained.result)
    wrong = found.wrong.copy()
    wrong[:8] ^= True  # eight images change
    changed = np.where(wrong, (found.label + 1) % 10, found.label)
    arrays = {"label": found.label, "prediction": changed, "margin": found.margin}
    entry = runs.predictions.write(other, "predictions.npz", arrays)
    record = trained.result | {"predictions": entry, "steps": 7}
    (other / "metrics.json").write_text(json.dumps(record))
    ended = cli("compare", f"runs=[{trained.directory},{other}]")
    assert (ended.status, ended.err) == (0, "")
    lines = [line.split() for line in ended.out.splitlines() if line]
    rows = {name: values for name, *values in lines}
    assert rows["routing.iterations"] == ["3", "1"]
    assert "model.routing.iterations" not in rows, "a copy"
    assert "seed" not in rows
    assert rows["test.error"][:2] == [f"{trained.result['test']['error']:.4g}"] * 2
    assert rows["steps"] == [str(trained.result["steps"]), "7"]
    first = int((found.wrong & ~wrong).sum())
    second = int((wrong & ~found.wrong).sum())
    counted = f"{first} images are wrong only in the first run, {second} only in the second"
    assert counted in ended.out
    assert f"p = {binomtest(first, first + second).pvalue:.3g} " in ended.out


def test_images_of_one_object_are_resampled_together(
    cli: Cli, trained: Trained, tmp_path: Path
) -> None:
    found = runs.predictions.read(trained.directory, trained.result)
    for name, objects in (("first", 3), ("second", 9)):
        folder = Path(shutil.copytree(trained.directory, tmp_path / name))
        cluster = np.arange(len(found.label)) // 12
        prediction = np.where(cluster < objects, (found.label + 1) % 10, found.label)
        arrays = {
            "label": found.label,
            "prediction": prediction,
            "margin": found.margin,
            "cluster": cluster,
        }
        entry = runs.predictions.write(folder, "predictions.npz", arrays)
        (folder / "metrics.json").write_text(json.dumps(trained.result | {"predictions": entry}))
    ended = cli("compare", "runs=[first,second]")
    assert "0 images are wrong only in the first run, 72 only in the second" in ended.out
    assert "bootstrap over runs and 30 clusters of images" in ended.out, (
        "McNemar takes 72 for independent images"
    )


def test_other_data_and_files_from_elsewhere(cli: Cli, trained: Trained, tmp_path: Path) -> None:
    other = Path(shutil.copytree(trained.directory, tmp_path / "other"))
    source = {"provenance": trained.result["provenance"] | {"source": "real"}}
    (other / "metrics.json").write_text(json.dumps(trained.result | source))
    ended = cli("compare", f"runs=[{trained.directory},other]")
    assert "no test: the runs were tested on different images" in ended.out
    assert "provenance.source" in ended.out
    for content in ("a: [", "[1, 2]", "a: &x [*x]", "a: !!python/object/apply:os.getcwd []"):
        (other / "config.yaml").write_text(content)
        ended = cli("compare", f"runs=[{trained.directory},other]")
        assert "cannot be read" in one_sentence(ended), content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "runs has 0 entries; expected two run directories"),
        (["runs=[a,b]"], "a is not a run directory; expected one with a config.yaml"),
    ],
)
def test_mistakes(cli: Cli, arguments: list[str], message: str) -> None:
    assert message in one_sentence(cli("compare", *arguments))
