"""affNIST's files, small ones in the real format: read back exactly, or refused in a message."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsule_lab.data.download import fetch
from capsule_lab.data.formats import affnist
from capsule_lab.data.formats.affnist import check, download, load, load_mat
from capsule_lab.errors import DataError
from tests.helpers.affnist_files import (
    CASES,
    IMAGES,
    LABELS,
    TRANSFORMS,
    count_as_affnist,
    fields,
    mat,
    write_affnist,
    zipped,
)
from tests.helpers.data_modules import answer_downloads


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    return write_affnist(tmp_path_factory.mktemp("affNIST"))


@pytest.fixture(autouse=True)
def counts_as_real(written, monkeypatch) -> None:
    count_as_affnist(written, monkeypatch)


@pytest.fixture
def of(written, tmp_path) -> Callable[..., Path]:
    """A folder that holds some of ``written``: ``of("test.mat")``."""

    def make(*names: str) -> Path:
        folder = tmp_path / "affNIST"
        folder.mkdir()
        for name in names:
            shutil.copy(written / name, folder / name)
        return folder

    return make


def everything_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# --- what is there is read back


@pytest.mark.parametrize("name", ["test.mat", "test.mat.zip"])
def test_each_form_is_read_back_exactly_and_its_hash_given(of, written, name):
    folder = of(name)
    images, labels, factors = load(folder)
    np.testing.assert_array_equal(images[:, 0].numpy(), IMAGES)
    np.testing.assert_array_equal(labels.numpy(), LABELS)
    np.testing.assert_array_equal(factors.numpy(), TRANSFORMS.astype(np.float32))
    assert check(folder) == {name: hashlib.sha256((written / name).read_bytes()).hexdigest()}


def test_the_archive_is_preferred_as_it_has_a_published_checksum(of, tmp_path):
    folder = of("test.mat.zip", "test.mat")
    (folder / "test.mat").write_bytes(b"not looked at")
    assert list(check(folder)) == ["test.mat.zip"]
    assert len(load(folder).labels) == CASES
    assert check(tmp_path / "nowhere") == {}


def test_columns_are_images_row_by_row(tmp_path):
    path = tmp_path / "one.mat"
    for compressed in (True, False):
        one = fields(slice(3, 4)) | {"label_int": LABELS[None, 3:4].astype(np.float64)}
        one["image"] = (np.arange(1600) % 251).astype(np.uint8)[:, None]
        path.write_bytes(mat({"affNISTdata": one}, compressed=compressed))
        images, labels, factors = load_mat(path)
        assert images.shape == (1, 1, 40, 40)
        assert images[0, 0, 0, :3].tolist() == [0, 1, 2]
        assert images[0, 0, 1, :3].tolist() == [40, 41, 42]
        assert labels.tolist() == [LABELS[3]]
        assert factors.shape == (1, 6)


# --- what is not right ends in a message


def refusal(function: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(DataError) as caught:
        function(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def changed(**change: Any) -> bytes:
    content = fields() | change
    return mat({"affNISTdata": {name: value for name, value in content.items() if value is not None}})


WHOLE = mat({"affNISTdata": fields()})
BAD = {
    "truncated": (WHOLE[:-100], "cannot be read"),
    "half": (WHOLE[: len(WHOLE) // 2], "cannot be read"),
    "header only": (WHOLE[:128], "cannot be read"),
    "empty": (b"", "cannot be read"),
    "web page": (b"<!DOCTYPE html><html><body>Service unavailable</body></html>" * 9, "cannot be read"),
    "MATLAB 7.3": (b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\x89HDF", "cannot be read"),
    "other variable": (mat({"image": IMAGES}), "cannot be read ('affNISTdata')"),
    "no struct": (mat({"affNISTdata": IMAGES}), "cannot be read"),
    "no image": (changed(image=None), "no field of name image"),
    "no labels": (changed(label_int=None), "no field of name label_int"),
    "no transforms": (changed(human_readable_transform=None), "no field of name human_readable_transform"),
    "images transposed": (changed(image=IMAGES.reshape(CASES, -1)), "uint8 of shape (320, 1600), "),
    "images of 28x28": (changed(image=IMAGES.reshape(CASES, -1).T[:784]), "uint8 of shape (784, 320), "),
    "images of floats": (changed(image=IMAGES.reshape(CASES, -1).T / 255), "float64 of shape (1600, 320)"),
    "images of 3 dimensions": (changed(image=IMAGES.reshape(1600, 40, -1)), "uint8 of shape (1600, 40"),
    "fewer labels": (changed(label_int=LABELS[None, 1:]), "uint8 of shape (1, 319)"),
    "labels in a column": (changed(label_int=LABELS[:, None]), "uint8 of shape (320, 1)"),
    "labels of halves": (changed(label_int=LABELS[None] + 0.5), "labels that are not whole"),
    "labels of nothing": (changed(label_int=LABELS[None] * np.nan), "cannot be read"),
    "labels in words": (changed(label_int="two"), "<U3 of shape (1,)"),
    "label 10": (changed(label_int=LABELS[None] + np.uint8(1)), "has label 10; expected 0 to 9"),
    "label -1": (changed(label_int=LABELS[None].astype(np.int16) - 1), "has label -1; expected 0 to 9"),
    "fewer transforms": (changed(human_readable_transform=TRANSFORMS.T[:, 1:]), "of shape (6, 319)"),
    "transforms of nothing": (changed(human_readable_transform=TRANSFORMS.T * np.nan), "transforms that are not"),
}  # fmt: skip


def test_bad_file_is_named_with_what_is_wrong(tmp_path):
    for kind, (content, expected) in BAD.items():
        (tmp_path / "test.mat").write_bytes(content)
        for reading in (load, check):  # check is what runs before training
            message = refusal(reading, tmp_path)
            assert message.startswith(f"{tmp_path / 'test.mat'} "), kind
            assert expected in message, kind
    for kind in ("truncated", "no image", "label 10"):
        (tmp_path / "test.mat.zip").write_bytes(zipped({"test.mat": BAD[kind][0]}))
        message = refusal(load, tmp_path)
        assert message.startswith(f"{tmp_path / 'test.mat.zip' / 'test.mat'} ")
        assert BAD[kind][1] in message


def test_archive_that_is_not_the_published_one_or_cannot_be_opened_is_refused(of):
    path = of("test.mat.zip") / "test.mat.zip"
    for damaged in (path.read_bytes()[:-1], b"", b"<!DOCTYPE html>"):
        path.write_bytes(damaged)
        message = refusal(check, path.parent)
        assert message.startswith(f"{path} (")
        assert affnist.SHA256 in message
        assert refusal(load, path.parent).startswith(f"{path} cannot be read")


@pytest.mark.parametrize(("digits", "count"), [((1,) * 9 + (2,), 352), ((2,) * 10, 640)])
def test_other_counts_than_of_the_test_set_are_refused(of, monkeypatch, digits, count):
    monkeypatch.setattr(affnist, "TEST_DIGITS", digits)
    message = refusal(load, of("test.mat"))
    assert f"holds 320 images, {[32] * 10} of the digits 0 to 9; expected {count}" in message


def test_a_missing_file_is_named(tmp_path):
    assert refusal(load, tmp_path).startswith(f"{tmp_path / 'test.mat'} cannot be read (No such file")


def test_published_facts():
    # the fixture replaces them, so they are looked up in the source
    source = Path(affnist.__file__).read_text()
    (counts,) = re.findall(r"TEST_DIGITS = \(([\d, ]+)\)", source)
    assert sum(map(int, counts.split(","))) == 10_000
    assert "2cde38ec83ee2ebfd7b901f8be5a09efb17a1bda04771f9b4905751eb945c01a" in source


# --- the download


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda path: path.read_bytes(), None),
        (lambda path: path.read_bytes()[:-1], "does not match the known hash"),
        (lambda path: b"", "does not match the known hash"),
        (lambda path: OSError("no network in tests"), "no network in tests"),
    ],
    ids=["whole", "truncated", "empty", "no network"],
)
def test_download_is_complete_or_leaves_nothing(written, tmp_path, monkeypatch, answer, expected):
    asked = answer_downloads(monkeypatch, lambda url: answer(written / url.rpartition("/")[2]))
    folder = tmp_path / "data" / "affNIST"
    problem = fetch(folder, download)
    assert asked == ["https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/test.mat.zip"]
    if expected is None:
        assert problem is None
        assert everything_below(tmp_path) == ["data", "data/affNIST", "data/affNIST/test.mat.zip"]
        np.testing.assert_array_equal(load(folder).images[:, 0].numpy(), IMAGES)
    else:
        assert expected in problem
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
