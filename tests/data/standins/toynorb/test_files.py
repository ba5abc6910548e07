"""Whole sets of toynorb: in smallNORB's format, whole or not at all, and never rendered twice.

Rendering is left out where it does not matter: pixels then tell which toy, view, lighting and eye they are of.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from capsule_lab.data.download import md5
from capsule_lab.data.formats.binary_matrix import read_matrix, write_matrix
from capsule_lab.data.standins import toynorb
from capsule_lab.data.standins.toynorb import files, processes
from capsule_lab.data.standins.toynorb.files import labels_and_info, render_files
from capsule_lab.errors import DataError
from tests.helpers.toynorb_images import painted

LEVELS = {"size": 8, "elevations": (0, 4, 8), "azimuths": (0, 9), "lightings": (1, 5)}
NAMES = {
    split: {content: f"smallnorb-5x{instances}x3x2x2x2x8x8-{split}-{content}.mat" for content in ("dat", "cat", "info")}
    for split, instances in (("training", "46789"), ("testing", "01235"))
}
ALL = sorted([*NAMES["training"].values(), *NAMES["testing"].values(), "provenance.json"])


@pytest.fixture
def asked(monkeypatch) -> list[tuple[int, int]]:
    """Toys that were rendered, though not really."""
    toys: list[tuple[int, int]] = []

    def render(category, instance, *levels, **options):
        toys.append((category, instance))
        return painted(category, instance, *levels, **options)

    monkeypatch.setattr(files, "render", render)
    return toys


def interrupt_after(toys: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done == toys:
            raise KeyboardInterrupt

    return progress


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- the format -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instances", "part", "published"),  # MD5 of the real files, as the oodd package has them
    [
        (toynorb.TRAIN_INSTANCES, "labels", "fd5120d3f770ad57ebe620eb61a0b633"),
        (toynorb.TEST_INSTANCES, "labels", "fd5120d3f770ad57ebe620eb61a0b633"),
        (toynorb.TEST_INSTANCES, "info", "7c5b871cc69dcadec1bf6a18141f5edc"),
    ],
)
def test_labels_are_those_of_the_real_files(tmp_path, instances, part, published):
    labels, info = labels_and_info(instances, range(9), range(18), range(6))
    write_matrix(tmp_path / "file.mat", labels if part == "labels" else info)
    assert md5(tmp_path / "file.mat") == published


@pytest.mark.usefixtures("asked")
def test_files_are_named_as_the_real_ones(tmp_path):
    render_files(tmp_path / "set", **LEVELS)
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == ALL


@pytest.mark.parametrize("split", NAMES)
@pytest.mark.usefixtures("asked")
def test_every_image_has_its_own_labels(tmp_path, split):
    render_files(tmp_path, **LEVELS)
    images, labels, info = (read_matrix(tmp_path / NAMES[split][part]) for part in ("dat", "cat", "info"))
    assert (images.shape, images.dtype) == ((5 * 5 * 3 * 2 * 2, 2, 8, 8), np.uint8)
    assert (labels.dtype, info.dtype) == (np.int32, np.int32)
    reported = images.reshape(len(images), 2, 64)[:, :, :6].astype(int) - 1
    for eye, number in ((0, -1), (1, 1)):
        np.testing.assert_array_equal(reported[:, eye, 0], labels)
        np.testing.assert_array_equal(reported[:, eye, 1:5] * [1, 1, 2, 1], info)
        assert set(reported[:, eye, 5].tolist()) == {number}
    assert set(info[:, 0]) == set({"training": (4, 6, 7, 8, 9), "testing": (0, 1, 2, 3, 5)}[split])
    assert set(info[:, 2]) == {0, 18}


@pytest.mark.usefixtures("asked")
def test_record(tmp_path):
    render_files(tmp_path, seed=7, **LEVELS)
    record = json.loads((tmp_path / "provenance.json").read_text())
    hashes = record.pop("sha256")
    assert record == {
        "name": toynorb.STANDIN_NAME, "generator": "capsule_lab.data.standins.toynorb", "version": toynorb.VERSION,
        "size": 8, "elevations": [0, 4, 8], "azimuths": [0, 9], "lightings": [1, 5], "seed": 7,
    }  # fmt: skip
    for split, names in NAMES.items():
        assert hashes[split] == hashlib.sha256(np.array(read_matrix(tmp_path / names["dat"]))).hexdigest()


@pytest.mark.parametrize("change", [{"size": 9}, {"elevations": (0, 5, 8)}, {"azimuths": (0, 8)}, {"lightings": (0, 5)}, {"seed": 1}], ids=str)  # fmt: skip  # noqa: E501
@pytest.mark.usefixtures("asked")
def test_every_argument_changes_the_files(tmp_path, change):
    render_files(tmp_path / "one", **LEVELS)
    render_files(tmp_path / "other", **{**LEVELS, **change})
    one, other = (
        {name.rpartition("-")[2]: written for name, written in content(tmp_path / folder).items() if "testing" in name}
        for folder in ("one", "other")
    )
    assert one["dat.mat"] != other["dat.mat"]


def test_what_is_rendered_is_what_render_gives(tmp_path, monkeypatch):
    """Two toys really rendered, the others painted."""
    render = files.render
    monkeypatch.setattr(files, "render", lambda c, i, *a, **b: (render if (c, i) in ((2, 4), (4, 1)) else painted)(c, i, *a, **b))  # fmt: skip  # noqa: E501
    render_files(tmp_path, **LEVELS)
    for split, row, toy in (("training", 0, (2, 4)), ("testing", 1, (4, 1))):
        images = read_matrix(tmp_path / NAMES[split]["dat"]).reshape(5, 3, 2, 2, 5, 2, 8, 8)[row, :, :, :, toy[0]]
        expected = toynorb.render(*toy, LEVELS["elevations"], LEVELS["azimuths"], LEVELS["lightings"], size=8)
        np.testing.assert_array_equal(images, expected)


# --- whole or not at all ----------------------------------------------------------------------------------------------


def test_a_complete_set_is_not_changed(tmp_path, asked):
    render_files(tmp_path, **LEVELS)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    asked.clear()
    reported: list[int] = []
    render_files(tmp_path, **LEVELS, progress=lambda *numbers: reported.extend(numbers))
    assert (asked, reported) == ([], [])
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_progress_counts_toys(tmp_path, asked):
    reported: list[tuple[int, int]] = []
    render_files(tmp_path, **LEVELS, progress=lambda done, total: reported.append((done, total)))
    assert reported == [(done, 50) for done in range(51)]
    assert sorted(asked) == [(category, instance) for category in range(5) for instance in range(10)]


@pytest.mark.parametrize("toys", [0, 1, 23, 50])
def test_an_interrupted_set_goes_on(tmp_path, asked, toys):
    with pytest.raises(KeyboardInterrupt):
        render_files(tmp_path / "stopped", **LEVELS, progress=interrupt_after(toys))
    assert len(asked) == toys
    assert [path.name for path in (tmp_path / "stopped").iterdir() if not path.name.startswith(".")] == []
    reported: list[int] = []
    render_files(tmp_path / "stopped", **LEVELS, progress=lambda done, _: reported.append(done))
    assert reported == list(range(toys, 51))
    assert len(asked) == len(set(asked)) == 50
    render_files(tmp_path / "at_once", **LEVELS)
    assert content(tmp_path / "stopped") == content(tmp_path / "at_once")


@pytest.mark.parametrize("harm", [b"", b"\x93NUMPY", None], ids=repr)
def test_a_damaged_toy_is_rendered_again(tmp_path, asked, harm):
    with pytest.raises(KeyboardInterrupt):
        render_files(tmp_path, **LEVELS, progress=interrupt_after(10))
    (work,) = (path for path in tmp_path.iterdir() if path.is_dir())
    kept = sorted(work.iterdir())
    kept[3].write_bytes(kept[3].read_bytes()[:-1] if harm is None else harm)
    render_files(tmp_path, **LEVELS)
    assert len(asked) == 51
    assert sorted(path.name for path in tmp_path.iterdir()) == ALL


@pytest.mark.parametrize("name", ["training-dat", "testing-info", "provenance"])
def test_files_appear_complete_and_the_record_last(tmp_path, monkeypatch, name):
    """A failure between any two files leaves what a later call mends."""
    monkeypatch.setattr(files, "render", painted)
    replace = os.replace

    def refuse(source, target):
        if name in Path(target).name:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        render_files(tmp_path / "set", **LEVELS)
    names = [path.name for path in (tmp_path / "set").iterdir()]
    assert "provenance.json" not in names
    assert [part for part in names if name in part] == []
    monkeypatch.setattr(os, "replace", replace)
    render_files(tmp_path / "set", **LEVELS)
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == ALL


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])], ids=["gone", "cut"])  # fmt: skip  # noqa: E501
@pytest.mark.usefixtures("asked")
def test_a_set_that_lost_something_is_mended(tmp_path, harm):
    render_files(tmp_path, **LEVELS)
    before = content(tmp_path)
    harm(tmp_path / NAMES["testing"]["cat"])
    render_files(tmp_path, **LEVELS)
    assert content(tmp_path) == before


@pytest.mark.parametrize("change", [{"seed": 1}, {"size": 9}, {"elevations": (0, 4, 7)}], ids=str)
@pytest.mark.usefixtures("asked")
def test_another_set_is_not_replaced(tmp_path, change):
    render_files(tmp_path, **LEVELS)
    before = content(tmp_path)
    with pytest.raises(DataError, match=r"holds smallnorb-5x01235x.*, which is of another set; expected a folder"):
        render_files(tmp_path, **{**LEVELS, **change})
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    "name", ["smallnorb-5x46789x9x18x6x2x96x96-training-dat.mat", NAMES["training"]["cat"] + ".gz"]
)
@pytest.mark.usefixtures("asked")
def test_real_files_are_not_replaced(tmp_path, name):
    (tmp_path / name).write_bytes(b"real")
    with pytest.raises(DataError, match=f"holds {name}"):
        render_files(tmp_path, **LEVELS)
    assert content(tmp_path) == {name: b"real"}


def test_a_set_of_another_version_is_not_replaced(tmp_path, asked, monkeypatch):
    render_files(tmp_path, **LEVELS)
    monkeypatch.setattr(files, "VERSION", toynorb.VERSION + 1)
    with pytest.raises(DataError, match="of another set"):
        render_files(tmp_path, **LEVELS)


@pytest.mark.usefixtures("asked")
def test_unfinished_work_of_other_plans_is_removed(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        render_files(tmp_path, seed=5, **LEVELS, progress=interrupt_after(3))
    render_files(tmp_path, **LEVELS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ALL
    assert read_matrix(tmp_path / NAMES["testing"]["dat"])[:, :, 0, 6].max() == 0


def test_the_second_of_two_waits_for_the_first(tmp_path, asked, caplog):
    """Two at once, here in threads: the lock is the file's, not the process's."""
    second = threading.Thread(target=render_files, args=(tmp_path,), kwargs=LEVELS)

    def progress(done: int, _: int) -> None:
        if done == 5:
            second.start()
            until = time.monotonic() + 60
            while not caplog.records and time.monotonic() < until:
                time.sleep(0.01)

    with caplog.at_level(logging.INFO, files.__name__):
        render_files(tmp_path, **LEVELS, progress=progress)
        second.join(60)
    assert [record.getMessage() for record in caplog.records] == [
        f"another process renders into {tmp_path}: waiting for it"
    ]
    assert not second.is_alive()
    assert len(asked) == 50
    assert sorted(path.name for path in tmp_path.iterdir()) == ALL


# --- processes --------------------------------------------------------------------------------------------------------


def run_here(work, jobs, workers, finished) -> None:
    """As many processes as asked for, in this one."""
    for job in jobs:
        work(job)
        finished()


@pytest.mark.parametrize(
    ("workers", "levels", "expected"),
    [
        (None, LEVELS, 1),
        (3, LEVELS, 3),
        (None, {**LEVELS, "size": 96, "azimuths": range(18)}, 5),
    ],
    ids=str,
)
@pytest.mark.usefixtures("asked")
def test_number_of_processes(tmp_path, monkeypatch, workers, levels, expected):
    monkeypatch.setattr(processes, "available_cores", lambda: 5)
    found: list[int] = []
    monkeypatch.setattr(processes, "run", lambda w, j, workers, f: found.append(workers) or run_here(w, j, workers, f))
    render_files(tmp_path, **levels, workers=workers)
    assert found == [expected]


def test_cores_that_may_be_used():
    assert 1 <= processes.available_cores() <= (os.cpu_count() or 1)


def touch(folder: Path, job: int) -> None:
    if job < 0:
        raise ValueError(f"there is no job {job}")
    if job == 0:
        os.kill(os.getpid(), 9)
    held_back = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    (folder / str(job)).write_text(f"{os.getpid()} {held_back}")


class Touch:
    """Work that another process can do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, job: int) -> None:
        touch(self.folder, job)


