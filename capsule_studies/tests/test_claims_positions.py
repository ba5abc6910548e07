"""Errors on synthetic affNIST at the positions of the training and at others: results/<table>_positions.csv."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from omegaconf import OmegaConf

from capsule_lab.data import AffNISTDataModule
from capsule_lab.errors import RunError
from capsule_lab.runs import predictions
from capsule_studies.claims.positions import BEYOND, WITHIN, frame, positions

IMAGES = 400
OPTIONS = {"source": "standin", "eval_images": IMAGES, "shift": 6}


@pytest.fixture(scope="module")
def tested() -> AffNISTDataModule:
    data = AffNISTDataModule(**OPTIONS)
    data.prepare_data()
    data.setup("test")
    return data


def test_digits_beyond_touch_the_edge_more_often(tested: AffNISTDataModule) -> None:
    _, within = positions(tested)
    batch = tested.dataset("test")[torch.arange(IMAGES), 0]
    images = batch.images[:, 0].numpy() > 0
    at_the_edge = images.copy()
    at_the_edge[:, 1:-1, 1:-1] = False
    assert 0.3 < within.mean() < 0.6
    assert at_the_edge[~within].any((1, 2)).mean() > 2 * at_the_edge[within].any((1, 2)).mean()


@pytest.fixture
def folder(tmp_path: Path, tested: AffNISTDataModule) -> Path:
    """A folder with one run that is wrong for all images beyond the positions of the training."""
    labels, within = positions(tested)
    directory = tmp_path / "a_run"
    directory.mkdir()
    data = {"_target_": "capsule_lab.data.AffNISTDataModule", **OPTIONS}
    OmegaConf.save({"data": data}, directory / "config.yaml")
    arrays = {
        "label": labels.astype(np.int32),
        "prediction": np.where(within, labels, (labels + 1) % 10).astype(np.int32),
        "margin": np.where(within, 1, -1).astype(np.float32),
    }
    entry = predictions.write(directory, predictions.FILE, arrays)
    (directory / "metrics.json").write_text(json.dumps({"predictions": entry}))
    return tmp_path


RUNS = pd.DataFrame(
    [
        {"row": "a network", "seed": 3, "status": "done", "directory": "a_run"},
        {"row": "a network", "seed": 3, "status": "done", "directory": "a_run"},
        {"row": "a network", "seed": 4, "status": "missing", "directory": None},
    ]
)


def test_errors_of_a_run_at_both_kinds_of_positions(folder: Path) -> None:
    found = frame(RUNS, folder).set_index("positions")
    assert found["error"].to_dict() == {WITHIN: 0, BEYOND: 100}
    assert found["images"].sum() == IMAGES
    assert set(found["seed"]) == {3}


def test_other_test_images_are_refused(folder: Path) -> None:
    config = OmegaConf.load(folder / "a_run" / "config.yaml")
    config.data.eval_images = IMAGES - 1
    OmegaConf.save(config, folder / "a_run" / "config.yaml")
    with pytest.raises(RunError, match="a_run was tested on other images than those made from its"):
        frame(RUNS, folder)
