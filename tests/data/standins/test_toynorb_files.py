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
NAMES = {
    split: {
        content: f"smallnorb-5x{instances}x3x2x2x2x8x8-{split}-{content}.mat"
        for content in ("dat", "cat", "info")
    }
    for split, instances in (("training", "46789"), ("testing", "01235"))
}
ALL = sorted([*NAMES["training"].values(), *NAMES["testing"].values(), "provenance.json"])


@pytest.fixture
def asked(monkeypatch) -> list[tuple[int, int]]:
    """Renders asked for; toys are painted instead."""
    toys: list[tuple[int, int]] = []

    def render(category, instance, *levels, **options):
        toys.append((category, instance))
        return painted(category, instance, *levels, **options)

    monkeypatch.setattr(files, "render", render)
    return toys


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_labels_are_those_of_the_real_files(tmp_path):
    """By the MD5 sums of the real files in the oodd package."""
    for instances in (toynorb.TRAIN_INSTANCES, toynorb.TEST_INSTANCES):
        labels, info = labels_and_info(instances, range(9), range(18), range(6))
        write_matrix(tmp_path / "file.mat", labels)
        assert md5(tmp_path / "file.mat") == "fd5120d3f770ad57ebe620eb61a0b633"
    write_matrix(tmp_path / "file.mat", info)
    assert md5(tmp_path / "file.mat") == "7c5b871cc69dcadec1bf6a18141f5edc"


@pytest.mark.usefixtures("asked")
def test_files_have_the_published_names_and_a_record(tmp_path):
    render_files(tmp_path, seed=7, **LEVELS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ALL
    hashes = {}
    for split, instances in (("training", {4, 6, 7, 8, 9}), ("testing", {0, 1, 2, 3, 5})):
        images, labels, info = (
            read_matrix(tmp_path / NAMES[split][part]) for part in ("dat", "cat", "info")
        )
        assert (images.shape, images.dtype) == ((5 * 5 * 3 * 2 * 2, 2, 8, 8), np.uint8)
        assert (labels.dtype, info.dtype) == (np.int32, np.int32)
        reported = images.reshape(len(images), 2, 64)[:, :, :6].astype(int) - 1
        for eye, number in ((0, -1), (1, 1)):
            np.testing.assert_array_equal(reported[:, eye, 0], labels)
            np.testing.assert_array_equal(reported[:, eye, 1:5] * [1, 1, 2, 1], info)
            assert set(reported[:, eye, 5].tolist()) == {number}
        assert (images[..., 0, 6] == 7).all(), "the seed"
        assert set(info[:, 0]) == instances
        assert set(info[:, 2]) == {0, 18}
        hashes[split] = hashlib.sha256(np.array(images)).hexdigest()
    assert json.loads((tmp_path / "provenance.json").read_text()) == {
        "name": files.STANDIN_NAME, "generator": "toynorb", "version": files.VERSION,
        "size": 8, "elevations": [0, 4, 8], "azimuths": [0, 9], "lightings": [1, 5], "seed": 7, "sha256": hashes,
    }  # fmt: skip


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
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == ALL
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_incomplete_set_is_completed(tmp_path, asked):
    render_files(tmp_path / "set", **LEVELS)
    before = content(tmp_path)
    file = tmp_path / "set" / NAMES["testing"]["cat"]
    for harm in (Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])):
        harm(file)
        render_files(tmp_path / "set", **LEVELS)
        assert content(tmp_path) == before
    asked.clear()
    render_files(tmp_path / "set", **LEVELS)
    assert asked == []


@pytest.mark.usefixtures("asked")
def test_set_of_other_files_is_not_replaced(tmp_path, monkeypatch):
    render_files(tmp_path / "set", **LEVELS)
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "smallnorb-5x46789x9x18x6x2x96x96-training-dat.mat.gz").write_bytes(
        b"real"
    )
    before = content(tmp_path)
    another = [{"seed": 1}, {"size": 9}, {"elevations": (0, 4, 7)}]
    for folder, change in [("real", {}), *(("set", change) for change in another)]:
        with pytest.raises(
            DataError, match=r"holds smallnorb-5x.*, which is from another set; expected a folder"
        ):
            render_files(tmp_path / folder, **{**LEVELS, **change})
    monkeypatch.setattr(files, "VERSION", files.VERSION + 1)
    with pytest.raises(DataError, match="from another set"):
        render_files(tmp_path / "set", **LEVELS)
    assert content(tmp_path) == before


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
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.slow  # half a minute: the whole set
def test_whole_set_has_the_recorded_hash(tmp_path):
    render_files(tmp_path / "set", size=48)
    record = json.loads((tmp_path / "set" / "provenance.json").read_text())
    assert record["sha256"] == {
        "training": "c533a029f33db23dee34dfd9db11d222ee44b28f71fe959f8ceb4b6e31e42404",
        "testing": "db44d68ed3ca2949083ee4c24644570b9a71426a4fb9c0d68b51b4084735fbd2",
    }
