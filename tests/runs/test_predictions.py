from pathlib import Path

import numpy as np
import pytest

from capsule_lab import runs
from capsule_lab.errors import RunError
from tests.helpers.commands import Trained

VALUES = {"label": [[1, 2], [0, 3]], "prediction": [[1, 2], [0, 2]], "margin": [0.5, -1.0]}
ARRAYS = {name: np.array(values) for name, values in VALUES.items()}


def test_a_run_leaves_the_predictions_of_its_test(trained: Trained) -> None:
    found = runs.predictions.read(trained.directory, trained.result)
    assert 100 * found.wrong.mean() == pytest.approx(trained.result["test"]["error"])
    assert ((found.margin < 0) == found.wrong).all()
    assert found.label.shape == found.prediction.shape
    assert found.cluster is None
    assert found.part is None


def test_predictions_of_several_labels_are_wrong_if_one_is(tmp_path: Path) -> None:
    record = {"predictions": runs.predictions.write(tmp_path, "a/b.npz", ARRAYS)}
    found = runs.predictions.read(tmp_path, record)
    assert found.wrong.tolist() == [False, True]


def test_missing_and_foreign_files_are_none_and_changed_ones_are_refused(tmp_path: Path) -> None:
    entry = runs.predictions.write(tmp_path, "a.npz", ARRAYS)
    assert runs.predictions.read(tmp_path, {}) is None
    assert runs.predictions.read(tmp_path / "b", {"predictions": {**entry, "file": "../a.npz"}}) is None
    assert runs.predictions.read(tmp_path, {"predictions": {**entry, "file": "b.npz"}}) is None
    with pytest.raises(RunError, match="is not the file of the run's test"):
        runs.predictions.read(tmp_path, {"predictions": {**entry, "sha256": "0"}})
    (tmp_path / "a.npz").write_bytes(b"no archive")
    digest = runs.files.sha256(tmp_path / "a.npz")
    with pytest.raises(RunError, match="is no file of predictions"):
        runs.predictions.read(tmp_path, {"predictions": {"file": "a.npz", "sha256": digest}})


def test_files_with_objects_run_nothing(tmp_path: Path) -> None:
    arrays = {**ARRAYS, "label": np.array([print, print], dtype=object)}
    np.savez(tmp_path / "a.npz", **arrays)
    digest = runs.files.sha256(tmp_path / "a.npz")
    with pytest.raises(RunError, match="is no file of predictions"):
        runs.predictions.read(tmp_path, {"predictions": {"file": "a.npz", "sha256": digest}})