@pytest.fixture
def fork(monkeypatch) -> None:
    """Processes that start in no time, for what they do is what is tested here."""
    monkeypatch.setattr(processes, "START", "fork")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.usefixtures("fork")
def test_jobs_are_spread_over_processes(tmp_path):
    done: list[None] = []
    processes.run(Touch(tmp_path), range(1, 30), 2, lambda: done.append(None))
    assert len(done) == 29
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == list(range(1, 30))
    found = dict(path.read_text().split() for path in tmp_path.iterdir())
    assert str(os.getpid()) not in found
    assert set(found.values()) == {"True"}, "Ctrl-C reaches them"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert multiprocessing.active_children() == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("job", "error", "message"),
    [(-3, ValueError, "there is no job -3"), (0, processes.WorkerError, "a rendering process ended before its work")],
)
@pytest.mark.usefixtures("fork")
def test_an_error_in_a_process_is_raised_here(tmp_path, job, error, message):
    with pytest.raises(error, match=message):
        processes.run(Touch(tmp_path), [1, 2, job], 2, lambda: None)
    assert multiprocessing.active_children() == []


# --- mistakes


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 1000}, "size is 1000; expected 8 to 256 pixels"),
        ({"elevations": [9]}, "elevations is 9; expected some"),
        ({"azimuths": [0, 18]}, "azimuths is 0, 18; expected some"),
        ({"lightings": []}, "lightings is empty; expected some"),
        ({"seed": -1}, "seed is -1; expected 0 or more"),
        ({"workers": 0}, "workers is 0; expected 1 or more processes"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked_types", "asked")
def test_wrong_arguments(tmp_path, wrong, message):
    with pytest.raises(ValueError, match=message):
        render_files(tmp_path / "set", **wrong)
    assert not (tmp_path / "set").exists()
