"""Whole sets of toynorb: in smallNORB's format, whole or not at all, and never rendered twice.

Rendering is left out where it does not matter: pixels then tell which toy, view, lighting and eye they are of.
"""

import hashlib
import json
import logging
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import toynorb
from capsule_lab.data.download import md5
from capsule_lab.data.formats.binary_matrix import read_matrix, write_matrix
from capsule_lab.data.standins import toynorb_files as files
from capsule_lab.data.standins.toynorb_files import labels_and_info, render_files
from capsule_lab.errors import DataError
from tests.helpers.toynorb_images import painted

LEVELS = {"size": 8, "elevations": (0, 4, 8), "azimuths": (0, 9), "lightings": (1, 5)}
TRAINING = "smallnorb-5x46789x3x2x2x2x8x8-training"
TESTING = "smallnorb-5x01235x3x2x2x2x8x8-testing"
ALL = [
    "provenance.json",
    f"{TESTING}-cat.mat",
    f"{TESTING}-dat.mat",
    f"{TESTING}-info.mat",
    f"{TRAINING}-cat.mat",
    f"{TRAINING}-dat.mat",
    f"{TRAINING}-info.mat",
]


@pytest.fixture
def asked(monkeypatch) -> list[tuple[int, int]]:
    """Renders asked for; toys are painted instead."""
    toys: list[tuple[int, int]] = []

    def render(category, instance, *levels, **options):
        toys.append((category, instance))
        return painted(category, instance, *levels, **options)

    monkeypatch.setattr(files, "render", render)
    return toys


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def md5_of(array: np.ndarray, folder: Path) -> str:
    write_matrix(folder / "file.mat", array)
    return md5(folder / "file.mat")


ALL_LEVELS = (range(9), range(18), range(6))


@pytest.mark.parametrize("instances", [toynorb.TRAIN_INSTANCES, toynorb.TEST_INSTANCES])
def test_labels_are_those_of_the_real_files(tmp_path, instances):
    """By the MD5 sums of the real files in the oodd package."""
    labels, _ = labels_and_info(instances, *ALL_LEVELS)
    assert md5_of(labels, tmp_path) == "fd5120d3f770ad57ebe620eb61a0b633"


def test_factors_are_those_of_the_real_test_files(tmp_path):
    _, info = labels_and_info(toynorb.TEST_INSTANCES, *ALL_LEVELS)
    assert md5_of(info, tmp_path) == "7c5b871cc69dcadec1bf6a18141f5edc"


@pytest.fixture
def rendered(tmp_path, asked) -> Path:
    render_files(tmp_path / "set", seed=7, **LEVELS)
    return tmp_path / "set"


@pytest.mark.parametrize(
    ("prefix", "instances"),
    [
        (TRAINING, {4, 6, 7, 8, 9}),
        (TESTING, {0, 1, 2, 3, 5}),
    ],
)
def test_files_have_the_published_format(rendered, prefix, instances):
    images = read_matrix(rendered / f"{prefix}-dat.mat")
    labels = read_matrix(rendered / f"{prefix}-cat.mat")
    info = read_matrix(rendered / f"{prefix}-info.mat")
    assert images.shape == (5 * 5 * 3 * 2 * 2, 2, 8, 8)
    assert images.dtype == np.uint8
    assert labels.dtype == np.int32
    assert info.dtype == np.int32
    first_row = images[:, :, 0].astype(int) - 1  # see painted
    for eye, number in ((0, -1), (1, 1)):
        category, instance, elevation, azimuth, lighting, side, seed, _ = first_row[:, eye].T
        factors = np.stack([instance, elevation, 2 * azimuth, lighting], axis=1)
        np.testing.assert_array_equal(category, labels)
        np.testing.assert_array_equal(factors, info)
        assert (side == number).all()
        assert (seed == 7 - 1).all()
    assert set(info[:, 0]) == instances
    assert set(info[:, 2]) == {0, 18}


