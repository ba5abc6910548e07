"""The command ``compare``."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from scipy.stats import binomtest

from capsule_lab import runs
from tests.helpers.commands import Cli, Trained
from tests.helpers.messages import one_sentence


def a_copy_of(trained: Trained, directory: Path, **changes: Any) -> Path:
    """Copy the run, with these fields of its result changed."""
    shutil.copytree(trained.directory, directory)
    result = {**trained.result, **changes}
    (directory / "metrics.json").write_text(json.dumps(result))
    return directory


def test_options_results_and_images_of_two_runs(cli: Cli, trained: Trained, tmp_path: Path) -> None:
    other = a_copy_of(trained, tmp_path / "other")
    config = other / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("iterations: 3", "iterations: 1"))
    found = runs.predictions.read(other, trained.result)
    wrong = found.wrong.copy()
    wrong[:8] ^= True  # eight images change
    prediction = np.where(wrong, (found.label + 1) % 10, found.label)
    arrays = {"label": found.label, "prediction": prediction, "margin": found.margin}
    entry = runs.predictions.write(other, "predictions.npz", arrays)
    data = {"source": "standin", "name": "small digits"}
    start = {"name": "before/best.ckpt", "file": "best.ckpt", "data": data}
    result = {**trained.result, "predictions": entry, "steps": 7, "start_from": start}
    (other / "metrics.json").write_text(json.dumps(result))

    ended = cli("compare", f"runs=[{trained.directory},{other}]")
    assert (ended.status, ended.err) == (0, "")
    rows = {}
    for line in ended.out.splitlines():
        if line:
            name, *values = line.split()
            rows[name] = values
    assert rows["routing.iterations"] == ["3", "1"]
    assert "model.routing.iterations" not in rows, "a copy"
    assert "seed" not in rows
    error = f"{trained.result['test']['error']:.4g}"
    assert rows["test.error"][:2] == [error, error]
    assert rows["steps"] == [str(trained.result["steps"]), "7"]
    assert rows["start_from.name"] == ["before/best.ckpt"]
    assert rows["start_from.data.source"] == ["standin"]
    first = int((found.wrong & ~wrong).sum())
    second = int((wrong & ~found.wrong).sum())
    counted = f"{first} images are wrong only in the first run, {second} only in the second"
    assert counted in ended.out
    p_value = binomtest(first, first + second).pvalue
    assert f"p = {p_value:.3g} " in ended.out


def test_results_are_aligned_at_the_right(cli: Cli, trained: Trained, tmp_path: Path) -> None:
    """Of numbers with the same count of decimals, digits of equal weight are then below each other."""
    other = a_copy_of(trained, tmp_path / "other", test={"error": 0.5, "accuracy": 99.5})
    _, _, shown = cli("compare", f"runs=[{other},{other}]").out.partition("results")
    lines, _, _ = f"results{shown}".partition("\n\n")
    ends = set()
    for line in lines.splitlines():
        _, first, second = re.finditer(r"\S+", line)
        ends.add((first.end(), second.end()))
    assert len(ends) == 1


def test_images_of_one_object_count_as_one(cli: Cli, trained: Trained, tmp_path: Path) -> None:
    found = runs.predictions.read(trained.directory, trained.result)
    cluster = np.arange(len(found.label)) // 12
    for name, objects in (("first", 3), ("second", 9)):
        folder = a_copy_of(trained, tmp_path / name)
        prediction = np.where(cluster < objects, (found.label + 1) % 10, found.label)
        arrays = {
            "label": found.label,
            "prediction": prediction,
            "margin": found.margin,
            "cluster": cluster,
        }
        entry = runs.predictions.write(folder, "predictions.npz", arrays)
        result = {**trained.result, "predictions": entry}
        (folder / "metrics.json").write_text(json.dumps(result))
    ended = cli("compare", "runs=[first,second]")
    assert "0 images are wrong only in the first run, 72 only in the second" in ended.out
    # McNemar takes 72 for independent images
    assert "t-test over 30 clusters of images, these two networks" in ended.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "runs has 0 entries; expected two run directories"),
        (["runs=[a,b]"], "a is not a run directory; expected one with a config.yaml"),
    ],
)
def test_mistakes(cli: Cli, arguments: list[str], message: str) -> None:
    assert message in one_sentence(cli("compare", *arguments))


def test_runs_on_other_data_are_compared_without_a_test(
    cli: Cli, trained: Trained, tmp_path: Path
) -> None:
    provenance = {**trained.result["provenance"], "source": "real"}
    a_copy_of(trained, tmp_path / "other", provenance=provenance)
    ended = cli("compare", f"runs=[{trained.directory},other]")
    assert "no test: the runs were tested on different images" in ended.out
    assert "provenance.source" in ended.out


DIFFERENT = "no test: the runs were tested on different images"
OF_A_FOLD = {"folds": 5, "fold": 0}
OTHER_IMAGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fold": ({"split": OF_A_FOLD}, {"split": {**OF_A_FOLD, "fold": 1}}),
    "number of folds": ({"split": OF_A_FOLD}, {"split": {**OF_A_FOLD, "folds": 4}}),
    "no folds": ({"split": OF_A_FOLD}, {"split": {}}),
    "pictures": ({"pictures": 20}, {"pictures": 21}),
    "files": ({"sha256": {"a.npz": "a"}}, {"sha256": {"a.npz": "b"}}),
    "labels": ({"labels_sha256": "a"}, {"labels_sha256": "b"}),
    "groups": ({"groups_sha256": "a"}, {"groups_sha256": "b"}),
}
"""Parts of two provenances by what differs."""


@pytest.mark.parametrize("what", OTHER_IMAGES)
def test_other_images_with_the_same_labels_are_not_compared(
    cli: Cli, trained: Trained, tmp_path: Path, what: str
) -> None:
    """Pictures of a folder are listed by class, so that all folds have the same labels in the same order."""
    for name, changes in zip(("first", "second"), OTHER_IMAGES[what], strict=True):
        provenance = {**trained.result["provenance"], **changes}
        a_copy_of(trained, tmp_path / name, provenance=provenance)
    ended = cli("compare", "runs=[first,second]")
    assert DIFFERENT in ended.out


@pytest.mark.parametrize(("available", "has_test"), [(359, False), (20, True)])
def test_parts_of_the_test_set_by_another_seed_are_not_compared(
    cli: Cli, trained: Trained, tmp_path: Path, available: int, has_test: bool
) -> None:
    """``data.eval_images`` draws other images with another ``data.seed``; without it, all are tested."""
    counts = {"test": 20, "test_set": available}
    first = a_copy_of(trained, tmp_path / "first", image_counts=counts)
    second = a_copy_of(trained, tmp_path / "second", image_counts=counts)
    for directory, seed in ((first, 0), (second, 1)):
        config = OmegaConf.load(directory / "config.yaml")
        config.data.seed = seed
        OmegaConf.save(config, directory / "config.yaml")
    ended = cli("compare", "runs=[first,second]")
    assert (DIFFERENT not in ended.out) is has_test


@pytest.mark.parametrize(
    "content",
    [
        "a: [",
        "[1, 2]",
        "a: &x [*x]",
        "a: !!python/object/apply:os.getcwd []",
    ],
)
def test_configuration_that_cannot_be_read_is_one_sentence(
    cli: Cli, trained: Trained, tmp_path: Path, content: str
) -> None:
    other = a_copy_of(trained, tmp_path / "other")
    (other / "config.yaml").write_text(content)
    ended = cli("compare", f"runs=[{trained.directory},other]")
    assert "cannot be read" in one_sentence(ended)