def test_files_have_the_published_names_and_a_record(rendered):
    assert names(rendered) == ALL
    hashes = {}
    for split, prefix in (("training", TRAINING), ("testing", TESTING)):
        images = read_matrix(rendered / f"{prefix}-dat.mat")
        hashes[split] = hashlib.sha256(np.array(images)).hexdigest()
    assert json.loads((rendered / "provenance.json").read_text()) == {
        "name": files.STANDIN_NAME,
        "generator": "toynorb",
        "version": files.VERSION,
        "size": 8,
        "elevations": [0, 4, 8],
        "azimuths": [0, 9],
        "lightings": [1, 5],
        "seed": 7,
        "sha256": hashes,
    }


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(28, "No space left on device")], ids=repr
)
def test_interrupted_rendering_leaves_nothing(tmp_path, asked, monkeypatch, error):
    """It ends at once, without toys that no thread has started."""

    def stop(category, instance, *levels, **options):
        asked.append((category, instance))
        if len(asked) == 7:
            raise error
        if len(asked) > 7:
            time.sleep(0.1)
        return painted(category, instance, *levels, **options)

    monkeypatch.setattr(files, "render", stop)
    with pytest.raises(type(error)):
        render_files(tmp_path / "set", **LEVELS, workers=1)
    assert len(asked) < 25
    assert not (tmp_path / "set").exists()
    monkeypatch.setattr(files, "render", painted)
    render_files(tmp_path / "set", **LEVELS)
    assert names(tmp_path / "set") == ALL
    assert names(tmp_path) == ["set"]


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("harm", [Path.unlink, cut_off])
def test_incomplete_set_is_completed(rendered, harm):
    before = content(rendered)
    harm(rendered / f"{TESTING}-cat.mat")
    render_files(rendered, seed=7, **LEVELS)
    assert content(rendered) == before


def test_complete_set_is_not_rendered_again(rendered, asked):
    asked.clear()
    render_files(rendered, seed=7, **LEVELS)
    assert asked == []


OTHER_SET = r"holds smallnorb-5x.*, which is from another set; expected a folder"


@pytest.mark.usefixtures("asked")
def test_real_files_are_not_replaced(tmp_path):
    (tmp_path / "smallnorb-5x46789x9x18x6x2x96x96-training-dat.mat.gz").write_bytes(b"real")
    before = content(tmp_path)
    with pytest.raises(DataError, match=OTHER_SET):
        render_files(tmp_path, **LEVELS)
    assert content(tmp_path) == before


@pytest.mark.parametrize("change", [{"seed": 1}, {"size": 9}, {"elevations": (0, 4, 7)}], ids=str)
def test_set_of_other_toys_is_not_replaced(rendered, change):
    before = content(rendered)
    with pytest.raises(DataError, match=OTHER_SET):
        render_files(rendered, **{"seed": 7, **LEVELS, **change})
    assert content(rendered) == before


def test_set_of_another_version_is_not_replaced(rendered, monkeypatch):
    before = content(rendered)
    monkeypatch.setattr(files, "VERSION", files.VERSION + 1)
    with pytest.raises(DataError, match=OTHER_SET):
        render_files(rendered, seed=7, **LEVELS)
    assert content(rendered) == before


def test_second_process_waits_for_the_first(tmp_path, asked, caplog, monkeypatch):
    """Threads stand in for processes, because the lock belongs to the file."""
    folder = tmp_path / "set"
    second = threading.Thread(target=render_files, args=(folder,), kwargs=LEVELS)
    render = files.render

    def wait(*arguments, **options):
        if len(asked) == 5:
            second.start()
            until = time.monotonic() + 60
            while not caplog.records and time.monotonic() < until:
                time.sleep(0.01)
        return render(*arguments, **options)

    monkeypatch.setattr(files, "render", wait)
    with caplog.at_level(logging.INFO, files.__name__):
        render_files(folder, **LEVELS, workers=1)
        second.join(60)
    assert caplog.messages == [f"waiting for another process that renders into {folder}"]
    assert not second.is_alive()
    assert len(asked) == 50
    assert names(tmp_path) == ["set"]


@pytest.mark.slow  # half a minute: the whole set
def test_whole_set_has_the_recorded_hash(tmp_path):
    folder = tmp_path / "set"
    files.render_files(folder, size=48)
    record = json.loads((folder / "provenance.json").read_text())
    assert record["sha256"] == {
        "training": "c533a029f33db23dee34dfd9db11d222ee44b28f71fe959f8ceb4b6e31e42404",
        "testing": "db44d68ed3ca2949083ee4c24644570b9a71426a4fb9c0d68b51b4084735fbd2",
    }
